"""A study that chooses its device counts, played with planted speeds: no run trains anything."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from tests.planting import leave_failure, leave_result, measurements, provenance, run_record

from scalewise.analysis.rounds.judge_round import judge_round
from scalewise.plan.runs.rounds import Round, known_rounds
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.study import PlannedExperiment, Study, load_study
from scalewise.records import Window

STUDY = """\
experiments:
  gpt:
    title: A transformer on up to 64 GPUs
    dataset: digits
    model: digits_cnn
    scaling: weak
    batch_size_per_device: 16
    devices: {up_to: 64}
    steps: 300
    runtime_minutes: 10
    predict: false
    decision: {min_efficiency: 0.7}
"""
SITE = {"accelerator": "cuda", "devices_per_node": 4, "cpus_per_node": 32, "max_nodes": 16}

Speed = Callable[[RunDefinition], float | None]
"""Samples per second of a run; None where it fails."""


def overhead(share: float, scatter: float = 0.004) -> Speed:
    """Speeds whose efficiency falls by as much with each doubling of the nodes, with lognormal scatter."""

    def speed(run: RunDefinition) -> float:
        noise = random.Random(run.run).gauss(0, scatter)
        efficiency = 1.0 if run.shape.world_size == 1 else 1 / (1.06 + share * (run.shape.nodes - 1))
        return 900.0 * run.shape.world_size * efficiency * math.exp(noise)

    return speed


class PlayedStudy:
    """One experiment whose runs are planted as the rounds ask for them.

    Args:
        folder: Receives the configuration and ``results``.
        speed: Of each run.
        text: The configuration.
        seconds: Wall time of a run.
    """

    def __init__(
        self, folder: Path, speed: Speed, text: str = STUDY, site: dict[str, object] | None = None
    ) -> None:
        self.results, self._speed, self._started = folder / "results", speed, datetime(2026, 3, 1, tzinfo=UTC)
        folder.mkdir(exist_ok=True)
        self._files = folder / "study.yaml", folder / "site.yaml"
        self._files[0].write_text(text, encoding="utf-8")
        self._files[1].write_text(yaml.safe_dump(site or SITE), encoding="utf-8")

    @property
    def study(self) -> Study:
        """The study as the Snakefile loads it."""
        config, site = self._files
        return load_study(yaml.safe_load(config.read_text(encoding="utf-8")), [config], site)

    @property
    def planned(self) -> PlannedExperiment:
        (planned,) = self.study.experiments.values()
        return planned

    @property
    def folder(self) -> Path:
        """Results of the experiment."""
        return self.results / self.planned.name

    def rounds(self) -> list[Round]:
        return known_rounds(self.planned.experiment, self.folder)

    def make_runs(self, most: int | None = None) -> list[str]:
        """Plant the runs that are asked for and not there, and name them."""
        asked = set(self.planned.requested_run_names(self.rounds()))
        missing = [
            run
            for run in self.planned.runs
            if run.run in asked and not (self.folder / "runs" / run.run).exists()
        ]
        for run in missing[:most]:
            self._write(run)
        return [run.run for run in missing[:most]]

    def judge(self) -> Round:
        """Judge the next round."""
        return judge_round(self.planned.rounds_definition, len(self.rounds()) + 1, self.folder)

    def play(self, rounds: int = 40) -> list[Round]:
        """Make runs and judge them until nothing more is asked for, or so many rounds have been judged."""
        for _ in range(rounds):
            self.make_runs()
            if not self.judge().requests_more:
                break
        return self.rounds()

    def _write(self, run: RunDefinition) -> None:
        folder, rate = self.folder / "runs" / run.run, self._speed(run)
        if rate is None:
            leave_failure(folder, run, "failed", "the node went away")
            return
        samples = 300 * run.global_batch_size
        seconds = samples / rate
        self._started += timedelta(minutes=5)
        measured = measurements(
            throughput_samples_per_second=rate,
            windows=[Window(first_step=10, steps=300, samples=samples, seconds=seconds, warmup=False)],
            train_seconds=seconds,
            evaluation_seconds=0.0,
            peak_memory_kind="CUDA allocator",
        )
        ended = self._started + timedelta(seconds=40 + seconds)
        origin = provenance(run, started_at=self._started.isoformat(), ended_at=ended.isoformat())
        leave_result(folder, run_record(run, measurements=measured, provenance=origin))
