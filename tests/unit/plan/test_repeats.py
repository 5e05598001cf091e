"""``repeats: {min, max, until_interval}``: which runs a study asks for, and when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.planted_rounds import judged_point, leave

from scalewise.plan.config.experiment import Experiment, Repeats
from scalewise.plan.runs.rounds import (
    Round,
    judged_rounds,
    known_rounds,
    read_round,
    requested_repeats,
    required_rounds,
    round_file,
)
from scalewise.plan.runs.runs import priority
from scalewise.plan.terminal.plan_table import plan_table
from scalewise.records import RecordError

STUDY = """\
defaults: {dataset: digits, model: digits_cnn, global_batch_size: 240, devices: [1, 2], predict: false}
experiments:
  digits: {repeats: REPEATS}
"""
MORE = "{min: 3, max: 10, until_interval: 0.03}"
RULE = Repeats(min=3, max=10, until_interval=0.03)


def experiment(repeats: int | Repeats) -> Experiment:
    training = {"dataset": "digits", "model": "digits_cnn", "global_batch_size": 240}
    return Experiment.model_validate(training | {"devices": [1, 2], "repeats": repeats})


def study_of(repeats: str) -> str:
    return STUDY.replace("REPEATS", repeats)


def judged(number: int, asked: dict[str, tuple[int, int]], rule: Repeats = RULE) -> Round:
    """A round that found these points with so many repeats and asks for so many."""

    points = [
        judged_point(name, before, after, "too wide" if after > before else "narrow enough", 0.05)
        for name, (before, after) in asked.items()
    ]
    return Round(experiment="digits", number=number, rule=rule, points=points)


FIRST = judged(1, {"d1": (3, 3), "d2": (3, 6)})
SECOND = judged(2, {"d1": (3, 3), "d2": (6, 6)})


def names(point: str, count: int) -> list[str]:
    return [f"{point}.r{repeat}" for repeat in range(1, count + 1)]


def test_every_run_that_may_be_asked_for_is_known_and_the_fewest_are_asked_for(load: Load) -> None:
    study = load(study_of(MORE))

    assert [name for _, name in study.runs] == [*names("d1", 10), *names("d2", 10)]
    assert study.experiments["digits"].requested_run_names([]) == [*names("d1", 3), *names("d2", 3)]


def test_a_round_asks_for_more_repeats_of_its_wide_points_alone(load: Load) -> None:
    planned = load(study_of(MORE)).experiments["digits"]

    assert planned.requested_run_names([FIRST]) == [*names("d1", 3), *names("d2", 6)]
    later = judged(2, {"d1": (3, 3), "d2": (6, 9)})
    assert planned.requested_run_names([FIRST, later]) == [*names("d1", 3), *names("d2", 9)]


def test_a_lowered_maximum_asks_for_no_run_beyond_it(load: Load) -> None:
    planned = load(study_of(MORE.replace("10", "4"))).experiments["digits"]

    assert planned.requested_run_names([FIRST]) == [*names("d1", 3), *names("d2", 4)]
    assert requested_repeats(planned.experiment, [FIRST]) == {"d1": 3, "d2": 4}


def test_a_plain_number_makes_all_its_runs_and_looks_at_no_round(load: Load) -> None:
    planned = load(study_of("4")).experiments["digits"]

    def never() -> Iterator[Round]:
        raise AssertionError("a round was looked at")
        yield

    assert planned.requested_run_names(never()) == [*names("d1", 4), *names("d2", 4)]
    assert required_rounds(planned.experiment, never()) == []


def test_going_on_from_a_plain_number_trains_nothing_again(load: Load) -> None:
    fixed, adaptive = load(study_of("3")), load(study_of(MORE))

    assert {key: run.as_json() for key, run in fixed.runs.items()}.items() <= {
        key: run.as_json() for key, run in adaptive.runs.items()
    }.items()


def test_a_mapping_that_leaves_no_choice_is_a_plain_number(load: Load) -> None:
    plain, mapping = (load(study_of(repeats)).experiments["digits"] for repeats in ("3", "{min: 3, max: 3}"))

    assert plain.analysis_definition == mapping.analysis_definition
    assert required_rounds(mapping.experiment, []) == []


def test_the_rule_of_the_decision_does_not_have_the_points_judged_again(load: Load) -> None:
    text = study_of(MORE)
    edited = text.replace("{repeats", "{title: New, target: {accuracy: 0.9}, runtime_minutes: 5, repeats")

    definitions = [load(one).experiments["digits"].rounds_definition for one in (text, edited)]

    assert definitions[0] == definitions[1]
    assert json.loads(definitions[0])["spec"]["repeats"] == {"min": 3, "max": 10, "until_interval": 0.03}


def test_extra_repeats_are_shuffled_too_and_come_after_the_first(load: Load) -> None:
    text = study_of(MORE).replace("{repeats", "{sweep: {seed: [10, 20, 30, 40]}, repeats")
    runs = list(load(text).runs.values())
    fourth = [run for run in runs if run.repeat == 4]

    submitted = sorted(fourth, key=priority, reverse=True)

    assert submitted != fourth
    assert max(map(priority, fourth)) < min(priority(run) for run in runs if run.repeat <= 3)


def test_the_rounds_are_read_until_one_asks_for_nothing(tmp_path: Path) -> None:
    stale = judged(3, {"d1": (3, 3), "d2": (9, 10)})
    leave(tmp_path, FIRST, SECOND, stale)

    assert known_rounds(experiment(RULE), tmp_path) == [FIRST, SECOND]
    assert requested_repeats(experiment(RULE), [FIRST, SECOND]) == {"d1": 3, "d2": 6}


@pytest.mark.parametrize(
    ("rule", "known"),
    [
        pytest.param(RULE.model_copy(update={"max": 20}), 2, id="larger max"),
        pytest.param(RULE.model_copy(update={"until_interval": 0.1}), 0, id="other interval"),
        pytest.param(RULE.model_copy(update={"min": 4}), 0, id="other min"),
        pytest.param(5, 0, id="plain number"),
    ],
)
def test_rounds_of_another_rule_ask_for_nothing(rule: int | Repeats, known: int, tmp_path: Path) -> None:
    leave(tmp_path, FIRST, SECOND)

    assert len(known_rounds(experiment(rule), tmp_path)) == known


def test_a_damaged_round_is_named_with_its_cure_and_does_not_keep_a_plan_from_showing(
    tmp_path: Path,
) -> None:
    leave(tmp_path, FIRST)
    path = round_file(tmp_path, 1)
    path.write_text(path.read_text()[:50])

    with pytest.raises(RecordError, match=r"(?s)round1\.json: not a record .* Delete the file"):
        read_round(path)
    assert known_rounds(experiment(RULE), tmp_path) == []


class NotMadeError(Exception):
    """Stands for what Snakemake raises where a checkpoint is still to run."""


def checkpoint(*made: int) -> Callable[..., Any]:
    """What ``checkpoints.judge_round.get`` gives where these rounds count as made."""

    def get(**wildcards: Any) -> SimpleNamespace:
        if wildcards["round"] not in made:
            raise NotMadeError
        path = round_file(Path("results") / wildcards["experiment"], wildcards["round"])
        return SimpleNamespace(output=[str(path)])

    return get


@pytest.mark.parametrize(
    ("rounds", "needed"),
    [
        pytest.param([], [1], id="none yet"),
        pytest.param([FIRST], [1, 2], id="more asked for"),
        pytest.param([FIRST, SECOND], [1, 2], id="all narrow"),
    ],
)
def test_the_tables_wait_for_the_round_that_is_to_be_made(
    rounds: list[Round], needed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    leave(tmp_path / "results" / "digits", *rounds)

    found = judged_rounds(checkpoint(1, 2), "digits")

    assert required_rounds(experiment(RULE), found) == needed


def test_a_round_on_disk_that_snakemake_makes_again_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    leave(tmp_path / "results" / "digits", FIRST, SECOND)

    with pytest.raises(NotMadeError):
        list(judged_rounds(checkpoint(1), "digits"))
    assert list(judged_rounds(checkpoint(1), "digits", before=2)) == [FIRST]


def test_a_deleted_run_is_made_again_and_one_never_asked_for_is_not(load: Load, tmp_path: Path) -> None:
    study = load(study_of(MORE))
    folder = tmp_path / "digits"
    for name in [*names("d1", 3), *names("d2", 5)]:
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "summary.json").write_text("{}")
    (folder / "scaling.csv").write_text("")

    assert study.deleted_runs(tmp_path) == []
    leave(folder, FIRST)
    assert study.deleted_runs(tmp_path) == [("digits", "d2.r6")]


def test_the_plan_shows_the_fewest_runs_and_what_the_most_would_cost(load: Load, tmp_path: Path) -> None:
    table = plan_table(load(study_of(MORE)), tmp_path)

    assert "digits/d2.r1-3 (up to 10)  1x2              120           10      <= 1.000\n" in table
    assert "\n6 runs, at most 1.500 device-hours." in table
    assert "\nUp to 5.000 device-hours (20 runs) if all points need their most repeats." in table


def test_the_plan_shows_what_the_rounds_have_asked_for(load: Load, tmp_path: Path) -> None:
    study = load(study_of(MORE))
    leave(tmp_path / "digits", FIRST)

    assert "digits/d2.r1-6 (up to 10)" in plan_table(study, tmp_path)
    leave(tmp_path / "digits", SECOND)
    settled = plan_table(study, tmp_path)
    assert "digits/d1.r1-3  1x1" in settled
    assert "digits/d2.r1-6  1x2" in settled
    assert "\n9 runs, " in settled
    assert "most repeats" not in settled
    raised = plan_table(load(study_of(MORE.replace("10", "20"))), tmp_path)
    assert "digits/d1.r1-3 (up to 20)" in raised


@pytest.mark.parametrize(
    "repeats",
    [
        "{min: 6, max: 4, until_interval: 0.03}",
        "{min: 12, until_interval: 0.03}",
        "{until_interval: 0}",
        "{until_interval: 3}",
        "{min: 1, until_interval: 0.03}",
        "{maxi: 4, until_interval: 0.03}",
        "{min: 3, until_intervall: 0.03}",
        "{min: three, until_interval: 0.03}",
        *("three", "0", "true", "1001"),
    ],
)
def test_a_mistake_in_repeats_of_the_defaults_is_named_once_and_there(
    repeats: str, refuse: Refuse, study_file: Path
) -> None:
    text = STUDY.replace("defaults: {", f"defaults: {{repeats: {repeats}, ").replace(
        "{repeats: REPEATS}", "{}"
    )

    (line,) = refuse(text + "  other: {}\n")

    assert line.startswith(f"{study_file}:1: defaults.repeats")


def test_an_experiment_may_replace_the_defaults_repeats_by_another_kind(load: Load) -> None:
    text = STUDY.replace("defaults: {", f"defaults: {{repeats: {MORE}, ").replace("REPEATS", "2")

    assert load(text + "  other: {}\n").experiments["digits"].experiment.max_repeats == 2
    assert load(text + "  other: {}\n").experiments["other"].experiment.max_repeats == 10
