"""What a step waits for gradients, by DDP's own counters: of the measured steps, warm-up left out."""

# no `from __future__ import annotations`: DDP looks at the hook's

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.plan.settings import Settings
from scalewise.training.replica import Replica

CPU = torch.device("cpu")
WARM_UP = 4
LATE_SECONDS = 0.05


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class LateFrom:
    """An exchange whose gradients arrive late, from a step on."""

    def __init__(self, step: int) -> None:
        self.steps = 0
        self.late_from = step

    def exchange(self, _state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        self.steps += 1
        arrived: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        late = LATE_SECONDS if self.steps > self.late_from else 0.0
        threading.Timer(late, arrived.set_result, [bucket.buffer()]).start()
        return arrived


def trained(steps: int, late_from: int, passes: int = 1) -> Replica:
    settings = Settings(dataset="digits", model="linear", warmup_steps=WARM_UP, accumulation_steps=passes)
    replica = Replica.build(nn.Linear(8, 2), [], settings, CPU)
    assert isinstance(replica.wrapper, DistributedDataParallel)
    replica.wrapper.register_comm_hook(None, LateFrom(late_from).exchange)
    for _ in range(steps):
        for index in range(passes):
            with replica.exchange(now=index == passes - 1):
                replica.model(torch.ones(4, 8)).sum().backward()
    return replica


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("steps", [8, 12, 22])
def test_steps_of_the_warm_up_do_not_make_the_communication_look_shorter(steps: int, passes: int) -> None:
    """Were they in the mean, it would fall below what every measured step waited."""
    seconds = trained(steps, late_from=WARM_UP, passes=passes).communication_seconds()
    assert seconds is not None
    assert seconds >= 0.9 * LATE_SECONDS


def test_a_training_that_is_all_warm_up_tells_what_that_waited() -> None:
    seconds = trained(3, late_from=0).communication_seconds()
    assert seconds is not None
    assert seconds >= 0.9 * LATE_SECONDS


def test_nothing_is_said_where_no_step_was_counted() -> None:
    assert trained(1, late_from=0).communication_seconds() is None
