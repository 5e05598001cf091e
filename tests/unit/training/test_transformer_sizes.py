"""A transformer has as many parameters as its name says, whatever the images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalewise.builtin.models.builders import build
from scalewise.builtin.models.transformer import TransformerSizeError, architecture

CIFAR = torch.Size([3, 32, 32])
MILLION = 1_000_000


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("size", ["1M", "1.7M", "5M", "25M", "300M", "2G"])
@pytest.mark.parametrize(
    ("image", "classes"), [((3, 32, 32), 10), ((1, 28, 28), 10), ((3, 224, 224), 1000), ((1, 8, 8), 10)]
)
def test_it_has_the_asked_number_of_parameters_within_5_percent(
    size: str, image: tuple[int, ...], classes: int
) -> None:
    asked = float(size[:-1]) * {"M": 1, "G": 1000}[size[-1]] * MILLION
    with torch.device("meta"):
        network = build(f"transformer-{size}", torch.Size(image), classes)
    assert parameters(network) == pytest.approx(asked, rel=0.05)


@pytest.mark.slow
def test_every_size_from_one_million_to_two_thousand_million_can_be_had() -> None:
    asked = MILLION
    while asked <= 2000 * MILLION:
        for image, classes in ((CIFAR, 100), (torch.Size([3, 224, 224]), 1000)):
            assert architecture(asked, image, classes).parameters == pytest.approx(asked, rel=0.05)
        asked = int(asked * 1.07)


@pytest.mark.parametrize(
    ("image", "classes", "asked"), [((3, 33, 50), 7, 2 * MILLION), ((1, 6, 9), 3, 1_300_000)]
)
def test_the_arithmetic_counts_what_is_built(image: tuple[int, ...], classes: int, asked: int) -> None:
    sizes = architecture(asked, torch.Size(image), classes)
    with torch.device("meta"):
        network = build(f"transformer-{asked / MILLION}M", torch.Size(image), classes)
    assert parameters(network) == sizes.parameters
    assert sum(isinstance(module, nn.TransformerEncoderLayer) for module in network.modules()) == sizes.depth


@pytest.mark.parametrize("millions", [1, 2, 5, 10, 25, 100, 1000, 2000])
@pytest.mark.parametrize("image", [(3, 32, 32), (3, 224, 224)])
def test_it_is_neither_a_needle_nor_a_disc(millions: int, image: tuple[int, ...]) -> None:
    sizes = architecture(millions * MILLION, torch.Size(image), 100)
    assert 10 <= sizes.width / sizes.depth <= 80
    assert sizes.width % sizes.heads == 0
    assert sizes.width // sizes.heads in {32, 64}


@pytest.mark.parametrize(
    ("image", "patch", "tokens"),
    [
        ((1, 1, 1), 1, 1),
        ((1, 8, 8), 1, 64),
        ((1, 28, 28), 4, 49),
        ((3, 32, 32), 4, 64),
        ((3, 31, 31), 4, 64),
        ((3, 64, 64), 8, 64),
        ((3, 224, 224), 16, 196),
        ((3, 32, 60), 4, 120),
    ],
)
def test_patches_grow_with_the_image(image: tuple[int, ...], patch: int, tokens: int) -> None:
    sizes = architecture(5 * MILLION, torch.Size(image), 10)
    assert (sizes.patch, sizes.tokens) == (patch, tokens)


def test_every_pixel_counts_also_at_an_edge_that_no_patch_fills() -> None:
    torch.manual_seed(0)
    image = torch.Size([1, 11, 9])
    network = build("transformer-1M", image, 10).eval()
    images = torch.randn(1, *image, requires_grad=True)
    network(images).square().sum().backward()
    assert images.grad is not None
    assert (images.grad != 0).all()


def test_its_layers_begin_with_weights_of_their_own() -> None:
    first, second, *_ = build("transformer-1M", CIFAR, 10).get_submodule("layers").children()
    assert not torch.equal(*(layer.get_parameter("linear1.weight") for layer in (first, second)))


def test_a_transformer_that_its_head_alone_would_outgrow_is_refused_with_both_numbers() -> None:
    with pytest.raises(TransformerSizeError) as caught:
        build("transformer-1M", CIFAR, 1_000_000)
    message = str(caught.value)
    assert "1,000,000 parameters within 5 %" in message
    assert "Request about as many, or more." in message
