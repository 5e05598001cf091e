"""What is recorded of a program that has ended, from planted files of its probe."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.small_runs import definition, rank_setup
from tests.unit.training.probe_record_of import record

from scalewise.execution.messages import RankError, TrainSpec
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.settings import Steps
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.monitoring.machine_load import CpuUse
from scalewise.ranks.program.failure import ProgramError, check_end
from scalewise.ranks.program.rank import ProgramRank
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.rank_report import RankReport
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.starts import StartRecords
from scalewise.ranks.results.write import write_records
from scalewise.records import RECORD, RankRecord, RunRecord, read_record, seconds_between

SETTINGS = ProgramSettings(program="train.py", steps=Steps.exactly(15), warmup_steps=5)
PLANNED = Planned("train.py", 1, 8, 1, False, frozenset(), accelerator="cpu", samples_vary=False)
STARTED, ENDED = "2026-01-01T00:00:00.000+00:00", "2026-01-01T00:01:30.000+00:00"


def spec_of(folder: Path) -> TrainSpec:
    run = definition().model_copy(update={"settings": SETTINGS})
    return TrainSpec(definition=run, dataset=None, folder=folder, started_at=STARTED)


def recorded(folder: Path, probe: ProbeRecord) -> tuple[RunRecord, str]:
    """The summary and ranks.csv of a program on one device."""
    report = RankReport(
        rank=0,
        host="n1",
        slurm_job_id=None,
        restart_count=0,
        cpu_model="A CPU",
        operating_system="Linux",
        monitors=[],
        cpu_use=CpuUse("n1", 1.0, 1.0, 10.0),
        launch_seconds=0.5,
        gpu_limits=[None],
        driver=None,
        ended_at=ENDED,
    )
    setup = rank_setup(shape="1x1")
    write_records(spec_of(folder), setup, PLANNED, [StartRecords([probe], [report])], argv=["python"])
    return read_record(folder / RECORD, RunRecord), (folder / "ranks.csv").read_text()


@pytest.fixture
def program(tmp_path: Path) -> ProgramRank:
    """A program of one rank that has ended."""
    identity = Identity(0, 0, 1, 1, "n1", None, 0)
    files = RankFiles(tmp_path / "attempt")
    rank = ProgramRank(
        files, rank_setup(shape="1x1"), spec_of(tmp_path), SETTINGS, identity, range(1), began=0.0
    )
    rank.probe_folder.mkdir(parents=True)
    return rank


def end(program: ProgramRank, code: int = 0, *lines: str) -> None:
    """Check the end of a program that has printed some lines and left no record."""
    output: Any = SimpleNamespace(last_error=lambda: "", traceback=lambda: "\n".join(lines), tail=list(lines))
    check_end(
        output, code, SETTINGS, on_cpus=True, records=[], rank_count=1, probe_folder=program.probe_folder
    )


def test_a_program_whose_weights_are_lost_has_diverged_and_its_losses_say_since_when(tmp_path: Path) -> None:
    found, _ = recorded(tmp_path, record(weights_finite=False, losses={"0": 1.5, "10": None}, world_size=1))

    assert found.outcome == "diverged"
    assert found.reason == (
        "the weights of rank 0 are no longer finite after 20 steps. Lower the learning rate of train.py."
    )
    assert found.measurements is not None
    assert found.measurements.program is not None
    assert found.measurements.program.losses == [(0, 1.5), (10, None)]


def test_a_program_whose_weights_are_finite_has_completed(tmp_path: Path) -> None:
    found, _ = recorded(tmp_path, record(weights_finite=True, losses={"0": 1.5, "10": 1.4}, world_size=1))

    assert (found.outcome, found.reason) == ("completed", "")


@pytest.mark.parametrize(("samples", "written"), [(None, "160"), ([], "")])
def test_samples_of_a_rank_are_unknown_without_a_loader(
    tmp_path: Path, samples: list[int | None] | None, written: str
) -> None:
    _, ranks = recorded(tmp_path, record(samples=samples, wait_seconds=[], world_size=1))

    names, values = (line.split(",") for line in ranks.splitlines())
    assert names == list(RankRecord.__dataclass_fields__)
    assert dict(zip(names, values, strict=True))["train_samples"] == written


def test_a_program_that_skips_the_exit_handlers_is_told_so(program: ProgramRank) -> None:
    (program.probe_folder / "0.123.steps").write_text("10")

    with pytest.raises(ProgramError, match=r"at least 10, .*Replace os\._exit by sys\.exit"):
        end(program)


@pytest.mark.parametrize(("launch_seconds", "seconds"), [(0.5, 100.5), (None, 103.0)])
def test_the_end_of_a_run_does_not_depend_on_a_clock_that_is_set_meanwhile(
    program: ProgramRank, monkeypatch: pytest.MonkeyPatch, launch_seconds: float | None, seconds: float
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 103.0)
    # the program's process began 3 s after the rank's, whose own begin is the only one known on another host
    assert seconds_between(STARTED, program._ended_at(3.0, launch_seconds)) == seconds


def test_a_rank_that_nccl_aborts_is_not_taken_for_the_one_it_waited_for(program: ProgramRank) -> None:
    watchdog = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE"
    found = []
    for lines in ([watchdog], ["free(): invalid pointer"]):
        with pytest.raises(ProgramError) as ended:
            end(program, -signal.SIGABRT, *lines)
        error = RankError(
            rank=0, host="n1", time=0.0, message=str(ended.value), traceback="", out_of_memory=False
        )
        found.append((error.is_secondary, error.is_timeout))

    assert found == [(True, True), (False, False)]


def test_a_program_without_a_step_is_told_so(program: ProgramRank) -> None:
    with pytest.raises(ProgramError, match="ended without error before its first optimizer step"):
        end(program)
