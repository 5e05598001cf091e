"""``devices: {up_to: ...}`` and ``budget``: which runs are requested."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.plan.conftest import Load
from tests.unit.planted_rounds import judged_point

from scalewise.plan.config.experiment import Repeats
from scalewise.plan.runs.rounds import (
    FIRST_OF_BASELINE,
    Round,
    SeriesChoice,
    is_settled,
    known_rounds,
    read_round,
    requested_repeats,
    required_rounds,
    round_file,
)
from scalewise.records import write_json

CLUSTER = """\
accelerator: cuda
devices_per_node: 4
cpus_per_node: 16
max_nodes: 16
slurm: {account: lab}
"""
STUDY = """\
experiments:
  chosen:
    dataset: synthetic-3x32x32
    model: linear
    scaling: weak
    batch_size_per_device: 32
    devices: DEVICES
"""


@pytest.fixture(autouse=True)
def _cluster(site_file: Path) -> None:
    site_file.write_text(CLUSTER)


def study(devices: str, *more: str) -> str:
    return STUDY.replace("DEVICES", devices) + "".join(f"    {line}\n" for line in more)


def judged(number: int, asked: dict[str, tuple[int, int]], *, chosen: bool = True, least: int = 3) -> Round:
    """A round that found these points with so many repeats and asks for so many."""

    points = [
        judged_point(name, before, after, "may be the answer" if after > before else "not needed")
        for name, (before, after) in asked.items()
    ]
    choices = [SeriesChoice(series="all runs", devices=None, other_answer=0.5)] if chosen else []
    rule = Repeats(min=least, max=max(least, 3))
    return Round(experiment="chosen", number=number, rule=rule, points=points, choices=choices)


@pytest.mark.parametrize(
    ("up_to", "site", "counts"),
    [
        pytest.param(16, CLUSTER, [1, 2, 4, 8, 12, 16], id="nodes of 4"),
        pytest.param(18, CLUSTER, [1, 2, 4, 8, 12, 16], id="not itself a count that fills nodes"),
        pytest.param(3, CLUSTER, [1, 2], id="less than a node"),
        pytest.param(
            18, CLUSTER.replace("devices_per_node: 4", "devices_per_node: 6"), [1, 2, 3, 6, 12, 18], id="of 6"
        ),
        pytest.param(
            12,
            CLUSTER.replace("{account: lab}", "{account: lab, partial_nodes: refused}"),
            [4, 8, 12],
            id="whole nodes alone",
        ),
    ],
)
def test_up_to_names_the_counts_that_fill_nodes(
    up_to: int, site: str, counts: list[int], load: Load, site_file: Path
) -> None:
    site_file.write_text(site)
    planned = load(study(f"{{up_to: {up_to}}}")).experiments["chosen"]

    assert list(planned.experiment.device_counts) == counts
    assert {run.shape.world_size for run in planned.runs} == set(counts)


def test_up_to_leaves_out_counts_that_do_not_divide_the_batch_of_strong_scaling(load: Load) -> None:
    text = study("{up_to: 16}", "global_batch_size: 256").replace("weak", "strong")
    text = text.replace("    batch_size_per_device: 32\n", "")

    assert list(load(text).experiments["chosen"].experiment.device_counts) == [1, 2, 4, 8, 16]


def test_at_first_two_runs_on_the_fewest_devices_are_asked_for_in_every_series(load: Load) -> None:
    planned = load(study("{up_to: 8}", "sweep: {cpus_per_device: [1, 2]}")).experiments["chosen"]

    first = [
        f"d1.cpus-per-device-{cpus}.r{repeat}"
        for cpus in (1, 2)
        for repeat in range(1, FIRST_OF_BASELINE + 1)
    ]
    assert planned.requested_run_names([]) == first
    # a prediction waits for these alone
    assert planned.prediction_runs == first


def test_rounds_ask_for_further_counts_and_later_ones_take_nothing_back(load: Load) -> None:
    planned = load(study("{up_to: 8}")).experiments["chosen"]
    first = judged(1, {"d1": (2, 2), "d2": (0, 0), "d4": (0, 0), "d8": (0, 1)})
    second = judged(2, {"d1": (2, 3), "d2": (0, 0), "d4": (0, 0), "d8": (1, 1)})

    assert requested_repeats(planned.experiment, [first]) == {"d1": 2, "d2": 0, "d4": 0, "d8": 1}
    assert requested_repeats(planned.experiment, [first, second]) == {"d1": 3, "d2": 0, "d4": 0, "d8": 1}
    assert required_rounds(planned.experiment, [first]) == [1, 2]
    assert not is_settled(planned.experiment, [first])


def test_a_study_that_goes_over_to_a_choice_defines_the_same_runs(load: Load) -> None:
    listed = load(study("[1, 2, 8]"))
    chosen = load(study("{up_to: 8}"))

    assert {key: run.as_json() for key, run in listed.runs.items()}.items() <= {
        key: run.as_json() for key, run in chosen.runs.items()
    }.items()


@pytest.mark.parametrize(
    ("devices", "more", "known"),
    [
        pytest.param("{up_to: 8}", (), 1, id="the same"),
        pytest.param("{up_to: 16}", (), 1, id="more counts"),
        pytest.param("{up_to: 8}", ("budget: {device_hours: 100}", "predict: false"), 1, id="a budget"),
        pytest.param("[1, 2, 4, 8]", ("repeats: {min: 3, max: 5}",), 0, id="all counts"),
        pytest.param("{up_to: 8}", ("repeats: 4",), 0, id="other repeats"),
    ],
)
def test_rounds_hold_as_long_as_what_they_asked_for_does(
    devices: str, more: tuple[str, ...], known: int, load: Load, tmp_path: Path
) -> None:
    path = round_file(tmp_path, 1)
    path.parent.mkdir()
    write_json(path, judged(1, {"d1": (2, 2), "d8": (0, 1)}))
    planned = load(study(devices, *more)).experiments["chosen"]

    assert len(known_rounds(planned.experiment, tmp_path)) == known


def test_a_round_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "round1.json"
    path.write_text(
        '{"record_version": 1, "experiment": "a", "number": 1,'
        ' "rule": {"min": 3, "max": 10, "until_interval": 0.03}, "points": []}'
    )

    assert read_round(path).choices == []
    assert read_round(path).spent_device_hours is None


def test_the_budget_and_time_limits_define_no_run_and_no_table(load: Load) -> None:
    plain = load(study("{up_to: 8}", "predict: false"))
    limited = load(study("{up_to: 8}", "predict: false", "budget: {device_hours: 3}", "runtime_minutes: 4"))

    one, other = (each.experiments["chosen"] for each in (plain, limited))
    assert [run.as_json() for run in one.runs] == [run.as_json() for run in other.runs]
    assert one.analysis_definition == other.analysis_definition
    # what is measured next does depend on them
    assert one.rounds_definition != other.rounds_definition
