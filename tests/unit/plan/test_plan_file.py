"""The plan of a study in its file: written by the main process, read by jobs and commands."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.paths import CLI
from tests.planted_records import leave_failure
from tests.unit.plan.conftest import Load

from scalewise.config.errors import StudyError
from scalewise.plan.plan_file import PLAN, PLAN_FOLDER, Plan, read_plan
from scalewise.plan.planned_study import make_plan, write_plan

STUDY = """\
experiments:
  a: {title: %s, dataset: digits, model: linear, global_batch_size: 240, devices: [1, 2], repeats: 1}
"""


@pytest.fixture
def plan(load: Load) -> Plan:
    return make_plan(load(STUDY % "First"))


def test_jobs_read_the_plan_of_their_study_and_no_other_user_does(
    plan: Plan, load: Load, tmp_path: Path
) -> None:
    other = make_plan(load(STUDY % "Second"))

    first, second = write_plan(plan, tmp_path), write_plan(other, tmp_path)

    assert first != second == write_plan(other, tmp_path)
    assert read_plan({PLAN: str(first)}) == plan
    assert list(plan["runs"]["a"]) == ["d1.r1", "d2.r1"]
    assert {path.name for path in tmp_path.glob("plan-*")} == {first.name, second.name}
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    # as a crash may leave it
    first.write_bytes(b"")
    assert read_plan({PLAN: str(write_plan(plan, tmp_path))}) == plan


def test_a_folder_that_cannot_take_the_file_is_named_with_the_reason(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    with pytest.raises(StudyError, match=r"taken/plan-\w+\.json: cannot be written \(.*\)\. Make room"):
        write_plan(plan, tmp_path / "taken")


@pytest.mark.parametrize(
    ("environ", "said"), [({}, f"{PLAN} is not set"), ({PLAN: "gone.json"}, "gone.json: the plan")]
)
def test_a_job_without_its_plan_ends_with_a_message(environ: dict[str, str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        read_plan(environ)


OF_ANOTHER_VERSION = [
    (
        f"sed -i s/{key}/renamed/g {PLAN_FOLDER}/*; {{}} {command}",
        "the plan is damaged, or of another version",
    )
    for key, command in [("runs", "status"), ("title", "report"), ("spec", "redo a"), ("facts", "status")]
]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        *OF_ANOTHER_VERSION,
        ("PYTHONIOENCODING=ascii {} status", r"no \xf6"),
        ("{} status | head -n 1", "a: No run has a result"),
        ("rm -r results; touch results; {} report", "'results'"),
    ],
)
def test_a_users_command_prints_no_traceback(
    command: str, shown: str, plan: Plan, load: Load, tmp_path: Path
) -> None:
    write_plan(plan)
    run = load(STUDY % "First").runs["a", "d1.r1"]
    leave_failure(tmp_path / "results" / "a" / "runs" / "d1.r1", run, "failed", "no \xf6")
    line = command.format(f"{sys.executable} {CLI}")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (len(done.stderr.splitlines()) < 2, shown in done.stdout + done.stderr) == (True, True)


def test_a_request_to_slurm_is_a_fact_of_the_job_script_and_not_on_one_machine(load: Load) -> None:
    def digest(memory: int, slurm: str) -> str:
        study = STUDY.replace("repeats: 1", f"repeats: 1, memory_gb: {memory}") % "a"
        site = f"{{accelerator: cpu, devices_per_node: 2, cpus_per_node: 2{slurm}}}"
        return make_plan(load(study, site))["experiments"]["a"]["job_script"]

    assert digest(1, "") == digest(2, "")
    here = digest(1, ", slurm: {partition: a}")
    assert here != digest(2, ", slurm: {partition: a}")
    assert here != digest(1, ", slurm: {partition: b}")
