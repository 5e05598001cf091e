"""Evaluation needs no more memory than training, counts every sample once, and says where it had none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.data.sampling import EpochSampler
from scalewise.builtin.loop import TrainingState, evaluation_batch, evaluation_batches, train
from scalewise.builtin.models.builders import BUILDERS
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity

CPU = torch.device("cpu")
ALONE = Identity(0, 0, 1, 1, "node", None, 0)


class Recorder(nn.Module):
    def __init__(self, image: torch.Size, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)
        self.sizes: dict[bool, list[int]] = {True: [], False: []}
        self.full = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.sizes[self.training].append(len(images))
        if self.full and not self.training:
            raise torch.OutOfMemoryError("tried to allocate 3 GiB")
        logits: torch.Tensor = self.layer(images.flatten(1))
        return logits


@pytest.fixture
def trainer(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """One rank that trains 40 samples in micro-batches of 4, and has 50 to test."""
    monkeypatch.setitem(BUILDERS, "recorder", Recorder)
    images = torch.randint(256, (90, 1, 4, 4), dtype=torch.uint8)
    labels = torch.arange(90) % 10
    dataset = Dataset(images[:40], labels[:40], images[40:], labels[40:], 10)
    settings = Settings(
        dataset="digits",
        model="recorder",
        global_batch_size=8,
        accumulation_steps=2,
        epochs=1,
    )
    return build_trainer(settings, 8, dataset, build_loaders(settings, dataset, 0, CPU, 60), ALONE, CPU)


def test_a_batch_of_evaluation_is_no_larger_than_a_pass_of_training(trainer: Trainer) -> None:
    sizes = trainer.parallel_model.module.sizes
    assert isinstance(sizes, dict)
    assert train(trainer, TrainingState.start(CPU), lambda _record: None) == "completed"
    assert set(sizes[True]) == {4}
    assert max(sizes[False]) <= 4
    assert sum(sizes[False]) == 50


def test_an_evaluation_without_memory_is_not_taken_for_a_training_without(trainer: Trainer) -> None:
    trainer.parallel_model.module.full = True  # type: ignore[assignment]
    said = "in the evaluation after epoch 1, not in training: tried to allocate 3 GiB"
    with pytest.raises(torch.OutOfMemoryError, match=said):
        train(trainer, TrainingState.start(CPU), lambda _record: None)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("samples", [5, 360, 1437])
@pytest.mark.parametrize("batch_size", [1, 8, 100, 1024])
def test_every_test_sample_is_counted_once_in_as_many_batches_on_every_rank(
    samples: int, world_size: int, batch_size: int
) -> None:
    ranks = [list(evaluation_batches(samples, rank, world_size, batch_size)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = torch.cat([indices[:counted] for batches in ranks for indices, counted in batches])
    assert seen.sort().values.tolist() == list(range(samples))
    assert max(len(indices) for batches in ranks for indices, _ in batches) <= batch_size


@pytest.mark.parametrize(
    ("samples", "global_batch_size", "world_size", "micro_batches", "smallest"),
    [(1000, 256, 2, 1, 128), (1000, 256, 2, 4, 32), (1000, 250, 4, 1, 62), (10, 256, 2, 1, 5)],
)
def test_the_samples_of_a_micro_batch_are_those_that_the_first_step_gives_its_poorest_rank(
    samples: int, global_batch_size: int, world_size: int, micro_batches: int, smallest: int
) -> None:
    samplers = [
        EpochSampler(samples, global_batch_size, rank, world_size, 1, micro_batches)
        for rank in range(world_size)
    ]
    given = min(len(indices) for sampler in samplers for indices in next(iter(sampler)).micro_batches)
    assert {sampler.samples_of_micro_batch for sampler in samplers} == {given} == {smallest}


def test_a_large_batch_of_training_is_not_taken_for_evaluation() -> None:
    assert evaluation_batch(64) == 64
    assert evaluation_batch(50_000) == 1024
