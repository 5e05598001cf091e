"""All-reduce measured by itself, and the exchanges of measured steps."""

# no `from __future__ import annotations`: DDP looks at those of a hook

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.builtin.parallel_model import ParallelModel
from scalewise.execution.all_reduce_job import was_interrupted
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.measure.communication import CommunicationSamples
from scalewise.plan.config.settings import Settings
from scalewise.plan.jobs.launch import Launch
from scalewise.ranks.all_reduce import check_sum, expected_seconds, measure_all_reduce
from scalewise.ranks.distributed.device_timers import HostTimer
from scalewise.records import AllReduce

CPU = torch.device("cpu")


class SteppingTimer:
    """A timer on which every all-reduce takes the same time, and so does every wait for the device.

    Args:
        seconds: Time of an all-reduce.
        around: Time of the wait.
    """

    def __init__(self, seconds: float, around: float = 0.0) -> None:
        self._seconds, self._around, self._now = seconds, around, 0.0

    def reduced(self) -> None:
        """Let the time of an all-reduce pass."""
        self._now += self._seconds

    def record(self) -> float:
        return self._now

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        self._now += self._around

    def now(self) -> float:
        return self._now

    def wait(self, mark: float) -> None:
        """Do nothing: nothing is ever pending."""


@pytest.fixture
def summing(monkeypatch: pytest.MonkeyPatch) -> Callable[[SteppingTimer], SteppingTimer]:
    """Has all-reduces move a timer."""

    def step(timer: SteppingTimer) -> SteppingTimer:
        all_reduce = dist.all_reduce

        def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            timer.reduced()
            all_reduce(tensor, *args, **kwargs)

        monkeypatch.setattr(dist, "all_reduce", reduce)
        return timer

    return step


@pytest.mark.parametrize(
    ("seconds", "sizes", "repeats"),
    [
        pytest.param(0.001, 3, 20, id="fast link: all sizes, often"),
        pytest.param(0.5, 2, 8, id="slower: fewer, and not what would take over two seconds"),
        pytest.param(9.0, 1, 5, id="hardly any: what is smallest is measured still"),
    ],
)
def test_a_slow_link_is_not_given_what_it_cannot_carry_in_time(
    seconds: float, sizes: int, repeats: int, summing: Callable[[SteppingTimer], SteppingTimer]
) -> None:
    timer = summing(SteppingTimer(seconds))
    measured = measure_all_reduce(CPU, timer, (4096, 16384, 98304), seconds_per_size=4.0)

    assert len(measured) == sizes
    assert {len(size.seconds) for size in measured} == {repeats}
    assert measured[0].seconds == pytest.approx([seconds] * repeats)


@pytest.mark.parametrize("seconds", [20e-6, 5e-3], ids=["short", "long"])
def test_no_wait_for_the_ranks_or_the_device_is_in_an_all_reduce(
    seconds: float, summing: Callable[[SteppingTimer], SteppingTimer]
) -> None:
    for size in measure_all_reduce(CPU, summing(SteppingTimer(seconds, around=50e-6)), (4096, 65536)):
        assert size.seconds == pytest.approx([seconds] * 20)
    (measured,) = measure_all_reduce(CPU, HostTimer(), (65536,))
    assert measured.bytes == 65536
    assert all(each > 0 for each in measured.seconds)


def test_a_larger_message_is_expected_to_take_at_most_its_share_of_bytes_longer() -> None:
    assert expected_seconds(AllReduce(bytes=1000, seconds=[0.3, 0.2, 0.9]), 4000) == pytest.approx(0.8)


def test_a_sum_that_is_wrong_in_one_value_ends_the_measurement() -> None:
    message = torch.full((1024,), 10.0)
    check_sum(message, 10.0, rank=3)
    message[700] = 9.0

    with pytest.raises(RuntimeError, match=r"of 4096 bytes gave rank 3 9 in place of 10 \(1 of 1024 values"):
        check_sum(message, 10.0, rank=3)


@pytest.fixture
def rank_group(tmp_path: Path) -> RankGroup:
    rank_files = RankFiles(tmp_path / "attempt")
    rank_files.folder.mkdir()
    for rank in range(2):
        rank_files.started(rank, "node1")
    return RankGroup("all-reduce", rank_files, Launch("spawn", ("true",), {}), 2, tmp_path / "log", 60.0)


def leave(rank_group: RankGroup, rank: int, ending: str) -> None:
    if ending == "raised":
        rank_group.rank_files.failed(rank, "node1", RuntimeError("no such network"), out_of_memory=False)
    elif ending != "silent":
        getattr(rank_group.rank_files, ending)(rank)


@pytest.mark.parametrize(
    ("why", "endings", "interrupted"),
    [
        pytest.param("interrupted", ("silent", "silent"), True, id="seen by the supervisor"),
        pytest.param("failed", ("terminated", "terminated"), True, id="seen by the ranks first"),
        pytest.param("failed", ("terminated", "finished"), True, id="seen by one of them"),
        pytest.param("failed", ("raised", "terminated"), False, id="a rank failed, its peer was ended"),
        pytest.param("failed", ("silent", "terminated"), False, id="a rank was killed"),
        pytest.param("failed", ("finished", "finished"), False, id="all done, and no record"),
        pytest.param("timed-out", ("terminated", "terminated"), False, id="took too long"),
    ],
)
def test_an_interrupted_measurement_is_not_recorded_as_failed(
    rank_group: RankGroup, why: Any, endings: tuple[str, str], interrupted: bool
) -> None:
    for rank, ending in enumerate(endings):
        leave(rank_group, rank, ending)

    assert was_interrupted(rank_group, ExitStatus(1, why)) is interrupted


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
