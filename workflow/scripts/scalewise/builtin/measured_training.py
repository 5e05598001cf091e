"""The built-in training under the probe's hooks, in its own process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from scalewise.measure.early_end import EarlyEnd
from scalewise.measure.measured_process import MeasuredProcess
from scalewise.measure.memory import MemoryPhase, PeakMemory
from scalewise.measure.process_record import write_json


class MeasuredTraining(MeasuredProcess):
    """This process, made before the model: memory that is held by then is none of the training's.

    A user's program is measured by what its hooks see. This training also names its optimizer, and says when
    it pauses, so that its evaluations and checkpoints are in no step.
    """

    is_paused = False
    """Whether ``pause`` was called, and ``resume`` not yet."""
    _optimizer: Optimizer | None = None

    def begin_process(self, started: float | None = None) -> None:
        """Begin with nothing measured."""
        super().begin_process(started)
        self.memory = PeakMemory(resets=True)
        self._versions: dict[str, str] = {}

    def begin_training(
        self, optimizer: Optimizer, from_step: int, last_step: int | None, device: torch.device
    ) -> None:
        """Begin the first step now.

        Args:
            optimizer: The optimizer whose steps are those of the training.
            from_step: Optimizer steps that the training has made before.
            last_step: Optimizer steps after which it ends at the latest; None for another end.
            device: Trains.
        """
        steps = max((last_step or 0) - from_step - self.spec.warmup_steps, 0)
        self.spec = replace(self.spec, from_step=from_step, steps=steps)
        self.early_end = EarlyEnd(self.spec, self.steps, self.notes) if self.spec.until_interval else None
        self._optimizer = optimizer
        self.steps.device = self.memory.device = device if device.type == "cuda" else None
        self.resume()

    def _candidates(self) -> tuple[list[nn.Module], list[Optimizer]]:
        modules, optimizers = super()._candidates()
        return modules, optimizers if self._optimizer is None else [self._optimizer]

    def pause(self, phase: MemoryPhase) -> None:
        """Leave the training until ``resume``: what follows is in no step."""
        self.is_paused = True
        self.memory.enter(phase)

    def resume(self) -> None:
        """Begin the next step now."""
        self.is_paused = False
        self.memory.enter("train")
        self.steps.begin_step(self.passes)

    @property
    def is_over(self) -> bool:
        """True if the throughput is known well enough to end the training."""
        return self.early_end is not None and self.early_end.is_due(self.steps.done)

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries; they are found once, as a checkpoint waits for them."""
        self._versions = self._versions or super().versions()
        return self._versions

    def write_record(self, folder: Path, ended: str) -> None:
        """Write what was measured so far, if any step was made.

        Args:
            folder: Receives the record of this rank.
            ended: ``seen`` while the training continues, ``steps`` at its end.
        """
        if self.steps.done:
            write_json(folder / f"{self.rank}.{self.pid}.record.json", self.record(ended))
