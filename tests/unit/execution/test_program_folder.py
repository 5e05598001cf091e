"""The folder that a user's program writes to, and failures after which no other try is made."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.planting import leave_failure
from tests.small_runs import definition

from scalewise.execution import train_job
from scalewise.execution.history import load_history, would_fail_again
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.run import RunFailedError
from scalewise.execution.run_log import SHOWN_BYTES
from scalewise.execution.train_job import TrainOptions, prepare_program_folder, run_train_job
from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.plan_file import Limits
from scalewise.records import RECORD_LOG

DEFINITION = definition(2).model_copy(update={"settings": ProgramSettings(program="train.py")})


@pytest.mark.parametrize("resumes", [False, True])
def test_a_run_begins_in_an_emptied_folder_unless_its_program_goes_on_by_itself(
    tmp_path: Path, resumes: bool
) -> None:
    folder = tmp_path / "program"
    prepare_program_folder(folder, keep=resumes)
    (folder / "last.pt").write_text("of a run that was cut off")

    prepare_program_folder(folder, keep=resumes)

    assert folder.is_dir()
    assert (folder / "last.pt").exists() == resumes


@pytest.mark.parametrize("permanent", [False, True])
def test_what_would_end_alike_is_not_tried_again(tmp_path: Path, permanent: bool) -> None:
    leave_failure(tmp_path, DEFINITION, "failed", "64 samples a step, 32 were planned", permanent=permanent)

    rank_files = RankFiles(tmp_path / "attempt")
    same = load_history(tmp_path, DEFINITION, {}, rank_files)
    assert (would_fail_again(same, 60) is not None) == permanent
    changed = DEFINITION.model_copy(update={"settings": ProgramSettings(program="other.py")})
    assert would_fail_again(load_history(tmp_path, changed, {}, rank_files), 60) is None


def test_what_a_failed_run_printed_is_bounded_before_snakemake_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"

    def fail(*_given: object) -> int:
        log.write_bytes(b"a bar of progress\r" * 100_000)
        raise RunFailedError("own/d2.r1 failed: no more samples")

    monkeypatch.setattr(train_job, "train_or_reuse", fail)
    options = TrainOptions(
        definition=DEFINITION,
        dataset=None,
        weights=None,
        log=log,
        limits=Limits(limit_seconds=60.0, timeout_seconds=60),
        attempt=1,
        summary=tmp_path / "summary.json",
    )
    before = signal.getsignal(signal.SIGUSR1)
    try:
        assert run_train_job(options, SiteLaunch()) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert log.stat().st_size < 2 * SHOWN_BYTES
    assert (tmp_path / RECORD_LOG).stat().st_size == 1_800_000
