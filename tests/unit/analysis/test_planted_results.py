"""Results folders with a planted truth, and the command of the rules on them: what a user is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planned_job import plan_one_experiment
from tests.planted_records import experiment, write_run

import cli
from scalewise.plan.runs.run_definition import canonical_json

SCATTER = (0.99, 1.0, 1.01)
FAST, SLOW = "A fast GPU", "A slow GPU"


def told(tmp_path: Path, rates: Mapping[int, float], **spec: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    """The decision and scaling.csv that the rule's command makes of planted runs."""
    asked = experiment(**{"devices": list(rates), "decision": {"min_efficiency": 0.01}} | spec)
    definition = canonical_json({"name": "study", "spec": asked.model_dump(exclude_none=True)})
    plan = plan_one_experiment(tmp_path / "plan.json", tmp_path, definition=definition)
    assert cli.main([*plan, "scaling", str(tmp_path)]) == 0
    decision = json.loads((tmp_path / "decision.json").read_text(encoding="utf-8"))
    return decision, pd.read_csv(tmp_path / "scaling.csv")


def plant(
    folder: Path,
    rates: Mapping[int, float],
    further: Callable[[int], Mapping[str, Any]],
) -> None:
    """Three runs at each device count, with what else is true of its runs."""
    for devices, rate in rates.items():
        for repeat, factor in enumerate(SCATTER, start=1):
            write_run(folder / "runs", f"d{devices}.r{repeat}", rate=rate * factor, **further(devices))


def test_more_devices_that_reach_the_target_later_are_not_recommended(tmp_path: Path) -> None:
    """Epoch n of a hand-made run takes n seconds: 5, 5, 3 and 8 epochs are 15, 15, 6 and 36 seconds."""
    rates, epochs = {1: 1000.0, 2: 1900.0, 4: 3600.0, 8: 6600.0}, {1: 5, 2: 5, 4: 3, 8: 8}
    plant(
        tmp_path,
        rates,
        lambda devices: {"accuracies": [0.5] * (epochs[devices] - 1) + [0.98]},
    )

    by_throughput, _ = told(tmp_path, rates)
    by_target, scaling = told(tmp_path, rates, target={"accuracy": 0.97})

    assert by_throughput["devices"] == 8
    assert (by_target["devices"], by_target["measure"]) == (4, "time to target")
    figures = {each["label"]: each for each in by_target["card"]["figures"]}
    assert figures["Speed to target"]["value"] == pytest.approx(15 / 6)
    assert figures["Time to target"]["text"] == "6.00 s"
    at_eight = scaling[scaling["devices"] == 8].iloc[0]
    assert at_eight["time_to_accuracy_speedup"] == pytest.approx(15 / 36)


def test_another_kind_of_gpu_moves_no_figure_of_the_study(tmp_path: Path) -> None:
    """Half of the runs on 4 devices are on GPUs of half the speed."""
    rates = {1: 1000.0, 2: 1900.0, 4: 3600.0}
    plant(tmp_path, rates, lambda devices: {"origin": {"devices": [FAST] * devices}})
    alone, expected = told(tmp_path, rates)
    for repeat, factor in enumerate(SCATTER, start=4):
        write_run(
            tmp_path / "runs",
            f"d4.r{repeat}",
            rate=1800.0 * factor,
            origin={"devices": [SLOW] * 4, "ended_at": "2026-01-01T00:03:00+00:00"},
        )
    mixed, scaling = told(tmp_path, rates, repeats=6)

    own = scaling[scaling["conditions"].isna()].reset_index(drop=True)
    figures = ["n", "throughput_samples_per_second", "speedup_low", "wall_seconds", "device_hours"]
    pd.testing.assert_frame_equal(own[figures], expected[figures])
    assert mixed["numbers"] == alone["numbers"]
    (other,) = (row for _, row in scaling[scaling["conditions"].notna()].iterrows())
    assert (other["devices"], other["n"], other["series"]) == (4, 3, f"all runs (device model {SLOW})")
    assert other["throughput_samples_per_second"] == pytest.approx(1800, rel=1e-3)
    curves = pd.read_csv(tmp_path / "epochs.csv")
    assert set(curves.loc[curves["series"] == other["series"], "run"]) == {"d4.r4", "d4.r5", "d4.r6"}
    assert any(f"device model is {SLOW}, not {FAST}" in caution for caution in mixed["cautions"])


def test_counts_with_nodes_of_their_own_are_told_first(tmp_path: Path) -> None:
    rates = {1: 1000.0, 2: 1900.0}
    plant(tmp_path, rates, lambda devices: {"origin": {"hosts": [f"node{devices}"]}})

    decision, _ = told(tmp_path, rates)

    assert "cannot be told apart" in decision["cautions"][0]
    assert "node1" in decision["cautions"][0]
    assert not decision["clear"]
