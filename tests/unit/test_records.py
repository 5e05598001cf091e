"""A record is read whole or not at all, and a damaged one is refused with its file and the fix."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.paths import SCRIPTS
from tests.planted_records import measurements, provenance, run_record
from tests.small_runs import definition
from tests.waiting import LIMIT_SECONDS

from scalewise.records import RECORD, RecordError, Window, read_run

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


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_half_written(tmp_path: Path) -> None:
    (path := tmp_path / RECORD).write_text("old", encoding="utf-8")
    with python(WRITE_TOO_MUCH, str(path), stderr=subprocess.PIPE) as process:
        _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1
    assert "OSError" in stderr
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {RECORD: "old"}


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / RECORD
    for _ in range(3):
        with python(WRITE_FOR_EVER, str(path), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            seen = [path.read_text(encoding="utf-8") for _ in range(20) if path.exists()]
            process.send_signal(signal.SIGKILL)
        seen += [path.read_text(encoding="utf-8")] if path.exists() else []
        # readers see one of two texts, never a part
        assert all(text == text[0] * 1_000_000 for text in seen)


WHOLE = SUMMARY_RECORD.model_dump_json()


@pytest.mark.parametrize(
    "damaged",
    [
        *("", "{", "[]", "\xff\xfe{}", '{"outcome": "completed"}', WHOLE[:-40]),
        *(WHOLE.replace('"inputs":{},', ""), WHOLE.replace('"outcome"', '"result"')),
        WHOLE.replace('"completed"', '"splendid"'),
    ],
)
def test_a_damaged_summary_is_named_with_the_fix(tmp_path: Path, damaged: str) -> None:
    (tmp_path / RECORD).write_bytes(damaged.encode("latin-1", "replace"))
    with pytest.raises(RecordError) as refused:
        read_run(tmp_path)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / RECORD}: not a record of this version")
    assert message.endswith("Delete the file and run snakemake again.")


def test_a_record_that_is_not_there_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=rf"^{tmp_path / RECORD}: No such file .* Run snakemake again"):
        read_run(tmp_path)
