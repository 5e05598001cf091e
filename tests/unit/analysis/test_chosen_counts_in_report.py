"""Tables, figures, report and proposal of a study that has not measured every device count."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
from tests.planted_study import CHOOSING, PlantedStudy, overhead
from tests.unit.analysis.planted_proposal import experiment, spec_of
from tests.unit.planted_rounds import FIRST, LAST, SECOND, THIRD, Asked, leave, planted_round, unmeasured

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults, read_json
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.proposal.folder import write_proposal
from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.analysis.rounds.sentences import STOPPING_AT_DECISION, repeat_sentences
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.runs.rounds import SeriesChoice
from scalewise.report.finished_report import report_finished


@dataclass(frozen=True)
class Ended:
    """A study whose rounds requested 1, 8 and 12 devices, with its tables."""

    results: ExperimentResults

    @property
    def choice(self) -> ChoiceSummary:
        assert self.results.choice is not None
        return self.results.choice

    @property
    def scaling(self) -> pd.DataFrame:
        return self.results.scaling

    @property
    def expected(self) -> pd.DataFrame:
        return self.results.unmeasured


def played(folder: Path, rounds: int, *, with_asked: bool = True) -> PlantedStudy:
    """Return the study after so many rounds, with the runs that the last one requested, or without."""
    study = PlantedStudy(folder, CHOOSING, overhead(0.25))
    study.make_runs()
    for judged in (FIRST, SECOND, THIRD, LAST)[:rounds]:
        leave(study.folder, judged)
        if with_asked or judged.number < rounds:
            study.make_runs()
    return study


def tabulated(study: PlantedStudy) -> ExperimentResults:
    """Return the results after their tables and decision were written."""
    compute(AnalysisSpec.from_json(study.planned.analysis_definition), study.folder / "runs", study.folder)
    return ExperimentResults.of_study(make_plan(study.study)["experiments"]["gpt"], study.folder)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    study = played(tmp_path_factory.mktemp("ended"), 4)
    results = tabulated(study)
    return Ended(results)


@pytest.mark.slow
def test_the_decision_keeps_what_was_not_measured_and_figures_show_its_throughput(
    ended: Ended,
) -> None:
    assert ended.results.decision["devices"] == 8
    assert ended.choice.measured == [1, 8, 12]
    assert [each.devices for each in ended.choice.unmeasured] == [2, 4, 16]
    assert ended.choice.next_runs == ""
    assert ChoiceSummary.from_dict(json.loads(json.dumps(ended.choice.as_dict()))) == ended.choice

    points = ended.expected.set_index("devices")
    base = ended.scaling.loc[ended.scaling["devices"] == 1, THROUGHPUT].item()
    speedup = points[["speedup", "speedup_low", "speedup_high"]].to_numpy()
    assert speedup[1].tolist() == pytest.approx([3.2, 2.88, 3.52])
    assert points["parallel_efficiency"].tolist() == pytest.approx([0.8] * 3)
    assert points[THROUGHPUT].tolist() == pytest.approx([base * speedup for speedup in (1.6, 3.2, 12.8)])

    assert ended.results.expected is not None
    assert len(ended.results.expected) == 3
    to_target = replace(ended.results, decision={**ended.results.decision, "measure": "time to target"})
    assert to_target.expected is not None
    assert to_target.expected.empty
    all_measured = replace(ended.results, choice=None)
    assert all_measured.unmeasured.empty
    assert all_measured.expected is None


def test_each_series_of_a_sweep_has_its_own_unmeasured_counts(ended: Ended) -> None:
    other = SeriesChoice(series="b", devices=8, other_answer=0.01, unmeasured=[unmeasured(4, 0.01, 0.5)])
    choice = replace(ended.choice, series="a", others=[other])
    scaling = pd.concat([ended.scaling.assign(series=name) for name in "ab"])

    expected = replace(ended.results, choice=choice, scaling=scaling).unmeasured

    assert expected[["series", "devices"]].to_numpy().tolist() == [["a", 2], ["a", 4], ["a", 16], ["b", 4]]
    assert expected["speedup"].tolist()[-1] == 2.0
    assert "counts of a were measured (1, 8, 12) in 7 runs of all series: " in choice.sentences()[0]
    assert (choice.chance_of_another("a"), choice.chance_of_another("b")) == (ended.choice.other_answer, 0.01)


def test_a_single_run_has_no_interval(ended: Ended) -> None:
    table = ended.results.points.set_index("devices")[["speedup_low", "speedup_high", f"{THROUGHPUT}_low"]]
    assert table.isna().all(axis="columns").to_dict() == {1: False, 8: False, 12: True}


def test_the_proposal_says_which_points_were_measured_and_how_often(ended: Ended) -> None:
    spec = experiment(devices={"up_to": 16}, global_batch_size=2048)
    write_proposal(ended.results, spec, spec_of())
    proposal = ended.results.folder / "proposal"
    table = pd.read_csv(proposal / "table.csv")
    assert table[["devices", "n"]].to_numpy().tolist() == [[1, 3], [8, 3], [12, 1]]
    for kind in ("md", "tex"):
        text = (proposal / f"proposal.{kind}").read_text(encoding="utf-8")
        assert (
            "Fewer than 3 runs have no interval. Of the possible counts, 2, 4, 16 were not measured" in text
        )


def test_the_runs_of_each_point_have_their_reason() -> None:
    points = repeat_sentences([FIRST, SECOND, THIRD, LAST])
    assert [each.split(" (")[0] for each in points] == ["1 and 8 devices: 3 runs each", "12 devices: 1 run"]
    points = repeat_sentences([FIRST, SECOND])
    assert [each.split(" (")[0] for each in points] == ["1 device: 2 runs", "8 devices: 1 run"]
    assert ["baseline" in each for each in points] == [True, False]
    requested = planted_round(3, {1: (3, 3, "most repeats"), 8: (1, 2, "undecided")}, 8, {})
    made: Asked = {1: (3, 3, "most repeats"), 8: (2, 2, "not needed"), 4: (2, 2, "not needed")}
    *points, stopping = repeat_sentences([requested, planted_round(4, made, 8, {})])
    assert all(why in each for why, each in zip(("baseline", "earlier", "open"), points, strict=True))
    assert stopping == STOPPING_AT_DECISION


def test_a_count_whose_runs_all_failed_is_neither_measured_nor_expected(tmp_path: Path) -> None:
    speed = overhead(0.25)
    study = PlantedStudy(tmp_path, CHOOSING, lambda run: None if run.point == "d12" else speed(run))
    leave(study.folder, FIRST, SECOND)
    study.make_runs()
    once: Asked = {1: (2, 2, "not needed"), 8: (1, 1, "not needed"), 12: (1, 1, "not needed")}
    failed = planted_round(3, once, 8, {2: 0.0, 4: 0.0})
    without = {"d12": {"completed": 0}}
    points = [each.model_copy(update=without.get(each.point, {})) for each in failed.points]
    failed = failed.model_copy(update={"points": points})
    leave(study.folder, failed)

    choice = tabulated(study).choice

    assert choice is not None
    assert (choice.measured, choice.no_result) == ([1, 8], [12])
    assert "2 of 5 device counts were measured (1, 8)" in choice.sentences()[0]
    assert "without a result: 12 devices" in choice.sentences()[1]
    assert "12 devices: 1 run without a result" in repeat_sentences([FIRST, SECOND, failed])[-1]


def test_what_a_spent_budget_leaves_open_is_the_first_caution(tmp_path: Path) -> None:
    study = played(tmp_path, 1)
    once: Asked = {1: (2, 2, "not needed"), 8: (1, 1, "not needed")}
    leave(study.folder, planted_round(2, once, 8, {2: 0.0, 4: 0.0, 12: 0.12, 16: 0.02}, budget=2.0))

    decision = tabulated(study).decision

    facts = (
        "The budget of 2.00 device-hours",
        "0.102 are spent",
        "12 (12 %), 16 (2 %)",
        "0.280 device-hours",
    )
    assert all(fact in decision["cautions"][0] for fact in facts)
    assert not decision["clear"]


@pytest.mark.slow
def test_a_study_that_continues_has_the_best_answer_so_far_and_what_comes_next(tmp_path: Path) -> None:
    study = played(tmp_path, 2, with_asked=False)

    lines = report_finished(make_plan(study.study), study.results)

    assert lines[0].startswith("gpt: Use 8 ")
    assert "next: 1 run on 12 devices" in lines[-2]
    decision = read_json(study.results / "partial/gpt/decision.json")
    assert "has not ended: the chance that another GPU count is the answer is 14 %" in decision["cautions"][0]

    study.make_runs()
    choice = tabulated(study).choice
    assert choice is not None
    assert choice.measured == [1, 8, 12], "12 was measured since the last round"
    assert [each.devices for each in choice.unmeasured] == [2, 4, 16]
    assert choice.next_runs == "what is measured next has not been judged"
