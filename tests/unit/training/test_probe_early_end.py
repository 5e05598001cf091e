"""A program ends once its throughput is known: rank 0 says after which step, and the others hear it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import distributed
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.testing._internal.distributed import fake_pg

from scalewise.measure.early_end import KEY, EarlyEnd
from scalewise.measure.guards import Notes
from scalewise.measure.loader_iterations import Batch, LoaderIteration
from scalewise.measure.probe_spec import ProbeSpec
from scalewise.measure.step_flags import EVALUATION
from scalewise.measure.steps import StepRecord

WARMUP = 10
FEEDS = LoaderIteration(batch_size=8, workers=0)
FEEDS.add_batch(0, 0)
FEEDS.check_batches(1, directly=True)
assert FEEDS.trains
assert fake_pg  # its import registers the backend whose collectives do nothing


class Program:
    """A process whose steps take as long as is said."""

    def __init__(self, steps: int = 500, until_interval: float = 0.01) -> None:
        self.record, self.notes = StepRecord(), Notes()
        spec = ProbeSpec(Path("nowhere"), WARMUP, steps, until_interval)
        self.early_end = EarlyEnd(spec, self.record, self.notes)
        self._now = 0.0

    def step(self, seconds: float, flags: int = 0, samples: int | None = None) -> int:
        """Make a step, with a batch of so many samples; returns how many are done."""
        self._now += seconds
        step = self.record.open
        step.flags |= flags
        if samples is not None:
            step.batches = [Batch(FEEDS, samples, self._now, self._now, is_first=False)]
        self.record.add([self.record.cut(self._now, self.record.done + 1)])
        self.early_end.after_step(self.record.done)
        return self.record.done

    def run(self, seconds: Callable[[int], float] = lambda step: 0.1 + step % 3 / 1000) -> int:
        """Make steps until the last one; returns how many."""
        while (done := self.step(seconds(self.record.done))) != self.early_end.last_step:
            assert done < 1000
        return done


@contextmanager
def among(rank: int, store: Store) -> Iterator[Store]:
    """A process group of two ranks, this one and none; gives its store."""
    distributed.init_process_group("fake", rank=rank, world_size=2, store=store)
    try:
        yield distributed.distributed_c10d._get_default_store()
    finally:
        distributed.destroy_process_group()


def test_a_process_alone_ends_at_the_first_look_at_steady_steps() -> None:
    program = Program()
    assert program.run() == WARMUP + 21 * 5
    own = program.early_end.conclude(WARMUP + 21 * 5, "steps")
    assert (own["ended"], own["windows"], own["warmup_steps"], own["steady"]) == (
        "interval",
        20,
        WARMUP,
        True,
    )
    assert 0 < own["half_width_fraction"] <= 0.01


def test_the_smaller_last_batch_of_an_epoch_is_in_no_window() -> None:
    program, steps = Program(), 0
    while steps != program.early_end.last_step:
        last = program.record.done % 10 == 9
        # without the last ones every step takes as long
        steps = program.step(0.03 if last else 0.1, samples=3 if last else 8)
        assert steps < 1000
    own = program.early_end.conclude(steps, "steps")
    assert (own["ended"], own["warmup_steps"]) == ("interval", WARMUP)
    assert own["half_width_fraction"] == pytest.approx(0.0)


def test_batches_that_vary_are_all_in_windows() -> None:
    program = Program(until_interval=1e-9)
    for step in range(WARMUP + 200):
        program.step(0.1 + step % 3 / 1000, samples=8 + step % 5)
    program.early_end.conclude(WARMUP + 200, "itself")
    assert len(program.early_end._window_ends) == 200 // 5


def test_rank_0_leaves_the_last_step_two_windows_ahead() -> None:
    with among(0, HashStore()) as store:
        program = Program()
        while not store.check([KEY]):
            assert program.step(0.1 + program.record.done % 3 / 1000) < 200
        said = program.record.done
        assert program.run() == said + 10 == WARMUP + 21 * 5 + 10
        assert int(store.get(KEY)) == said + 10


def test_another_rank_ends_where_rank_0_says_however_its_own_times_are() -> None:
    with among(1, HashStore()) as store:
        program = Program()
        for step in range(WARMUP + 25 * 5):
            program.step(0.1 + step % 7)
        last = WARMUP + 25 * 5 + 10
        store.set(KEY, str(last))
        assert program.run() == last


def test_a_rank_that_hears_nothing_makes_all_its_steps() -> None:
    with among(1, HashStore()):
        assert Program().run() == WARMUP + 500


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_gone_ends_nothing_and_is_told(rank: int) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    with among(rank, client):
        del server
        gc.collect()
        program = Program()
        assert program.run() == WARMUP + 500
        assert [note.startswith("probe: early end") for note in program.notes.events][:1] == [True]


def test_steps_that_evaluate_are_in_no_window() -> None:
    program = Program()
    while (done := program.step(0.1 + program.record.done % 3 / 1000)) != program.early_end.last_step:
        if done % 25 == 0:
            program.step(7.0, EVALUATION)
    own = program.early_end.conclude(done, "steps")
    assert own["ended"] == "interval"
    # the look after the first that has its 20 windows: some steps were left out
    assert WARMUP + 21 * 5 < done <= WARMUP + 30 * 5


def test_steps_that_compile_again_prolong_the_warm_up() -> None:
    program = Program()
    done = program.run(lambda step: 3.0 if step in {12, 13, 31} else 0.1 + step % 3 / 1000)
    own = program.early_end.conclude(done, "steps")
    assert 32 <= own["warmup_steps"] <= 36
    assert own["warmup_steps"] + 100 <= done < 500


def test_a_program_that_ends_by_itself_says_what_was_reached() -> None:
    program = Program(until_interval=1e-9)
    for step in range(150):
        program.step(0.1 + step % 3 / 1000)
    own = program.early_end.conclude(150, "itself")
    assert (own["ended"], own["windows"]) == ("itself", 28)
    short = Program()
    short.step(0.1)
    assert short.early_end.conclude(1, "itself")["half_width_fraction"] is None
