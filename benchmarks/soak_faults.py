"""Faults at random moments: what happens to a study on the lab cluster, when, and to whom."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from tests.slurm.lab import Lab
from tests.slurm.machines import LabError
from tests.waiting import wait_until

from scalewise.records import RecordError, read_summary

Kind = Literal[
    "rank killed",
    "rank stopped",
    "job requeued",
    "job told to stop",
    "job cancelled",
    "node dies",
    "slurmdbd away",
    "slurmctld away",
    "snakemake killed",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

DECK: tuple[Kind, ...] = (*KINDS, "rank killed", "rank killed", "job requeued", "job told to stop")
"""Shuffled and dealt again and again: each kind comes up in every round, those that cost least more often."""

SHORTEST_SECONDS = 2.0
TARGET_SECONDS = 20.0
"""For somebody to come along whom a fault can hit."""
OUTAGE_SECONDS = (3.0, 15.0)

_RANK = re.compile(r"\S*python\S* \S*/rank\.py (\S+)/attempt$")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Args:
        after_seconds: from the end of the fault before.
        kind: what.
        seed: of whom it hits and how long it lasts.
    """

    after_seconds: float
    kind: Kind
    seed: int


def schedule(seed: int, mean_seconds: float) -> Iterator[Fault]:
    """Faults without end, the same for the same seed; their moments come as those of rare accidents do.

    Args:
        seed: of everything.
        mean_seconds: between two faults.
    """
    chance = random.Random(seed)
    while True:
        for kind in chance.sample(DECK, len(DECK)):
            pause = chance.expovariate(1 / max(mean_seconds - SHORTEST_SECONDS, 0.1))
            yield Fault(SHORTEST_SECONDS + pause, kind, chance.getrandbits(32))


@dataclass(frozen=True)
class RankProcess:
    """A rank that runs.

    Args:
        pid: as seen from outside its node.
        host: its node.
        run: the run's folder, relative to that of its study.
        study: folder in which it works.
        job: Slurm's id, with the count of its restarts.
    """

    pid: int
    host: str
    run: str
    study: Path
    job: str


def rank_processes(lab: Lab) -> list[RankProcess]:
    """All ranks on all nodes."""
    found = []
    for host in lab.names:
        for pid, line in lab.processes(host).items():
            match = _RANK.fullmatch(line)
            if match is None:
                continue
            with suppress(OSError):
                study = Path(f"/proc/{pid}/cwd").readlink()
                found.append(RankProcess(pid, host, match[1], study, _job(pid)))
    return found


def _job(pid: int) -> str:
    """``12`` for the first start of Slurm's job 12, ``12+1`` for the next."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    values = dict(word.split("=", 1) for word in words if "=" in word)
    restart = values.get("SLURM_RESTART_COUNT", "0")
    job = values.get("SLURM_JOB_ID", "")
    return job if restart == "0" else f"{job}+{restart}"


def two_writers(ranks: Sequence[RankProcess]) -> list[str]:
    """A sentence for each run whose ranks, of one moment, belong to more than one start of a job."""
    jobs: dict[Path, set[str]] = {}
    for rank in ranks:
        jobs.setdefault(rank.study / rank.run, set()).add(rank.job)
    return [
        f"{run}: trained by jobs {' and '.join(sorted(found))} at a time"
        for run, found in jobs.items()
        if len(found) > 1
    ]


class Killable(Protocol):
    """A snakemake that can be killed, and starts again."""

    def kill(self) -> str | None:
        """End it at once; what was hit, or None where none runs."""


@dataclass(frozen=True)
class Provoked:
    """A fault that has come about."""

    kind: Kind
    target: str
    at: float


class Saboteur(threading.Thread):
    """Lets the faults of a schedule happen to a cluster and its studies until told to end.

    Args:
        lab: the cluster.
        snakemakes: one a study.
        faults: what happens, in order.
        log: receives a line each.
    """

    def __init__(self, lab: Lab, snakemakes: Sequence[Killable], faults: Iterator[Fault], log: Path) -> None:
        super().__init__(name="saboteur", daemon=True)
        self._lab = lab
        self._snakemakes = snakemakes
        self._faults = faults
        self._log = log
        self._over = threading.Event()
        self._began = time.monotonic()
        self.provoked: list[Provoked] = []
        self.missed: Counter[Kind] = Counter()
        self.broken: list[str] = []
        self._acts: dict[Kind, Callable[[random.Random], str | None]] = {
            "rank killed": lambda chance: self._signal_rank(chance, signal.SIGKILL),
            "rank stopped": lambda chance: self._signal_rank(chance, signal.SIGSTOP),
            "job requeued": lambda chance: self._job_command(chance, ["scontrol", "requeue"]),
            "job told to stop": lambda chance: self._job_command(
                chance, ["scancel", "--signal=USR1"], begun=True
            ),
            "job cancelled": lambda chance: self._job_command(chance, ["scancel"]),
            "node dies": self._cut_power,
            "slurmdbd away": self._without_accounting,
            "slurmctld away": self._without_controller,
            "snakemake killed": self._kill_snakemake,
        }

    def run(self) -> None:
        """Until ``end``, or until the cluster itself does not come back."""
        try:
            for fault in self._faults:
                if self._over.wait(fault.after_seconds):
                    return
                self._provoke(fault)
        except (LabError, OSError, subprocess.SubprocessError) as error:
            self.broken.append(f"the cluster did not come back from a fault: {error}")

    def end(self) -> None:
        """Let nothing more go wrong; a fault that lasts is mended first."""
        self._over.set()
        if self.is_alive():
            self.join(120)

    def counts(self) -> Counter[Kind]:
        """How often each kind has come about."""
        return Counter(each.kind for each in list(self.provoked))

    def _provoke(self, fault: Fault) -> None:
        chance = random.Random(fault.seed)
        deadline = time.monotonic() + TARGET_SECONDS
        target = None
        while target is None and time.monotonic() < deadline and not self._over.is_set():
            target = self._acts[fault.kind](chance)
            if target is None:
                self._over.wait(0.5)
        if target is None:
            self.missed[fault.kind] += 1
            return
        self.provoked.append(Provoked(fault.kind, target, time.monotonic() - self._began))
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {fault.kind}: {target}\n")

    def _signal_rank(self, chance: random.Random, number: signal.Signals) -> str | None:
        ranks = rank_processes(self._lab)
        if not ranks:
            return None
        rank = chance.choice(ranks)
        with suppress(ProcessLookupError):
            os.kill(rank.pid, number)
            return f"{rank.study.name}/{rank.run}, job {rank.job}, on {rank.host}"
        return None

    def _job_command(self, chance: random.Random, command: Sequence[str], begun: bool = False) -> str | None:
        """To the job of a run that has started, or of one that trains."""
        ranks = [
            rank
            for rank in rank_processes(self._lab)
            if not begun or (rank.study / rank.run / "attempt" / "progress.json").exists()
        ]
        if not ranks:
            return None
        rank = chance.choice(ranks)
        job = rank.job.partition("+")[0]
        done = self._lab.run(*command, job, check=False)
        return f"{rank.study.name}/{rank.run}, job {rank.job}" if done.returncode == 0 else None

    def _cut_power(self, chance: random.Random) -> str | None:
        busy = sorted({rank.host for rank in rank_processes(self._lab)})
        if not busy:
            return None
        node = chance.choice(busy)
        self._lab.power_off(node)
        try:
            # longer than it takes Slurm to notice, or shorter
            self._over.wait(chance.uniform(3.0, 25.0))
        finally:
            self._lab.start_node(node)
            wait_until(lambda: self._serves(node), lambda: f"{node} is {self._lab.node_states()}", 60)
        return node

    def _serves(self, node: str) -> bool:
        return self._lab.node_states().get(node) in {"idle", "mixed", "allocated", "completing"}

    def _without_accounting(self, chance: random.Random) -> str | None:
        self._lab.stop_accounting()
        try:
            self._over.wait(seconds := chance.uniform(*OUTAGE_SECONDS))
        finally:
            self._lab.start_accounting()
        return f"{seconds:.0f} s"

    def _without_controller(self, chance: random.Random) -> str | None:
        self._lab.stop_controller()
        try:
            self._over.wait(seconds := chance.uniform(*OUTAGE_SECONDS))
        finally:
            self._lab.start_controller()
        return f"{seconds:.0f} s"

    def _kill_snakemake(self, chance: random.Random) -> str | None:
        return chance.choice(self._snakemakes).kill()


class Writers:
    """Watches that no two jobs train one run at a time, and for runs trained again after their end.

    Args:
        lab: the cluster.
        studies: folders.
    """

    def __init__(self, lab: Lab, studies: Sequence[Path]) -> None:
        self._lab = lab
        self._studies = studies
        self._seen: dict[Path, int] = {}
        self._ends: dict[Path, set[str]] = {}
        self.problems: list[str] = []
        self.looks = 0

    def look(self) -> None:
        """Look once."""
        self.problems += two_writers(rank_processes(self._lab))
        for study in self._studies:
            for path in study.glob("results/*/runs/*/summary.json"):
                with suppress(OSError, RecordError):
                    self._note_end(path)
        self.looks += 1

    def _note_end(self, path: Path) -> None:
        changed = path.stat().st_mtime_ns
        if self._seen.get(path) != changed:
            # snakemake touches what a job has made: the time of the file alone says nothing
            provenance = read_summary(path.parent).provenance
            self._seen[path] = changed
            self._ends.setdefault(path.parent, set()).add(provenance.ended_at if provenance else "")

    @property
    def again(self) -> list[Path]:
        """Runs that were seen with more than one result, as a snakemake that was killed may make them."""
        return [run for run, ends in self._ends.items() if len(ends) > 1]
