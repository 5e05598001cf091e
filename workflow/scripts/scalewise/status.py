"""Show a study as it is: what is done, what runs, what waits and why, and the answer so far.

Everything comes from the newest plan, the folders of the runs and Slurm's own lists, whether snakemake
runs or not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.disturbed import DISTURBED, named_runs
from scalewise.analysis.study import parts_of
from scalewise.config.errors import UserError
from scalewise.config.shape import count_devices
from scalewise.execution.rank_files import ATTEMPT, RankFiles, probe_files
from scalewise.execution.slurm import QueuedJob, queued_runs
from scalewise.plan.formatting import cut, duration_text, format_3sig, shortened
from scalewise.plan.plan_file import Plan, runs_in_slurm
from scalewise.plan.rounds import spent_device_hours
from scalewise.redo import snakemake_works_here
from scalewise.report.proposal import analysis_of
from scalewise.site.commands import ask
from scalewise.terminal import REPORT, answer_line, failure_lines, wrapped

SACCT_SECONDS = 30.0
SACCT_DAYS = 90
"""Days of accounting that are read: of all years it takes too long on a large cluster."""
MAX_NAME = 50
"""Longest name of a point that is not cut."""
MAX_REASONS = 4
"""Lines on runs without a result of an experiment."""

Run = tuple[str, str]
"""Experiment and run."""


def status_lines(plan: Plan, results: Path, now: float) -> Iterator[str]:
    """Yield the status of a study in lines of at most 80 columns.

    Args:
        plan: The study.
        results: Folder of all experiments, below the folder where snakemake runs.
        now: Seconds since the epoch.
    """
    queue, hours, is_missing = {}, 0.0, False
    try:
        queue = queued_runs(plan)
    except UserError as error:
        yield str(error)
    for name in plan["experiments"]:
        found = analysis_of(plan, name, results)
        for part in parts_of(plan, name, results):
            hours += spent_device_hours(part.runs_folder, part.experiment.held_devices, part.partition)
        answer = found.answer
        yield from wrapped(answer_line(name, answer.verdict, answer.certainty))
        states = [_state(run, name, results, queue, now) for _, run in found.runs.iterrows()]
        is_missing |= not answer.has_ended
        yield from _rows(found.runs.assign(state=states))
        reasons = found.runs[(found.runs["outcome"] == states) & (found.runs["reason"].fillna("") != "")]
        failures = reasons[["run", "outcome", "reason"]].itertuples(index=False, name=None)
        for line in shortened([*failure_lines(failures)], MAX_REASONS, "more"):
            yield from wrapped(line, "  ")
        disturbed = found.runs[found.runs["disturbance"].fillna("") != ""]
        if len(disturbed):
            number = count_devices(len(disturbed), "disturbed run")
            yield from wrapped(f"{number}: {named_runs(disturbed)}", "  ")
    counted = spent_in_slurm(Path.cwd()) if runs_in_slurm(plan) else ""
    yield counted or f"{format_3sig(hours)} device-hours by the records of the runs."
    if is_missing and not snakemake_works_here():
        yield "Snakemake is not running here. The same command makes the missing runs."
    if (report := results / REPORT).exists():
        yield f"Report: {report}"


def _rows(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each point: runs done, and what the others do."""
    for point, group in runs.groupby(runs["run"].str.rpartition(".r")[0], sort=False):
        done = group["state"] == ""
        texts = [f"{int(done.sum())} of {len(group)} done{_rate(group[done])}"]
        texts += [f"{number} {state}" for state, number in Counter(group["state"][~done]).items()]
        yield from wrapped(f"{cut(str(point), MAX_NAME)}: {'; '.join(texts)}", "  ")


def _rate(done: pd.DataFrame) -> str:
    rates = done["throughput_samples_per_second"].dropna()
    return f", {format_3sig(float(rates.median()))} samples/s" if len(rates) else ""


def _state(
    row: pd.Series[Any], experiment: str, results: Path, queue: Mapping[Run, QueuedJob], now: float
) -> str:
    """Return what a run without a result does, or how it ended; empty for a completed run."""
    if row["outcome"] in ("completed", DISTURBED):
        return ""
    run = str(row["run"])
    folder = results / experiment / "runs" / run
    files = RankFiles(folder / ATTEMPT)
    state = "running" if files.is_training else ""
    if job := queue.get((experiment, run)):
        state = f"waiting ({job.reason})" if job.state == "PENDING" else job.state.lower()
    with suppress(OSError, ValueError):  # the run may have ended since
        if state == "running" and (progress := files.progress()):
            reported_at = max(path.stat().st_mtime for path in probe_files(files.probe, "steps"))
            state += f" ({progress}, {duration_text(now - reported_at)} ago)"
    return state or str(row["outcome"])


def spent_in_slurm(folder: Path) -> str:
    """Return a sentence on the hours that Slurm counts for a folder; empty if its accounting does not answer.

    The hours are those of GPUs, or of CPUs if the jobs have no GPUs.

    Args:
        folder: The folder in which snakemake runs.
    """
    fields = "JobIDRaw,ElapsedRaw,AllocTRES,WorkDir"
    since = f"--starttime=now-{SACCT_DAYS}days"
    answer = ask("sacct", "-X", "-n", "-P", "-D", "-o", fields, since, seconds=SACCT_SECONDS)
    seconds, jobs = Counter[str](), set()
    for line in answer.text.splitlines() if answer.ok else ():
        job, elapsed, allocated, place = (*line.split("|", 3), "", "", "")[:4]
        if place != str(folder) or not elapsed.isdecimal():
            continue
        jobs.add(job)
        for unit, name in (("GPU", "gres/gpu"), ("CPU", "cpu")):
            if match := re.search(rf"(?:^|,){name}=(\d+)", allocated):
                seconds[unit] += int(elapsed) * int(match[1])
    unit = "GPU" if seconds["GPU"] else "CPU"
    if not jobs:
        return ""
    hours = format_3sig(seconds[unit] / 3600)
    number = count_devices(len(jobs), "job")
    return f"Slurm counts {hours} {unit}-hours for {number} of the last {SACCT_DAYS} days."
