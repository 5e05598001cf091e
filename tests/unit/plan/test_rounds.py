"""Which runs are made of ``repeats: {min, max}``, ``devices: {up_to: ...}`` and ``budget``."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plan.conftest import Load
from tests.unit.plan.refusals import MACHINES

from scalewise.config.experiment import Repeats
from scalewise.plan.planned_study import Part
from scalewise.plan.rounds import (
    Round,
    is_settled,
    judged_rounds,
    known_rounds,
    requested_repeats,
    required_rounds,
    round_file,
)
from scalewise.records import RecordError, read_record, write_json

MORE = "{min: 3, max: 10}"
RULE = Repeats(min=3, max=10)
CLUSTER = MACHINES["cluster"].replace("max_nodes: 2", "max_nodes: 16")
NotMadeError = type("NotMadeError", (Exception,), {})
"""Stands for what Snakemake raises if a checkpoint is still to run."""


@pytest.fixture
def planned(load: Load) -> Callable[..., Part]:
    """Plans an experiment with these keys, on a cluster of nodes with four GPUs."""

    def plan(site: str = CLUSTER, **keys: str) -> Part:
        usual = {"dataset": "synthetic-3x32x32", "model": "linear"}
        if "global_batch_size" not in keys:
            usual |= {"scaling": "weak", "batch_size_per_device": "32"}
        lines = "".join(f"    {key}: {value}\n" for key, value in (usual | keys).items())
        return load(f"experiments:\n  digits:\n{lines}", site).parts[0]

    return plan


Planned = Callable[..., Part]


def judged(number: int, points: Mapping[str, tuple[int, int]], **changes: Any) -> Round:
    """A round that found these points with so many repeats and requests so many."""
    values = {
        "experiment": "digits",
        "number": number,
        "rule": RULE,
        "chooses": False,
        "repeats": {name: before for name, (before, _) in points.items()},
        "requested": {name: after for name, (_, after) in points.items()},
    }
    return Round.model_validate(values | changes)


def leave(folder: Path, *rounds: Round) -> None:
    """The files that rounds leave."""
    for each in rounds:
        path = round_file(folder, each.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, each)


FIRST = judged(1, {"d1": (3, 3), "d2": (3, 6)})
SECOND = judged(2, {"d1": (3, 3), "d2": (6, 6)})
CHOOSING = {"rule": Repeats(min=3, max=3), "chooses": True}


def names(**counts: int) -> list[str]:
    return [f"{point}.r{repeat}" for point, count in counts.items() for repeat in range(1, count + 1)]


def test_a_lowered_maximum_limits_what_rounds_have_requested(planned: Planned) -> None:
    lowered = planned(devices="[1, 2]", repeats="{min: 3, max: 4}")
    assert requested_repeats(lowered.experiment, [FIRST]) == {"d1": 3, "d2": 4}
    assert lowered.requested_run_names([FIRST]) == names(d1=3, d2=4)


def test_a_choice_begins_with_two_runs_on_the_fewest_devices_and_takes_nothing_back(planned: Planned) -> None:
    swept = planned(devices="{up_to: 8}", sweep="{cpus_per_device: [1, 2]}")
    firsts = [f"d1.cpus-per-device-{cpus}.r{repeat}" for cpus in (1, 2) for repeat in (1, 2)]
    assert swept.requested_run_names([]) == firsts

    spec = planned(devices="{up_to: 8}").experiment
    first = judged(1, {"d1": (2, 2), "d2": (0, 0), "d4": (0, 0), "d8": (0, 1)}, **CHOOSING)
    second = judged(2, {"d1": (2, 3), "d2": (0, 0), "d4": (0, 0), "d8": (1, 1)}, **CHOOSING)
    assert requested_repeats(spec, [first]) == {"d1": 2, "d2": 0, "d4": 0, "d8": 1}
    assert requested_repeats(spec, [first, second]) == {"d1": 3, "d2": 0, "d4": 0, "d8": 1}
    assert not is_settled(spec, [first])


CHOICE = (judged(1, {"d1": (2, 2), "d8": (0, 1)}, **CHOOSING),)


@pytest.mark.parametrize(
    ("rounds", "keys", "known"),
    [
        pytest.param((FIRST, SECOND), {"repeats": MORE}, 2, id="the same repeats"),
        pytest.param((FIRST, SECOND), {"repeats": MORE.replace("10", "20")}, 2, id="larger max"),
        pytest.param((FIRST, SECOND), {"repeats": MORE.replace("min: 3", "min: 4")}, 0, id="other min"),
        pytest.param(CHOICE, {"devices": "{up_to: 8}"}, 1, id="the same counts"),
        pytest.param(CHOICE, {"devices": "{up_to: 16}"}, 1, id="more counts"),
        pytest.param(CHOICE, {"devices": "[1, 2, 4, 8]", "repeats": "{min: 3, max: 5}"}, 0, id="all counts"),
        pytest.param(CHOICE, {"devices": "{up_to: 8}", "repeats": "4"}, 0, id="other repeats"),
        pytest.param(
            (FIRST, SECOND, judged(3, {"d1": (3, 3), "d2": (9, 10)})),
            {"repeats": MORE},
            2,
            id="until one asks for nothing",
        ),
    ],
)
def test_rounds_are_valid_as_long_as_the_runs_that_they_requested(
    rounds: tuple[Round, ...], keys: dict[str, str], known: int, planned: Planned, tmp_path: Path
) -> None:
    leave(tmp_path, *rounds)

    spec = planned(**{"devices": "[1, 2]"} | keys).experiment
    assert known_rounds(spec, tmp_path) == list(rounds[:known])


def test_a_damaged_round_is_named_with_its_fix_and_the_plan_is_shown_all_the_same(
    planned: Planned, tmp_path: Path
) -> None:
    leave(tmp_path, FIRST)
    path = round_file(tmp_path, 1)
    path.write_text(path.read_text()[:50])

    with pytest.raises(RecordError, match=r"(?s)round1\.json: not a record .* Delete the file"):
        read_record(path, Round)
    assert known_rounds(planned(devices="[1, 2]", repeats=MORE).experiment, tmp_path) == []


@pytest.mark.usefixtures("study_folder")
def test_the_tables_wait_for_the_next_round_and_for_one_that_is_made_again(
    planned: Planned, tmp_path: Path
) -> None:
    spec, folder = planned(devices="[1, 2]", repeats=MORE).experiment, tmp_path / "results" / "digits"

    def get(**wildcards: Any) -> None:
        """Stand for ``checkpoints.judge_round.get``, with one round up to date."""
        if wildcards["round"] > 1:
            raise NotMadeError

    def rounds(before: int | None = None) -> Iterator[Round]:
        return judged_rounds(get, "digits", spec, before)

    assert required_rounds(spec, rounds()) == [1]
    leave(folder, FIRST)
    assert required_rounds(spec, rounds()) == [1, 2]
    leave(folder, SECOND)
    with pytest.raises(NotMadeError):
        list(rounds())
    assert list(rounds(before=2)) == [FIRST]
    assert required_rounds(spec, [FIRST, SECOND]) == [1, 2]
