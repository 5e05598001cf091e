"""What the terminal shows of a study that chooses its device counts: the plan, each round, the end."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.planting import CHOOSING, PlantedStudy, overhead
from tests.unit.planted_rounds import FIRST, LAST, SECOND, THIRD, leave, planted_round

from scalewise.analysis.decision.card import Card
from scalewise.analysis.rounds.sentences import round_lines
from scalewise.plan.config.experiment import Repeats
from scalewise.plan.formatting import chance_text, counts_text
from scalewise.plan.runs.run_definition import parse_point_name
from scalewise.plan.terminal.choice_lines import most_of_a_round
from scalewise.plan.terminal.final_message import decisions
from scalewise.plan.terminal.plan_table import plan_table

BUDGET = CHOOSING.replace("steps: 300", "steps: 300\n    budget: {device_hours: 2}")
STRONG = CHOOSING.replace("scaling: weak", "scaling: strong").replace(
    "batch_size_per_device: 16", "global_batch_size: 256"
)


def study_of(folder: Path, text: str = CHOOSING) -> PlantedStudy:
    return PlantedStudy(folder, text, overhead(0.1))


def shown(study: PlantedStudy) -> list[str]:
    return plan_table(study.study, study.results).splitlines()


def test_counts_that_are_not_asked_for_are_one_line_and_no_rows(tmp_path: Path) -> None:
    assert shown(study_of(tmp_path)) == [
        "run                    nodes x devices  batch/device  epochs          device-hours",
        "gpt/d1.r1-2 (up to 3)  1x1              16            10 + 300 steps  <= 0.333",
        "2 runs, at most 0.333 device-hours. Devices are GPUs, 4 per node.",
        "gpt chooses among 6 counts that fill nodes of 4 devices: 1, 2, 4, 8, 12, 16",
        "  5 further counts (2 to 16 devices) are measured if the answer needs them: a round takes "
        "at most 2 runs and 2.83 device-hours",
        "  limit: 21.5 device-hours, if every count needed 3 runs of 10 minutes; "
        "`budget: {device_hours: ...}` sets a lower one",
    ]


def test_a_budget_is_the_most_that_the_study_costs_and_that_a_round_takes(tmp_path: Path) -> None:
    study = study_of(tmp_path, BUDGET)
    assert shown(study)[-2:] == [
        "  5 further counts (2 to 16 devices) are measured if the answer needs them: a round takes "
        "at most 2 runs and 2.00 device-hours",
        "  limit: 2 device-hours by its budget, of which 2.00 are left",
    ]
    spent = study.make_runs()
    assert spent == ["d1.r1", "d1.r2"]
    # two runs of 30 s and 300 steps on one device
    assert shown(study)[-1] == "  limit: 2 device-hours by its budget, of which 1.98 are left"


def test_what_is_predicted_of_counts_that_are_not_asked_for_is_told_until_a_round_knows_better(
    tmp_path: Path,
) -> None:
    study = study_of(tmp_path, CHOOSING.replace("predict: false", "predict: true"))
    study.folder.mkdir(parents=True)
    columns = "series,shape,speedup,speedup_low,speedup_high,parallel_efficiency,device_hours_per_epoch"
    rows = ["all runs,1x1,1,1,1,1,", "all runs,1x4,3.4,3.1,3.6,0.85,", "all runs,4x4,12,9,13,0.75,"]
    (study.folder / "prediction.csv").write_text("\n".join([columns, *rows]))
    told = "  predicted speedups: 3.4 (3.1 to 3.6) on 4, 12 (9.0 to 13) on 16 devices"

    assert told in shown(study)
    leave(study.folder, FIRST)
    assert told not in shown(study)


def test_counts_that_the_batch_leaves_out_are_named(tmp_path: Path) -> None:
    lines = shown(study_of(tmp_path, STRONG))
    assert "gpt chooses among 5 counts that fill nodes of 4 devices: 1, 2, 4, 8, 16" in lines
    assert "  left out, as global_batch_size is not divisible by it: 12" in lines


def test_after_a_round_the_plan_says_what_it_found_and_what_all_counts_would_take(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    study.make_runs()
    leave(study.folder, FIRST)
    study.make_runs()
    leave(study.folder, SECOND)

    lines = shown(study)

    assert [line.split()[0] for line in lines[1:4]] == ["gpt/d1.r1-2", "gpt/d8.r1", "gpt/d12.r1"]
    assert lines[6:9] == [
        "  round 2: answer so far: 8 devices, the chance of another is 14 %",
        "  next: 1 run on 12 devices (may be the answer, with a chance of 12 %)",
        "  3 further counts (2 to 16 devices) are measured if the answer needs them: a round takes "
        "at most 5 runs and 6.83 device-hours",
    ]
    # 35.3 s on 1 device, twice, and 36.2 s on 8; three of each with 0.34 for the four others
    assert lines[9] == (
        "  spent: 0.100 of the about 1.29 device-hours that all counts take with 18 runs (7.8 %)"
    )


def test_the_plan_of_a_study_that_has_ended_asks_for_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    leave(study.folder, FIRST, SECOND, THIRD, LAST)

    lines = shown(study)

    assert lines[6:8] == [
        "  round 4: answer: 8 devices, the chance of another is 3 %",
        "  nothing more is measured",
    ]
    assert not any("further counts" in line or "limit" in line for line in lines)
    assert "(up to" not in "".join(lines)


def test_each_series_has_lines_of_its_own(tmp_path: Path) -> None:
    text = CHOOSING.replace("steps: 300", "steps: 300\n    sweep: {gradient_as_bucket_view: [false, true]}")
    study = study_of(tmp_path, text)
    labels = ("bucket-view-off", "bucket-view-on")
    asked = {1: (2, 2, "not needed"), 8: (0, 1, "may be the answer")}
    leave(study.folder, planted_round(1, asked, None, {8: 0.3}, series=labels))  # type: ignore[arg-type]

    lines = shown(study)

    for label in labels:
        assert f"  {label}: next: 1 run on 8 devices (may be the answer, with a chance of 30 %)" in lines
    assert any(line.startswith("gpt (bucket-view-on), round 1: ") for line in round_lines(study.rounds()[0]))


@pytest.mark.parametrize(
    ("judged", "line"),
    [
        pytest.param(
            FIRST,
            "gpt, round 1: No second count to compare with; the chance that another is the answer is 86 "
            "%. 1 of 6 counts measured: 1 (2 runs). Next: 1 run on 8 devices (may be the answer, with a "
            "chance of 30 %).",
            id="first",
        ),
        pytest.param(
            THIRD,
            "gpt, round 3: Answer so far: 8 devices, the chance of another is 3 %. 3 of 6 counts "
            "measured: 1 (2 runs), 8, 12. Next: 1 run on 1 device and 2 runs on 8 devices (the answer "
            "rests on them).",
            id="repeats",
        ),
        pytest.param(
            LAST,
            "gpt, round 4: Answer: 8 devices, the chance of another is 3 %. 3 of 6 counts measured: 1 "
            "(3 runs), 8 (3 runs), 12. Nothing more is measured.",
            id="last",
        ),
        pytest.param(
            planted_round(
                2, {1: (2, 2, "not needed"), 4: (1, 1, "not needed")}, 4, {8: 0.2, 16: 0.1}, budget=4.0
            ),
            "gpt, round 2: Answer so far: 4 devices, the chance of another is 30 %. 2 of 6 counts "
            "measured: 1 (2 runs), 4. The budget ends the study; the likeliest other answer is 8 devices "
            "(20 %).",
            id="budget",
        ),
        pytest.param(
            planted_round(2, {1: (2, 2, "over the budget"), 4: (1, 1, "over the budget")}, 4, {}, budget=4.0),
            "gpt, round 2: Answer: 4 devices. 2 of 6 counts measured: 1 (2 runs), 4. The budget ends the "
            "study, which needs more runs on 1 and 4 devices.",
            id="budget for repeats",
        ),
        pytest.param(
            planted_round(2, {1: (2, 2, "not needed"), 16: (1, 1, "not needed")}, None, {8: 0.0}),
            "gpt, round 2: No measured count is an answer; the chance that another is one is less than "
            "0.1 %. 2 of 6 counts measured: 1 (2 runs), 16. Nothing more is measured.",
            id="no answer",
        ),
        pytest.param(
            planted_round(1, {}, None, {}, other_answer=1.0),
            "gpt, round 1: None of 6 counts measured. No run of the baseline has completed, so nothing "
            "more is measured.",
            id="no baseline",
        ),
    ],
)
def test_a_round_is_one_line_that_a_human_reads(judged: object, line: str) -> None:
    assert round_lines(judged) == [line]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chance", "text"),
    [
        (0.0, "less than 0.1 %"),
        (0.0009, "less than 0.1 %"),
        (0.031, "3.1 %"),
        (0.12, "12 %"),
        (0.995, "more than 99 %"),
    ],
)
def test_a_chance_is_told_as_far_as_it_is_known(chance: float, text: str) -> None:
    assert chance_text(chance) == text


def test_of_many_counts_the_first_and_the_last_are_named() -> None:
    assert counts_text(range(4, 69, 4)) == "4, 8, 12, 16, 20, 24, 28, 32, 36, ..., 64, 68"
    assert counts_text([1, 2, 4]) == "1, 2, 4"


@pytest.mark.parametrize("share", [0.02, 0.15])
def test_no_round_asks_for_more_than_the_plan_said(share: float, tmp_path: Path) -> None:
    """The plan's bound against what the engine really asks for, round by round."""
    study = PlantedStudy(tmp_path, CHOOSING, overhead(share, scatter=0.02))
    rule, hours, said = Repeats(min=3, max=3), 10 / 60, []
    for _ in range(20):
        study.make_runs()
        judged = study.judge()
        found = {parse_point_name(point.point)[0]: point for point in judged.points}
        asked = [found[each].asked for each in sorted(found)]
        more = {each: point.next_asked - point.asked for each, point in found.items()}
        runs, most = most_of_a_round(asked, [each * hours for each in sorted(found)], rule)
        said.append((sum(more.values()), runs))
        assert sum(more.values()) <= runs
        assert sum(count * each * hours for each, count in more.items()) <= most + 1e-9
        if not judged.requests_more:
            break
    assert not study.rounds()[-1].requests_more
    assert len(said) > 2


def test_the_end_says_what_the_choice_saved(tmp_path: Path) -> None:
    choice = {
        "measured": [1, 8, 12],
        "unmeasured": [{"devices": 2}, {"devices": 4}],
        "no_result": [16],
        "spent_device_hours": 3.1,
        "full_grid_device_hours": 14.2,
        "other_answer": 0.03,
    }
    answer = {
        "experiment": "gpt",
        "card": asdict(Card("Use 8 GPUs.")),
        "choice": choice,
        "other_trainings": [],
        "cautions": ["The budget ends it."],
    }
    (tmp_path / "decision.json").write_text(json.dumps([answer]))
    (tmp_path / "report.html").write_text("")

    assert decisions(tmp_path).splitlines()[:3] == [
        "gpt: Use 8 GPUs.",
        "  Spent       3.10 of about 14.2 device-hours, 22 %: 3 of 6 device counts were",
        "              measured, another has a chance of 3 %.",
    ]
