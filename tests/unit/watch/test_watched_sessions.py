"""Which sessions of Snakemake are shown as a study, and which show its own log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.planted_study import PlantedStudy

from scalewise.plan.config.experiment import Experiment, Target
from scalewise.plan.study import Study
from scalewise.snakemake_adapter import Snakemake
from scalewise.watch.session import RuleNames, forced_runs, watch_session
from scalewise.watch.study import WatchedStudy, required_efficiency

STUDY = """\
experiments:
  digits:
    dataset: digits
    model: linear
    global_batch_size: 256
    devices: [1, 2]
    repeats: 3
    sweep: {gradient_as_bucket_view: [false, true]}
    decision: {min_efficiency: 0.7}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    site = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 2}
    return PlantedStudy(tmp_path, STUDY, site=site).study


def snakemake(*rules: str, touch: bool = False, **asked: Any) -> Snakemake:
    """The part of Snakemake's workflow that is asked, as the profiles set it."""
    nothing: dict[str, Any] = {"verbose": False, "quiet": set(), "debug_dag": False, "printshellcmds": False}
    settings = nothing | {"log_handler_settings": {}, "show_failed_logs": True} | asked
    run = {"experiment": "digits", "run": "d1.bucket-view-on.r1"}
    jobs = [SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards=run) for rule in rules]
    dag = SimpleNamespace(needrun_jobs=lambda: iter(jobs))
    output = SimpleNamespace(**settings)
    return Snakemake(SimpleNamespace(output_settings=output, touch=touch, dag=dag, non_local_exec=False))


def test_the_profiles_have_a_study_shown(study: Study) -> None:
    watcher = watch_session(study, snakemake("train", "plot_figures"), RuleNames(), {})
    assert watcher is not None
    assert watcher.is_shown


@pytest.mark.parametrize(
    "asked",
    [
        {"verbose": True},
        {"quiet": {"all"}},
        {"debug_dag": True},
        {"printshellcmds": True},
        {"log_handler_settings": {"rich": None}},
        {"show_failed_logs": False},
    ],
    ids=str,
)
def test_who_asks_snakemake_for_its_log_gets_it(study: Study, asked: dict[str, Any]) -> None:
    watcher = watch_session(study, snakemake("train", **asked), RuleNames(), {})
    assert watcher is not None
    assert not watcher.is_shown


def test_a_variable_has_snakemakes_log_shown(study: Study) -> None:
    watcher = watch_session(study, snakemake("train"), RuleNames(), {"SCALEWISE_PROGRESS": "off"})
    assert watcher is not None
    assert not watcher.is_shown


def test_sessions_without_trainings_are_not_watched(study: Study) -> None:
    assert watch_session(study, snakemake("plan"), RuleNames(), {}) is None
    assert watch_session(study, snakemake("plot_figures", "write_report"), RuleNames(), {}) is None
    assert watch_session(study, snakemake("train", touch=True), RuleNames(), {}) is None
    assert watch_session(study, snakemake("judge_round"), RuleNames(), {}) is not None


def test_what_goes_wrong_before_the_start_is_said_and_leaves_the_study_alone(
    study: Study, caplog: pytest.LogCaptureFixture
) -> None:
    assert watch_session(study, Snakemake(SimpleNamespace(touch=False)), RuleNames(), {}) is None
    assert "The study is not shown (AttributeError: " in caplog.text


def test_the_points_of_a_study_are_watched_in_the_order_of_its_file(study: Study) -> None:
    watched = WatchedStudy.of(study, None)
    assert [(each.devices, each.series, each.most) for each in watched.points] == [
        (1, "bucket-view-off", 3),
        (2, "bucket-view-off", 3),
        (1, "bucket-view-on", 3),
        (2, "bucket-view-on", 3),
    ]
    assert watched.points[1].run(2) == ("digits", "d2.bucket-view-off.r2")
    assert {watched.points[1].run(repeat) for repeat in (1, 2, 3)} <= set(study.runs)
    assert watched.min_efficiency["digits"] == 0.7
    assert WatchedStudy.model_validate_json(watched.model_dump_json()) == watched


def test_an_efficiency_that_is_asked_of_the_time_to_a_target_is_not_held_against_throughput(
    study: Study,
) -> None:
    spec = study.experiments["digits"].experiment
    assert isinstance(spec, Experiment)
    with_target = spec.model_copy(update={"target": Target(accuracy=0.97)})
    assert required_efficiency(with_target) is None


ONE, TWO = ("digits", "d1.r1"), ("digits", "d2.r1")


@pytest.mark.parametrize(
    ("command", "forced"),
    [
        ({}, []),
        ({"targets": {"results/digits/runs/d1.r1/summary.json"}}, []),
        ({"forcetargets": True, "targets": {"./results/digits/runs/d1.r1/summary.json"}}, [ONE]),
        ({"forcerun": ["results/digits/runs/d2.r1/summary.json"]}, [TWO]),
        ({"forcerun": ["scaling_train"]}, [ONE, TWO]),
        ({"forcerun": ["plot_figures"]}, []),
        ({"forceall": True}, [ONE, TWO]),
    ],
)
def test_just_the_runs_that_the_user_forces_are_trained_again(
    command: dict[str, Any], forced: list[tuple[str, str]]
) -> None:
    settings = {"forcerun": [], "targets": set(), "forcetargets": False, "forceall": False} | command
    snakemake = Snakemake(SimpleNamespace(dag_settings=SimpleNamespace(**settings)))
    assert forced_runs(snakemake, "scaling_train", [ONE, TWO]) == forced
