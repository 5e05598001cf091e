"""Every model is that of its paper or tutorial, trains, and is what the planner says it is."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.fx import GraphModule
from torch.utils.flop_counter import FlopCounterMode

from scalewise.builtin.data.datasets import DatasetError, write
from scalewise.builtin.models.builders import BUILDERS, blocks, build
from scalewise.builtin.models.resnets import GuideBlock, PreactivationBlock
from scalewise.builtin.models.transformer import TransformerSizeError, architecture
from scalewise.builtin.parallel_model import ParallelModel
from scalewise.plan.catalog.datasets import DATASETS
from scalewise.plan.catalog.models import MODELS, known_models, model_facts
from scalewise.plan.config.settings import Settings

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
@pytest.mark.parametrize(("channels", "stretched"), [(1, (1, 1)), (3, (3, 2))])
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


State = dict[str, torch.Tensor]


def forward_macs(network: nn.Module, image: torch.Size) -> float:
    """Multiply-accumulates of one image, on a device without memory."""
    with FlopCounterMode(display=False) as counter:
        network.eval()(torch.empty(1, *image, device="meta"))
    return float(counter.get_total_flops()) / 2


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
    image = torch.Size([3, pixels, pixels])
    with torch.device("meta"):
        network = build(model, image, classes)
    assert count(network) / 1e6 == pytest.approx(millions, abs=0.05)
    assert forward_macs(network, image) / 1e9 == pytest.approx(giga_macs, abs=0.006)


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


def test_the_papers_network_has_three_stages_of_which_two_halve_the_image() -> None:
    with torch.device("meta"):
        network = build("wrn-22-2", torch.Size([3, 32, 32]), 10)
        shapes: list[list[int]] = []
        for module in network.modules():
            if isinstance(module, PreactivationBlock):
                module.register_forward_hook(lambda *args: shapes.append(list(args[2].shape[1:])))
        network(torch.empty(2, 3, 32, 32))
    assert shapes == [[32, 32, 32]] * 3 + [[64, 16, 16]] * 3 + [[128, 8, 8]] * 3


def torchvisions_resnet18() -> nn.Module:
    # torchvision takes seconds to import, which tests that are only collected should not pay
    from torchvision.models import resnet  # noqa: PLC0415

    return cast("nn.Module", resnet.resnet18(weights=None))


def test_images_of_imagenets_size_go_through_torchvisions_own_network() -> None:
    torch.manual_seed(0)
    ours = build("resnet18", torch.Size([3, 64, 96]), 1000).eval()
    theirs = torchvisions_resnet18().eval()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 64, 96)
    assert torch.equal(ours(images), theirs(images))


@pytest.mark.parametrize(("pixels", "after_stem"), [(32, 32), (63, 63), (64, 16)])
def test_small_images_keep_their_pixels_at_the_start_of_resnet18(pixels: int, after_stem: int) -> None:
    with torch.device("meta"):
        network = build("resnet18", torch.Size([1, pixels, pixels]), 10)
        sizes: list[int] = []
        layer = network.get_submodule("layer1")
        layer.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[-1]))
        network(torch.empty(2, 1, pixels, pixels))
    assert sizes == [after_stem]


def imagenet_weights() -> State:
    torch.manual_seed(7)
    state: State = torchvisions_resnet18().state_dict()
    return {name: torch.randn_like(t) if t.is_floating_point() else t for name, t in state.items()}


def stored(path: Path, state: State) -> Path:
    write(state, path)
    return path


IMAGE = torch.Size([3, 64, 64])


def test_pretrained_weights_fill_all_but_the_head_of_another_number_of_classes(tmp_path: Path) -> None:
    state = imagenet_weights()
    path = stored(tmp_path / "model.safetensors", state)
    network = build("resnet18", IMAGE, 10, path).state_dict()
    assert network["fc.weight"].shape == (10, 512)
    same = {name for name in network if torch.equal(network[name], state[name])}
    assert same == state.keys() - {"fc.weight", "fc.bias"}


def test_pretrained_weights_fill_the_head_too_where_there_are_1000_classes(tmp_path: Path) -> None:
    state = imagenet_weights()
    path = stored(tmp_path / "model.safetensors", state)
    network = build("resnet18", IMAGE, 1000, path).state_dict()
    assert all(torch.equal(network[name], state[name]) for name in state)


def test_weights_without_the_counts_of_batches_are_whole(tmp_path: Path) -> None:
    state = {n: t for n, t in imagenet_weights().items() if not n.endswith("num_batches_tracked")}
    path = stored(tmp_path / "model.safetensors", state)
    network = build("resnet18", IMAGE, 10, path).state_dict()
    assert torch.equal(network["layer4.1.bn2.running_var"], state["layer4.1.bn2.running_var"])


def without_a_tensor(state: State) -> State:
    del state["layer1.0.conv1.weight"]
    return state


def with_a_tensor_more(state: State) -> State:
    return state | {"layer5.0.conv1.weight": torch.zeros(1)}


def of_another_shape(state: State) -> State:
    return state | {"layer2.0.conv2.weight": torch.zeros(1, 2)}


@pytest.mark.parametrize(
    ("spoil", "classes", "complaint"),
    [
        (without_a_tensor, 10, 'Missing key(s) in state_dict: "layer1.0.conv1.weight"'),
        (with_a_tensor_more, 10, 'Unexpected key(s) in state_dict: "layer5.0.conv1.weight"'),
        (of_another_shape, 10, "size mismatch for layer2.0.conv2.weight"),
        (lambda state: state | {"fc.bias": torch.zeros(9)}, 1000, "size mismatch for fc.bias"),
    ],
)
def test_weights_of_another_network_are_refused_with_the_file_and_the_tensor(
    tmp_path: Path, spoil: object, classes: int, complaint: str
) -> None:
    assert callable(spoil)
    path = stored(tmp_path / "other.safetensors", spoil(imagenet_weights()))
    with pytest.raises(DatasetError) as caught:
        build("resnet18", IMAGE, classes, path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("image", [(1, 64, 64), (3, 32, 32)], ids=["grey", "small"])
def test_weights_of_imagenets_stem_do_not_go_into_another(tmp_path: Path, image: tuple[int, ...]) -> None:
    path = stored(tmp_path / "model.safetensors", imagenet_weights())
    with pytest.raises(DatasetError, match=r"size mismatch for conv1\.weight"):
        build("resnet18", torch.Size(image), 10, path)


CIFAR = torch.Size([3, 32, 32])
MILLION = 1_000_000


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
    assert count(network) == pytest.approx(asked, rel=0.05)


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
    assert count(network) == sizes.parameters
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


FULL, REST, OTHER = 5, 3, 4


@dataclass
class Counted:
    """A backend of torch.compile that compiles nothing and counts what it is given.

    Args:
        operations: of all graphs so far.
    """

    operations: int = 0

    def __call__(self, graph: GraphModule, _inputs: list[torch.Tensor]) -> Any:
        self.operations += sum(
            node.op.startswith("call_") and node.target is not operator.getitem for node in graph.graph.nodes
        )
        return graph.forward


@pytest.fixture
def nothing_compiled_yet(one_rank: None) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_compiled_yet")
@every_model
def test_a_model_is_compiled_in_one_piece(name: str) -> None:
    image = torch.Size([1, 8, 8])
    torch.compile(build(name, image, 10), fullgraph=True, backend=Counted())(torch.randn(FULL, *image))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_compiled_yet")
@pytest.mark.parametrize("name", ["digits_cnn", "mnist_cnn"])
def test_the_whole_network_is_compiled_once_for_each_size_of_a_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = torch.Size([1, 8, 8])
    network = build(name, image, 10)
    whole = Counted()
    torch.compile(network, fullgraph=True, backend=whole)(torch.randn(FULL, *image))
    torch._dynamo.reset()

    counted = Counted()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    settings = Settings(dataset="digits", model=name, compile=True)
    parallel_model = ParallelModel.build(network, blocks(network), settings, torch.device("cpu"))
    found: list[int] = []
    # an epoch of two batches and what is left, twice; then gradients that are not exchanged, and a third size
    for size in (FULL, FULL, REST, FULL, FULL, REST, FULL, OTHER):
        with parallel_model.gradient_sync(now=len(found) < 6):
            parallel_model.compiled(torch.randn(size, *image)).sum().backward()
        found.append(counted.operations)
    assert found[0] == found[1] == whole.operations
    assert found[2:7] == [2 * whole.operations] * 5
    assert found[7] == 3 * whole.operations
