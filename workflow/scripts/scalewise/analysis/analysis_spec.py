"""An experiment as the analysis gets it from the plan, and the names that its tables share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewise.config.experiment import AnyExperiment, Experiment, read_experiment
from scalewise.config.shape import device_noun
from scalewise.plan.formatting import Goal

PROGRAM = "program"
"""The ``loader`` of a program of the user's own, which brings its data by itself."""

THROUGHPUT = "throughput_samples_per_second"
"""The column of a run's, and of a point's, samples over seconds."""

EPOCH_RATE = "epoch_throughput_samples_per_second"
"""The column of samples over the seconds of whole epochs, edges included."""

UNREADABLE = "unreadable"
"""Outcome of a run with a damaged record, which its reason names."""

WITH_NO_GRAD = "throughput_with_no_grad"
"""The same with the time of forward passes without gradients; empty if it is known whether they train."""

MEASURED_WAITS = "the median of this study's jobs"
"""Source of a usual wait in the queue, as a clause."""


@dataclass(frozen=True)
class AnalysisSpec:
    """An experiment as the plan defined it, for analysis.

    Args:
        queue_minutes: Usual wait in the queue by device count; empty if it is unknown.
        queue_source: Source of that wait, or why there is none; empty without Slurm.
        billed_devices: Devices that a training pays for, by device count, if they are more than it uses.
        held_devices: The same of a run of the study.
        accelerator: ``cuda`` or ``cpu``; empty if unknown.
        most_devices: Devices that one run may take at most; 0 if unknown.
    """

    name: str
    spec: AnyExperiment
    queue_minutes: Mapping[int, float] = field(default_factory=dict)
    billed_devices: Mapping[int, float] = field(default_factory=dict)
    accelerator: str = ""
    most_devices: int = 0
    queue_source: str = ""
    held_devices: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> AnalysisSpec:
        """Read ``Part.definition`` of the plan."""
        values = json.loads(text)
        billed, held = (
            {int(devices): value for devices, value in values.get(key, {}).items()}
            for key in ("billed_devices", "held_devices")
        )
        spec = read_experiment(values["spec"])
        accelerator, most_devices = values.get("accelerator", ""), values.get("most_devices", 0)
        return cls(values["name"], spec, {}, billed, accelerator, most_devices, held_devices=held)

    @property
    def noun(self) -> str:
        """Name of a device for a reader."""
        return device_noun(self.accelerator)

    @property
    def target(self) -> Goal | None:
        """The goal that counts as trained; None where there is none."""
        if isinstance(self.spec, Experiment):
            return self.spec.target.accuracy if self.spec.target else None
        return str(self.spec.metric) if self.spec.metric else None
