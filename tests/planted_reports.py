"""Studies whose runs are planted, and their reports, by the pipeline's own steps: no run trains anything."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from tests.planting import (
    STARTUP,
    leave_failure,
    leave_result,
    measurements,
    provenance,
    rank_record,
    run_record,
)

import cli
from scalewise.plan.jobs.make_plan import make_plan, write_plan
from scalewise.plan.runs.rounds import Round, known_rounds
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.study import PlannedExperiment, Study, load_study
from scalewise.records import EpochRecord, RankRecord, Window

SITE = {"accelerator": "cuda", "devices_per_node": 4, "cpus_per_node": 32, "max_nodes": 64}

STEPS_OF_AN_EPOCH, EPOCHS_OF_A_RUN, WARM_UP_STEPS = 40, 10, 12
COMPUTED_SHARE = 0.9
"""Of a step on one device; the rest is waiting for data."""
START_UP_SECONDS = 30.0


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


Speed = Callable[[RunDefinition], float | None]
"""Samples per second of a run; None where it fails."""


def by_series(run: RunDefinition) -> float:
    """Speeds of series that differ, each by what its options say."""
    drawn = random.Random(str(run.options))
    return Law(rate=drawn.uniform(900, 1300), serial=drawn.uniform(0.01, 0.08)).speed(run)


class PlantedReport:
    """A study with planted runs, and what the pipeline makes of them.

    Args:
        folder: Receives the configuration and ``results``.
        text: The configuration.
        speed: Of each run.
        site: Contents of the site file.
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

    def make_runs(self) -> None:
        """Plant every run; where counts are chosen, those that the rounds ask for, until nothing is."""
        for planned in self.study.experiments.values():
            self._plant_asked(planned)
            while planned.experiment.chooses_devices and self._judge(planned).requests_more:
                self._plant_asked(planned)

    def analyse(self, change: Callable[[Path], None] = lambda _: None) -> None:
        """Write tables, decisions and figures.

        Args:
            change: Gets the results of each experiment between its tables and its figures.
        """
        self.tabulate()
        for name in self.study.experiments:
            results = self.results / name
            change(results)
            self._step("figures", results)

    def tabulate(self) -> None:
        """Write tables and decisions."""
        for name in self.study.experiments:
            self._step("scaling", self.results / name)

    def write(self) -> Path:
        """Write the report on all experiments, from tables and figures."""
        output = self.results / "report.html"
        decisions = self.results / "decision.json"
        options = ("--output", output, "--decisions", decisions)
        self._step("report", *options, self.results)
        return output

    def write_partial(self) -> Path:
        """Write the report on what has finished, tables and figures with it."""
        self._step("partial-report", self.results)
        return self.results / "partial_report.html"

    @property
    def _plan(self) -> Path:
        """The file that Snakemake's main process writes for the commands of the rules."""
        return write_plan(make_plan(self.study), self.results.parent)

    def _step(self, step: str, *arguments: str | Path) -> None:
        """Run a step of the analysis by its command line, as its rule does."""
        assert cli.main(["--plan", str(self._plan), step, *map(str, arguments)]) == 0

    def _rounds(self, planned: PlannedExperiment) -> list[Round]:
        return known_rounds(planned.experiment, self.results / planned.name)

    def _judge(self, planned: PlannedExperiment) -> Round:
        number, folder = len(self._rounds(planned)) + 1, self.results / planned.name
        self._step("judge", "--round", str(number), folder)
        return self._rounds(planned)[-1]

    def _plant_asked(self, planned: PlannedExperiment) -> None:
        asked = set(planned.requested_run_names(self._rounds(planned)))
        for run in planned.runs:
            folder = self.results / planned.name / "runs" / run.run
            if run.run in asked and not folder.exists():
                self._plant(run, folder)

    def _plant(self, run: RunDefinition, folder: Path) -> None:
        rate = self._speed(run)
        if rate is None:
            leave_failure(folder, run, "failed", "rank 1 on node2: RuntimeError: a fault on purpose")
            return
        epochs, ranks = _epochs(run, rate), _ranks(run, rate)
        train_seconds = sum(epoch.train_seconds for epoch in epochs)
        self._started += timedelta(minutes=5)
        ended = self._started + timedelta(seconds=START_UP_SECONDS + train_seconds)
        measured = measurements(
            epochs_completed=len(epochs),
            throughput_samples_per_second=rate,
            windows=_windows(run, rate),
            train_seconds=train_seconds,
            final_accuracy=epochs[-1].test_accuracy,
            best_accuracy=epochs[-1].test_accuracy,
            peak_memory_bytes=ranks[0].peak_memory_bytes,
            peak_memory_kind="CUDA allocator" if run.accelerator == "cuda" else "process peak RSS",
            mean_utilization=0.9,
            least_utilization=0.88,
            energy_joules=300.0 * train_seconds * run.shape.world_size,
            throttled=False,
        )
        origin = provenance(run, started_at=self._started.isoformat(), ended_at=ended.isoformat())
        leave_result(folder, run_record(run, measurements=measured, provenance=origin), epochs, ranks)


def _windows(run: RunDefinition, rate: float) -> list[Window]:
    windows = []
    for first in range(0, EPOCHS_OF_A_RUN * STEPS_OF_AN_EPOCH, STEPS_OF_AN_EPOCH):
        steps, warm_up = STEPS_OF_AN_EPOCH, first == 0
        samples = steps * run.global_batch_size
        windows.append(
            Window(first_step=first, steps=steps, samples=samples, seconds=samples / rate, warmup=warm_up)
        )
    return windows


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


def _ranks(run: RunDefinition, rate: float) -> list[RankRecord]:
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
                test_samples=100,
                step_seconds_p05=0.98 * step,
                step_seconds_p50=step,
                step_seconds_p95=1.03 * step,
                step_seconds_max=1.1 * step,
                loader_wait_seconds=loader * STEPS_OF_AN_EPOCH * (EPOCHS_OF_A_RUN - 1),
                peak_memory_bytes=700_000_000 + 50_000_000 // devices,
                mean_utilization=0.9,
                communication_seconds_per_step=exchange - late,
                local_pass_seconds=own,
                exchanged_pass_seconds=own + 0.9 * exchange,
                waiting_seconds_per_step=0.0 if late else 0.02 * step,
                **STARTUP,
            )
        )
    return records
