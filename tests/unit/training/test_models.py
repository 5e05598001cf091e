"""Every model is that of its paper or tutorial, trains, and is what the planner says it is."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scalewise.config.catalog import known_models, normalises_over_batch
from scalewise.training.models import BUILDERS, build
from scalewise.training.transformer import TransformerSizeError, architecture

SMALL_OF_EACH_KIND = [*sorted(BUILDERS), "wrn-10-1", "transformer-1M"]
every_model = pytest.mark.parametrize("name", SMALL_OF_EACH_KIND)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def built(name: str, *image: int, classes: int = 10) -> nn.Module:
    """Build a model on a device without memory."""
    with torch.device("meta"):
        return build(name, torch.Size(image), classes)


@pytest.mark.parametrize("name", known_models())
def test_every_model_that_is_named_to_the_user_can_be_built_and_announces_its_batch_norm(name: str) -> None:
    network = built(name, 3, 32, 32)
    assert network(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)
    assert normalises_over_batch(name) == any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()
    )


@every_model
@pytest.mark.slow
def test_a_model_trains_on_small_images(name: str) -> None:
    image = torch.Size([3, 8, 8])
    torch.manual_seed(0)
    network = build(name, image, 7)
    logits = network(torch.randn(4, *image))
    assert logits.shape == (4, 7)
    nn.functional.cross_entropy(logits, torch.tensor([0, 3, 6, 1])).backward()
    for label, parameter in network.named_parameters():
        assert parameter.grad is not None, label
        assert torch.isfinite(parameter.grad).all(), label


def test_the_mnist_cnn_is_that_of_the_tutorials() -> None:
    network = build("mnist_cnn", torch.Size([1, 28, 28]), 10)
    assert count(network) == 1_199_882
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.25, 0.5]
    wide = [module.in_features for module in network.modules() if isinstance(module, nn.Linear)]
    assert wide == [9216, 128]
    # logits, not their logarithms as probabilities
    assert not torch.allclose(network(torch.randn(2, 1, 28, 28)).exp().sum(dim=1), torch.ones(2))


@pytest.mark.parametrize(
    ("model", "pixels", "classes", "millions", "giga_macs"),
    [
        pytest.param("wide_resnet", 32, 100, 17.2, 2.41, id="the guide's network as published"),
        pytest.param("wrn-28-10", 32, 10, 36.5, 5.24, id="WRN-28-10 of the paper"),
        pytest.param("wrn-40-4", 32, 10, 8.9, 1.30, id="WRN-40-4 of the paper"),
        pytest.param("wrn-16-8", 32, 10, 11.0, 1.55, id="WRN-16-8 of the paper"),
        pytest.param("resnet18", 224, 1000, 11.7, 1.81, id="ResNet-18 as torchvision states it"),
        pytest.param("resnet18", 32, 10, 11.2, 0.56, id="ResNet-18 as it is usual on CIFAR"),
    ],
)
def test_a_published_network_has_its_published_size(
    model: str, pixels: int, classes: int, millions: float, giga_macs: float
) -> None:
    network = built(model, 3, pixels, pixels, classes=classes).eval()
    assert count(network) / 1e6 == pytest.approx(millions, abs=0.05)
    with FlopCounterMode(display=False) as counter:
        network(torch.empty(1, 3, pixels, pixels, device="meta"))
    # two operations for each multiplication and its addition
    assert counter.get_total_flops() / 2e9 == pytest.approx(giga_macs, abs=0.006)


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("image", "classes", "asked"),
    [((3, 33, 50), 7, 2 * MILLION), ((1, 6, 9), 3, 1_300_000), ((3, 224, 224), 1000, 2000 * MILLION)],
)
def test_the_arithmetic_counts_what_is_built(image: tuple[int, ...], classes: int, asked: int) -> None:
    sizes = architecture(asked, torch.Size(image), classes)
    network = built(f"transformer-{asked / MILLION}M", *image, classes=classes)
    assert count(network) == sizes.parameters
    assert sum(isinstance(module, nn.TransformerEncoderLayer) for module in network.modules()) == sizes.depth


def test_a_transformer_smaller_than_its_head_is_refused_with_both_numbers() -> None:
    with pytest.raises(TransformerSizeError) as caught:
        build("transformer-1M", torch.Size([3, 32, 32]), 1_000_000)
    message = str(caught.value)
    assert "1,000,000 parameters within 5 %" in message
    assert "Request about as many, or more." in message
