"""Let the program ignore one key of the configuration, or one fault, at a time: some test must fail.

    export PYTHONPATH=workflow/scripts
    python -m tests.mutants                                  all of them: hours on two cores
    python -m tests.mutants Settings.momentum "time limit"   some of them

Each mutant is a copy of the last commit with one change, for which the tests run that name the key, until one
fails. At first what trains and analyses gets a key's default, and plan and checks read it as ever; where no
test notices, the plan ignores it too, then the checks, and at last the configuration itself. Exit status 1
where still no test notices.
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

from tests.paths import ROOT

from scalewise.config.experiment import (
    Budget,
    DecisionRule,
    Devices,
    ExperimentKeys,
    Repeats,
    Target,
)
from scalewise.config.program import Metric, ProgramSettings
from scalewise.config.settings import Settings, StrictModel
from scalewise.config.site import Container, SiteFile
from scalewise.config.slurm import Slurm

SCRIPTS = Path("workflow/scripts/scalewise")

MODELS: tuple[type[StrictModel], ...] = (
    *(Settings, ProgramSettings, Metric, ExperimentKeys, Target, DecisionRule, Repeats),
    *(Devices, Budget, SiteFile, Container, Slurm),
)

TESTS = ("tests", "test_", "conftest")
CONFIG = (*TESTS, "pydantic", "scalewise.config")
READERS = ((*TESTS, "pydantic", "scalewise.plan"), (*CONFIG, "scalewise.plan.checks"), CONFIG)
"""Modules that read a key as it stands, while the others get its default: fewer from try to try.

A test that reads the key back from the configuration shows nothing of the program.
"""

FOLDERS = ("unit", "reliability", "workflow", "distributed", "slurm", "browser")
"""Folders of the tests, the fastest first."""

STRICT = """\
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, defer_build=True, use_attribute_docstrings=True
    )
"""
IGNORED = """
    def __getattribute__(self, name: str) -> Any:
        import sys

        value = super().__getattribute__(name)
        if name != "{key}" or "{model}" not in [each.__name__ for each in type(self).__mro__]:
            return value
        reader = sys._getframe(1).f_globals["__name__"]
        if reader.startswith({readers}) and not reader.endswith(".config.site"):
            return value
        return type(self).model_fields[name].get_default(call_default_factory=True)
"""
NEVER_SET = """
    def model_post_init(self, context: Any) -> None:
        if "{model}" in [each.__name__ for each in type(self).__mro__] and "{key}" in self.__dict__:
            self.__dict__["{key}"] = type(self).model_fields["{key}"].get_default(call_default_factory=True)
"""
"""For keys that the configuration itself reads, or writes on as JSON."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        name: of the key or of the fault that is ignored.
        file: below the package.
        text: stands there once.
        changes: take its place, one after the other until a test notices.
        word: tests whose files have it, or what they import, are run.
    """

    name: str
    file: str
    text: str
    changes: Sequence[str]
    word: str


def ignored_keys() -> Iterator[Mutant]:
    """Yield a mutant for each key that has a default: one without cannot be left out of a configuration."""
    for model in MODELS:
        for key, field in model.model_fields.items():
            if not field.is_required() and key in model.__annotations__:
                changes = [
                    STRICT + IGNORED.format(key=key, model=model.__name__, readers=readers)
                    for readers in READERS
                ]
                changes.append(STRICT + NEVER_SET.format(key=key, model=model.__name__))
                yield Mutant(f"{model.__name__}.{key}", "config/settings.py", STRICT, changes, key)


def missed_faults() -> Iterator[Mutant]:
    """Yield a mutant for each reason for which the watchdog ends ranks."""
    for name, text, changed in (
        ("signal", "        if signals:\n            return", "        if False:\n            return"),
        ("time limit", "if self._now > self._group.limit_seconds:", "if False:"),
        ("failed rank", "if self._failed_at is not None and self._now", "if False and self._now"),
        (
            "no step",
            "if since is not None and self._now",
            'if since is not None and cause != "no step" and self._now',
        ),
        ("no group", "self._waiting_since = self._now", "self._waiting_since = None"),
        ("no start", "None if has_started else 0.0", "None"),
        ("second signal", "return cause if signals > before or self._now", "return cause if self._now"),
        ("unheeded stop", " or self._now - since >= STOP_SECONDS", ""),
        ("Slurm's warning", "if signal.SIGUSR1 in self._received and", "if False and"),
    ):
        yield Mutant(name, "execution/watchdog.py", text, [changed], "[Ww]atchdog")


def tests_naming(word: str) -> list[str]:
    """Return the test files that have a word, or import or read a file that has it; the fastest first."""
    named = re.compile(rf"(?<![A-Za-z]){word}(?![a-z])")
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")}
    data = [path.name for path in (ROOT / "tests").rglob("*.yaml") if named.search(path.read_text("utf-8"))]
    naming = {
        path for path, text in texts.items() if named.search(text) or any(name in text for name in data)
    }
    modules = [".".join(path.with_suffix("").parts) for path in naming if not path.name.startswith("test_")]
    importing = re.compile(rf"^(from|import) ({'|'.join(map(re.escape, modules)) or '-'})\b", re.MULTILINE)
    return [
        str(path)
        for folder in FOLDERS
        for path, text in sorted(texts.items())
        if path.parts[1] == folder
        and path.name.startswith("test_")
        and (path in naming or importing.search(text))
    ]


@contextmanager
def changed_copy(mutant: Mutant, change: str) -> Iterator[Path]:
    """Make a copy of the last commit with one of the mutant's changes.

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
            file.write_text(source.replace(mutant.text, change), encoding="utf-8")
            yield copy
        finally:
            subprocess.run([*git, "remove", "--force", str(copy)], check=True)


def noticed_by(mutant: Mutant) -> str:
    """Return the first test that fails for a mutant; empty if none does."""
    tests = tests_naming(mutant.word)
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-rfE"]
    for number, change in enumerate(mutant.changes if tests else (), start=1):
        with changed_copy(mutant, change) as copy:
            command = [sys.executable, "-m", "pytest", *options, *tests]
            done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE):
            return f"{failed[1]}, try {number}"
        if done.returncode != 0:
            raise RuntimeError(
                f"{mutant.name}: pytest ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
    return ""


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
