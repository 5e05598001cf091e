"""Run the preflight: check the site's facts, start the ranks of the largest run once, and judge their report.

Needs no torch; the ranks run ``hello.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalewise.config.shape import count_devices
from scalewise.execution.lock import MACHINE_WAIT_SECONDS, machine_lock
from scalewise.execution.run_folder import printable
from scalewise.execution.start import SCRIPTS, RankProcesses
from scalewise.plan.formatting import format_3sig
from scalewise.plan.launch import build_launch
from scalewise.plan.plan_file import Plan
from scalewise.site.hello_job import HELLO_MINUTES, follow, send
from scalewise.site.preflight import Finding, Preflight, bad, check_site, ok, unknown
from scalewise.snakemake_adapter import status_query

SHARE_EXPECTED = 0.25
"""A smaller part of what the hardware promises is worth a look."""
HIDDEN_FROM_SRUN = re.compile(r"SRUN_|SBATCH_|SLURM_(?!JOB_?ID$|CLUSTER_NAME$|SUBMIT_(DIR|HOST)$)")
REPORT_SECONDS = 60
"""A shared file system may show a file so long after it was written."""
PLACES_TASKS = "Look for options in slurm.extra that place tasks or bind CPUs."


Rank = Mapping[str, Any]
"""The report of one rank of ``hello.py``, as JSON."""


def run_preflight(plan: Plan, plan_path: str, folder: Path, status: str = "squeue") -> bool:
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
    is_ok = True

    def show(title: str, findings: Iterator[Finding]) -> None:
        nonlocal is_ok
        if title:
            print(title)
        for finding in findings:
            print(finding)
            is_ok = is_ok and finding.state != "bad"

    for partition in plan["sites"]:
        title = f"Partition {partition} of the site file:" if partition else ""
        show(title, check_site(Preflight.of(plan, partition)))
    if not is_ok:
        print("Nothing was sent to the cluster. Correct the site file and try again.")
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for partition in plan["sites"]:
        title = f"Partition {partition}, the hello job:" if partition else ""
        show(title, say_hello(Preflight.of(plan, partition), plan_path, folder.absolute(), status))
    print("All is ok: the study can start." if is_ok else "Something is not ok: see above.")
    return is_ok


def say_hello(
    preflight: Preflight, plan_path: str, folder: Path, status: str = "squeue"
) -> Iterator[Finding]:
    """Start the ranks of the largest run where a training would start, and yield the findings.

    Args:
        preflight: The plan.
        plan_path: The plan's file.
        folder: Receives the report and the log.
        status: Command by which the executor plugin queries its jobs.
    """
    partition = preflight.site.partition
    name = f"hello{'@' if partition else ''}{partition}"
    report, log = folder / f"{name}.report.json", folder / f"{name}.log"
    for path in (report, log):
        path.unlink(missing_ok=True)
    if preflight.slurm is None:
        # no training is measured while ranks start next to it
        with machine_lock(MACHINE_WAIT_SECONDS, _note):
            end = f"exit code {run_hello_ranks(preflight, report, log)}"
    else:
        words = [sys.executable, str(SCRIPTS / "cli.py"), "--plan", plan_path, "hello"]
        words += ["--log", str(log), "--output", str(report), "--partition", partition]
        run_id = str(uuid.uuid4())
        job = send(preflight.options, shlex.join(words), folder / f"{name}.slurm.log", run_id)
        if not job.ok:
            yield bad(f"Slurm refuses the hello job: {job.error}", "Correct the site file.")
            return
        state = yield from follow(job.text, status_query(status, run_id))
        if not state:
            return
        end = f"job {job.text} {state}"
    yield from judge(report, log, preflight, end)


def run_hello_ranks(preflight: Preflight, report: Path, log: Path) -> int:
    """Start ``hello.py`` on each device of the largest run, by srun or directly; return the exit code.

    Args:
        preflight: The plan.
        report: Receives the ranks' report.
        log: Receives the output of the ranks.
    """
    site = preflight.site
    ranks = preflight.run.model_copy(update={"launcher": "srun" if site.slurm else "popen"})
    words = [str(SCRIPTS / "hello.py"), str(report), f"--accelerator={site.accelerator}"]
    if site.facts.network_interface is not None:
        words.append(f"--interface={site.facts.network_interface}")
    words += [f"--dataset={path}" for path in preflight.datasets]
    folders = [SCRIPTS, report.parent, *(Path(path).resolve().parent for path in preflight.datasets)]
    launch = build_launch(ranks, site, words, folders)
    rendezvous = report.with_suffix("")
    shutil.rmtree(rendezvous, ignore_errors=True)
    rendezvous.mkdir()
    if site.slurm:
        # as the executor plugin does in a run's job: srun gets its shape from its options only
        for name in filter(HIDDEN_FROM_SRUN.match, list(os.environ)):
            del os.environ[name]
    with log.open("w", encoding="utf-8") as output:
        processes = RankProcesses(launch, output)
        try:
            code = processes.wait(60 * HELLO_MINUTES)
            if code is None:
                _note(f"the ranks have not ended after {HELLO_MINUTES} minutes, and are killed")
        finally:
            ended = processes.end(10)
    shutil.rmtree(rendezvous, ignore_errors=True)
    return ended if code is None else code


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- what the report says


def judge(report: Path, log: Path, preflight: Preflight, end: str) -> Iterator[Finding]:
    """Compare the ranks' report with the plan; without a report, quote the first error in their output.

    Args:
        report: The ranks' report, which may arrive late.
        log: The ranks' output.
        preflight: The plan.
        end: The end of the ranks or of their job.
    """
    deadline = time.monotonic() + (0 if preflight.slurm is None else REPORT_SECONDS)
    while not report.exists() and time.monotonic() < deadline:
        time.sleep(1)
    if report.exists():
        yield from check_report(json.loads(report.read_text(encoding="utf-8")), preflight)
        return
    yield bad(
        f"the hello job over {preflight.shape} ended without a report ({end}): {_first_error(log)}",
        f"The output is in {log}{'' if preflight.slurm is None else f' and {log.stem}.slurm.log'}.",
    )


def _first_error(log: Path) -> str:
    """Return the first error in the ranks' output, or else its last line; without any, that of their job."""
    lines: list[str] = []
    for file in (log, log.with_suffix(".slurm.log")):
        if not lines and file.exists():
            text = file.read_text(encoding="utf-8", errors="replace")
            lines = [printable(line.strip()) for line in text.splitlines() if line.strip()]
    # a traceback ends with a line that begins with the exception; that of a peer says only that another left
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?\w*(Error|Exception)\b", line)]
    return [*errors, *lines[-1:], "there is no output"][0]


def check_report(report: Mapping[str, Any], preflight: Preflight) -> Iterator[Finding]:
    """Compare the report of ``hello.py`` with the plan."""
    ranks, shape = report["ranks"], preflight.shape
    for rank in ranks:
        yield ok(
            f"rank {rank['rank']} on {rank['host']}: {rank['device']} {rank['gpu']}".rstrip()
            + f", {rank['cpus']} CPUs"
        )
    hosts = defaultdict(list)
    for rank in ranks:
        hosts[rank["host"]].append(rank["local_rank"])
    planned = list(range(shape.devices_per_node))
    if len(hosts) == shape.nodes and all(sorted(places) == planned for places in hosts.values()):
        yield ok(f"{shape.devices_per_node} ranks on each of {', '.join(hosts)}")
    else:
        placed = "; ".join(f"{host}: local ranks {sorted(places)}" for host, places in hosts.items())
        yield bad(f"planned were {shape} ranks, found {placed}", PLACES_TASKS)
    yield from _check_devices(ranks, preflight.run.settings.cpus_per_device)
    expected = shape.world_size * (shape.world_size + 1) / 2
    if wrong := [rank["rank"] for rank in ranks if rank["total"] != expected]:
        fix = "Set network_interface in the site file, and ask the site which one is right."
        yield bad(f"the all-reduce gave ranks {wrong} another sum than {expected:g}", fix)
    else:
        yield ok(f"all-reduce over {shape.world_size} ranks")
    yield from map(_check_rate, report["all_reduces"])
    if report["interface"]:
        yield ok(f"network_interface {report['interface']}")
    environments = sorted({f"{rank['python']} with torch {rank['torch']}" for rank in ranks})
    if len(environments) == 1:
        yield ok(f"every rank runs {environments[0]}")
    else:
        fix = "Set python in the site file, or correct prelude."
        yield bad(f"ranks run different programs: {'; '.join(environments)}", fix)
    for path in preflight.datasets:
        sizes = {rank["host"]: rank["datasets"].get(path) for rank in ranks}
        texts = {host: "missing" if size is None else f"{size:,} bytes" for host, size in sizes.items()}
        if len(set(sizes.values())) == 1 and None not in sizes.values():
            yield ok(f"{path}: {next(iter(texts.values()))} on every node")
        else:
            fix = "Work in a folder that all nodes share, and bind it if there is a container."
            seen = ", ".join(f"{text} on {host}" for host, text in texts.items())
            yield bad(f"{path} is not the same on every node: {seen}", fix)


def _check_devices(ranks: Sequence[Rank], cpus_per_device: int) -> Iterator[Finding]:
    if len(models := sorted({rank["device"] for rank in ranks})) > 1:
        fix = 'Name the type in gpu_type, or a feature as slurm.extra: ["--constraint=FEATURE"].'
        yield bad(f"ranks have different devices, whose runs cannot be compared: {'; '.join(models)}", fix)
    for (host, gpu), number in Counter((rank["host"], rank["gpu"]) for rank in ranks if rank["gpu"]).items():
        if number > 1:
            yield bad(f"{number} ranks on {host} share one GPU ({gpu})", "Correct devices_per_node.")
    if few := next((rank for rank in ranks if rank["cpus"] < cpus_per_device), None):
        text = f"rank {few['rank']} on {few['host']} has {few['cpus']} of its {cpus_per_device} CPUs"
        yield bad(text, PLACES_TASKS)


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
