"""What each option of train.py does to a training, on real ranks: what it trains with, and what it learns."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file
from tests.machine import skip_without_two_cores
from tests.paths import SCRIPTS
from torch import Tensor

from scalewise.training.prepare import prepare

CNN = ["--model", "digits_cnn"]
DEEP = ["--model", "transformer-1M", "--optimizer", "adamw", "--learning-rate", "0.001"]
FSDP = ["--parallelism", "fsdp"]
VARIANTS: dict[str, list[str]] = {
    "cnn": CNN,
    "channels-last": [*CNN, "--channels-last"],
    "bf16": [*CNN, "--precision", "bf16"],
    "bf16-fsdp": [*CNN, "--precision", "bf16", *FSDP],
    "bucket-view": [*CNN, "--gradient-as-bucket-view"],
    "hook": [*CNN, "--communication-hook", "fp16"],
    "deep": DEEP,
    "accumulated": [*DEEP, "--accumulation-steps", "2"],
    "small-buckets": [*DEEP, "--bucket-cap-mb", "1"],
    "zero1": [*DEEP, "--parallelism", "zero1"],
    "fsdp": [*DEEP, *FSDP],
    "fsdp-accumulated": [*DEEP, *FSDP, "--accumulation-steps", "2"],
    "other-seed": [*DEEP, "--seed", "2"],
    "workers": [*CNN, "--loader", "workers", "--workers", "1"],
    "cropped": [*CNN, "--crop-padding", "1"],
    "stopped": [*CNN, "--epochs", "9", "--stop-at-accuracy", "0.01", "--stop-patience-epochs", "2"],
}
GLOBAL_BATCH = 240

Trained = Callable[[str, int], Path]


def _words(name: str, devices: int, data: Path) -> list[str]:
    words = ["--epochs", "2", *VARIANTS[name]]
    accumulated = 2 if "--accumulation-steps" in words else 1
    batch = str(GLOBAL_BATCH // devices // accumulated)
    return ["--data", str(data), "--device", "cpu", "--batch-size-per-device", batch, "--save-model", *words]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The folder of a variant on so many ranks; all of them are trained at the first."""
    skip_without_two_cores()
    folder = tmp_path_factory.mktemp("trained")
    data = folder / "data.safetensors"
    prepare("synthetic-1x8x8-10classes-480samples", data)

    @cache
    def launched(devices: int) -> Path:
        place = folder / str(devices)
        place.mkdir()
        names = VARIANTS if devices > 1 else ("cnn", "deep", "accumulated", "fsdp", "zero1", "workers")
        variants = {name: _words(name, devices, data) for name in names}
        (place / "variants.json").write_text(json.dumps(variants), encoding="utf-8")
        script = Path(__file__).with_name("train_variants.py")
        ended = subprocess.run(
            [sys.executable, str(script), str(place / "variants.json"), str(devices), str(place)],
            env=os.environ | {"PYTHONPATH": str(SCRIPTS), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stderr
        return place

    return lambda name, devices: launched(devices) / name


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def epochs(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "epochs.csv")


def seen(folder: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"seen{rank}.json").read_text(encoding="utf-8"))
    return found


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("channels-last", "cnn"),
        ("bucket-view", "cnn"),
        ("workers", "cnn"),
        ("accumulated", "deep"),
        ("small-buckets", "deep"),
        ("zero1", "deep"),
        ("fsdp", "deep"),
        ("fsdp-accumulated", "accumulated"),
        ("bf16-fsdp", "bf16"),
    ],
)
def test_how_the_work_is_done_changes_nothing_of_what_is_learned(
    one: str, other: str, trained: Trained
) -> None:
    # some sums are in another order, and Adam makes much of little
    losses = [epochs(trained(name, 2))["train_loss"].tolist() for name in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    start = largest_difference(weights(trained("other-seed", 2)), weights(trained("deep", 2)))
    assert largest_difference(weights(trained(one, 2)), weights(trained(other, 2))) < 0.02 * start


@pytest.mark.parametrize(("one", "other"), [("bf16", "cnn"), ("hook", "cnn"), ("cropped", "cnn")])
def test_what_computes_other_numbers_learns_something_else(one: str, other: str, trained: Trained) -> None:
    assert largest_difference(weights(trained(one, 2)), weights(trained(other, 2))) > 0
    if one == "bf16":
        losses = [epochs(trained(name, 2))["train_loss"].tolist() for name in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=0.1)


@pytest.mark.parametrize("name", ["deep", "accumulated", "fsdp", "zero1"])
def test_two_ranks_learn_what_one_learns_from_the_whole_batch(name: str, trained: Trained) -> None:
    """A network without batch norm, whose statistics are of a rank's share."""
    losses = [epochs(trained(name, devices))["train_loss"].tolist() for devices in (1, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_ddp_gets_its_options(trained: Trained) -> None:
    assert seen(trained("bucket-view", 2))["gradient_as_bucket_view"] == "1"
    assert seen(trained("cnn", 2))["gradient_as_bucket_view"] == "0"
    assert "fp16" in seen(trained("hook", 2))["comm_hook"]
    few, many = (
        seen(trained(name, 2))["rebuilt_bucket_sizes"].split(",") for name in ("deep", "small-buckets")
    )
    assert len(many) > len(few)


def test_zero1_divides_the_states_and_fsdp_the_parameters_too(trained: Trained) -> None:
    for name, parts in (("deep", (1, 1)), ("zero1", (1, 2)), ("fsdp", (2, 2))):
        ranks = [seen(trained(name, 2), rank) for rank in (0, 1)]
        whole = ranks[0]["elements"]
        held = [sum(rank[key] for rank in ranks) for key in ("local_elements", "state_elements")]
        copies = [2 // part for part in parts]
        # Adam has two numbers a weight
        assert held == pytest.approx([copies[0] * whole, copies[1] * 2 * whole], rel=0.02), name


def test_training_ends_once_the_accuracy_was_held(trained: Trained) -> None:
    assert len(epochs(trained("stopped", 2))) == 2
