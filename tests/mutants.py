"""Let the program ignore one key of the configuration, or one fault, at a time: some test must fail.

    export PYTHONPATH=workflow/scripts
    python -m tests.mutants                                  all of them: hours on two cores
    python -m tests.mutants Settings.momentum "time limit"   some of them

Each mutant is a copy of the last commit with one change, for which the tests run that name the key, until one
fails. A key is checked and planned as ever, but what trains and analyses gets its default; one that only the
plan reads is ignored there. Exit status 1 where no test notices.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scalewise.plan.config.experiment import (
    Budget,
    DecisionRule,
    Devices,
    ExperimentKeys,
    Projection,
    Repeats,
    Target,
)
from scalewise.plan.config.program import Metric, ProgramSettings
from scalewise.plan.config.settings import Settings, Steps, StrictModel
from scalewise.plan.config.site import Container, Proxies, SiteFile
from scalewise.plan.config.slurm import Slurm

ROOT = Path(__file__).parents[1]
SCRIPTS = Path("workflow/scripts/scalewise")

MODELS: tuple[type[StrictModel], ...] = (
    *(Settings, Steps, ProgramSettings, Metric, ExperimentKeys, Target, DecisionRule, Repeats, Projection),
    *(Devices, Budget, SiteFile, Container, Proxies, Slurm),
)

CHECKS = ("pydantic", "scalewise.plan.config", "scalewise.plan.checks")
PLAN = ("pydantic", "scalewise.plan")
"""Modules that always read what stands in the configuration."""

FOLDERS = ("unit", "reliability", "workflow", "distributed", "slurm", "browser")
"""Folders of the tests, the fastest first."""

STRICT = '    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)\n'
IGNORED = """
    def __getattribute__(self, name: str) -> Any:
        import sys

        value = super().__getattribute__(name)
        if name != "{key}" or "{model}" not in [each.__name__ for each in type(self).__mro__]:
            return value
        reader = sys._getframe(1).f_globals["__name__"]
        if reader.startswith({trusted}) and not reader.endswith(".config.site"):
            return value
        return type(self).model_fields[name].get_default(call_default_factory=True)
"""


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        name: of the key or of the fault that is ignored.
        file: below the package.
        text: stands there once.
        changed: takes its place.
        word: tests whose files have it are run.
    """

    name: str
    file: str
    text: str
    changed: str
    word: str


def ignored_keys() -> Iterator[Mutant]:
    """Yield a mutant for each key that has a default: one without cannot be left out of a configuration."""
    for model in MODELS:
        for key, field in model.model_fields.items():
            if not field.is_required() and key in model.__annotations__:
                trusted = PLAN if is_read_outside_the_plan(key) else CHECKS
                change = STRICT + IGNORED.format(key=key, model=model.__name__, trusted=trusted)
                yield Mutant(f"{model.__name__}.{key}", "plan/config/settings.py", STRICT, change, key)


def is_read_outside_the_plan(key: str) -> bool:
    """Whether some module of another room reads an attribute of this name."""
    read = re.compile(rf"\.{key}\b(?!\()")
    return any(
        read.search(path.read_text(encoding="utf-8"))
        for path in (ROOT / SCRIPTS).rglob("*.py")
        if "plan" not in path.relative_to(ROOT / SCRIPTS).parts
    )


def missed_faults() -> Iterator[Mutant]:
    """Yield a mutant for each reason for which the watchdog ends ranks."""
    for name, text, changed in (
        (
            "signal",
            "if self._stop_signals:\n            return",
            "if False:\n            return",
        ),
        ("time limit", "if now > self._deadline:", "if False:"),
        ("end of the job", "if now > self._job_ends_at:", "if False:"),
        ("failed rank", "if self._rank_failed_at is not None and now", "if False and now"),
        ("silence", "if self._heartbeat is not None and now", "if False and now"),
        ("no start", "if now >= self._unstarted_at and not any(", "if False and not any("),
        ("second signal", "return len(self._stop_signals) > signals or now", "return now"),
        ("unheeded stop", " or now - since >= STOP_SECONDS", ""),
        ("Slurm's warning", "if signal.SIGUSR1 in self._received and", "if False and"),
    ):
        yield Mutant(name, "execution/watchdog.py", text, changed, "[Ww]atchdog")


def tests_naming(word: str) -> list[str]:
    """Return the test files that have a word, the fastest folders first."""
    named = re.compile(rf"(?<![A-Za-z]){word}(?![a-z])")
    files = [path for folder in FOLDERS for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))]
    return [str(path.relative_to(ROOT)) for path in files if named.search(path.read_text(encoding="utf-8"))]


@contextmanager
def changed_copy(mutant: Mutant) -> Iterator[Path]:
    """Make a copy of the last commit with the mutant's change.

    Raises:
        ValueError: The text that it changes is not there once.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(copy), "HEAD"], check=True)
        try:
            file = copy / SCRIPTS / mutant.file
            source = file.read_text(encoding="utf-8")
            if source.count(mutant.text) != 1:
                raise ValueError(f"{mutant.name}: {mutant.file} has not once: {mutant.text.strip()}")
            file.write_text(source.replace(mutant.text, mutant.changed), encoding="utf-8")
            yield copy
        finally:
            subprocess.run([*git, "remove", "--force", str(copy)], check=True)


def noticed_by(mutant: Mutant) -> str:
    """Return the first test that fails for a mutant; empty if none does."""
    tests = tests_naming(mutant.word)
    if not tests:
        return ""
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-rfE"]
    with changed_copy(mutant) as copy:
        command = [sys.executable, "-m", "pytest", *options, *tests]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed is None and done.returncode != 0:
        raise RuntimeError(
            f"{mutant.name}: pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    return failed[1] if failed else ""


def main(words: Sequence[str] | None = None) -> int:
    """Try mutants, and say of each which test notices it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of mutants; all if there is none")
    names = parser.parse_args(words).names
    mutants = {mutant.name: mutant for mutant in (*ignored_keys(), *missed_faults())}
    if unknown := set(names) - set(mutants):
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}; there are {', '.join(mutants)}")
    unnoticed = []
    for name in names or mutants:
        began = time.monotonic()
        test = noticed_by(mutants[name])
        unnoticed += [] if test else [name]
        print(f"{name}: {test or 'NO TEST NOTICES'} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(unnoticed)} of {len(names or mutants)} unnoticed: {', '.join(unnoticed) or '-'}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
