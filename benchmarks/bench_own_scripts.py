"""Public training scripts, unedited, measured through the whole pipeline on CPUs.

Each of public_scripts.py is taken from GitHub at its commit, or from a folder of repositories, and given
made-up data. Scalewise measures it as a user's program. Compared are the samples of a step and what its
arguments say, and its own log of step times and ours of the same steps.

    python benchmarks/run.py own-scripts [--repositories FOLDER] [--python INTERPRETER] [--only NAME ...]

FOLDER holds git repositories or checkouts named owner+name, for machines that do not reach GitHub;
INTERPRETER is one that has the scripts' packages. A script whose packages are missing is left out, and its
row says so.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scalewise.records import ProgramMeasurements, RunRecord, read_failure, read_run

from .measure import Row
from .public_scripts import SCRIPTS, PublicScript

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "public_data.py"
WITHIN = 0.01
"""Of the script's own time for the same steps."""
ENOUGH_SECONDS = 0.2
"""Own logs are rounded: less of them is no measure of one percent."""
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
SITE = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 2}


class FetchError(Exception):
    """A repository that cannot be had; the message names it."""


def rows(repositories: Path | None = None, python: Path | None = None, only: Sequence[str] = ()) -> list[Row]:
    """A row for each public script.

    Args:
        repositories: Folder of git repositories named owner+name; without one, GitHub is asked.
        python: Interpreter that has the scripts' packages; without one, that of Scalewise.
        only: Names of the scripts to run; without any, all.
    """
    interpreter = str(python or sys.executable)
    if unknown := set(only) - {script.name for script in SCRIPTS}:
        raise SystemExit(f"no script named {', '.join(sorted(unknown))}")
    found = []
    for script in SCRIPTS:
        if only and script.name not in only:
            continue
        print(f"  {script.name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="own-scripts-") as place:
            found.append(row(script, Path(place), repositories, interpreter))
    return found


def row(script: PublicScript, place: Path, repositories: Path | None, python: str) -> Row:
    """Measure one script."""
    if missing := _missing(script, python):
        return _row(script, f"not run: {python} lacks {', '.join(missing)}")
    try:
        check_out(script, repositories, place)
    except FetchError as error:
        return _row(script, f"not run: {error}")
    folder = place / script.folder
    summary, log = measure(script, folder, python)
    if isinstance(summary, str):
        return _row(script, f"not measured: {summary}", target=_target(script), met=False)
    times = compare_times(script, summary, log)
    samples = samples_per_step(summary)
    has_source = findings(summary).samples_from == script.samples_from
    return _row(
        script,
        f"{measured_steps(summary)} steps of {samples:g} samples; {_told(summary)}",
        reference=f"{script.samples} samples by {script.samples_from}; {times.told}",
        ratio="" if times.ratio is None else f"{times.ratio - 1:+.2%}",
        target=_target(script),
        met=samples == script.samples and has_source and times.is_within,
    )


def _row(
    script: PublicScript,
    ours: str,
    reference: str = "",
    ratio: str = "",
    target: str = "",
    *,
    met: bool = True,
) -> Row:
    note = f" ({script.note})" if script.note else ""
    devices = script.keys["devices"][0]
    what = f"{script.repository} {script.folder}/{script.program.split()[-1]} on {devices}{note}"
    return Row(what=what, ours=ours, reference=reference, ratio=ratio, n=1, target=target, met=met)


def _target(script: PublicScript) -> str:
    return "samples equal" + (f", time within {WITHIN:.0%}" if script.times else "")


def _missing(script: PublicScript, python: str) -> list[str]:
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    done = subprocess.run([python, "-c", code, *script.packages], capture_output=True, text=True, check=True)
    return done.stdout.split()


# ---- the repository


def check_out(script: PublicScript, repositories: Path | None, place: Path) -> None:
    """Write the script's parts of its repository into a folder, without what git knows of it."""
    git = _repository(script, repositories)
    archive = ["git", "-C", str(git), "archive", "--format=tar", script.commit, "--", *script.parts]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        raise FetchError(f"{git} lacks {script.commit}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(place, filter="data")


def _repository(script: PublicScript, repositories: Path | None) -> Path:
    name = script.repository.replace("/", "+")
    if repositories is not None:
        for path in (repositories / name / "repo", repositories / name):
            if path.is_dir():
                return path
        raise FetchError(f"{repositories} has no folder {name}")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "scalewise-own-scripts" / name
    address = f"https://github.com/{script.repository}"
    commands = [["init", "--quiet", "--bare"], ["fetch", "--quiet", "--depth=1", address, script.commit]]
    if not cache.is_dir():
        cache.mkdir(parents=True)
        for command in commands:
            done = subprocess.run(["git", "-C", str(cache), *command], capture_output=True, check=False)
            if done.returncode:
                shutil.rmtree(cache)
                raise FetchError(f"{address} did not answer: {done.stderr.decode().strip()}")
    return cache


# ---- with Scalewise


def experiment(script: PublicScript, python: str) -> dict[str, object]:
    """The experiment that a user would write for the script."""
    keys: dict[str, object] = {
        "title": script.name,
        "program": script.program,
        "arguments": list(script.arguments),
        "environment": dict(script.environment),
        "python": python,
        "steps": script.steps,
        "warmup_steps": script.warmup_steps,
        "repeats": 1,
        "runtime_minutes": 15,
    }
    if script.data:
        keys["prepare"] = [str(DATA), script.data]
    return {key: value for key, value in (keys | dict(script.keys)).items() if value not in ({}, [])}


def measure(script: PublicScript, folder: Path, python: str) -> tuple[RunRecord | str, str]:
    """Run the experiment in the script's folder, as its user would.

    Returns:
        Its record, or why there are no figures; and what it printed.
    """
    (folder / "study.yaml").write_text(
        yaml.safe_dump({"experiments": {script.name: experiment(script, python)}})
    )
    (folder / "site.yaml").write_text(yaml.safe_dump(SITE))
    snakefile = ROOT / "workflow" / "Snakefile"
    run = Path("results") / script.name / "runs" / f"d{script.keys['devices'][0]}.r1"
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile), "--cores", "all"]
    command += ["--scheduler", "greedy", "--configfile", "study.yaml", "--config", "site=site.yaml"]
    done = subprocess.run(
        [*command, "--", str(run / "record.json")],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = folder / run / "train.log"
    printed = log.read_text(errors="replace") if log.exists() else ""
    if (folder / run / "record.json").exists():
        summary = read_run(folder / run)
        return (summary if summary.outcome == "completed" else summary.reason), printed
    failure = read_failure(folder / run)
    return (failure.reason if failure is not None else done.stdout[-1500:]), printed


def measured_steps(summary: RunRecord) -> int:
    """Steps that count."""
    assert summary.measurements is not None
    return sum(window.steps for window in summary.measurements.windows if not window.warmup)


def samples_per_step(summary: RunRecord) -> float:
    """Samples of all devices in a step that counts."""
    assert summary.measurements is not None
    samples = sum(window.samples for window in summary.measurements.windows if not window.warmup)
    return samples / measured_steps(summary)


def findings(summary: RunRecord) -> ProgramMeasurements:
    """Return what is known of the script in addition to the figures of every training."""
    assert summary.measurements is not None
    assert summary.measurements.program is not None
    return summary.measurements.program


def _told(summary: RunRecord) -> str:
    measurements, program = summary.measurements, findings(summary)
    assert measurements is not None
    wait = measurements.loader_wait_fraction
    excluded = ", ".join(f"{reason} {steps}" for reason, steps in measurements.excluded_steps.items())
    told = [
        f"samples by {program.samples_from}",
        f"data wait unknown: {program.unknown['loader wait']}" if wait is None else f"data wait {wait:.1%}",
        f"evaluation off the clock {measurements.evaluation_seconds:.2f} s",
        f"excluded steps: {excluded or 'none'}",
        *program.notes,
        *program.cautions,
    ]
    return "; ".join(told)


# ---- against the script's own log


@dataclass(frozen=True)
class Times:
    """Our time of some steps over the script's own.

    Args:
        ratio: None where it cannot be said.
        told: The script's own time, or the reason that there is none.
    """

    ratio: float | None
    told: str

    @property
    def is_within(self) -> bool:
        """Whether the two agree, as far as they can be compared."""
        return self.ratio is None or abs(self.ratio - 1) <= WITHIN


def own_times(script: PublicScript, log: str) -> dict[int, float]:
    """Seconds of the steps that the script prints, by their number from 0."""
    if script.times is None:
        return {}
    return {
        int(match["step"]) // script.times.samples + script.times.shift: _seconds(match)
        for match in re.finditer(script.times.line, log, re.MULTILINE)
    }


def _seconds(match: re.Match[str]) -> float:
    known = match.groupdict()
    return float(known["ms"]) / 1e3 if "ms" in known else float(known["s"])


def compare_times(script: PublicScript, summary: RunRecord, log: str) -> Times:
    """Sum up windows of which the script has printed every step."""
    assert summary.measurements is not None
    own = own_times(script, log)
    ours = theirs = 0.0
    steps = 0
    for window in summary.measurements.windows:
        numbers = range(window.first_step, window.first_step + window.steps)
        if not window.warmup and all(number in own for number in numbers):
            ours += window.seconds
            theirs += sum(own[number] for number in numbers)
            steps += window.steps
    if theirs < ENOUGH_SECONDS:
        reason = "it logs no times" if script.times is None else "it logs single steps alone"
        return Times(None, reason)
    return Times(ours / theirs, f"its log: {1e3 * theirs / steps:.2f} ms a step (n = {steps})")
