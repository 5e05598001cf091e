"""The planner's facts on models are true of the models that are built."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from scalewise.plan.catalog import DATASETS, MODELS
from scalewise.plan.config import Settings
from scalewise.training.models import BUILDERS, build

every_model = pytest.mark.parametrize("name", sorted(BUILDERS))


def test_configuration_catalogue_and_builders_know_the_same_models() -> None:
    assert BUILDERS.keys() == MODELS.keys()
    assert set(get_args(Settings.model_fields["model"].annotation)) == set(MODELS)


@every_model
def test_batch_normalisation_is_announced_where_it_is_used(name: str) -> None:
    network = build(name, torch.Size([1, 8, 8]), 10)
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())
    assert MODELS[name].batch_norm == normalised


@every_model
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("stretched", [(1, 1), (1, 2), (3, 2)])
def test_a_model_trains_on_the_smallest_images_it_is_said_to_take(
    name: str, channels: int, stretched: tuple[int, int]
) -> None:
    pixels = MODELS[name].min_pixels
    image = torch.Size([channels, pixels * stretched[0], pixels * stretched[1]])
    torch.manual_seed(0)
    network = build(name, image, 7)
    logits = network(torch.randn(4, *image))
    assert logits.shape == (4, 7)
    nn.functional.cross_entropy(logits, torch.tensor([0, 3, 6, 1])).backward()
    for label, parameter in network.named_parameters():
        assert parameter.grad is not None, label
        assert torch.isfinite(parameter.grad).all(), label


@every_model
def test_a_batch_of_two_is_enough(name: str) -> None:
    network = build(name, torch.Size([1, 8, 8]), 10)
    assert torch.isfinite(network(torch.randn(2, 1, 8, 8))).all()


@every_model
@pytest.mark.parametrize("dataset", sorted(DATASETS))
def test_every_model_takes_every_shipped_dataset_it_is_allowed_to(name: str, dataset: str) -> None:
    facts = DATASETS[dataset]
    if min(facts.height, facts.width) < MODELS[name].min_pixels:
        pytest.skip(f"the planner refuses {name} on {dataset}")
    image = torch.Size([facts.channels, facts.height, facts.width])
    assert build(name, image, 10)(torch.randn(3, *image)).shape == (3, 10)


@every_model
def test_one_seed_builds_one_model(name: str) -> None:
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(build(name, torch.Size([1, 8, 8]), 10).state_dict())
    first, again, other = (torch.cat([t.flatten().double() for t in s.values()]) for s in states)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
