"""What our training loop costs over a bare one: same network, same DDP, same optimizer, same batches.

Ours is measured as in a run: the probe's hooks are set in torch before each of its passes, and removed before
each of the bare loop's. And the cost of one rank's process group: a bare loop under DDP against the same loop
without either.

python benchmarks/run.py loop
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from scalewise.builtin.data import datasets
from scalewise.builtin.data.preparation import prepare
from scalewise.builtin.loop import TrainingState, to_the_end, train_epoch
from scalewise.builtin.optim import build_optimizer
from scalewise.builtin.train_log import StepLog
from scalewise.builtin.trainer import Trainer
from scalewise.execution.progress_reporter import ProgressReporter
from scalewise.execution.rank_files import RankFiles

from .measure import CLOCKS, Row, interleave, step_row
from .one_rank import measuring, one_rank, project_task

MOST = 1.02
# Short passes: the two of a pair are so close in time that they meet the same machine. What an epoch costs
# once, and hooks that are set again, weigh more in them than in a whole one, which counts against us.
ROUNDS, STEPS = 100, 12
# a second and more, in which a line of train.log is due
LOG_ROUNDS, LOG_STEPS = 40, 51
GROUP_ROUNDS = 40
SMALL = {"ROUNDS": 1, "LOG_ROUNDS": 1, "GROUP_ROUNDS": 1}
# the smallest batch of the study that ships: the fewer samples, the more a step's own cost shows
BATCH = 128
OPTIONS = {"model": "digits_cnn", "global_batch_size": BATCH}


def rows() -> list[Row]:
    """Epochs of both loops in turn, in one process on one core, without and with lines on steps."""
    with one_rank() as (identity, device), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.safetensors"
        prepare("digits", file)
        whole = datasets.load(file)

        def task(steps: int) -> Trainer:
            chosen = torch.arange(steps * BATCH) % len(whole.train_labels)
            part = replace(
                whole, train_images=whole.train_images[chosen], train_labels=whole.train_labels[chosen]
            )
            return project_task(OPTIONS, part, identity, device)

        table = _compare("", task(STEPS), STEPS, ROUNDS) + _compare_with_plain(task(STEPS))
        log = Path(folder) / "train.log"
        with (
            log.open("w", encoding="utf-8") as output,
            redirect_stdout(output),
            ProgressReporter(RankFiles(Path(folder))) as reporter,
        ):
            trainer = task(LOG_STEPS)
            step_log = StepLog(trainer, reporter.say)
            rows_with_log = _compare(", a line a second", trainer, LOG_STEPS, LOG_ROUNDS, step_log.after_step)
        assert len(log.read_text(encoding="utf-8").splitlines()) >= LOG_ROUNDS
        return table + rows_with_log


def _compare(
    what: str,
    trainer: Trainer,
    steps: int,
    rounds: int,
    report: Callable[[TrainingState], None] = lambda _state: None,
) -> list[Row]:
    epochs = itertools.count()

    def after_step(state: TrainingState) -> bool:
        report(state)
        return to_the_end(state)

    def ours() -> None:
        train_epoch(trainer, TrainingState.start(trainer.device, next(epochs)), after_step)

    # One network and one optimizer for both: two copies would differ by where they lie in memory.
    model, optimizer = trainer.parallel_model.compiled, trainer.optimizer
    bare = _bare_loop(trainer, model, optimizer)
    hooks = partial(measuring, trainer.measured)
    interleave(ours, bare, rounds=5, around_ours=hooks)
    pairs = interleave(ours, bare, rounds, around_ours=hooks)
    assert trainer.measured.steps.done == (rounds + 5) * steps
    assert trainer.measured.notes.events == []

    # Judged by CPU time: other processes on the machine lengthen the wall time of whichever loop they
    # meet. Wall time is quoted too, since it alone would show a loop that waits.
    return [
        step_row(
            f"loop{what}: {clock} time of a step, digits_cnn, batch {BATCH}",
            *(pairs, clock, steps),
            MOST if clock == "cpu" else None,
        )
        for clock in CLOCKS
    ]


def _compare_with_plain(trainer: Trainer) -> list[Row]:
    """A process group of one rank with DistributedDataParallel, against the plain process of a tutorial."""
    network = copy.deepcopy(trainer.parallel_model.module)
    plain = _bare_loop(trainer, network, build_optimizer(trainer.settings, network.parameters(), 1))
    group = _bare_loop(trainer, trainer.parallel_model.compiled, trainer.optimizer)
    interleave(group, plain, rounds=5)
    pairs = interleave(group, plain, GROUP_ROUNDS)
    what = "group of one rank against a plain process"
    return [
        step_row(
            f"loop, {what}: {clock} time of a step, digits_cnn, batch {BATCH}", pairs, clock, STEPS, None
        )
        for clock in CLOCKS
    ]


def _bare_loop(
    trainer: Trainer, model: Callable[[torch.Tensor], torch.Tensor], optimizer: Optimizer
) -> Callable[[], None]:
    """A pass of a loop that only trains, over the trainer's images."""
    trainer.batch_sampler.plan([np.arange(trainer.sampler.samples_of_rank)], epoch=0)
    images, labels = next(iter(trainer.train))

    def bare() -> None:
        trainer.parallel_model.train()
        order = torch.randperm(len(images))
        for start in range(0, len(images), BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()

    return bare
