"""The trend of the loss, from few of its values."""

from __future__ import annotations

import torch

EVERY = 10
"""Steps from one kept loss to the next, at first."""

MOST = 400
"""Losses that are kept; beyond, every second one is dropped and the next ones are rarer."""


class LossTrend:
    """Losses as the backward pass got them: scaled, or divided by the number of micro-batches."""

    def __init__(self) -> None:
        self.every = EVERY
        self._kept: dict[int, torch.Tensor] = {}

    def keep(self, step: int, loss: object) -> None:
        """Keep the loss of a step on its device: reading it would wait for the device."""
        if type(loss) is not torch.Tensor or loss.numel() != 1:
            return
        # a copy: the program may add to the tensor in place, and a CUDA graph writes the next loss into it
        self._kept[step] = loss.detach().clone()
        if len(self._kept) > MOST:
            self.every *= 2
            self._kept = {step: kept for step, kept in self._kept.items() if step % self.every == 0}

    def record(self) -> dict[str, float]:
        """Return the values by their steps, from 0."""
        return {str(step): float(loss) for step, loss in self._kept.items()}
