"""Batches are what a user would compute by hand from the images."""

from __future__ import annotations

import pytest
import torch

from scalewise.builtin.data.loaders import Preprocessing, ResidentImages, channel_statistics

CPU = torch.device("cpu")


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (50, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_batch_is_normalised_channel_by_channel(images: torch.Tensor) -> None:
    labels = torch.arange(50)
    mean, std = torch.tensor([10.0, 100.0, 200.0]), torch.tensor([2.0, 50.0, 0.5])
    loader = ResidentImages(images, labels, Preprocessing(mean, std), CPU)
    batch, chosen = loader.load(torch.tensor([7, 0, 7, 49]))
    assert batch.dtype == torch.float32
    assert batch.shape == (4, 3, 5, 4)
    assert chosen.tolist() == [7, 0, 7, 49]
    for place, sample in enumerate((7, 0, 7, 49)):
        for channel in range(3):
            expected = (images[sample, channel].double() - mean[channel]) / std[channel]
            assert torch.allclose(batch[place, channel].double(), expected, rtol=1e-6, atol=1e-5)


def test_loading_leaves_the_data_as_it_was(images: torch.Tensor) -> None:
    before = images.clone()
    loader = ResidentImages(images, torch.arange(50), Preprocessing(torch.zeros(3), torch.ones(3)), CPU)
    first, _ = loader.load(torch.arange(50))
    first.fill_(0)
    again, _ = loader.load(torch.arange(50))
    assert torch.equal(images, before)
    assert torch.equal(again, before.float())
    assert len(loader) == 50


def test_statistics_are_those_of_all_pixels_of_a_channel(images: torch.Tensor) -> None:
    mean, std = channel_statistics(images)
    assert mean.dtype == std.dtype == torch.float32
    for channel in range(3):
        pixels = images[:, channel].double()
        assert float(mean[channel]) == pytest.approx(float(pixels.mean()), rel=1e-6)
        assert float(std[channel]) == pytest.approx(float(pixels.std(correction=0)), rel=1e-6)


def test_training_data_normalised_by_its_own_statistics_has_zero_mean_and_unit_variance(
    images: torch.Tensor,
) -> None:
    loader = ResidentImages(images, torch.arange(50), Preprocessing(*channel_statistics(images)), CPU)
    batch, _ = loader.load(torch.arange(50))
    assert batch.mean((0, 2, 3)).abs().max() < 1e-5
    assert (batch.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_a_channel_that_is_one_value_everywhere_becomes_zero_and_not_infinite() -> None:
    images = torch.full((6, 1, 4, 4), 37, dtype=torch.uint8)
    loader = ResidentImages(
        images, torch.zeros(6, dtype=torch.int64), Preprocessing(*channel_statistics(images)), CPU
    )
    batch, _ = loader.load(torch.arange(6))
    assert torch.equal(batch, torch.zeros(6, 1, 4, 4))
