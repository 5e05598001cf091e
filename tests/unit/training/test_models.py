"""Every model is that of its paper or tutorial, trains, and is what the planner says it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.flop_counter import FlopCounterMode

from scalewise.config.catalog.models import MODELS, known_models, model_facts
from scalewise.training.models import BUILDERS, GuideBlock, PreactivationBlock, blocks, build
from scalewise.training.transformer import TransformerSizeError, architecture

SMALL_OF_EACH_KIND = [*sorted(BUILDERS), "wrn-10-1", "transformer-1M"]
every_model = pytest.mark.parametrize("name", SMALL_OF_EACH_KIND)


@pytest.fixture
def mesh(one_rank: None) -> DeviceMesh:
    return init_device_mesh("cpu", (1,))


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def built(name: str, *image: int, classes: int = 10) -> nn.Module:
    """Build a model on a device without memory."""
    with torch.device("meta"):
        return build(name, torch.Size(image), classes)


def test_the_planner_and_the_builders_know_the_same_models() -> None:
    assert BUILDERS.keys() == MODELS.keys()


@pytest.mark.parametrize("name", known_models())
def test_every_model_that_is_named_to_the_user_can_be_built_and_announces_its_batch_norm(name: str) -> None:
    network = built(name, 3, 32, 32)
    assert network(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)
    assert model_facts(name).batch_norm == any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()
    )


@every_model
@pytest.mark.slow
def test_a_model_trains_on_the_smallest_images_it_is_said_to_take(name: str) -> None:
    pixels = model_facts(name).min_pixels
    image = torch.Size([3, pixels, pixels])
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
    assert [type(block).__name__ for block in blocks(built(name, 3, 32, 32))] == parts


@pytest.mark.parametrize("name", ["digits_cnn", "wrn-10-1", "transformer-1M"])
@pytest.mark.slow
def test_what_is_sharded_block_by_block_computes_the_same(name: str, mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 1, 8, 8)
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
    network = nn.Module()
    network.first, network.activation, network.second = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    assert blocks(network) == [network.first, network.second]
    assert blocks(nn.Linear(4, 4)) == []


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


def test_the_guides_network_normalises_after_each_convolution_and_leaves_the_sum_as_it_is() -> None:
    torch.manual_seed(0)
    block = GuideBlock(4, 4).eval()
    x = torch.randn(2, 4, 6, 6)
    changed = block(x) - x
    assert changed.min() >= 0  # rectified before the sum,
    assert block(x).min() < 0  # not after it
    assert block.dropout.p == 0.01


@pytest.mark.parametrize(("outputs", "stride"), [(4, 1), (6, 1), (4, 2)])
def test_the_papers_block_normalises_before_each_convolution(outputs: int, stride: int) -> None:
    torch.manual_seed(0)
    block = PreactivationBlock(4, outputs, stride).eval()
    # not what normalisation begins with, which changes nothing
    for norm in (block.norm1, block.norm2):
        nn.init.uniform_(norm.weight)
        nn.init.normal_(norm.bias)
    x = torch.randn(2, 4, 6, 6)
    active = block.norm1(x).relu()
    changed = block.conv2(block.norm2(block.conv1(active)).relu())
    # the shortcut is bare where nothing changes, and of what is normalised where it is a convolution
    shortcut = x if (outputs, stride) == (4, 1) else nn.Sequential(*filter(None, [block.shortcut]))(active)
    torch.testing.assert_close(block(x), shortcut + changed)


@pytest.mark.parametrize(("pixels", "after_stem"), [(32, 32), (63, 63), (64, 16)])
def test_small_images_keep_their_pixels_at_the_start_of_resnet18(pixels: int, after_stem: int) -> None:
    network = built("resnet18", 1, pixels, pixels)
    sizes: list[int] = []
    layer = network.get_submodule("layer1")
    layer.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[-1]))
    network(torch.empty(2, 1, pixels, pixels, device="meta"))
    assert sizes == [after_stem]


MILLION = 1_000_000


def test_a_transformer_of_every_size_is_neither_a_needle_nor_a_disc() -> None:
    asked = MILLION
    while asked <= 2000 * MILLION:
        for image, classes in (((3, 32, 32), 100), ((1, 28, 28), 10), ((3, 224, 224), 1000)):
            sizes = architecture(asked, torch.Size(image), classes)
            assert sizes.parameters == pytest.approx(asked, rel=0.05)
            assert 6 <= sizes.width / sizes.depth <= 80
            assert sizes.width % sizes.heads == 0
            assert sizes.width // sizes.heads in {32, 64}
        asked = int(asked * 1.3)


@pytest.mark.parametrize(
    ("image", "classes", "asked"),
    [((3, 33, 50), 7, 2 * MILLION), ((1, 6, 9), 3, 1_300_000), ((3, 224, 224), 1000, 2000 * MILLION)],
)
def test_the_arithmetic_counts_what_is_built(image: tuple[int, ...], classes: int, asked: int) -> None:
    sizes = architecture(asked, torch.Size(image), classes)
    network = built(f"transformer-{asked / MILLION}M", *image, classes=classes)
    assert count(network) == sizes.parameters
    assert sum(isinstance(module, nn.TransformerEncoderLayer) for module in network.modules()) == sizes.depth


@pytest.mark.parametrize(
    ("image", "patch", "tokens"),
    [
        ((1, 1, 1), 1, 1),
        ((1, 8, 8), 1, 64),
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
    first, second, *_ = network.get_submodule("layers").children()
    assert not torch.equal(*(layer.get_parameter("linear1.weight") for layer in (first, second)))


def test_a_transformer_smaller_than_its_head_is_refused_with_both_numbers() -> None:
    with pytest.raises(TransformerSizeError) as caught:
        build("transformer-1M", torch.Size([3, 32, 32]), 1_000_000)
    message = str(caught.value)
    assert "1,000,000 parameters within 5 %" in message
    assert "Request about as many, or more." in message


@pytest.mark.slow
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["mnist_cnn", "wrn-10-1", "transformer-1M"])
def test_a_model_is_compiled_in_one_piece(name: str) -> None:
    torch._dynamo.reset()
    image = torch.Size([1, 8, 8])
    compiled = torch.compile(build(name, image, 10), fullgraph=True, backend="eager")
    assert compiled(torch.randn(5, *image)).shape == (5, 10)
