"""Every model builds, trains and is what the planner says it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from scalewise.builtin.models.builders import BUILDERS, blocks, build
from scalewise.plan.catalog.datasets import DATASETS
from scalewise.plan.catalog.models import MODELS, known_models, model_facts

SMALL_OF_EACH_KIND = [*sorted(BUILDERS), "wrn-10-1", "transformer-1M"]
every_model = pytest.mark.parametrize("name", SMALL_OF_EACH_KIND)


def images_for(name: str, samples: int, channels: int = 1) -> torch.Tensor:
    pixels = max(8, model_facts(name).min_pixels)
    return torch.randn(samples, channels, pixels, pixels)


@pytest.fixture
def mesh(one_rank: None) -> DeviceMesh:
    return init_device_mesh("cpu", (1,))


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_planner_and_the_builders_know_the_same_models() -> None:
    assert BUILDERS.keys() == MODELS.keys()


@pytest.mark.parametrize("name", known_models())
def test_every_model_that_is_named_to_the_user_can_be_built(name: str) -> None:
    image = torch.Size([3, 32, 32])
    with torch.device("meta"):
        assert build(name, image, 10)(torch.empty(2, *image)).shape == (2, 10)


@every_model
def test_batch_normalisation_is_announced_where_it_is_used(name: str) -> None:
    network = build(name, torch.Size([1, 8, 8]), 10)
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())
    assert model_facts(name).batch_norm == normalised


@every_model
@pytest.mark.parametrize(("channels", "stretched"), [(1, (1, 1)), (3, (1, 2)), (3, (3, 2))])
@pytest.mark.slow
def test_a_model_trains_on_the_smallest_images_it_is_said_to_take(
    name: str, channels: int, stretched: tuple[int, int]
) -> None:
    pixels = model_facts(name).min_pixels
    image = torch.Size([channels, pixels * stretched[0], pixels * stretched[1]])
    torch.manual_seed(0)
    network = build(name, image, 7)
    logits = network(torch.randn(4, *image))
    assert logits.shape == (4, 7)
    nn.functional.cross_entropy(logits, torch.tensor([0, 3, 6, 1])).backward()
    for label, parameter in network.named_parameters():
        assert parameter.grad is not None, label
        assert torch.isfinite(parameter.grad).all(), label


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_one_pixel_less_than_the_least_is_too_few_for_the_convolutions_of_the_mnist_cnn() -> None:
    pixels = model_facts("mnist_cnn").min_pixels - 1
    network = build("mnist_cnn", torch.Size([1, pixels, pixels]), 10)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        network(torch.randn(2, 1, pixels, pixels))


@every_model
def test_a_batch_of_two_is_enough(name: str) -> None:
    network = build(name, torch.Size([1, 8, 8]), 10)
    assert torch.isfinite(network(torch.randn(2, 1, 8, 8))).all()


@every_model
@pytest.mark.parametrize("dataset", sorted(DATASETS))
def test_every_model_takes_every_shipped_dataset_it_is_allowed_to(name: str, dataset: str) -> None:
    facts = DATASETS[dataset]
    if min(facts.height, facts.width) < model_facts(name).min_pixels:
        pytest.skip(f"the planner refuses {name} on {dataset}")
    image = torch.Size([facts.channels, facts.height, facts.width])
    with torch.device("meta"):
        assert build(name, image, 10)(torch.empty(3, *image)).shape == (3, 10)


@every_model
def test_one_seed_builds_one_model(name: str) -> None:
    def built(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(build(name, torch.Size([1, 8, 8]), 10).parameters())

    first, again, other = (built(seed) for seed in (3, 3, 4))
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


@every_model
def test_a_model_computes_the_same_with_channels_last(name: str) -> None:
    torch.manual_seed(0)
    images = images_for(name, 2, channels=3)
    network = build(name, images.shape[1:], 5).eval()
    expected = network(images)
    network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(
        network(images.to(memory_format=torch.channels_last)), expected, rtol=1e-3, atol=1e-4
    )


def test_the_mnist_cnn_is_that_of_the_tutorials() -> None:
    network = build("mnist_cnn", torch.Size([1, 28, 28]), 10)
    assert count(network) == 1_199_882
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.25, 0.5]
    wide = [module.in_features for module in network.modules() if isinstance(module, nn.Linear)]
    assert wide == [9216, 128]
    # logits, not their logarithms as probabilities
    assert not torch.allclose(network(torch.randn(2, 1, 28, 28)).exp().sum(dim=1), torch.ones(2))


def test_an_unknown_model_is_not_built() -> None:
    with pytest.raises(KeyError):
        build("resnet19", torch.Size([3, 32, 32]), 10)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("linear", ["Linear"]),
        ("digits_cnn", ["Conv2d", "BatchNorm2d"] * 3 + ["Linear"]),
        ("mnist_cnn", ["Conv2d", "Conv2d", "Linear", "Linear"]),
        ("resnet18", ["BasicBlock"] * 8),
        ("wide_resnet", ["Sequential"] + ["GuideBlock"] * 6),
        ("wrn-16-2", ["PreactivationBlock"] * 6),
        ("transformer-2M", ["TransformerEncoderLayer"] * 10),
    ],
)
def test_a_model_is_sharded_block_by_block(name: str, parts: list[str]) -> None:
    with torch.device("meta"):
        network = build(name, torch.Size([3, 32, 32]), 10)
    assert [type(block).__name__ for block in blocks(network)] == parts


@pytest.mark.parametrize("name", ["digits_cnn", "resnet18", "wide_resnet", "wrn-10-1", "transformer-1M"])
@pytest.mark.slow
def test_what_is_sharded_block_by_block_computes_the_same(name: str, mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    images = images_for(name, 2)
    network = build(name, images.shape[1:], 5).eval()
    expected = network(images)
    for block in blocks(network):
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    logits = network(images)
    torch.testing.assert_close(logits, expected)
    logits.sum().backward()
    # a block whose forward is never called would have stayed in pieces, and got no gradient
    assert [label for label, parameter in network.named_parameters() if parameter.grad is None] == []


def test_a_network_without_rows_is_sharded_layer_by_layer() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.activation = nn.ReLU()
            self.second = nn.Linear(4, 4)

    network = Plain()
    assert blocks(network) == [network.first, network.second]
    assert blocks(nn.Linear(4, 4)) == []
