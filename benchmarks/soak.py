"""A study of hundreds of short runs on a Slurm cluster in which something goes wrong every few seconds.

    python benchmarks/soak.py [--runs 500] [--seed S] [--minutes M] [--every SECONDS]

Needs root on Linux with Slurm installed: it starts the lab cluster of the tests, four nodes on this machine.
An experiment of each study is trained before the faults begin; every other run must equal its likeness there
to the bit. Exit status 1 where one does not, with its place. Not in continuous integration: 500 runs take
hours on two cores.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "workflow" / "scripts")]

# ruff: noqa: E402  the path comes first
from benchmarks.measure import machine_line
from benchmarks.soak_checks import Findings, judge, planned_runs, resumed
from benchmarks.soak_faults import KINDS, SHORTEST_SECONDS, Saboteur, Writers, schedule
from benchmarks.soak_study import SITES, TRAINING, TRIES, Snakemake
from tests.slurm.lab import Lab
from tests.slurm.machines import LabError, missing
from tests.slurm.study import ClusterStudy

UNDISTURBED = "undisturbed"
SHAPES = 2
REPEATS = 5
MEAN_SECONDS = 15.0
"""Between the end of a fault and the next one."""
CALM_RUNS, CALM_SHARE = 2, 0.02
"""When no more runs than this are missing, no further fault is provoked."""
STALLED_SECONDS = 900.0
LOOK_SECONDS = 2.0


@dataclass
class Soak:
    """Two studies on one cluster, and what befalls them.

    Args:
        lab: the cluster.
        folder: of the studies and of what they say.
        runs: asked for, of both together.
        seed: of the faults.
        deadline: on the monotonic clock, for the training.
        every: so many seconds, on average, something goes wrong.
    """

    lab: Lab
    folder: Path
    runs: int
    seed: int
    deadline: float
    every: float = MEAN_SECONDS
    snakemakes: list[Snakemake] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    findings: list[Findings] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repeats = min(REPEATS, max(1, self.runs // (SHAPES * len(SITES))))
        self.experiments = max(1, round(self.runs / (SHAPES * len(SITES) * self.repeats)))
        for name, site in SITES.items():
            study = ClusterStudy(self.lab, self.folder / name)
            study.folder.mkdir()
            names = [UNDISTURBED, *(f"soak{number:03d}" for number in range(1, self.experiments + 1))]
            study.configure({each: TRAINING | {"repeats": self.repeats} for each in names}, **site)
            self.snakemakes.append(Snakemake(study, self.folder / f"{name}.log"))
        faults = schedule(self.seed, self.every)
        self.saboteur = Saboteur(self.lab, self.snakemakes, faults, self.folder / "faults.log")
        self.writers = Writers(self.lab, [each.study.folder for each in self.snakemakes])

    @property
    def names(self) -> list[str]:
        """The runs of an experiment."""
        return [f"d{devices}.r{repeat}" for devices in (1, 2) for repeat in range(1, self.repeats + 1)]

    @property
    def planned(self) -> int:
        """Runs under faults."""
        return len(SITES) * self.experiments * len(self.names)

    def present(self) -> int:
        """Runs under faults that have a result."""
        return sum(
            path.parts[-4] != UNDISTURBED
            for each in self.snakemakes
            for path in each.study.folder.glob("results/*/runs/*/summary.json")
        )

    def go(self) -> None:
        """All of it; what is found wrong is in ``problems`` and ``findings``."""
        self._train_undisturbed()
        if not self.problems:
            print(f"{time.strftime('%H:%M:%S')} the undisturbed runs are there", flush=True)
            self._train_disturbed()
        ended = not self.problems
        if ended:
            self._settle()
        self.problems += self.writers.problems
        for each in self.snakemakes:
            study = yaml.safe_load((each.study.folder / "study.yaml").read_text())
            planned = planned_runs(study, each.study.folder / "site.yaml")
            self.findings.append(judge(each.study.folder / "results", planned, UNDISTURBED))
            # what was cut short has half of everything
            self.problems += self.findings[-1].problems if ended else []

    def _train_undisturbed(self) -> None:
        """What every other run must equal."""
        targets = [f"results/{UNDISTURBED}/runs/{name}/summary.json" for name in self.names]
        for each in self.snakemakes:
            each.start(*targets)
        self._until_done(lambda: None)

    def _train_disturbed(self) -> None:
        for each in self.snakemakes:
            each.start()
        self.saboteur.start()
        told = time.monotonic()

        def look() -> None:
            nonlocal told
            self.writers.look()
            if self.planned - self.present() <= max(CALM_RUNS, CALM_SHARE * self.planned):
                self.saboteur.end()
            if time.monotonic() - told > 60:
                told = time.monotonic()
                self._tell()

        try:
            self._until_done(look)
        finally:
            self.saboteur.end()
        self._tell()
        self.problems += self.saboteur.broken

    def _until_done(self, look: Callable[[], None]) -> None:
        """Wait for both studies, but not beyond the limit, nor where nothing moves any more."""
        moved, seen = time.monotonic(), -1
        while not all(each.done for each in self.snakemakes):
            time.sleep(LOOK_SECONDS)
            for each in self.snakemakes:
                each.look()
            with suppress(LabError, subprocess.SubprocessError):
                look()
            now, present = time.monotonic(), self.present() + sum(each.done for each in self.snakemakes)
            if present != seen:
                moved, seen = now, present
            if gone := [each for each in self.snakemakes if each.given_up]:
                self.problems.append(f"{gone[0].log}: failed {TRIES + 1} times, and is not tried again")
                return
            if now > self.deadline or now - moved > STALLED_SECONDS:
                why = "the limit is reached" if now > self.deadline else "nothing has ended for long"
                queue = self.lab.run("squeue", "--format=%i %T %r %k", check=False).stdout
                states = self.lab.node_states()
                self.problems.append(f"{why} at {present} runs; nodes {states}; queue:\n{queue}")
                return

    def _tell(self) -> None:
        faults = sum(self.saboteur.counts().values())
        snakemakes = sum(each.starts for each in self.snakemakes)
        print(
            f"{time.strftime('%H:%M:%S')} {self.present()} of {self.planned} runs, {faults} faults, "
            f"snakemake given {snakemakes} times",
            flush=True,
        )

    def _settle(self) -> None:
        """Nothing may be left to run: no job, no process, and nothing to do for the same command."""
        try:
            # jobs of a snakemake that was killed look whether their run has a result
            self.lab.wait_until_queue_is_empty(240)
            for each in self.snakemakes:
                each.study.seconds_until_nothing_runs(60)
        except (LabError, TimeoutError) as error:
            self.problems.append(str(error))
        for each in self.snakemakes:
            code, output = each.study.snakemake("--dry-run", limit=180)
            if code or "Nothing to be done" not in output:
                self.problems.append(f"{each.study.folder}: the same command is not done:\n{output[-2000:]}")

    def end(self) -> None:
        """End every snakemake and every job."""
        self.saboteur.end()
        for each in self.snakemakes:
            each.interrupt()
        for each in self.snakemakes:
            each.wait(20)
            with suppress(LabError, TimeoutError, subprocess.SubprocessError):
                each.study.end()

    def table(self) -> str:
        """The figures, as Markdown."""
        runs, times, lost = resumed(self.findings)
        counts, findings = self.saboteur.counts(), self.findings
        jobs = sum(len(each.study.submitted()) for each in self.snakemakes)
        right = sum(each.right for each in findings)
        found = len(self.writers.problems)
        starts, failures = (
            sum(getattr(each, name) for each in self.snakemakes) for name in ("starts", "failures")
        )
        lines = {
            "runs planned": sum(each.runs for each in findings),
            "there once, completed, records and weights equal to an undisturbed run's": right,
            "runs that went on from a checkpoint": f"{runs}, {times} times",
            "steps done again": lost,
            "Slurm jobs": f"{jobs}, started anew {sum(each.restarts for each in findings)} times",
            "same command given": f"{starts} times, {failures} of them after it had given up on runs",
            "looks for two writers of a run": f"{self.writers.looks}, found {found}",
            "runs trained again after their end": len(self.writers.again),
            "faults": sum(counts.values()),
            **{f"- {kind}": counts[kind] for kind in KINDS},
        }
        rows = (f"| {what} | {value} |" for what, value in lines.items())
        return "\n".join(["| what | |", "|---|---|", *rows])


@contextmanager
def _cluster() -> Iterator[Lab]:
    """The lab; SIGTERM ends what goes on there as Ctrl-C does, and neither cuts the ending short."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too, which a script's background ignores and so would all that is started here
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    # names of its own: cgroups are named by node
    prefix = f"s{os.getpid()}n"
    lab = Lab.up(Path(tempfile.gettempdir()) / f"scalewise-{prefix}", prefix)
    try:
        yield lab
    finally:
        lab.down()


def main(arguments: list[str] | None = None) -> int:
    """Train, disturb, judge; exit status 1 where anything is not as it must be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500, help="about so many (500)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults (another each time)")
    parser.add_argument("--minutes", type=float, default=240, help="end everything after so many (240)")
    about = f"mean seconds from a fault to the next ({MEAN_SECONDS:g})"
    parser.add_argument("--every", type=float, default=MEAN_SECONDS, help=about)
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.every <= SHORTEST_SECONDS:
        parser.error(f"--runs: at least 1; --every: more than {SHORTEST_SECONDS:g}")
    if reason := missing():
        print(f"soak.py: {reason}", file=sys.stderr)
        return 1
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="scalewise-soak-"))
    print(f"{machine_line()}\nseed {seed}, in {folder}", flush=True)
    with _cluster() as lab:
        soak = Soak(lab, folder, options.runs, seed, began + options.minutes * 60, options.every)
        try:
            soak.go()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            soak.end()
    print(f"\n{soak.table()}\n\n{(time.monotonic() - began) / 60:.0f} minutes, seed {seed}", flush=True)
    for problem in soak.problems:
        print(problem, file=sys.stderr)
    if not soak.problems:
        shutil.rmtree(folder)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
