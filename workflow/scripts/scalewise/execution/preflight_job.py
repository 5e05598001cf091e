"""Run the preflight: check the site's facts, start the ranks of the largest run once, and judge their report.

Needs no torch; the ranks run ``hello.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scalewise.config.shape import count_devices
from scalewise.execution.lock import MACHINE_WAIT_SECONDS, machine_lock
from scalewise.execution.rank_files import ATTEMPT, RankFiles, RankSetup
from scalewise.execution.run_folder import printable
from scalewise.execution.start import SCRIPTS, RankProcesses
from scalewise.plan.allocation import sbatch_options
from scalewise.plan.formatting import format_3sig
from scalewise.plan.launch import build_launch
from scalewise.plan.plan_file import Plan
from scalewise.records import utc_now
from scalewise.site.hello_job import HELLO_MINUTES, run_job
from scalewise.site.preflight import Finding, Preflight, bad, check_site, ok, unknown
from scalewise.snakemake_adapter import status_query

REPORT, RANKS_LOG, SLURM_LOG = "report.json", "ranks.log", "slurm.log"
SHARE_EXPECTED = 0.25
"""A smaller part of what the hardware promises is worth a look."""
HIDDEN_FROM_SRUN = re.compile(r"SRUN_|SBATCH_|SLURM_(?!JOB_?ID$|CLUSTER_NAME$|SUBMIT_(DIR|HOST)$)")
REPORT_SECONDS = 60
"""A shared file system may show a file so long after it was written."""
MEETING_SECONDS = 120
"""A rank waits this long for another."""
FIXES = {
    "device": 'Name the type in gpu_type, or a feature as slurm.extra: ["--constraint=FEATURE"].',
    "python": "Set python in the site file, or correct prelude.",
}
SHARED_FOLDER = "Work in a folder that all nodes share, and bind it if there is a container."


def run_preflight(plan: Plan, plan_path: str, folder: Path, status: str) -> bool:
    """Check each partition, and start its hello job if all checks are ok; return whether the study may start.

    Args:
        plan: The study's.
        plan_path: The file of the plan, which the jobs read.
        folder: Receives the reports and the logs of the jobs.
        status: Command by which the executor plugin queries its jobs.
    """
    # Snakemake ends its jobs by it, and a job of Slurm must not stay behind
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    preflights = {name: Preflight.of(plan, name) for name in plan["sites"]}
    if not show((name, check_site(each)) for name, each in preflights.items()):
        print("Nothing was sent to the cluster. Correct the site file and try again.")
        return False
    hellos = ((name, say_hello(each, plan_path, folder, status)) for name, each in preflights.items())
    is_ok = show(hellos)
    print("All is ok: the study can start." if is_ok else "Something is not ok: see above.")
    return is_ok


def show(partitions: Iterable[tuple[str, Iterator[Finding]]]) -> bool:
    """Print the findings on each partition as they come; return whether nothing has to be fixed."""
    states = set()
    for name, findings in partitions:
        if name:
            print(f"Partition {name} of the site file:")
        for finding in findings:
            print(finding)
            states.add(finding.state)
    return "NOT OK" not in states


def say_hello(preflight: Preflight, plan_path: str, folder: Path, status: str) -> Iterator[Finding]:
    """Start the ranks of the largest run where a training would start, and yield the findings."""
    partition = preflight.site.partition
    output = folder.absolute() / f"hello{'@' if partition else ''}{partition}"
    output.mkdir(parents=True, exist_ok=True)
    for file in (REPORT, RANKS_LOG, SLURM_LOG):
        (output / file).unlink(missing_ok=True)
    if preflight.site.slurm:
        words = [sys.executable, str(SCRIPTS / "cli.py"), "--plan", plan_path, "hello"]
        command = shlex.join([*words, "--output", str(output), "--partition", partition])
        name, options = str(uuid.uuid4()), sbatch_options(next(iter(preflight.requests.values())))
        end = yield from run_job(options, command, output / SLURM_LOG, name, status_query(status, name))
        if not end:
            return
    else:
        # no training is measured while ranks start next to it
        with machine_lock(MACHINE_WAIT_SECONDS, partial(print, file=sys.stderr, flush=True)):
            end = f"exit code {run_hello_ranks(preflight, output)}"
    yield from judge(output, preflight, end)


def run_hello_ranks(preflight: Preflight, output: Path) -> int:
    """Start ``hello.py`` on each device of the largest run, by srun or directly; return the exit code.

    Args:
        preflight: The plan.
        output: The folder that receives the ranks' report and their output.
    """
    site = preflight.site
    run = preflight.run.model_copy(update={"launcher": "srun" if site.slurm else "popen"})
    rank_files = RankFiles(output / ATTEMPT)
    rank_files.begin(
        RankSetup(
            launcher=run.launcher,
            definition=run,
            dataset=None,
            folder=output,
            inputs={},
            started_at=utc_now(),
            timeout_seconds=MEETING_SECONDS,
            limit_seconds=60 * HELLO_MINUTES,
            supervisor_host=socket.gethostname(),
            network_interface=site.facts.network_interface,
        )
    )
    words = [str(SCRIPTS / "hello.py"), str(rank_files.folder), *preflight.datasets]
    visible = [SCRIPTS, output, *(Path(path).resolve().parent for path in preflight.datasets)]
    launch = build_launch(run, site, words, visible)
    if site.slurm:
        # as the executor plugin does in a run's job: srun gets its shape from its options only
        for name in filter(HIDDEN_FROM_SRUN.match, list(os.environ)):
            del os.environ[name]
    with (output / RANKS_LOG).open("w", encoding="utf-8") as log:
        processes = RankProcesses(launch, log)
        try:
            if processes.wait(60 * HELLO_MINUTES) is None:
                print(f"the ranks have not ended after {HELLO_MINUTES} minutes", file=log, flush=True)
        finally:
            code = processes.end(10)
    return code


# ---- what the report says


def judge(output: Path, preflight: Preflight, end: str) -> Iterator[Finding]:
    """Judge the ranks' report; without a report, quote the first error in their output.

    Args:
        output: The folder of the job; the report may arrive late.
        preflight: The plan.
        end: The end of the ranks or of their job.
    """
    report = output / REPORT
    deadline = time.monotonic() + (REPORT_SECONDS if preflight.site.slurm else 0)
    while not report.exists() and time.monotonic() < deadline:
        time.sleep(1)
    if report.exists():
        yield from check_report(json.loads(report.read_text(encoding="utf-8")))
    else:
        text = (
            f"the hello job over {preflight.run.shape} ended without a report ({end}): {first_error(output)}"
        )
        yield bad(text, f"The output is in {output}.")


def first_error(output: Path) -> str:
    """Return the first error in the ranks' output, or else its last line; without any, that of their job."""
    lines: list[str] = []
    for file in (output / RANKS_LOG, output / SLURM_LOG):
        if not lines and file.exists():
            text = file.read_text(encoding="utf-8", errors="replace")
            lines = [printable(line.strip()) for line in text.splitlines() if line.strip()]
    # a traceback ends with a line that begins with the exception; that of a peer says only that another left
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?\w*(Error|Exception)\b", line)]
    return [*errors, *lines[-1:], "there is no output"][0]


def check_report(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the report of ``hello.py``, whose ranks are placed and have met as planned."""
    seen: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for rank in report["ranks"]:
        yield ok(rank["text"])
        for name, value in rank["same"].items():
            seen[name][value].append(rank["host"])
    yield ok(f"all-reduce over {len(report['ranks'])} ranks")
    yield from map(_check_rate, report["all_reduces"])
    if report["interface"]:
        yield ok(f"network_interface {report['interface']}")
    for name, values in seen.items():
        if len(values) == 1 and "missing" not in values:
            yield ok(f"{name}: {next(iter(values))} on every rank")
        else:
            listed = "; ".join(
                f"{value} on {', '.join(dict.fromkeys(hosts))}" for value, hosts in values.items()
            )
            yield bad(f"{name} is not the same on every rank: {listed}", FIXES.get(name, SHARED_FOLDER))


def _check_rate(timed: Mapping[str, Any]) -> Finding:
    """Compare the mean time of an all-reduce with its hardware, if that is known."""
    # the slowest link of a ring carries each byte so often: nccl-tests call this the bus bandwidth
    rate = 2 * (1 - 1 / timed["devices"]) * timed["bytes"] / timed["seconds"]
    text = (
        f"all-reduce {timed['where']}, {count_devices(timed['devices'])}: {timed['bytes'] / 1e6:.1f} MB in "
        f"{format_3sig(1e3 * timed['seconds'])} ms, {format_3sig(rate / 1e9)} GB/s"
    )
    if not timed["promised"]:
        return ok(text)
    share = rate / timed["promised"]
    text += f", {100 * share:.0f} % of the {format_3sig(timed['promised'] / 1e9)} GB/s of {timed['hardware']}"
    if share >= SHARE_EXPECTED:
        return ok(text)
    return unknown(text, "If that is too slow, look with NCCL_DEBUG=INFO, or set network_interface.")
