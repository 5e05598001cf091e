"""Faults of data, losses and single ranks, in whole runs: what is counted, and who is named."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from sklearn.datasets import load_digits
from tests.cores import needs_two_cores
from tests.distributed.whole_runs import SETTINGS, Start, Training, finish

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.bottlenecks.bottlenecks import find_bottlenecks
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.report.drawing import draw
from scalewise.analysis.report.page import write_report
from scalewise.builtin.data.datasets import write
from scalewise.plan.config.experiment import Experiment
from scalewise.records import read_failure

pytestmark = [needs_two_cores, pytest.mark.starts_ranks]

Figure = Callable[[str, object], None]


@pytest.mark.fault(4)
def test_a_rank_that_takes_50_ms_more_a_step_is_named_with_its_host_in_the_report(
    start: Start, tmp_path: Path, record_property: Figure
) -> None:
    settings = SETTINGS | {"model": "planted_late_on_rank_1", "devices": [2], "epochs": 10}
    expected = f"waiting for rank 1 on {socket.gethostname()} takes"
    named: list[bool] = []
    while named.count(True) < 2:
        name = f"straggler{len(named)}"
        folder = finish(start(name, 2, settings)).folder.parent
        analysed = AnalysisSpec(name, Experiment.model_validate(settings))
        compute(analysed, folder, tmp_path / "results" / name)
        said = json.loads((tmp_path / "results" / name / "decision.json").read_text(encoding="utf-8"))
        named.append(expected in said["slowdown"]["sentence"])
        # a stall of the other rank as long as all that this one is late is named too, and rightly
        assert named.count(False) < 2, said["slowdown"]
    scaling, runs = (
        pd.read_csv(tmp_path / "results" / name / f"{table}.csv") for table in ("scaling", "runs")
    )
    assert [limit.cause for _, limit in find_bottlenecks(scaling, runs) if limit] == ["straggler"]
    flagged = said["slowdown"]["sentence"]
    results = ExperimentResults.read(analysed, tmp_path / "results" / name, title="Study")
    draw(results)
    write_report([results], tmp_path / "report.html")
    assert flagged in (tmp_path / "report.html").read_text(encoding="utf-8")
    record_property("figure", flagged.partition(" takes ")[2].partition(" of each")[0] + " of the step")


@pytest.mark.fault(5)
def test_1797_samples_over_4_ranks_make_equal_steps_and_each_is_tested_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Figure
) -> None:
    digits = load_digits()
    images = torch.from_numpy((digits.images[:, np.newaxis] * 15).astype(np.uint8))
    labels = torch.from_numpy(digits.target.astype(np.int64))
    prepared = tmp_path / "prepared.safetensors"
    train = {"train_images": images, "train_labels": labels}
    write(train | {"test_images": images.clone(), "test_labels": labels.clone()}, prepared)
    (tmp_path / "site.yaml").write_text("accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 4\n")
    monkeypatch.setenv("COUNTED_IN", str(tmp_path))
    changed = {"model": "planted_counting", "devices": [4], "epochs": 2, "global_batch_size": 248}
    run = finish(start("uneven", 4, changed, dataset=prepared))

    assert list(run.ranks["rank"]) == [0, 1, 2, 3]
    assert run.ranks["test_samples"].tolist() == [450, 449, 449, 449]
    assert run.ranks["train_samples"].sum() == 1797
    steps, tested = [], 0
    for rank in range(4):
        with (tmp_path / f"seen{rank}.csv").open(encoding="utf-8") as file:
            seen = [(phase, int(samples)) for phase, samples in csv.reader(file)]
        # the model is timed by itself after the training
        phases = [phase for phase, _ in seen]
        training = seen[phases.index("train") : len(phases) - phases[::-1].index("test")]
        steps.append(sum(phase == "train" for phase, _ in training))
        tested += sum(samples for phase, samples in training if phase == "test")
    assert steps == [2 * 8] * 4
    assert tested == 2 * 1797
    record_property("figure", f"{steps[0]} steps on each of 4 ranks, {tested // 2:,} samples tested")


@pytest.mark.fault(6)
def test_nan_on_one_rank_is_an_outcome_of_the_run_and_no_failure_to_retry(
    start: Start, record_property: Figure
) -> None:
    # the second of the second epoch's six steps
    run = finish(start("poisoned", 2, {"model": "planted_not_a_number_on_rank_1"}))
    assert run.summary.outcome == "diverged"
    assert "the loss is no longer finite in epoch 2 (training nan, test nan)" in run.summary.reason
    assert list(run.epochs["epoch"]) == [1, 2]
    assert np.isfinite(run.epochs["train_loss"].iloc[0])
    assert read_failure(run.folder) is None
    record_property("figure", f"outcome {run.summary.outcome}, exit 0")


@pytest.mark.fault(7)
def test_a_run_starts_though_the_port_that_everybody_uses_is_taken(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a shell's own MASTER_PORT names it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 29500))
        holder.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29500")
        assert finish(start("taken", 2)).summary.outcome == "completed"


def loader_processes(training: Training, said: str) -> dict[int, list[int]]:
    """The processes of each rank's loader, once the log says something and they are at work."""
    training.wait_for_line(re.escape(said))
    ranks = [psutil.Process(training.pid(rank)) for rank in range(2)]
    training.wait_until(lambda: all(rank.children() for rank in ranks), "a rank has no loader process")
    return {rank.pid: [child.pid for child in rank.children()] for rank in ranks}


@pytest.mark.fault(28)
def test_signals_to_a_rank_and_its_loader_end_in_checkpoints_that_are_gone_on_from(
    start: Start, record_property: Figure
) -> None:
    """Schedulers signal a task with all its children."""
    steps, said = [0], "epoch 1/"
    for how in (signal.SIGUSR1, signal.SIGTERM):
        training = start("signalled", 2, {"loader": "workers", "epochs": 10_000})
        rank, workers = loader_processes(training, said).popitem()
        assert len(workers) == 1
        for pid in (*workers, rank):
            os.kill(pid, how)
        code, stderr = training.end()
        assert code == 1
        stopped = json.loads((training.attempt / "stopped.json").read_text(encoding="utf-8"))
        assert stopped["saved"] is True, stderr
        assert how.name in stopped["stop_source"]
        assert "DataLoader" not in (training.folder / "train.log").read_text(encoding="utf-8")
        assert training.left_over() == {}
        assert not any(map(psutil.pid_exists, workers))
        steps.append(stopped["step"])
        said = f"resumed at step {stopped['step']} from"
    assert steps == sorted(set(steps))
    record_property("figure", "after SIGUSR1 and SIGTERM 0 steps lost")
