"""Exchanges of single measured steps, by DDP's own counters: the warm-up is excluded."""

# no `from __future__ import annotations`: DDP looks at the hook's

import threading
from collections.abc import Callable

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.builtin.parallel_model import ParallelModel
from scalewise.measure.communication import CommunicationSamples
from scalewise.plan.config.settings import Settings

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
    """Steps of a built-in model, whose exchanges are sampled from the first step on, as of a program."""

    def __init__(self, when: Callable[[int], bool], micro_batches: int = 1) -> None:
        settings = Settings(dataset="digits", model="linear", accumulation_steps=micro_batches)
        self.model = ParallelModel.build(nn.Linear(8, 2), [], settings, CPU)
        assert isinstance(self.model.data_parallel, DistributedDataParallel)
        self.model.data_parallel.register_comm_hook(None, Late(when).exchange)
        self._micro_batches, self._done = micro_batches, 0
        self.samples: CommunicationSamples | None = None

    def make(self, steps: int) -> list[float]:
        """Make steps; returns the seconds of the sampled ones."""
        for _ in range(steps):
            for index in range(self._micro_batches):
                with self.model.gradient_sync(now=index == self._micro_batches - 1):
                    self.model.compiled(torch.ones(4, 8)).sum().backward()
            self._done += 1
            if self.samples is None:
                self.samples = CommunicationSamples(self.model.data_parallel, EVERY, WARM_UP)
            self.samples.after_step(self._done)
        assert self.samples is not None
        return [seconds for seconds in self.samples.column(self._done) if seconds is not None]


def late(seconds: list[float]) -> list[bool]:
    return [each >= 0.5 * LATE_SECONDS for each in seconds]


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("steps", [8, 12, 22])
def test_quick_exchanges_of_the_warm_up_are_not_in_the_mean(steps: int, micro_batches: int) -> None:
    seconds = Steps(lambda number: number > WARM_UP, micro_batches).make(steps)
    assert late(seconds) == [True] * len(seconds)
    assert seconds


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_each_measured_step_that_exchanges_late_is_told_from_the_others(micro_batches: int) -> None:
    slow = {WARM_UP + 2, WARM_UP + 3}
    seconds = Steps(slow.__contains__, micro_batches).make(WARM_UP + 6)
    # DDP tells of an exchange as the next one begins
    assert late(seconds) == [False, True, True, False, False]


def test_beyond_the_first_ten_the_exchanges_that_ddp_samples_are_kept() -> None:
    seconds = Steps({12, 15, 20, 21}.__contains__).make(27)
    # exchanges 5 to 10, 15, 20 and 25
    assert late(seconds) == [*[False] * 6, True, True, False]


def test_a_run_that_only_warms_up_has_no_measured_exchange() -> None:
    assert Steps(lambda _number: True).make(WARM_UP + 1) == []


def test_an_exchange_is_that_of_its_step() -> None:
    steps = Steps({WARM_UP + 3}.__contains__)
    steps.make(WARM_UP + 6)
    assert steps.samples is not None
    column = steps.samples.column(WARM_UP + 6)
    assert [index for index, seconds in enumerate(column) if seconds and seconds >= 0.5 * LATE_SECONDS] == [
        WARM_UP + 2
    ]
