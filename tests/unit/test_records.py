"""A record is read whole or not at all, and a damaged one is refused with its file and the fix."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.paths import SCRIPTS
from tests.planted_records import measurements, provenance, run_record
from tests.small_runs import definition
from tests.waiting import LIMIT_SECONDS

from scalewise.records import (
    EPOCHS,
    FAILURE,
    RECORD,
    EpochRecord,
    Failure,
    RecordError,
    Window,
    read_failure,
    read_run,
    write_json,
    write_rows,
)

DEFINITION = definition(2, learning_rate=0.1)
SUMMARY_RECORD = run_record(
    DEFINITION,
    measurements=measurements(
        throughput_samples_per_second=1 / 3,
        windows=[Window(first_step=0, steps=2, samples=512, seconds=0.1 + 0.2, warmup=True)],
        peak_memory_bytes=2**40,
    ),
    provenance=provenance(DEFINITION, cpu_model="Élan μ-CPU", slurm_job_id="4711", restart_count=1),
)

EPOCH_ROWS = [
    EpochRecord(1, 0.5, 0.1, 2874.0, 2.1, 1.4, 0.75, 0.1),
    EpochRecord(2, 0.25, 0.1, 5748.0, 1.0, float("nan"), 0.89, 0.05),
]

WRITE_TOO_MUCH = """
import resource, sys
from pathlib import Path
from scalewise.records import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
write_text(Path(sys.argv[1]), "new" * 100_000)
"""

WRITE_FOR_EVER = """
import sys
from pathlib import Path
from scalewise.records import write_text
print("ready", flush=True)
while True:
    for letter in "ab":
        write_text(Path(sys.argv[1]), letter * 1_000_000)
"""


def python(program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        text=True,
        **options,
    )


@pytest.mark.parametrize("before", ["old", None], ids=["over an old file", "as a new file"])
def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_half_written(
    tmp_path: Path, before: str | None
) -> None:
    path = tmp_path / RECORD
    if before is not None:
        path.write_text(before, encoding="utf-8")
    with python(WRITE_TOO_MUCH, str(path), stderr=subprocess.PIPE) as process:
        _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1
    assert "OSError" in stderr
    assert [p.name for p in tmp_path.iterdir()] == ([RECORD] if before else [])
    if before is not None:
        assert path.read_text(encoding="utf-8") == before


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / RECORD
    for _ in range(3):
        with python(WRITE_FOR_EVER, str(path), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for _ in range(20):  # readers meanwhile see one of the two, never a part
                if path.exists():
                    text = path.read_text(encoding="utf-8")
                    assert text == text[0] * 1_000_000
            process.send_signal(signal.SIGKILL)
        if path.exists():
            text = path.read_text(encoding="utf-8")
            assert text == text[0] * 1_000_000


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"outcome": "out-of-memory", "reason": "rank 0", "measurements": None, "provenance": None},
    ],
    ids=["completed", "without measurements"],
)
def test_a_summary_comes_back_as_it_was_written(changes: dict[str, Any], tmp_path: Path) -> None:
    record = SUMMARY_RECORD.model_copy(update=changes)
    write_json(tmp_path / RECORD, record)
    assert read_run(tmp_path) == record


def test_a_summary_of_another_run_is_refused_with_the_fix(tmp_path: Path) -> None:
    write_json(tmp_path / RECORD, SUMMARY_RECORD)
    assert read_run(tmp_path, DEFINITION.run) == SUMMARY_RECORD
    with pytest.raises(RecordError, match=rf"is of the run {DEFINITION.run}. Delete {tmp_path} and give"):
        read_run(tmp_path, "d9.r9")


def test_a_failure_comes_back_as_it_was_written_and_none_is_none(tmp_path: Path) -> None:
    assert read_failure(tmp_path) is None
    record = Failure(
        definition=DEFINITION,
        inputs={"dataset": "a"},
        started_at="2026-01-01T00:05:00+00:00",
        ended_at="2026-01-01T00:15:09+00:00",
        limit_seconds=600,
        outcome="timed-out",
        reason="not done after 10 minutes.",
        log_tail=["epoch 1/2", ""],
        seconds=609.0,
    )
    write_json(tmp_path / FAILURE, record)
    assert read_failure(tmp_path) == record
    write_json(tmp_path / RECORD, SUMMARY_RECORD)
    assert read_failure(tmp_path) is None


def test_rows_come_back_to_the_last_digit_and_a_run_that_never_trained_has_none(tmp_path: Path) -> None:
    for rows in (EPOCH_ROWS, []):
        write_rows(tmp_path / EPOCHS, EpochRecord, rows)
        table = pd.read_csv(tmp_path / EPOCHS)
        assert list(table.columns) == [field.name for field in fields(EpochRecord)]
        if rows:
            expected = pd.DataFrame([vars(row) for row in rows])
            pd.testing.assert_frame_equal(table, expected, check_exact=True)
        else:
            assert table.empty


WHOLE = SUMMARY_RECORD.model_dump_json()


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="not JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"\xff\xfe{}", id="not text"),
        pytest.param(b'{"record_version": 1}', id="nearly empty"),
        pytest.param(WHOLE.encode()[:-40], id="cut off"),
        pytest.param(
            WHOLE.replace('"record_version":1', '"record_version":2').encode(), id="of another version"
        ),
        pytest.param(WHOLE.replace('"inputs":{},', "").encode(), id="without a key"),
        pytest.param(WHOLE.replace('"outcome"', '"result"').encode(), id="with a foreign key"),
        pytest.param(WHOLE.replace('"completed"', '"splendid"').encode(), id="with a foreign outcome"),
    ],
)
def test_a_damaged_summary_is_named_with_the_fix(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / RECORD).write_bytes(damaged)
    with pytest.raises(RecordError) as refused:
        read_run(tmp_path)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / RECORD}: not a record of this version")
    assert message.endswith("Delete the file and run snakemake again.")


def test_a_record_that_is_not_there_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as refused:
        read_run(tmp_path)
    message = str(refused.value)
    assert message == f"{tmp_path / RECORD}: No such file or directory. Run snakemake again to make it."
