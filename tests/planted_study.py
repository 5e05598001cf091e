"""Studies whose runs are planted with known speeds, and what the pipeline makes of them."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from tests.planted_records import (
    STARTUP,
    leave_failure,
    leave_result,
    measurements,
    provenance,
    rank_record,
    run_record,
)

import cli
from scalewise.analysis.judge_round import judge_round
from scalewise.plan.planned_study import Part, Study, make_plan, write_plan
from scalewise.plan.rounds import Round, known_rounds
from scalewise.plan.run_definition import RunDefinition
from scalewise.plan.study import load_study
from scalewise.records import EpochRecord, RankRecord, Window
from scalewise.report.finished import report_finished

SITE = {"accelerator": "cuda", "devices_per_node": 4, "cpus_per_node": 32, "max_nodes": 16}
USUAL: dict[str, Any] = {
    "dataset": "digits",
    "model": "digits_cnn",
    "global_batch_size": 256,
    "epochs": 10,
    "warmup_steps": 12,
    "devices": [1, 2, 4, 8],
    "repeats": 3,
    "runtime_minutes": 3,
}
"""Keys of a planted experiment that a test does not give."""

STEPS_OF_AN_EPOCH, EPOCHS_OF_A_RUN = 40, 10
COMPUTED_SHARE = 0.9
"""Of a step on one device; the rest is waiting for data."""
START_UP_SECONDS = 30.0

Speed = Callable[[RunDefinition], float | None]
"""Samples per second of a run; None where it fails."""


@dataclass(frozen=True)
class Law:
    """How fast a planted series is: the universal scalability law, with lognormal scatter of its runs.

    Args:
        rate: Samples per second of one device.
        serial: Share that does not scale.
        scatter: Standard deviation of the logarithm of a run's speed.
    """

    rate: float = 1000.0
    serial: float = 0.03
    scatter: float = 0.01

    def speed(self, run: RunDefinition) -> float:
        """Samples per second of a run, the same whenever it is asked for."""
        devices = run.shape.world_size
        noise = random.Random(f"{run.experiment}/{run.run}").gauss(0, self.scatter)
        return self.rate * devices / (1 + self.serial * (devices - 1)) * math.exp(noise)


CHOOSING: dict[str, Any] = {
    "title": "Which of up to 16 GPUs",
    "scaling": "weak",
    "global_batch_size": None,
    "batch_size_per_device": 16,
    "devices": {"up_to": 16},
    "epochs": None,
    "steps": 300,
    "decision": {"min_efficiency": 0.7},
}
"""Keys of an experiment that chooses its device counts."""


def by_series(run: RunDefinition) -> float:
    """Speeds of series that differ, each by what its options say."""
    drawn = random.Random(str(run.options))
    return Law(rate=drawn.uniform(900, 1300), serial=drawn.uniform(0.01, 0.08)).speed(run)


def experiments(**changed: Mapping[str, Any]) -> str:
    """Return a configuration of experiments by their names.

    Args:
        changed: Keys that are not the usual ones of each experiment; None for a key that it has not.
    """
    found = {
        name: {key: value for key, value in (USUAL | dict(keys)).items() if value is not None}
        for name, keys in changed.items()
    }
    return yaml.safe_dump({"experiments": found}, sort_keys=False)


class PlantedStudy:
    """A study whose runs are planted as it requests them, and what the pipeline makes of them.

    ``finish`` does all that Snakemake does; the other methods do one step of it.

    Args:
        folder: Receives the configuration and ``results``.
    """

    def __init__(
        self, folder: Path, text: str, speed: Speed = by_series, site: dict[str, object] | None = None
    ) -> None:
        self.results, self._speed = folder / "results", speed
        self._started = datetime(2026, 3, 1, 9, tzinfo=UTC)
        folder.mkdir(parents=True, exist_ok=True)
        config, site_file = folder / "study.yaml", folder / "site.yaml"
        config.write_text(text, encoding="utf-8")
        site_file.write_text(yaml.safe_dump(site or SITE), encoding="utf-8")
        self.study: Study = load_study(yaml.safe_load(text), [config], site_file)

    @property
    def planned(self) -> Part:
        """The only experiment, or the only one that chooses its device counts."""
        parts = self.study.parts
        (planned,) = [each for each in parts if each.experiment.chooses_devices] or parts
        return planned

    @property
    def folder(self) -> Path:
        return self.results / self.planned.name

    def rounds(self) -> list[Round]:
        return known_rounds(self.planned.experiment, self.folder)

    def make_runs(self, most: int | None = None) -> list[str]:
        """Plant the runs that are asked for and not there, and name them."""
        missing: dict[Path, RunDefinition] = {}
        for planned in self.study.parts:
            results = self.results / planned.name
            asked = set(planned.requested_run_names(known_rounds(planned.experiment, results)))
            folders = {results / "runs" / run.run: run for run in planned.runs if run.run in asked}
            missing |= {folder: run for folder, run in folders.items() if not folder.exists()}
        planted = list(missing.items())[:most]
        # repeats of all points take turns
        for folder, run in sorted(planted, key=lambda each: each[1].repeat):
            self._plant(run, folder)
        return [run.run for _, run in planted]

    def judge(self) -> Round:
        return judge_round(self.planned.definition, len(self.rounds()) + 1, self.folder)

    def play(self) -> list[Round]:
        """Make runs and judge them until no more are requested; return the rounds, none without a choice."""
        self.make_runs()
        if not any(each.experiment.chooses_devices for each in self.study.parts):
            return []
        while self.judge().further:
            self.make_runs()
        return self.rounds()

    def tabulate(self) -> None:
        """Make all runs; write tables and answers."""
        self.play()
        for name in self.study.experiments:
            self._step("analyze", self.results / name)

    def finish(self) -> Path:
        """Make all runs, tables, answers and figures; return the report on all experiments."""
        self.tabulate()
        for name in self.study.experiments:
            self._step("plot", self.results / name)
        for name, parts in self.study.experiments.items():
            if parts[0].experiment.proposal is not None:
                self._step("proposal", self.results / name)
        report = self.results / "report.html"
        self._step(
            "write-report", "--output", report, "--decisions", self.results / "decision.json", self.results
        )
        return report

    def write_partial(self) -> Path:
        """Write the report on the runs that are there, with its tables and figures."""
        report_finished(make_plan(self.study), self.results)
        return self.results / "report.html"

    def _step(self, step: str, *arguments: str | Path) -> None:
        """Run a step of the analysis by its command line and the plan file, as its rule does."""
        plan = write_plan(make_plan(self.study), self.results.parent)
        assert cli.main(["--plan", str(plan), step, *map(str, arguments)]) == 0

    def _plant(self, run: RunDefinition, folder: Path) -> None:
        rate = self._speed(run)
        if rate is None:
            leave_failure(folder, run, "failed", "rank 1 on node2: RuntimeError: a fault on purpose")
            return
        epochs = [] if run.settings.steps else _epochs(run, rate)
        windows = _windows(run, rate)
        ranks = _ranks(run, rate, sum(window.steps for window in windows if not window.warmup))
        train_seconds = sum(window.seconds for window in windows)
        self._started += timedelta(minutes=5)
        ended = self._started + timedelta(seconds=START_UP_SECONDS + train_seconds)
        started, self._started = self._started, max(self._started, ended)  # no two runs share a node
        accuracy = epochs[-1].test_accuracy if epochs else None
        measured = measurements(
            epochs_completed=len(epochs),
            throughput_samples_per_second=rate,
            windows=windows,
            train_seconds=train_seconds,
            final_accuracy=accuracy,
            best_accuracy=accuracy,
            peak_memory_bytes=ranks[0].peak_memory_bytes,
            peak_memory_kind="CUDA allocator" if run.accelerator == "cuda" else "process peak RSS",
            **_gpu_use(run, sum(window.seconds for window in windows if not window.warmup)),
        )
        origin = provenance(run, started_at=started.isoformat(), ended_at=ended.isoformat())
        leave_result(folder, run_record(run, measurements=measured, provenance=origin), epochs, ranks)


def _gpu_use(run: RunDefinition, seconds: float) -> dict[str, Any]:
    """Return what only GPUs report."""
    if run.accelerator == "cpu":
        return {}
    joules = 300.0 * seconds * run.shape.world_size
    return {
        "mean_utilization": 0.9, "lowest_utilization": 0.88, "energy_joules": joules, "throttled": False,
    }  # fmt: skip


def _windows(run: RunDefinition, rate: float) -> list[Window]:
    """One window of all steps, or one for each epoch, of which the first warms up."""
    most = run.settings.steps
    steps, count = (most, 1) if most else (STEPS_OF_AN_EPOCH, EPOCHS_OF_A_RUN)
    samples = steps * run.global_batch_size
    seconds = samples / rate
    return [
        Window(
            first_step=first, steps=steps, samples=samples, seconds=seconds, warmup=first == 0 and not most
        )
        for first in range(0, count * steps, steps)
    ]


def _epochs(run: RunDefinition, rate: float) -> list[EpochRecord]:
    seconds = STEPS_OF_AN_EPOCH * run.global_batch_size / rate
    slower = 1 + 0.02 * math.log2(run.shape.world_size) + 0.005 * run.repeat
    return [
        EpochRecord(
            epoch=epoch,
            train_seconds=seconds,
            evaluation_seconds=0.1,
            samples_per_second=rate,
            train_loss=2.0 * math.exp(-0.5 * epoch / slower),
            test_loss=2.2 * math.exp(-0.5 * epoch / slower),
            test_accuracy=1 - 0.9 * math.exp(-0.6 * epoch / slower),
            learning_rate=0.2,
        )
        for epoch in range(1, EPOCHS_OF_A_RUN + 1)
    ]


def _ranks(run: RunDefinition, rate: float, steps: int) -> list[RankRecord]:
    """The last rank computes 2 % longer than the others, which wait for it."""
    devices, step = run.shape.world_size, run.global_batch_size / rate
    own = COMPUTED_SHARE * run.batch_size_per_device / Law().rate
    loader = 0.02 * step
    exchange = 0.0 if devices == 1 else max(step - own - loader, 0.04 * step)
    records = []
    for rank in range(devices):
        late = 0.02 * step if devices > 1 and rank == devices - 1 else 0.0
        records.append(
            rank_record(
                rank,
                local_rank=rank % run.shape.devices_per_node,
                host=f"node{rank // run.shape.devices_per_node + 1}",
                device="A GPU",
                train_samples=STEPS_OF_AN_EPOCH * run.batch_size_per_device,
                step_seconds_p50=step,
                loader_wait_seconds=loader * steps,
                peak_memory_bytes=700_000_000 + 50_000_000 // devices,
                mean_utilization=_gpu_use(run, 0.0).get("mean_utilization"),
                communication_seconds_per_step=exchange - late,
                waiting_seconds_per_step=0.0 if late else 0.02 * step,
                **STARTUP,
            )
        )
    return records
