"""A record is read whole or not at all, and a damaged one says which file to mend and how."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.waiting import LIMIT_SECONDS

from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import (
    EPOCHS,
    HISTORY,
    RANKS,
    SUMMARY,
    EpochRecord,
    History,
    Measurements,
    Provenance,
    RankRecord,
    RecordError,
    RowKind,
    RunRecord,
    Start,
    Startup,
    UtilizationRecord,
    Window,
    read_failure,
    read_history,
    read_summary,
    write_json,
    write_rows,
    write_text,
)

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"

DEFINITION = RunDefinition(
    experiment="study",
    run="d2.bucket-view-on.r1",
    shape="1x2",
    batch_size_per_device=128,
    global_batch_size=256,
    repeat=1,
    options={"gradient_as_bucket_view": True},
    accelerator="cpu",
    launcher="torchrun",
    settings={"dataset": "digits", "model": "linear", "global_batch_size": 256, "learning_rate": 0.1},
)

SUMMARY_RECORD = RunRecord(
    definition=DEFINITION,
    outcome="completed",
    reason="",
    measurements=Measurements(
        parameters=650,
        epochs_completed=2,
        throughput_samples_per_second=1 / 3,
        windows=[Window(first_step=0, steps=2, samples=512, seconds=0.1 + 0.2, warmup=True)],
        train_seconds=1.5,
        evaluation_seconds=0.25,
        final_accuracy=0.97,
        best_accuracy=0.98,
        peak_memory_bytes=2**40,
        peak_memory_kind="process peak RSS",
        loader_wait_fraction=0.01,
        startup=Startup(
            imports_seconds=1,
            process_group_seconds=2,
            data_seconds=3,
            model_seconds=4,
            first_step_seconds=5,
        ),
    ),
    provenance=Provenance(
        commit=None,
        versions={"torch": "2.15.0"},
        hosts=["node-a"],
        devices=["CPU process", "CPU process"],
        cpu_model="Élan μ-CPU",
        operating_system="Linux",
        launcher="torchrun",
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:00:09+00:00",
        slurm_job_id="4711",
        restart_count=1,
        inputs={},
        environments=[],
        gpu_limits=[],
    ),
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
    path = tmp_path / SUMMARY
    if before is not None:
        path.write_text(before, encoding="utf-8")
    with python(WRITE_TOO_MUCH, str(path), stderr=subprocess.PIPE) as process:
        _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1
    assert "OSError" in stderr
    assert [p.name for p in tmp_path.iterdir()] == ([SUMMARY] if before else [])
    if before is not None:
        assert path.read_text(encoding="utf-8") == before


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / SUMMARY
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


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    write_text(path, "a long text of the first attempt\n")
    write_text(path, "kurz: µ\n")
    assert path.read_bytes() == "kurz: µ\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_summary_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / DEFINITION.run
    folder.mkdir()
    write_json(folder / SUMMARY, SUMMARY_RECORD)
    assert read_summary(folder) == SUMMARY_RECORD


def test_a_summary_of_another_run_is_refused_with_the_cure(tmp_path: Path) -> None:
    write_json(tmp_path / SUMMARY, SUMMARY_RECORD)
    assert read_summary(tmp_path, DEFINITION.run) == SUMMARY_RECORD
    with pytest.raises(RecordError, match=rf"is of the run {DEFINITION.run}. Delete {tmp_path} and give"):
        read_summary(tmp_path, "d9.r9")


def test_a_run_without_measurements_comes_back_too(tmp_path: Path) -> None:
    folder = tmp_path / DEFINITION.run
    folder.mkdir()
    record = SUMMARY_RECORD.model_copy(
        update={"outcome": "out-of-memory", "reason": "rank 0", "measurements": None, "provenance": None}
    )
    write_json(folder / SUMMARY, record)
    assert read_summary(folder) == record


def test_a_failure_comes_back_as_it_was_written_and_none_is_none(tmp_path: Path) -> None:
    assert read_failure(tmp_path) is None
    earlier = Start(started_at="2026-01-01T00:00:00+00:00", limit_seconds=600)
    last = Start(
        started_at="2026-01-01T00:05:00+00:00",
        limit_seconds=600,
        outcome="timed-out",
        reason="not done after 10 minutes.",
        log_tail=["epoch 1/2", ""],
        ended_at="2026-01-01T00:15:09+00:00",
    )
    record = History(definition=DEFINITION, inputs={"dataset": "a"}, starts=[earlier, last])
    write_json(tmp_path / HISTORY, record)
    assert read_history(tmp_path) == record
    assert read_failure(tmp_path) == last
    # the first, which was killed, ended before the next one began
    assert record.seconds == [300.0, 609.0]


def test_rows_come_back_to_the_last_digit(tmp_path: Path) -> None:
    write_rows(tmp_path / EPOCHS, EpochRecord, EPOCH_ROWS)
    table = pd.read_csv(tmp_path / EPOCHS)
    assert list(table.columns) == [field.name for field in fields(EpochRecord)]
    expected = pd.DataFrame([vars(row) for row in EPOCH_ROWS])
    pd.testing.assert_frame_equal(table, expected, check_exact=True)


def test_a_run_that_never_trained_has_a_header_and_no_rows(tmp_path: Path) -> None:
    for name, kind in ((EPOCHS, EpochRecord), (RANKS, RankRecord)):
        write_rows(tmp_path / name, kind, [])
        table = pd.read_csv(tmp_path / name)
        assert len(table) == 0
        assert list(table.columns) == [field.name for field in fields(kind)]


def test_a_host_name_with_a_comma_or_a_quote_stays_one_value(tmp_path: Path) -> None:
    odd = 'GPU "A", model 2'
    row = RankRecord(
        rank=0,
        local_rank=0,
        host="node-a",
        device=odd,
        visible_devices="0,1",
        threads=1,
        cpu_affinity="0-3,8",
        train_samples=10,
        test_samples=5,
        step_seconds_p05=0.1,
        step_seconds_p50=0.2,
        step_seconds_p95=0.3,
        step_seconds_max=0.4,
        loader_wait_seconds=0.5,
        peak_memory_bytes=2**33,
        imports_seconds=1.0,
        process_group_seconds=1.0,
        data_seconds=1.0,
        model_seconds=1.0,
        first_step_seconds=1.0,
    )
    write_rows(tmp_path / RANKS, RankRecord, [row])
    table = pd.read_csv(tmp_path / RANKS)
    assert table["device"].iloc[0] == odd
    assert table["cpu_affinity"].iloc[0] == "0-3,8"
    assert table["peak_memory_bytes"].iloc[0] == 2**33


UNITLESS = {
    "counts and ranks": {"epoch", "rank", "local_rank", "threads", "train_samples", "test_samples"},
    "names": {"host", "device", "visible_devices", "cpu_affinity", "timestamp", "phase"},
    "without a unit": {
        "train_loss",
        "test_loss",
        "test_accuracy",
        "learning_rate",
        "mean_utilization",
        "memory_utilization",
        "utilization",
    },
}
UNIT = re.compile(r"_seconds(_p\d\d|_max|_per_step)?$|_bytes$|_watts$|_per_second$")


@pytest.mark.parametrize("kind", [EpochRecord, RankRecord, UtilizationRecord])
def test_every_column_names_its_unit_where_it_has_one(kind: RowKind) -> None:
    known = set().union(*UNITLESS.values())
    assert [f.name for f in fields(kind) if f.name not in known and not UNIT.search(f.name)] == []


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe{}",
        b'{"record_version": 1}',
        SUMMARY_RECORD.model_dump_json().encode()[:-40],
        SUMMARY_RECORD.model_dump_json().replace('"record_version":1', '"record_version":2').encode(),
        SUMMARY_RECORD.model_dump_json().replace('"environments":[],', "").encode(),
        SUMMARY_RECORD.model_dump_json().replace('"outcome"', '"result"').encode(),
        SUMMARY_RECORD.model_dump_json().replace('"completed"', '"splendid"').encode(),
    ],
    ids=[
        "empty",
        "not JSON",
        "a list",
        "not text",
        "nearly empty",
        "cut off",
        "of another version",
        "without a key",
        "with a foreign key",
        "with a foreign outcome",
    ],
)
def test_a_damaged_summary_is_named_with_the_cure(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / SUMMARY).write_bytes(damaged)
    with pytest.raises(RecordError) as refused:
        read_summary(tmp_path)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / SUMMARY}: not a record of this version")
    assert message.endswith("Delete the file and run snakemake again.")


def test_a_summary_that_is_not_there_is_named_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as refused:
        read_summary(tmp_path)
    message = str(refused.value)
    assert message == f"{tmp_path / SUMMARY}: No such file or directory. Run snakemake again to make it."


def test_a_damaged_failure_is_named_too(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_text("{}", encoding="utf-8")
    with pytest.raises(RecordError, match=r"history\.json: not a record of this version"):
        read_failure(tmp_path)
