"""Run the hello job: start ranks where a training's would be, and compare what they find with the plan.

Needs no torch.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from urllib.request import Request, urlopen

from pydantic import BaseModel, ConfigDict, Field

from scalewise.config.shape import Shape, ShapeText, count_devices
from scalewise.execution.lock import MACHINE_WAIT_SECONDS, machine_lock
from scalewise.execution.log import say
from scalewise.execution.rank_files import ATTEMPT, RankFiles
from scalewise.execution.reason import failure_reason
from scalewise.execution.start import command_for, rank_setup_for
from scalewise.execution.watchdog import RankGroup, supervise
from scalewise.plan.formatting import format_3sig
from scalewise.plan.launch import SiteLaunch
from scalewise.plan.plan_file import SitePlan
from scalewise.records import write_json, write_text
from scalewise.site.preflight import Finding, Findings, Preflight, bad, ok, unknown

RANK_REPORT = "rank_report.json"
"""The file of all findings, which rank 0 leaves in the attempt's folder."""

INTERNET, INTERNET_SECONDS = "https://pypi.org/simple/", 5
"""A public address, and how long a compute node may take to reach it."""

DATASETS = "datasets.txt"
"""The file of that folder that names the files to look for, one a line."""


class TimedAllReduce(BaseModel):
    """The time of an all-reduce.

    Args:
        shape: Nodes and devices of each over which was reduced.
        bytes: Size of the message on each rank.
        seconds: Time on the slowest rank.
    """

    model_config = ConfigDict(frozen=True)

    shape: ShapeText
    bytes: int
    seconds: float

    def __str__(self) -> str:
        devices = count_devices(self.shape.world_size)
        where = "in a node" if self.shape.nodes == 1 else f"on {self.shape.nodes} nodes"
        # the slowest link of a ring carries each byte so often: nccl-tests call this the bus bandwidth
        rate = 2 * (1 - 1 / self.shape.world_size) * self.bytes / self.seconds
        return (
            f"all-reduce of {self.bytes / 1e6:.1f} MB over {devices} {where}: "
            f"{format_3sig(1e3 * self.seconds)} ms, {format_3sig(rate / 1e9)} GB/s"
        )


class RankPreflight(BaseModel):
    """Findings of one rank.

    Args:
        cpus: CPUs that the rank may run on.
        total: Sum of rank + 1 over all ranks, by all-reduce on the rank's device.
        all_reduces: All-reduces that were timed, the same on every rank.
        datasets: Bytes of each prepared file on the rank's node; None if it is missing there.
        interface: The network interface over which the ranks met.
        interfaces: All those of the rank's node with an IPv4 address, but loopback.
    """

    model_config = ConfigDict(frozen=True)

    rank: int
    local_rank: int
    host: str
    device: str
    visible_devices: str
    cpus: str
    threads: int
    python: str
    torch: str
    total: float
    all_reduces: list[TimedAllReduce] = Field(default_factory=list)
    datasets: dict[str, int | None]
    interface: str = ""
    interfaces: list[str] = Field(default_factory=list)


class PreflightReport(BaseModel):
    """Findings of all ranks, in rank order."""

    model_config = ConfigDict(frozen=True)

    ranks: list[RankPreflight]


def run_hello_job(site_plan: SitePlan, log: Path, output: Path) -> None:
    """Start the ranks of the largest shape on a site or partition, and write what they found.

    Without Slurm it waits until no other job of Scalewise uses the machine.

    Args:
        site_plan: The site's part of the plan.
        log: Receives what the ranks print.
        output: Receives ``Findings``, also if the ranks ended without a result.

    Raises:
        LockError: Another job has used this machine for a day.
    """
    preflight, limits = Preflight.model_validate(site_plan["preflight"]), site_plan["hello"]["limits"]
    shape, site = preflight.shape, SiteLaunch.model_validate(site_plan["launch"])
    # hello@a100.json: jobs of several partitions may run at once
    rank_files = RankFiles(output.parent / output.stem.replace("hello", ATTEMPT))
    visible = [Path(path).resolve().parent for path in preflight.datasets]
    launch = command_for(preflight, site, rank_files, visible)
    rank_files.begin(rank_setup_for(preflight, site, limits["timeout_seconds"]))
    write_text(rank_files.folder / DATASETS, "\n".join(preflight.datasets))
    rank_group = RankGroup(
        label="hello",
        rank_files=rank_files,
        launch=launch,
        world_size=shape.world_size,
        log=log,
        limit_seconds=limits["limit_seconds"],
        fix="Look for what is slow in the log: imports, the container, the network.",
    )
    # partitions of one machine take turns, and no training is measured while ranks start next to it
    machine = nullcontext() if site.slurm else machine_lock(MACHINE_WAIT_SECONDS, say)
    with machine:
        ended = supervise(rank_group)
    report = rank_files.folder / RANK_REPORT
    if ended.code == 0 and report.exists():
        rank_reports = PreflightReport.model_validate_json(report.read_text(encoding="utf-8"))
        findings = list(check_report(rank_reports, preflight, file_sizes(preflight.datasets)))
    else:
        why = failure_reason(rank_group, ended)
        fix = f"The ranks' output is in {log}."
        findings = [bad(f"the hello job over {shape} ended without a result: {why}", fix)]
    if site.container is not None and ended.code == 0:
        findings.append(ok(f"container {site.container.image}"))
    if "internet" in preflight.not_found:
        findings.append(check_internet())
    rank_files.end()
    write_json(output, Findings(findings=findings))


def check_internet(address: str = INTERNET) -> Finding:
    """Try whether this compute node reaches the internet, by the proxy of its environment if there is one."""
    try:
        # the address is a constant of this module
        with urlopen(Request(address, method="HEAD"), timeout=INTERNET_SECONDS):  # noqa: S310
            return ok(f"internet: {socket.gethostname()} reaches {address}")
    except (OSError, ValueError) as error:
        return unknown(
            f"internet: {socket.gethostname()} does not reach {address} ({error}). A program that downloads "
            "while it trains will fail: download before, by its prepare command"
        )


def file_sizes(paths: list[str]) -> dict[str, int | None]:
    """Return the bytes of each file; None if it is missing on this node."""
    return {path: Path(path).stat().st_size if Path(path).exists() else None for path in paths}


def check_report(
    report: PreflightReport, preflight: Preflight, here: Mapping[str, int | None]
) -> Iterator[Finding]:
    """Compare what the ranks found with what was planned, and with the files' sizes on the starting node."""
    ranks, shape = report.ranks, preflight.shape
    for reported in ranks:
        gpus = f" of CUDA_VISIBLE_DEVICES={reported.visible_devices}" if reported.visible_devices else ""
        yield ok(
            f"rank {reported.rank} on {reported.host}: local rank {reported.local_rank}, "
            f"{reported.device}{gpus}, CPUs {reported.cpus}, {reported.threads} threads",
        )
    yield from _check_places(ranks, shape)
    models = sorted({reported.device for reported in ranks})
    if len(models) > 1:
        fix = (
            "Describe each kind as one of `partitions` in the site file: with gpu_type or constraint, or on "
            "one machine with visible_devices."
        )
        yield bad(
            f"ranks have different devices, whose runs cannot be compared: {'; '.join(models)}", fix=fix
        )
    expected = shape.world_size * (shape.world_size + 1) / 2
    wrong = [reported.rank for reported in ranks if reported.total != expected]
    if wrong:
        fix = "Set network_interface in the site file, and ask the site which one is right."
        yield bad(f"the all-reduce gave ranks {wrong} another sum than {expected:g}", fix=fix)
    else:
        yield ok(f"all-reduce over {shape.world_size} ranks")
    for timed in ranks[0].all_reduces if ranks else ():
        yield ok(str(timed))
    if shape.nodes > 1 and ranks and ranks[0].interface:
        first = ranks[0]
        yield ok(f"network_interface {first.interface}; {first.host} has {', '.join(first.interfaces)}")
    environments = {f"{reported.python} with torch {reported.torch}" for reported in ranks}
    if len(environments) == 1:
        yield ok(f"every rank runs {environments.pop()}")
    else:
        fix = "Set python in the site file, or correct prelude."
        yield bad(f"ranks run different programs: {'; '.join(sorted(environments))}", fix=fix)
    yield from _check_datasets(ranks, here)


def _check_places(ranks: list[RankPreflight], shape: Shape) -> Iterator[Finding]:
    locals_of = defaultdict(list)
    for reported in ranks:
        locals_of[reported.host].append(reported.local_rank)
    found = {host: sorted(places) for host, places in locals_of.items()}
    planned = list(range(shape.devices_per_node))
    if (
        len(ranks) == shape.world_size
        and len(found) == shape.nodes
        and all(p == planned for p in found.values())
    ):
        yield ok(f"{shape.devices_per_node} ranks on each of {', '.join(found)}")
    else:
        shown = "; ".join(f"{host}: local ranks {places}" for host, places in found.items())
        yield bad(
            f"planned were {shape} ranks, found {shown}",
            "Look for options in the site's extra and srun_extra that place tasks.",
        )


def _check_datasets(ranks: list[RankPreflight], here: Mapping[str, int | None]) -> Iterator[Finding]:
    for path, size in here.items():
        hosts = sorted({reported.host for reported in ranks if reported.datasets.get(path) != size})
        if size is None:
            yield bad(f"{path} is missing", fix="Run snakemake once more.")
        elif hosts:
            fix = "Work in a folder that all nodes share, and bind it if there is a container."
            yield bad(f"{path} is not the same seen from {', '.join(hosts)}", fix)
        else:
            yield ok(f"{path}: {size:,} bytes on every node")
