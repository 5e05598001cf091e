"""What a step waits for gradients, by DDP's own counters: of the measured steps, warm-up left out."""

# no `from __future__ import annotations`: DDP looks at the hook's

import threading
from collections.abc import Callable

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.plan.config.settings import Settings
from scalewise.training.parallel_model import KEPT_STEPS, CommTime, ParallelModel

CPU = torch.device("cpu")
WARM_UP = 4
LATE_SECONDS = 0.05


pytestmark = pytest.mark.usefixtures("one_rank")


class Late:
    """An exchange whose gradients arrive late.

    Args:
        when: for these passes, counted from 1.
    """

    def __init__(self, when: Callable[[int], bool]) -> None:
        self.passes = 0
        self.when = when

    def exchange(self, _state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        self.passes += 1
        arrived: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        late = LATE_SECONDS if self.when(self.passes) else 0.0
        threading.Timer(late, arrived.set_result, [bucket.buffer()]).start()
        return arrived


def build(when: Callable[[int], bool], passes: int = 1) -> ParallelModel:
    settings = Settings(dataset="digits", model="linear", warmup_steps=WARM_UP, accumulation_steps=passes)
    parallel_model = ParallelModel.build(nn.Linear(8, 2), [], settings, CPU)
    assert isinstance(parallel_model.data_parallel, DistributedDataParallel)
    parallel_model.data_parallel.register_comm_hook(None, Late(when).exchange)
    return parallel_model


def step(parallel_model: ParallelModel, passes: int = 1) -> None:
    for index in range(passes):
        with parallel_model.gradient_sync(now=index == passes - 1):
            parallel_model.compiled(torch.ones(4, 8)).sum().backward()


def trained(steps: int, late_from: int, passes: int = 1) -> ParallelModel:
    parallel_model = build(lambda number: number > late_from, passes)
    for _ in range(steps):
        step(parallel_model, passes)
    return parallel_model


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("steps", [8, 12, 22])
def test_steps_of_the_warm_up_do_not_make_the_communication_look_shorter(steps: int, passes: int) -> None:
    """Were they in the mean, it would fall below what every measured step waited."""
    seconds = trained(steps, late_from=WARM_UP, passes=passes).communication_seconds()
    assert seconds is not None
    assert seconds >= 0.75 * LATE_SECONDS


def test_a_training_that_is_all_warm_up_tells_what_that_waited() -> None:
    seconds = trained(3, late_from=0).communication_seconds()
    assert seconds is not None
    assert seconds >= 0.75 * LATE_SECONDS


def resumed(steps: int, late: set[int], earlier: CommTime, settling: int = 1) -> ParallelModel:
    """A replica that goes on after passes that are no steps; the first of these is pass 1."""
    parallel_model = build(late.__contains__)
    for _ in range(settling):
        step(parallel_model)
    parallel_model.resume(earlier)
    for _ in range(steps):
        step(parallel_model)
    return parallel_model


@pytest.mark.parametrize("settling", [1, 2])
def test_passes_before_the_first_step_and_the_whole_renewed_warm_up_are_left_out(settling: int) -> None:
    counted = resumed(WARM_UP + 4, set(), CommTime(), settling).measured_communication()
    # DDP has not told of the last
    assert counted.steps == 4 - 1


def test_steps_of_all_starts_are_in_the_mean() -> None:
    parallel_model = resumed(WARM_UP + 4, set(), CommTime(steps=9, seconds=3600.0))
    counted = parallel_model.measured_communication()
    assert counted.steps == 9 + 3
    assert parallel_model.communication_seconds() == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize("steps", [0, 1, WARM_UP, WARM_UP + 1])
def test_steps_around_a_resume_alone_say_nothing(steps: int) -> None:
    earlier = CommTime(steps=2, seconds=0.5)
    late = set(range(1, steps + 2))
    assert resumed(steps, late, earlier).communication_seconds() == 0.25
    assert resumed(steps, late, CommTime()).communication_seconds() is None


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("settling", [0, 1, 2])
def test_the_communication_of_single_measured_steps_is_kept_in_their_order(
    settling: int, passes: int
) -> None:
    """The steps that exchange late are told from the others, each by itself."""
    late = {settling + WARM_UP + 2, settling + WARM_UP + 3}
    parallel_model = build(late.__contains__, passes)
    for _ in range(settling):
        step(parallel_model)
    parallel_model.resume(CommTime())
    for _ in range(WARM_UP + 6):
        step(parallel_model, passes)
    kept = parallel_model.measured_communication().step_seconds
    # DDP times its first ten passes, and has told of all but the last two as a step begins
    assert len(kept) == min(4, 10 - settling - WARM_UP)
    assert [seconds >= 0.75 * LATE_SECONDS for seconds in kept] == [False, True, True, False][: len(kept)]


def test_steps_beyond_the_first_ten_are_kept_where_ddp_samples_them() -> None:
    parallel_model = build({12, 15, 20, 21}.__contains__)
    for _ in range(27):
        step(parallel_model)
    kept = parallel_model.measured_communication().step_seconds
    # passes 5 to 10, 15, 20 and 25
    assert [seconds >= 0.75 * LATE_SECONDS for seconds in kept] == [*[False] * 6, True, True, False]


def test_single_steps_of_earlier_starts_are_kept_and_the_oldest_give_way() -> None:
    earlier = CommTime(steps=2, seconds=0.5, step_seconds=[0.2, 0.3])
    assert resumed(0, set(), earlier).measured_communication().step_seconds == [0.2, 0.3]
    kept = resumed(WARM_UP + 5, set(), earlier).measured_communication().step_seconds
    assert kept[:2] == [0.2, 0.3]
    assert len(kept) == 2 + 3
    many = CommTime(steps=KEPT_STEPS, seconds=1.0, step_seconds=[float(n) for n in range(KEPT_STEPS)])
    assert resumed(WARM_UP + 3, set(), many).measured_communication().step_seconds[0] == 1.0


def test_nothing_is_said_where_no_step_was_counted() -> None:
    assert trained(1, late_from=0).communication_seconds() is None
