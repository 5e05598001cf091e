"""A model's name is checked before anything is submitted."""

from __future__ import annotations

import pytest

from scalewise.plan.catalog.models import (
    MODELS,
    ModelFacts,
    known_models,
    model_facts,
    takes_pretrained,
    transformer_parameters,
    wide_resnet_shape,
)
from scalewise.plan.config.errors import RefusedValueError, did_you_mean


def refusal(model: str) -> RefusedValueError:
    with pytest.raises(RefusedValueError) as caught:
        model_facts(model)
    assert caught.value.text.startswith(f"is {model!r}, ")
    assert caught.value.fix.endswith(".")
    return caught.value


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
