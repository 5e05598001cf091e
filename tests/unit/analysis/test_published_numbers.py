"""Published figures, loaded as runs: what they show is told, and what they do not is refused.

Sources: Sigma2's guide for Olivia (WideResNet on CIFAR-100), NVIDIA's ResNet-50 for PyTorch on a DGX A100,
Clemson's guide for Palmetto (ResNet-18 on CIFAR-10).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pandas as pd
import pytest
from tests.unit.analysis.decisions import decision_on

from scalewise.analysis.comparison.comparability import Measured, compare
from scalewise.analysis.comparison.fingerprint import Fingerprint
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule

OLIVIA_SINGLE = {
    "precision": "fp32", "batch_size_per_device": 32, "workers": 0, "optimizer": "plain SGD",
}  # fmt: skip
OLIVIA_SEVERAL = {
    "precision": "fp16", "batch_size_per_device": 256, "workers": 8,
    "optimizer": "SGD with momentum",
}  # fmt: skip
OLIVIA = {
    1: Measured(1, 2598.0, OLIVIA_SINGLE, final_accuracy=0.74),
    4: Measured(4, 36927.0, OLIVIA_SEVERAL, final_accuracy=0.69),
    8: Measured(8, 62450.0, OLIVIA_SEVERAL),
}
NVIDIA = {
    ("tf32", 1): 938.0, ("tf32", 8): 7248.0, ("amp", 1): 2470.0, ("amp", 8): 16621.0,
}  # fmt: skip
PALMETTO = {1: 151.0, 2: 111.0, 4: 96.0}


def as_runs(published: Mapping[int, Measured]) -> tuple[pd.DataFrame, dict[str, Mapping[str, str]]]:
    """A table of one series, as somebody loads it who believes that all belongs together."""
    conditions: dict[str, Mapping[str, str]] = {}
    rows = []
    for devices, measured in published.items():
        found = Fingerprint({key: str(value) for key, value in measured.conditions.items()})
        conditions[found.id] = found.conditions
        rows.append(
            {
                "series": "published",
                "devices": devices,
                "outcome": "completed",
                "fingerprint": found.id,
                "throughput_samples_per_second": measured.throughput,
                "final_accuracy": measured.final_accuracy,
                "wall_seconds": measured.wall_seconds,
            }
        )
    return pd.DataFrame(rows), conditions


def at(table: pd.DataFrame, devices: int) -> pd.Series:
    return table[table["devices"] == devices].iloc[0]


def test_olivias_one_against_four_gpus_is_refused_with_all_that_differs() -> None:
    found = compare(OLIVIA[1], OLIVIA[4])
    assert (found.kind, found.ratio, found.efficiency) == ("refused", None, None)
    assert found.accuracy == (0.74, 0.69)
    assert found.sentence() == (
        "No speedup joins 1 device and 4 devices: precision is fp16, not fp32; batch_size_per_device is 256, "
        "not 32; workers is 8, not 0; optimizer is SGD with momentum, not plain SGD; accuracy is 69.0 %, not "
        "74.0 %."
    )


def test_olivias_four_against_eight_gpus_is_like_for_like() -> None:
    found = compare(OLIVIA[4], OLIVIA[8])
    assert found.kind == "speedup"
    assert found.sentence() == "8 devices: 1.69x the throughput of 4, 84.6 % of ideal."


def test_olivias_table_shows_throughput_and_no_speedup_over_its_unlike_baseline() -> None:
    table = scaling_table(*_strong(OLIVIA))
    planned, others = (table[(table["conditions"] == "") == own] for own in (True, False))
    assert at(others, 4)["throughput_samples_per_second"] == pytest.approx(36927.0)
    assert at(others, 8)["baseline_devices"] == 4
    assert round(at(others, 8)["speedup"], 2) == 1.69
    for devices in (4, 8):
        row = at(planned, devices)
        relative = ["speedup", "parallel_efficiency", "karp_flatt_fraction"]
        assert row[[*relative, "throughput_samples_per_second"]].isna().all()
        assert row["n_not_comparable"] == 1
        assert row["note"] == (
            f"1 of 1 runs on {devices} devices is not comparable with the baseline: precision is fp16, not "
            "fp32; batch_size_per_device is 256, not 32; workers is 8, not 0; and 1 other difference"
        )
    for claimed in ("14.21", "15.21", "3.55", "3.74"):
        assert claimed not in table.to_csv()


def test_olivias_like_for_like_pair_gives_a_speedup_in_the_table() -> None:
    row = at(scaling_table(*_strong({devices: OLIVIA[devices] for devices in (4, 8)})), 8)
    assert (round(row["speedup"], 2), round(row["parallel_efficiency"], 3)) == (1.69, 0.846)
    assert row["note"] == "relative to 4 devices, not to 1"
    assert row["n_not_comparable"] == 0


@pytest.mark.parametrize(("precision", "speedup"), [("tf32", 7.73), ("amp", 6.73)])
def test_nvidias_eight_a100_have_a_speedup_in_each_precision(precision: str, speedup: float) -> None:
    points = {devices: nvidia(precision, devices) for devices in (1, 8)}
    assert round(compare(points[1], points[8]).ratio or 0, 2) == speedup
    assert round(at(scaling_table(*_strong(points)), 8)["speedup"], 2) == speedup


def test_nvidias_mixed_precision_is_an_options_gain() -> None:
    found = compare(nvidia("tf32", 1), nvidia("amp", 1))
    assert found.sentence() == (
        "On 1 device, 2.63x the throughput of the other where precision is amp, not tf32: an option's gain, "
        "not scaling."
    )
    tables = [as_runs({1: nvidia(precision, 1)}) for precision in ("tf32", "amp")]
    runs = pd.concat([runs.assign(peak_memory_bytes=1.0) for runs, _ in tables], ignore_index=True)
    known = tables[0][1] | tables[1][1]
    (row,) = option_table(
        runs.assign(precision=["tf32", "amp"]), {"precision": ["tf32", "amp"]}, known
    ).to_dict("records")
    assert (round(row["throughput_ratio"], 2), row["also_differs"]) == (2.63, "")


def test_nvidias_tf32_on_one_against_amp_on_eight_is_never_a_speedup() -> None:
    found = compare(nvidia("tf32", 1), nvidia("amp", 8))
    assert (found.kind, found.ratio) == ("refused", None)
    assert found.sentence() == "No speedup joins 1 device and 8 devices: precision is amp, not tf32."
    table = scaling_table(*_strong({1: nvidia("tf32", 1), 8: nvidia("amp", 8)}))
    assert pd.isna(at(table, 8)["speedup"])
    assert "17.7" not in table.to_csv()


def test_palmettos_walls_give_speedups_that_are_said_to_include_start_up() -> None:
    points = {devices: Measured(devices, None, {}, wall_seconds=wall) for devices, wall in PALMETTO.items()}
    table = scaling_table(*_strong(points))
    assert [round(at(table, devices)["speedup"], 2) for devices in PALMETTO] == [1.0, 1.36, 1.57]
    assert [round(at(table, devices)["wall_speedup"], 2) for devices in PALMETTO] == [1.0, 1.36, 1.57]
    assert (table["note"] == "of walls, which include start-up").all()
    assert table["throughput_samples_per_second"].isna().all()
    assert compare(points[1], points[2]).sentence() == (
        "2 devices: 1.36x as fast as 1, 68.0 % of ideal. The ratio is of walls, which include start-up."
    )
    assert compare(points[1], points[4]).sentence().startswith("4 devices: 1.57x as fast as 1, 39.3 % of")


def test_a_decision_on_palmettos_walls_says_what_they_include() -> None:
    points = {devices: Measured(devices, None, {}, wall_seconds=wall) for devices, wall in PALMETTO.items()}
    scaling = scaling_table(*_strong(points))
    assert scaling["device_hours"].tolist() == pytest.approx(
        [n * wall / 3600 for n, wall in PALMETTO.items()]
    )
    decision = decision_on(_strong(points)[0], DecisionRule(min_efficiency=0.3))
    # single runs that scatter by 5 %: 1.16x is 1.4 standard errors above 1.05x, 1.36x is 3.7
    assert (decision.devices, decision.series) == (2, "published")
    assert decision.card.figures[0].text == "1.36x"
    assert any("1.57x as fast as 1" in alternative for alternative in decision.alternatives)
    assert decision.cautions[0].startswith(
        "4 devices may be worth having: 1.01 to 1.33 times as fast as 2 devices."
    )
    assert "walls, which include start-up" in " ".join(decision.cautions)


def test_a_decision_on_olivias_table_claims_no_speedup_over_one_gpu() -> None:
    runs, scaling, conditions = _strong(OLIVIA)
    decision = decision_on(runs, DecisionRule(min_efficiency=0.3), scaling=scaling, conditions=conditions)
    assert decision.devices in {None, 1}
    said = json.dumps(decision.as_dict())
    assert "precision is fp16, not fp32" in said
    for claimed in ("14.2", "15.2"):
        assert claimed not in said


def nvidia(precision: str, devices: int) -> Measured:
    return Measured(devices, NVIDIA[precision, devices], {"precision": precision})


def _strong(
    published: Mapping[int, Measured],
) -> tuple[pd.DataFrame, str, dict[str, Mapping[str, str]]]:
    runs, conditions = as_runs(published)
    return runs, "strong", conditions
