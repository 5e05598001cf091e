"""All-reduce measured by itself, and the exchanges of measured steps."""

# no `from __future__ import annotations`: DDP looks at those of a hook

import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.measure.communication import CommunicationSamples

CPU = torch.device("cpu")


WARM_UP = 4
EVERY = 5
LATE_SECONDS = 0.1

pytestmark = pytest.mark.usefixtures("one_rank")


class Late:
    """An exchange whose gradients arrive late.

    Args:
        when: Whether they are late in an exchange, counted from 1.
    """

    def __init__(self, when: Callable[[int], bool]) -> None:
        self.exchanges = 0
        self.when = when

    def exchange(self, _state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        self.exchanges += 1
        arrived: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        late = LATE_SECONDS if self.when(self.exchanges) else 0.0
        threading.Timer(late, arrived.set_result, [bucket.buffer()]).start()
        return arrived


class Steps:
    """Steps of a model under DDP, whose exchanges are sampled from the first step on, as of a program."""

    def __init__(self, when: Callable[[int], bool], micro_batches: int = 1) -> None:
        self.model = DistributedDataParallel(nn.Linear(8, 2))
        self.model.register_comm_hook(None, Late(when).exchange)
        self._micro_batches, self._done = micro_batches, 0
        self.samples: CommunicationSamples | None = None

    def make(self, steps: int) -> list[float]:
        """Make steps; returns the seconds of the sampled ones."""
        for _ in range(steps):
            for index in range(self._micro_batches):
                with nullcontext() if index == self._micro_batches - 1 else self.model.no_sync():
                    self.model(torch.ones(4, 8)).sum().backward()
            self._done += 1
            if self.samples is None:
                self.samples = CommunicationSamples(self.model, EVERY, WARM_UP)
            self.samples.after_step(self._done)
        assert self.samples is not None
        return [seconds for seconds in self.samples.column(self._done) if seconds is not None]


def late(seconds: list[float]) -> list[bool]:
    return [each >= 0.5 * LATE_SECONDS for each in seconds]


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_each_measured_step_that_exchanges_late_is_distinguished_from_the_others(micro_batches: int) -> None:
    steps = Steps({WARM_UP + 2, WARM_UP + 3}.__contains__, micro_batches)
    # DDP tells of an exchange as the next one begins
    assert late(steps.make(WARM_UP + 6)) == [False, True, True, False, False]
    assert steps.samples is not None
    column = steps.samples.column(WARM_UP + 6)
    exchanged = [index for index, each in enumerate(column) if each and each >= 0.5 * LATE_SECONDS]
    assert exchanged == [WARM_UP + 1, WARM_UP + 2]


def test_beyond_the_first_ten_the_exchanges_that_ddp_samples_are_kept() -> None:
    # late in the warm-up, too
    seconds = Steps({1, 2, 3, 12, 15, 20, 21}.__contains__).make(27)
    # exchanges 5 to 10, 15, 20 and 25
    assert late(seconds) == [*[False] * 6, True, True, False]
    assert Steps(lambda _number: True).make(WARM_UP + 1) == []
