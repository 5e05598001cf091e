"""The residual networks are those of the papers and tutorials, weight for weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet

from scalewise.builtin.data.datasets import DatasetError, write
from scalewise.builtin.models.builders import build
from scalewise.builtin.models.resnets import GuideBlock, PreactivationBlock

State = dict[str, torch.Tensor]


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


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
    assert parameters(network) / 1e6 == pytest.approx(millions, abs=0.05)
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


def test_images_of_imagenets_size_go_through_torchvisions_own_network() -> None:
    torch.manual_seed(0)
    ours = build("resnet18", torch.Size([3, 64, 96]), 1000).eval()
    theirs = resnet.resnet18(weights=None).eval()
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
    state: State = resnet.resnet18(weights=None).state_dict()
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


def test_of_many_differences_the_first_are_shown(tmp_path: Path) -> None:
    path = stored(tmp_path / "other.safetensors", {"weight": torch.zeros(1)})
    with pytest.raises(DatasetError, match=r'"conv1.weight", .* \[\.\.\.\] Train without') as refused:
        build("resnet18", IMAGE, 10, path)
    assert len(str(refused.value)) < 1000
