"""A model's name is checked before anything is submitted, and without running the user's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.plan.catalog.models import (
    MODELS,
    ModelFacts,
    ModelNameError,
    known_models,
    model_facts,
    own_model_file,
    takes_pretrained,
    transformer_parameters,
    wide_resnet_shape,
)
from scalewise.plan.config.errors import did_you_mean


def refusal(model: str) -> ModelNameError:
    with pytest.raises(ModelNameError) as caught:
        model_facts(model)
    assert caught.value.text.startswith(f"is {model!r}, ")
    assert caught.value.fix.endswith(".")
    return caught.value


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


def test_networks_that_normalise_over_the_batch_are_told_from_those_that_do_not() -> None:
    names = [*MODELS, "wrn-28-10", "transformer-25M"]
    assert {name for name in names if model_facts(name).batch_norm} == {
        "digits_cnn",
        "resnet18",
        "wide_resnet",
        "wrn-28-10",
    }


@pytest.mark.parametrize("name", ["resnet50", "ResNet18", "transfomer-25M", "", "wrn28-10", "cnn"])
def test_an_unknown_name_is_a_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        model_facts(name)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("restnet18", "resnet18"),
        ("transfomer-25M", "transformer-25M"),
        ("wrn28-10", "wrn-28-10"),
        ("minst_cnn", "mnist_cnn"),
        ("wide-resnet", "wide_resnet"),
    ],
)
def test_a_mistyped_name_finds_the_nearest(typed: str, meant: str) -> None:
    assert did_you_mean(typed, known_models()) == f"Did you mean {meant!r}?"


@pytest.mark.parametrize(("model", "shape"), [("wrn-28-10", (28, 10)), ("wrn-10-1", (10, 1))])
def test_a_wide_network_is_named_by_depth_and_widening(model: str, shape: tuple[int, int]) -> None:
    assert wide_resnet_shape(model) == shape


@pytest.mark.parametrize(
    ("model", "nearest"),
    [
        ("wrn-27-10", "Use wrn-22-10 or wrn-28-10."),
        ("wrn-29-4", "Use wrn-28-4 or wrn-34-4."),
        ("wrn-4-2", "Use wrn-10-2."),
        ("wrn-9-2", "Use wrn-10-2."),
        ("wrn-11-2", "Use wrn-10-2 or wrn-16-2."),
    ],
)
def test_a_depth_that_no_wide_network_has_names_the_nearest(model: str, nearest: str) -> None:
    error = refusal(model)
    assert f"6n + 4 and {model.split('-')[1]} is not" in error.text
    assert error.fix == nearest


@pytest.mark.parametrize("model", ["wrn", "wrn-28", "wrn-28-0", "wrn-028-10", "wrn-28-10-2", "wrn-28-x"])
def test_half_a_name_of_a_wide_network_shows_a_whole_one(model: str) -> None:
    assert refusal(model).fix == "Write for instance wrn-28-10."


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("transformer-1M", 1_000_000),
        ("transformer-25M", 25_000_000),
        ("transformer-1.1M", 1_100_000),
        ("transformer-2G", 2_000_000_000),
        ("transformer-0.5G", 500_000_000),
        ("transformer-100G", 100_000_000_000),
    ],
)
def test_a_transformer_is_named_by_its_parameters(model: str, parameters: int) -> None:
    assert transformer_parameters(model) == parameters
    assert model_facts(model) == ModelFacts(batch_norm=False, min_pixels=1)


@pytest.mark.parametrize(
    ("model", "stated"),
    [("transformer-0M", "0 parameters"), ("transformer-0.9M", "900,000"), ("transformer-101G", "101,000,")],
)
def test_a_transformer_of_a_size_that_is_not_built_names_the_limits(model: str, stated: str) -> None:
    error = refusal(model)
    assert stated in error.text
    assert "from 1,000,000 to 100,000,000,000" in error.text
    assert error.fix == "Use a number between transformer-1M and transformer-100G."


@pytest.mark.parametrize(
    "model", ["transformer", "transformer-", "transformer-25", "transformer-25m", "transformer--5M"]
)
def test_half_a_name_of_a_transformer_shows_a_whole_one(model: str) -> None:
    assert "transformer-25M" in refusal(model).fix


def test_pretrained_weights_are_for_resnet18() -> None:
    assert [name for name in known_models() if takes_pretrained(name)] == ["resnet18"]


@pytest.mark.parametrize("model", [*MODELS, "wrn-28-10", "transformer-25M", "resnet50"])
def test_a_model_that_comes_along_has_no_file_of_the_users(model: str) -> None:
    assert own_model_file(model) is None


@pytest.mark.parametrize("model", ["a/b.py:build", "a/b.py", "a/b.py:"])
def test_the_file_of_an_own_model_is_known_before_it_is_checked(model: str) -> None:
    assert own_model_file(model) == Path("a/b.py")


@pytest.mark.parametrize(
    "definition",
    [
        "def build(image, classes): ...",
        "def build(*shape): ...",
        "def build(image, classes, width=3, *, deep=True, **rest): ...",
        "class build: ...",
        "build = functools.partial(make, 3)",
        "build: Callable = make",
        "first, build = make()",
        "from elsewhere import make as build",
        "from elsewhere import *",
        "try:\n    import x\nexcept ImportError:\n    def build(image, classes): ...",
        "if True:\n    def build(image, classes): ...",
        "@decorated\ndef build(): ...",
    ],
)
def test_a_function_may_be_defined_in_any_way(source: Path, definition: str) -> None:
    source.write_text(definition)
    assert model_facts(f"{source}:build") == ModelFacts(batch_norm=False, min_pixels=1)


def test_the_users_code_is_not_run(source: Path) -> None:
    source.write_text("raise SystemExit('run')\ndef build(image, classes): ...\n")
    model_facts(f"{source}:build")


@pytest.mark.parametrize(
    "model", ["models/mine.py", "models/mine.py:", "models/mine", "mine.py:a.b", "a:b", "x/"]
)
def test_half_a_path_shows_a_whole_one(model: str) -> None:
    assert refusal(model).fix == "Write path/to/file.py:build."


def test_a_missing_file_is_found_before_submission(source: Path) -> None:
    error = refusal(f"{source}:build")
    assert f"{str(source)!r} cannot be read (No such file or directory)" in error.text
    assert "from the folder snakemake runs in" in error.fix


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").mkdir()
    assert "cannot be read (Is a directory)" in refusal(f"{tmp_path}/mine.py:build").text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x = 1\ndef build(:\n", "(line 2: "),
        (b"\x00", "is not Python ("),
        (b"x = '\xff'\n", "is not Python ("),
    ],
)
def test_a_file_that_is_not_python_names_the_line(source: Path, content: bytes, reason: str) -> None:
    source.write_bytes(content)
    assert reason in refusal(f"{source}:build").text


def test_a_function_that_is_not_there_names_those_that_are(source: Path) -> None:
    source.write_text("def built(image, classes): ...\ndef other(): ...\ndef f():\n    def build(): ...\n")
    error = refusal(f"{source}:build")
    assert error.text.endswith(f"{str(source)!r} defines no 'build'")
    assert error.fix == "Name one of built, other, f."


def test_a_file_without_functions_says_what_to_define(source: Path) -> None:
    source.write_text("")
    assert refusal(f"{source}:build").fix == "Define build(image, classes)."


@pytest.mark.parametrize("arguments", ["", "image", "image, classes, width", "image, classes, *, width"])
def test_a_function_that_two_values_do_not_fit_is_refused(source: Path, arguments: str) -> None:
    source.write_text(f"def build({arguments}): ...\n")
    error = refusal(f"{source}:build")
    assert f"build({arguments}) cannot be called with two values" in error.text
    assert error.fix.startswith("Define build(image, classes): the shape of an image")
