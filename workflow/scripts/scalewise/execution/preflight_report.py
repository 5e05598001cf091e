"""Findings of the hello job's ranks, judged by what the site's facts say. Needs no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from scalewise.plan.config.shape import Shape
from scalewise.plan.jobs.preflight import Line, Preflight, bad, ok

GREETINGS = "greetings.json"
"""The file of all findings, which rank 0 leaves in the attempt's folder."""

DATASETS = "datasets.txt"
"""The file of that folder that names the files to look for, one a line."""


class Greeting(BaseModel):
    """Findings of one rank.

    Args:
        cpus: CPUs that the rank may run on.
        total: Sum of rank + 1 over all ranks, by all-reduce on the rank's device.
        datasets: Bytes of each prepared file as the rank sees it; None for a file that it does not see.
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
    datasets: dict[str, int | None]


class Greetings(BaseModel):
    """Findings of all ranks, in rank order."""

    model_config = ConfigDict(frozen=True)

    ranks: list[Greeting]


def sizes(paths: list[str]) -> dict[str, int | None]:
    """Bytes of each file, None where it cannot be seen from here."""
    return {path: Path(path).stat().st_size if Path(path).exists() else None for path in paths}


def judge(greetings: Greetings, preflight: Preflight, here: Mapping[str, int | None]) -> Iterator[Line]:
    """Compare what the ranks found with what was planned, and with the files' sizes on the starting node."""
    ranks, shape = greetings.ranks, Shape.parse(preflight.shape)
    for greeting in ranks:
        gpus = f" of CUDA_VISIBLE_DEVICES={greeting.visible_devices}" if greeting.visible_devices else ""
        yield ok(
            f"rank {greeting.rank} on {greeting.host}: local rank {greeting.local_rank}, "
            f"{greeting.device}{gpus}, CPUs {greeting.cpus}, {greeting.threads} threads",
        )
    yield from _judge_places(ranks, shape)
    expected = shape.world_size * (shape.world_size + 1) / 2
    wrong = [greeting.rank for greeting in ranks if greeting.total != expected]
    if wrong:
        cure = "Set network_interface in the site file, and ask the site which one is right."
        yield bad(f"the all-reduce gave ranks {wrong} another sum than {expected:g}", cure=cure)
    else:
        yield ok(f"all-reduce over {shape.world_size} ranks")
    environments = {f"{greeting.python} with torch {greeting.torch}" for greeting in ranks}
    if len(environments) == 1:
        yield ok(f"every rank runs {environments.pop()}")
    else:
        cure = "Set python in the site file, or correct prelude."
        yield bad(f"ranks run different programs: {'; '.join(sorted(environments))}", cure=cure)
    yield from _judge_datasets(ranks, here)


def _judge_places(ranks: list[Greeting], shape: Shape) -> Iterator[Line]:
    locals_of = defaultdict(list)
    for greeting in ranks:
        locals_of[greeting.host].append(greeting.local_rank)
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


def _judge_datasets(ranks: list[Greeting], here: Mapping[str, int | None]) -> Iterator[Line]:
    for path, size in here.items():
        blind = sorted({greeting.host for greeting in ranks if greeting.datasets.get(path) != size})
        if size is None:
            yield bad(f"{path} is missing", cure="Run snakemake once more.")
        elif blind:
            cure = "Work in a folder that all nodes share, and bind it if there is a container."
            yield bad(f"{path} is not the same seen from {', '.join(blind)}", cure)
        else:
            yield ok(f"{path}: {size:,} bytes on every node")
