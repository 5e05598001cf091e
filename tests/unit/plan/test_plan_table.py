"""The plan in the terminal: each point with its cost, what was measured, and what comes next."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.golden import compare
from tests.planted_records import BEGAN, leave_result, provenance, run_record
from tests.planted_study import CHOOSING, PlantedStudy, overhead
from tests.stand_ins import stand_ins
from tests.unit.plan.conftest import Load
from tests.unit.plan.refusals import CPUS
from tests.unit.plan.test_rounds import leave

from scalewise.config.experiment import Repeats
from scalewise.plan.runs.rounds import Round
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.terminal.plan_table import plan_table
from scalewise.records import SUMMARY, Start, later

STUDY = """\
defaults: {dataset: digits, model: digits_cnn, repeats: 2, epochs: 5, devices: [1, 2]}
experiments:
  strong: {global_batch_size: 240, sweep: {gradient_as_bucket_view: [true]}}
  weak: {scaling: weak, warmup_steps: 5, batch_size_per_device: 64, devices: ["2x2"], repeats: 1,
    runtime_minutes: 30}
"""
ON_TWO = ("strong", "d2.bucket-view-on.r1")


def finish(run: RunDefinition, results: Path) -> Path:
    """Leave the summary of a run of 90 seconds, over midnight."""
    began = "2026-03-01T23:59:30+00:00"
    origin = provenance(run, started_at=began, ended_at=later(began, 90))
    folder = results / run.experiment / "runs" / run.run
    return leave_result(folder, run_record(run, provenance=origin)) / SUMMARY


ON_CLUSTER = """\
defaults: {dataset: digits, model: linear, global_batch_size: 240, repeats: 2, cpus_per_device: 8}
experiments:
  a: {devices: [1, 2, 8], runtime_minutes: 30}
  b: {devices: [1], runtime_minutes: 50}
"""
GPUS = CPUS.replace("cpu\n", "cuda\n").replace("node: 8", "node: 64") + "memory_gb_per_node: 240\n"
REPEATED = """\
defaults: {dataset: digits, model: digits_cnn, global_batch_size: 240, devices: [1, 2]}
experiments:
  digits: {repeats: {min: 3, max: 10}}
"""
PLANS: dict[str, tuple[str, str]] = {
    "two experiments": (STUDY, CPUS),
    "passes": (STUDY.replace("repeats: 2", "repeats: 2, accumulation_steps: 2"), CPUS),
    "steps": (STUDY.replace("repeats: 2", "repeats: 2, steps: 500"), CPUS),
    "up to some steps": (
        STUDY.replace("repeats: 2", "repeats: 2, steps: {most: 500, until_interval: 0.01}"),
        CPUS,
    ),
    "repeats until it is clear": (REPEATED, CPUS),
    "a long plan": (
        STUDY.replace("gradient_as_bucket_view: [true]", f"epochs: {list(range(3, 24))}"),
        CPUS,
    ),
    "a cluster": (
        ON_CLUSTER,
        f"{GPUS}slurm: {{account: nn9999k, extra: ['--constraint=a&b'], longest_walltime: '01:00:00'}}\n",
    ),
    "a cluster without a known limit": (ON_CLUSTER, f"{GPUS}slurm: {{account: a}}\n"),
    "a cluster whose jobs are shorter": (
        ON_CLUSTER,
        f"{GPUS}slurm: {{account: a, longest_walltime: '00:45:00'}}\n",
    ),
}
TWO_PARTITIONS = (
    "accelerator: cuda\ncpus_per_node: 64\nslurm: {account: a}\npartitions:\n"
    "  a100: {partition: gpu-a100, devices_per_node: 4, max_nodes: 4}\n"
    "  h200: {partition: gpu-h200, devices_per_node: 8, longest_walltime: '01:00:00',\n"
    "    extra: ['--constraint=nvlink']}\n"
    "default_partition: a100\n"
)
PLANS["two partitions"] = (
    ON_CLUSTER.replace("[1, 2, 8],", "[1, 8, 16], partitions: all,").replace("device: 8", "device: 4"),
    TWO_PARTITIONS,
)
PLANS["chosen counts of two partitions"] = (
    "experiments:\n  a: {dataset: digits, model: linear, global_batch_size: 256, devices: {up_to: 16},\n"
    "    partitions: [h200, a100], budget: {device_hours: 100}}\n",
    TWO_PARTITIONS,
)
PLANS |= {
    f"nodes that are {name}": (ON_CLUSTER, f"{GPUS}slurm: {{{line}}}\n")
    for name, line in (
        ("whole by default", "account: a"),
        ("shared", "exclusive: false"),
        ("exclusive", "exclusive: true"),
    )
}
WORDS = Path(__file__).with_name("plan_tables.txt")


def test_plans_are_shown_as_they_are_kept(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # no sbatch, of which the plan warns
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = {name: plan_table(load(*plan), tmp_path / "none") for name, plan in PLANS.items()}
    shown |= dict(with_results(load, tmp_path))
    shown |= {f"chosen counts: {name}": text for name, text in with_choices(tmp_path / "chosen")}
    text = "\n".join(f"# {name}\n\n{table}\n" for name, table in shown.items())
    compare(WORDS, text.replace(f"{tmp_path}/", "RESULTS/"), __file__, capsys)


def with_results(load: Load, folder: Path) -> Iterator[tuple[str, str]]:
    study, results = load(STUDY), folder / "strong-and-weak"
    finish(study.runs[ON_TWO], results)
    yield "a finished run", plan_table(study, results)
    reason = "stopped after 60 minutes, at step 7/9. Raise runtime_minutes."
    ended = Start(started_at=BEGAN, limit_seconds=3600, outcome="timed-out", reason=reason, permanent=True)
    refused = {("strong", run): ended for run in ("d2.bucket-view-on.r2", "d1.bucket-view-on.r1")}
    yield "runs that are not started", plan_table(study, results, refused)
    unfinished = {run: ended for run in study.runs if run != ON_TWO}
    yield "no run that is started", plan_table(study, results, unfinished)
    finish(study.runs["strong", "d1.bucket-view-on.r1"], results)
    yield (
        "finished runs of other epochs",
        plan_table(load(STUDY.replace("epochs: 5", "epochs: 20000")), results),
    )
    other = load(STUDY.replace("epochs: 5", "epochs: 5, launcher: spawn"))
    yield "finished runs of another launcher", plan_table(other, results)
    for run in study.runs.values():
        finish(run, results)
    yield "all runs are finished", plan_table(study, results)
    # one run more on 1 and on 2 devices for 90 seconds
    yield "a repeat more", plan_table(load(STUDY.replace("repeats: 2", "repeats: 3")), results)
    for first in ("strong", "other"):
        answers = json.dumps([{"experiment": name} for name in (first, "weak")])
        (results / "decision.json").write_text(answers, encoding="utf-8")
        yield f"a report on {first} and weak", plan_table(study, results)

    study, results = load(REPEATED), folder / "repeated"
    rule = Repeats(min=3, max=10)
    for number, (before, after) in enumerate(((3, 6), (6, 6)), start=1):
        judged = Round(
            experiment="digits",
            number=number,
            rule=rule,
            chooses=False,
            repeats={"d1": 3, "d2": before},
            requested={"d1": 3, "d2": after},
        )
        leave(results / "digits", judged)
        yield f"repeats after round {number}", plan_table(study, results)
    yield "a larger maximum of repeats", plan_table(load(REPEATED.replace("10", "20")), results)


def with_choices(folder: Path) -> Iterator[tuple[str, str]]:
    study = chosen_study(folder / "plain")
    yield "before round 1", shown_of(study)
    for judged in study.play():
        if judged.number in {1, 3} or not judged.requests_more:
            leave(folder / f"after{judged.number}" / "results" / "gpt", *study.rounds()[: judged.number])
            yield (
                f"after round {judged.number}",
                plan_table(study.study, folder / f"after{judged.number}" / "results"),
            )

    study = chosen_study(folder / "budget", "steps: 300", "steps: 300\n    budget: {device_hours: 2}")
    yield "a budget", shown_of(study)
    # two runs of 30 s and 300 steps on one device
    assert study.make_runs() == ["d1.r1", "d1.r2"]
    yield "a budget of which runs have spent some", shown_of(study)

    weak, strong = (
        "scaling: weak\n    batch_size_per_device: 16",
        "scaling: strong\n    global_batch_size: 256",
    )
    yield "a batch that leaves some out", shown_of(chosen_study(folder / "strong", weak, strong))

    sweep = "steps: 300\n    sweep: {gradient_as_bucket_view: [false, true]}"
    study = chosen_study(folder / "series", "steps: 300", sweep)
    study.make_runs()
    study.judge()
    yield "two series", shown_of(study)


def test_a_plan_that_can_be_started_has_no_warning(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(tmp_path / "programs", {"sbatch": ""})
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    assert "Warning" not in plan_table(load(*PLANS["a cluster"]), tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"provenance": null}', "[" * 100_000, None])
def test_a_damaged_summary_is_no_measurement(text: str | None, load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    path = finish(study.runs["weak", "d2x2.r1"], tmp_path)
    if text is None:
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_text(text)

    table = plan_table(study, tmp_path)
    assert "<= 2.000" in table
    (warning,) = [line for line in table.splitlines() if str(path) in line]
    assert ("Not a regular file" if text is None else "Delete") in warning


def chosen_study(folder: Path, old: str = "", new: str = "") -> PlantedStudy:
    """The study that chooses its device counts, with this text in place of another."""
    assert old in CHOOSING
    return PlantedStudy(folder, CHOOSING.replace(old, new), overhead(0.1))


def shown_of(study: PlantedStudy) -> str:
    return plan_table(study.study, study.results)
