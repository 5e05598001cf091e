"""The user's own model is taken from its file, and tried before it trains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from scalewise.training.models.builders import build
from scalewise.training.models.own_model import OwnModelError

IMAGE = torch.Size([2, 6, 5])

GOOD = """
from torch import nn

def build(image, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], classes))
"""


def written(folder: Path, source: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(source)
    return f"{path}:build"


def refusal(model: str) -> str:
    with pytest.raises(OwnModelError) as caught:
        build(model, IMAGE, 4)
    message = str(caught.value)
    assert model in message
    return message


def test_a_function_of_a_file_is_a_model(tmp_path: Path) -> None:
    network = build(written(tmp_path, GOOD), IMAGE, 4)
    assert network(torch.randn(3, *IMAGE)).shape == (3, 4)


def test_a_model_is_tried_on_the_device_that_it_trains_on(tmp_path: Path) -> None:
    source = """
from torch import nn

class build(nn.Module):
    def __init__(self, image, classes):
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)

    def forward(self, images):
        if images.device.type == "cpu":
            raise RuntimeError("flash attention needs a GPU")
        return self.layer(images.flatten(1))
"""
    network = build(written(tmp_path, source), IMAGE, 4, device=torch.device("meta"))
    assert {parameter.device.type for parameter in network.parameters()} == {"meta"}


def test_a_path_counts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    written(tmp_path / "models", GOOD)
    monkeypatch.chdir(tmp_path)
    assert isinstance(build("models/mine.py:build", IMAGE, 4), nn.Module)


def test_a_class_is_a_model_too(tmp_path: Path) -> None:
    source = """
from torch import nn

class build(nn.Sequential):
    def __init__(self, image, classes):
        super().__init__(nn.Flatten(), nn.Linear(image.numel(), classes))
"""
    assert isinstance(build(written(tmp_path, source), IMAGE, 4), nn.Sequential)


@pytest.mark.parametrize("late", [False, True], ids=["at its top", "while it builds"])
def test_a_file_may_import_those_beside_it_and_nobody_else_sees_them(tmp_path: Path, late: bool) -> None:
    neighbour = f"beside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{neighbour}.py").write_text("WIDTH = 7\n")
    imported = f"from {neighbour} import WIDTH"
    source = GOOD.replace("    return", f"    {imported}\n    return") if late else f"{imported}\n{GOOD}"
    before = list(sys.path)

    build(written(tmp_path, source), IMAGE, 4)

    assert sys.path == before


def test_a_file_named_like_a_module_of_python_does_not_take_its_place(tmp_path: Path) -> None:
    import random  # noqa: PLC0415

    build(written(tmp_path, GOOD, "random.py"), IMAGE, 4)
    assert sys.modules["random"] is random


def test_trying_a_model_changes_neither_its_statistics_nor_its_modes_nor_the_random_numbers(
    tmp_path: Path,
) -> None:
    source = """
import torch
from torch import nn

class Noise(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)

def build(image, classes):
    frozen = nn.BatchNorm2d(image[0]).eval()
    return nn.Sequential(
        frozen, Noise(), nn.BatchNorm2d(image[0]), nn.Flatten(), nn.Linear(image.numel(), classes)
    )
"""
    model = written(tmp_path, source)
    torch.manual_seed(5)
    nn.Linear(IMAGE.numel(), 4)
    expected = torch.rand(3)
    torch.manual_seed(5)

    network = build(model, IMAGE, 4)

    assert torch.equal(torch.rand(3), expected)
    assert isinstance(network, nn.Sequential)
    assert [module.training for module in network] == [False, True, True, True, True]
    assert not torch.cat(
        [network[0].state_dict()["running_mean"], network[2].state_dict()["running_mean"]]
    ).any()


def test_layers_that_find_their_size_at_the_first_batch_have_found_it(tmp_path: Path) -> None:
    source = GOOD.replace("nn.Linear(image[0] * image[1] * image[2], classes)", "nn.LazyLinear(classes)")
    network = build(written(tmp_path, source), IMAGE, 4)
    assert [parameter.shape for parameter in network.parameters()] == [(4, 60), (4,)]


def test_a_missing_file_is_named_with_the_folder_it_was_looked_for_from(tmp_path: Path) -> None:
    message = refusal(f"{tmp_path}/none.py:build")
    assert f"there is no file {tmp_path}/none.py, seen from {Path.cwd()}" in message


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, "def built(image, classes): ...\n"))
    assert "has no function 'build'. Define build(image, classes) there." in message


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import a_library_that_is_not_there", "raised ModuleNotFoundError: No module named 'a_library_"),
        ("def build(:", "raised SyntaxError"),
        ("open('/nowhere/data')", "raised FileNotFoundError"),
    ],
)
def test_a_file_that_fails_at_import_says_why(tmp_path: Path, source: str, complaint: str) -> None:
    message = refusal(written(tmp_path, source))
    assert f"importing {tmp_path}/mine.py {complaint}" in message
    assert "own_model_mine" not in sys.modules


def test_a_function_that_fails_says_what_it_was_called_with(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, "def build(image, classes):\n    raise IndexError('too deep')\n"))
    assert "build(image=[2, 6, 5], classes=4) raised IndexError: too deep. Correct it" in message


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("None", "build returned NoneType. Return a torch.nn.Module"),
        ("nn.Linear", "build returned type."),
        ("nn.Flatten()", "a batch of shape [2, 2, 6, 5] gave [2, 60], not [2, 4]."),
        ("nn.Sequential(nn.Flatten(), nn.Linear(60, 5))", "gave [2, 5], not [2, 4]."),
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(59, 4))",
            "a batch of shape [2, 2, 6, 5] raised RuntimeError",
        ),
        ("nn.MultiheadAttention(5, 1)", "raised TypeError"),
        ("Pair()", "gave tuple, not a tensor of shape [2, 4]."),
        ("nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(4))", "has no parameter that can be trained."),
    ],
)
def test_what_is_no_classifier_is_refused_with_both_shapes(
    tmp_path: Path, returned: str, complaint: str
) -> None:
    source = f"""
from torch import nn

class Pair(nn.Module):
    def forward(self, x):
        return x, x

def build(image, classes):
    return {returned}
"""
    assert complaint in refusal(written(tmp_path, source))


def test_running_out_of_memory_stays_what_it_is(tmp_path: Path) -> None:
    source = "import torch\ndef build(image, classes):\n    raise torch.OutOfMemoryError('20 GiB')\n"
    with pytest.raises(torch.OutOfMemoryError):
        build(written(tmp_path, source), IMAGE, 4)
