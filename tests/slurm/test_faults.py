"""What goes wrong on a cluster: every fault ends with a reason or is survived, and leaves nothing behind.

How long the end took is recorded; no test asserts on it. Faults after which a training resumes from where
it was are in test_resumption.py.
"""

import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.containers import RUNTIME, assert_contained, binds, make_image, make_overlay
from tests.marked_outcomes import Record
from tests.reliability.thoroughness import times
from tests.slurm.lab import Lab
from tests.slurm.study import ENDLESS, LIMIT_SECONDS, ONE_RANK_A_NODE, TRAININGS, ClusterStudy
from tests.stand_ins import stand_ins
from tests.waiting import wait_until

from scalewise.records import RECORD

# fails as often as the file next to it has lines, then becomes the real command
FAILS_AT_FIRST = """
left={folder}/{name}.left
if [ -s "$left" ]; then sed -i 1d "$left"; echo "{name}: error: away for a moment" >&2; exit 1; fi
exec {real} "$@"
"""


PRELUDE = """
case "$*" in
  *missing*) if [ "$SLURM_PROCID" = 1 ]; then sleep 1000; fi;;
  *bound*) taskset --pid --cpu-list 0 $$ > /dev/null;;
  *unloaded*) module load no-such-module;;
esac
"""
"""What happens on the nodes before the ranks of some runs start; the arguments name the run."""


@dataclass(frozen=True)
class Faults:
    """A study in which every run met another fault.

    Args:
        output: of snakemake.
        seconds: from the fault until no process of the run was left on any node.
        hosts: of the rank that was hit.
    """

    study: ClusterStudy
    code: int
    output: str
    seconds: dict[str, float]
    hosts: dict[str, str]

    @property
    def words(self) -> dict[str, str]:
        """What is recorded of each run that was hit."""
        return {name: f"no process left after {taken:.1f} s" for name, taken in self.seconds.items()}

    def message_of(self, experiment: str) -> str:
        """What the terminal shows of a run when it fails, with its traceback."""
        failed = rf"^{experiment}/d[12]\.r1 (?:failed|timed-out|interrupted).*(?:\n    .*)*"
        found = re.search(failed, self.output, re.MULTILINE)
        assert found is not None, self.output
        return found[0]


WITHOUT_SIGNAL = """\
for word; do
    shift
    case $word in --signal=*) ;; *) set -- "$@" "$word" ;; esac
done
exec /usr/bin/sbatch "$@"
"""


@pytest.fixture(scope="module")
def faults(lab: Lab, tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Iterator[Faults]:
    """Eight runs at once, two nodes each but the last two."""
    study = ClusterStudy(lab, tmp_path_factory.mktemp("faults"), python=preloaded_python)
    hit = ("killed", "stopped", "raising", "cancelled", "overtime")
    experiments: dict[str, dict[str, Any]] = {
        name: {"devices": [2], **ENDLESS, "timeout_seconds": 90} for name in (*hit, "missing")
    }
    experiments["raising"]["model"] = "planted_raising_on_signal"
    # more than one thread: its interpreter is a real one, which a signal can stop
    experiments["stopped"]["cpus_per_device"] = 2
    # these two end by it
    experiments["stopped"]["timeout_seconds"] = experiments["missing"]["timeout_seconds"] = 30
    experiments["bound"] = {"devices": [1], "cpus_per_device": 2}
    experiments["unloaded"] = {"devices": [1]}
    prelude = PRELUDE.strip().replace("\n", " ")
    study.configure(experiments, **ONE_RANK_A_NODE, prelude=[prelude])
    # a signal ahead of the end of its time would put the job back into the queue
    stand_ins(study.folder / "wrappers", {"sbatch": WITHOUT_SIGNAL})
    study.path = str(study.folder / "wrappers")
    process = study.start("--retries", "0")
    for name in hit:
        study.wait_training(name, "d2.r1")
    jobs = {name: study.job(name, "d2.r1") for name in ("cancelled", "overtime")}
    ranks = {name: study.rank_process(name, "d2.r1", 1) for name in hit}
    began = time.monotonic()
    os.kill(ranks["killed"][0], signal.SIGKILL)
    os.kill(ranks["stopped"][0], signal.SIGSTOP)
    os.kill(ranks["raising"][0], signal.SIGUSR2)
    lab.run("scancel", jobs["cancelled"])
    lab.run("scontrol", "update", f"jobid={jobs['overtime']}", "endtime=now+1")
    seconds: dict[str, float] = {}

    def all_ended() -> bool:
        running = study.processes()
        for name in set(hit) - set(seconds):
            if not any(f"results/{name}/" in line for line in running):
                seconds[name] = time.monotonic() - began
        return len(seconds) == len(hit)

    wait_until(all_ended, lambda: f"these are left: {study.processes()}", LIMIT_SECONDS)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    hosts = {name: host for name, (_, host) in ranks.items()}
    yield Faults(study, process.returncode, output, seconds, hosts)
    study.end()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("killed", r"rank 1 on {host}: .*SIGKILL", marks=pytest.mark.fault(1), id="killed"),
        pytest.param("stopped", r"rank 1 on {host}: .*\(SIGSTOP\)", marks=pytest.mark.fault(2), id="stopped"),
        pytest.param(
            "raising",
            r"rank 1 on {host}: .*ValueError: a fault on purpose",
            marks=pytest.mark.fault(3),
            id="raising",
        ),
    ],
)
def test_rank_that_is_lost_ends_the_job_and_is_named(
    faults: Faults, fault: str, reason: str, record_property: Record
) -> None:
    record_property("figure", faults.words[fault])
    expected = reason.format(host=faults.hosts[fault])
    assert re.match(expected, faults.study.failure(fault, "d2.r1").reason)
    assert re.match(f"{fault}/d2.r1 failed: {expected}", faults.message_of(fault))
    if fault == "raising":
        assert 'raise ValueError("a fault on purpose")' in faults.output
        assert "Connection closed" not in faults.message_of(fault)


@pytest.mark.fault(9)
def test_peer_that_never_comes_is_counted_and_named(faults: Faults) -> None:
    assert "failed: 1 of 2 ranks started; missing: 1." in faults.message_of("missing")


@pytest.mark.parametrize(
    ("name", "state"),
    [
        pytest.param("cancelled", "CANCELLED", marks=pytest.mark.fault(13)),
        pytest.param("overtime", "TIMEOUT", marks=pytest.mark.fault(12)),
    ],
)
def test_job_that_slurm_ends_at_once_is_recognised(
    faults: Faults, name: str, state: str, record_property: Record
) -> None:
    record_property("figure", f"{state}: {faults.words[name]}")
    assert f"SLURM status is: '{state}'" in faults.study.log()
    assert f"No answer for {name} yet." in faults.output


def one_line(text: str) -> str:
    """What a terminal has folded, on one line."""
    return " ".join(text.split())


def test_run_that_used_its_time_reaches_the_queue_again_only_with_more_time(study: ClusterStudy) -> None:
    experiments = {"wall": {"devices": [1], **ENDLESS, "runtime_minutes": 1}}
    study.configure(experiments)
    wanted = f"results/wall/runs/d1.r1/{RECORD}"
    reason = "wall/d1.r1 timed-out: stopped after 60 s, at epoch "
    # the profile has Snakemake try twice again
    code, output = study.snakemake("--", wanted)
    assert code == 1, output
    assert study.failure("wall", "d1.r1").outcome == "timed-out"
    (first,) = study.jobs_of("wall", "d1.r1")
    # when it ends, and at the end of the study
    assert one_line(output).count(reason.removeprefix("wall/d1.r1 ")) == 2, output
    assert output.count(reason) == 1, output
    assert "The same command would end the same way" in output
    for unwanted in ("not tried again", "Run the same command", "Trying to restart"):
        assert unwanted not in output

    _, plan = study.snakemake("--dry-run", "--", wanted)
    assert "Warning: wall/d1.r1 would end as before, and is not started. timed-out: " in one_line(plan)
    assert "Raise runtime_minutes" in one_line(plan)
    assert study.submitted() == {first.job_id}

    experiments["wall"]["runtime_minutes"] = 30
    study.configure(experiments)
    study.start("--", wanted)
    study.wait_until(lambda: len(study.submitted()) == 2, "no second job")


@pytest.mark.fault(27)
def test_rank_with_fewer_cpus_than_planned_is_refused(faults: Faults, record_property: Record) -> None:
    said = re.search(r"may use 1 CPUs \(0\), but cpus_per_device is 2", faults.message_of("bound"))
    assert said
    record_property("figure", f"where it is lost all the same: {said[0]}")


@pytest.mark.fault(17)
def test_prelude_that_fails_is_named(faults: Faults) -> None:
    assert "failed: no rank started" in faults.message_of("unloaded")
    log = (faults.study.run("unloaded", "d1.r1") / "train.log").read_text()
    assert "scalewise: this line of prelude failed: case" in log


@pytest.mark.fault(1, 2, 3, 9, 13)
def test_faults_leave_neither_processes_nor_jobs(faults: Faults) -> None:
    assert faults.code == 1
    assert faults.study.processes() == []
    faults.study.lab.wait_until_queue_is_empty()


@pytest.mark.fault(8)
def test_host_name_that_leads_to_loopback_does_no_harm(
    lab: Lab, study: ClusterStudy, record_property: Record
) -> None:
    hosts = study.folder / "hosts"
    known = lab.run("cat", "/etc/hosts").stdout
    for node in lab.names:
        ours = "\n".join(line for line in known.splitlines() if not line.endswith(f" {node}"))
        own_file = hosts.with_name(f"hosts.{node}")
        own_file.write_text(f"{ours}\n127.0.1.1 {node}\n")
        lab.run("mount", "--bind", own_file, "/etc/hosts", host=node)
    try:
        study.configure({"e": {"devices": [2]}}, **ONE_RANK_A_NODE)
        code, output = study.snakemake("--retries", "0", *TRAININGS)
    finally:
        for node in lab.names:
            lab.run("umount", "/etc/hosts", host=node)
    assert code == 0, output
    met = study.ranks("e", "d2.r1")["host"].nunique()
    assert met == 2
    record_property("figure", f"ranks on {met} hosts met, each named 127.0.1.1 by its own")


@pytest.mark.fault(7, 26)
def test_many_runs_on_one_node_at_once_all_start_and_a_study_needs_no_internet(
    lab: Lab, study: ClusterStudy, record_property: Record
) -> None:
    node = lab.names[1]
    assert lab.run("ip", "route", "get", "192.0.2.1", check=False).returncode != 0
    assert lab.run("ip", "route", "get", "192.0.2.1", host=node, check=False).returncode != 0
    # its data are prepared here too
    study.prepared = False
    runs = times(quick=4, thorough=20)
    slurm = {"gpu_type": "none", "extra": [f"--nodelist={node}"]}
    del study.site["memory_gb_per_node"]
    # a description by which a run fills the node, so that several run there at once
    facts = {"devices_per_node": 1, "cpus_per_node": 1}
    study.configure({"e": {"devices": [1], "repeats": runs}}, **facts, slurm=slurm)
    code, output = study.snakemake("--retries", "0", *TRAININGS)
    assert code == 0, output
    hosts = [study.ranks("e", f"d1.r{repeat}")["host"].item() for repeat in range(1, runs + 1)]
    assert hosts == [node] * runs
    record_property("figure", f"{runs} of {runs} started on one node, with no route out of the machine")
    summaries = [study.summary("e", f"d1.r{repeat}") for repeat in range(1, runs + 1)]
    origins = [summary.provenance for summary in summaries if summary.provenance]
    assert max(origin.other_jobs or 0 for origin in origins) > 0
    assert all(origin.study_jobs == origin.other_jobs for origin in origins)


HELD_BACK: dict[str, Any] = {"model": "planted_held_back", "timeout_seconds": LIMIT_SECONDS}
"""A run that trains once a file has gone: not before that has happened which is to find it training."""


def hold_back(study: ClusterStudy) -> Path:
    """The file that runs wait for to go."""
    held_back = study.folder / "held.back"
    held_back.touch()
    return held_back


@pytest.mark.fault(14)
def test_sigterm_to_snakemake_ends_with_its_jobs(lab: Lab, study: ClusterStudy) -> None:
    held_back = hold_back(study)
    study.configure({name: {"devices": [1], **HELD_BACK} for name in ("e", "f")})
    process = study.start("--resources", "device_budget=1")
    results = study.folder / "results"
    study.wait_until(lambda: any(results.glob("*/runs/*/attempt")), "no run has begun")
    process.terminate()
    held_back.unlink()
    process.communicate(timeout=LIMIT_SECONDS)
    lab.wait_until_queue_is_empty()
    study.seconds_until_nothing_runs()
    assert len(study.submitted()) == 1


@pytest.mark.fault(15)
def test_workflow_started_twice_or_killed_and_started_again_trains_a_run_once(
    study: ClusterStudy, record_property: Record
) -> None:
    held_back = hold_back(study)
    study.configure({"e": {"devices": [2], **HELD_BACK}}, **ONE_RANK_A_NODE)
    first = study.start(*TRAININGS)
    study.wait_for(study.run("e", "d2.r1") / "attempt" / "rank1.json")
    code, output = study.snakemake(*TRAININGS)
    assert code == 1
    assert "Directory cannot be locked" in output
    first.kill()
    first.communicate()
    assert study.snakemake("--unlock")[0] == 0
    third = study.start(*TRAININGS)
    logs = study.folder / "logs"
    study.wait_until(
        lambda: any("is training this run" in path.read_text() for path in logs.rglob("*.log")),
        "the second job does not wait for the first",
    )
    held_back.unlink()
    output, _ = third.communicate(timeout=LIMIT_SECONDS)
    assert third.returncode == 0, output
    assert len(study.submitted()) == 2
    log = (study.run("e", "d2.r1") / "train.log").read_text()
    assert log.count("srun --kill-on-bad-exit=1") == 1
    summary = study.summary("e", "d2.r1")
    assert summary.provenance is not None
    assert summary.provenance.slurm_job_id == min(study.submitted(), key=int)
    assert summary.measurements is not None
    assert summary.measurements.from_step == 0
    record_property("figure", "trained 1 time by 3 workflows")
    study.seconds_until_nothing_runs()


@pytest.mark.fault(24)
def test_commands_of_slurm_that_fail_for_a_while_are_survived(
    lab: Lab, study: ClusterStudy, record_property: Record
) -> None:
    wrappers = study.folder / "wrappers"
    for name, failures in (("sbatch", 2), ("squeue", 3)):
        script = FAILS_AT_FIRST.format(folder=shlex.quote(str(wrappers)), name=name, real=f"/usr/bin/{name}")
        stand_ins(wrappers, {name: script})
        (wrappers / f"{name}.left").write_text("again\n" * failures)
    study.path = str(wrappers)
    held_back = hold_back(study)
    study.configure({"e": {"devices": [1], **HELD_BACK}})
    process = study.start(*TRAININGS)
    study.wait_for(study.run("e", "d1.r1") / "attempt" / "rank0.json")
    lab.stop_accounting()
    held_back.unlink()
    try:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        lab.start_accounting()
    assert process.returncode == 0, output
    assert [(wrappers / f"{name}.left").read_text() for name in ("sbatch", "squeue")] == ["", ""]
    assert study.log().count("SLURM sbatch failed") == 2
    assert study.summary("e", "d1.r1").outcome == "completed"
    record_property("figure", "sbatch failed 2 times, squeue 3 times, slurmdbd was away: 1 job, completed")


@pytest.mark.fault(30)
def test_ranks_in_a_container_without_commands_of_slurm_find_each_other(
    study: ClusterStudy, lab: Lab, record_property: Record
) -> None:
    container: dict[str, Any] = {
        "image": str(make_image(study.folder)),
        "runtime": str(RUNTIME),
        "binds": binds(),
        "arguments": [f"--overlay={make_overlay(study.folder, study.folder)}:ro"],
        "prelude": ["source /ext3/env.sh"],
    }
    study.configure({"e": {"devices": [2]}}, **ONE_RANK_A_NODE, container=container)
    code, output = study.snakemake("--retries", "0", *TRAININGS)
    assert code == 0, output
    log = (study.run("e", "d2.r1") / "train.log").read_text()
    assert "'[container]' python3" in log
    met = list(study.ranks("e", "d2.r1")["host"])
    assert len(set(met)) == 2
    assert_contained(study.folder, [lab.pid(host) for host in met])
    record_property("figure", "ranks on 2 hosts met, each in a container without scontrol")
