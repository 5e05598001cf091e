"""Public training scripts, unedited, measured through the whole pipeline on CPUs.

Each of public_scripts.yaml is taken from GitHub at its commit and given made-up data. Scalewise measures it
as a user's program. Compared are the samples of a step and what its arguments say, and our step times and
those of its own log. The scripts' packages have to be installed next to Scalewise's.

Where GitHub is not reached, ``git config --global url.FOLDER/.insteadOf https://github.com/`` takes the
repositories from FOLDER/OWNER/NAME.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from scalewise.records import RunRecord, read_failure, read_run

from .measure import ROOT, Row

SCRIPTS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("public_scripts.yaml").read_text(encoding="utf-8")
)
SMALL = {"SCRIPTS": {"mnist": SCRIPTS["mnist"]}}
MOST_DIFFERENCE = 0.01
"""Of our time from the script's own for the same steps."""
ENOUGH_SECONDS = 0.2
"""Own logs are rounded: less of them is no measure of one percent."""
SITE = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 2}
EXPERIMENT = {
    "scaling": "weak",
    "devices": [1],
    "steps": 40,
    "warmup_steps": 10,
    "repeats": 1,
    "runtime_minutes": 15,
}
"""Keys that all experiments have, if they do not say otherwise."""
LIMIT_SECONDS = 1800


def rows() -> list[Row]:
    """Measure each script."""
    table = []
    for name, script in SCRIPTS.items():
        print(f"  {name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="own-scripts-") as place:
            table.append(row(name, script, Path(place)))
    return table


def row(name: str, script: dict[str, Any], place: Path) -> Row:
    """Measure one script."""
    what = f"{script['repository']}: {name}"
    if reason := check_out(script, place):
        return Row(what, f"not run: {reason}")
    record, log = measure(name, script, place / script.get("folder", "."))
    source = script.get("samples_from", "loader")
    target = "samples equal" + (f", time within {MOST_DIFFERENCE:.0%}" if "log" in script else "")
    if isinstance(record, str):
        return Row(what, f"not measured: {record}", target=target, met=False)
    assert record.measurements is not None
    assert record.measurements.program is not None
    found = record.measurements.program
    counted = [window for window in record.measurements.windows if not window.warmup]
    steps = sum(window.steps for window in counted)
    samples = sum(window.samples for window in counted) / steps
    difference, compared = compare_times(script, record, log)
    return Row(
        what,
        "; ".join(
            [f"{steps} steps of {samples:g} samples by {found.samples_from}", *found.notes, *found.cautions]
        ),
        f"{script['samples']} samples by {source}; {compared}",
        "" if difference is None else f"{difference:+.2%}",
        n=1,
        target=target,
        met=samples == script["samples"]
        and found.samples_from == source
        and abs(difference or 0.0) <= MOST_DIFFERENCE,
    )


def check_out(script: dict[str, Any], place: Path) -> str:
    """Fetch the script's repository; return the reason if it cannot be had."""
    address = f"https://github.com/{script['repository']}"
    for words in (["init"], ["fetch", "--depth=1", address, script["commit"]], ["checkout", "FETCH_HEAD"]):
        git = ["git", "-C", str(place), *words, "--quiet"]
        environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
        done = subprocess.run(git, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{address}: {' '.join(done.stderr.split())}"
    return ""


def measure(name: str, script: dict[str, Any], folder: Path) -> tuple[RunRecord | str, str]:
    """Run the experiment in the script's folder, as its user would.

    Returns:
        Its record, or the reason that there are no figures; and what it printed.
    """
    experiment = EXPERIMENT | {"title": name} | script["experiment"]
    if "data" in script:
        experiment["prepare"] = [str(ROOT / "benchmarks" / "public_data.py"), script["data"]]
    (folder / "study.yaml").write_text(yaml.safe_dump({"experiments": {name: experiment}}))
    (folder / "site.yaml").write_text(yaml.safe_dump(SITE))
    run = Path("results") / name / "runs" / f"d{experiment['devices'][0]}.r1"
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile")]
    command += ["--cores", "all", "--scheduler", "greedy", "--configfile", "study.yaml"]
    command += ["--config", "site=site.yaml", "--", str(run / "record.json")]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    log = folder / run / "train.log"
    printed = log.read_text(errors="replace") if log.exists() else ""
    if (folder / run / "record.json").exists():
        record = read_run(folder / run)
        return (record if record.outcome == "completed" else record.reason), printed
    failure = read_failure(folder / run)
    return (failure.reason if failure is not None else done.stdout[-1500:]), printed


def compare_times(script: dict[str, Any], record: RunRecord, log: str) -> tuple[float | None, str]:
    """Compare our time of the windows of which the script has printed every step.

    Returns:
        The difference from the script's own time, None if it is unknown; and that time, or the reason.
    """
    if "log" not in script:
        return None, "it logs no step times"
    lines = re.finditer(script["log"], log, re.MULTILINE)
    units = {"s": 1.0, "ms": 1e-3}
    own = [float(text) * units[unit] for line in lines for unit, text in line.groupdict().items()]
    assert record.measurements is not None
    printed = [
        window
        for window in record.measurements.windows
        if not window.warmup and window.first_step + window.steps <= len(own)
    ]
    ours, steps = (sum(getattr(window, name) for window in printed) for name in ("seconds", "steps"))
    theirs = sum(sum(own[each.first_step : each.first_step + each.steps]) for each in printed)
    if theirs < ENOUGH_SECONDS:
        return None, "it logs too few steps"
    return ours / theirs - 1, f"its log: {1e3 * theirs / steps:.2f} ms a step (n = {steps})"
