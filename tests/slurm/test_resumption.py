"""Faults after which a training resumes at its last epoch, on a real cluster, and learns the same.

The runs of a study meet theirs at once: a cluster's reactions take seconds, whatever a test does.
"""

import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tests.marked_outcomes import Record
from tests.paths import ROOT
from tests.reliability.thoroughness import times
from tests.slurm.lab import Lab
from tests.slurm.study import LIMIT_SECONDS, ONE_RANK_A_NODE, ClusterStudy
from tests.waiting import wait_until

from scalewise.execution.rank_files import Rank
from scalewise.records import FAILURE, RECORD, RunRecord

TRAINED: dict[str, Any] = {
    "model": "planted_perilous",
    "devices": [2],
    "epochs": times(quick=25, thorough=60),
    "save_model": True,
}
"""Five steps an epoch: at a walk more than a minute for each hop, some seconds else."""

STEPS_PER_EPOCH = 5

WARNED = ("srun", "torchrun", "spawn", "limited")
"""Runs whose jobs get Slurm's warning of the end of their time; of the last, Slurm itself limits it."""
HOPS = times(quick=1, thorough=5)
"""How often each of them does."""

AHEAD_SECONDS = 3600

SHIFTED_CLOCK = f"""
import datetime, os, time

def shifted(clock, by):
    return lambda: clock() + by

class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds={AHEAD_SECONDS})

time.time = shifted(time.time, {AHEAD_SECONDS})
time.time_ns = shifted(time.time_ns, {AHEAD_SECONDS} * 10**9)
datetime.datetime = Shifted
with open(os.path.join(os.path.dirname(__file__), "times"), "a") as file:
    print(time.time(), file=file)
"""
"""The clock on the wall, as Python's programs read it; clocks of durations are unchanged."""

PRELUDE = """
case "$*" in
  *results/shifted*) if [ "$SLURM_PROCID" = 1 ]; then export PYTHONPATH={clock}; fi;;
  *results/undisturbed* | *results/late*) ;;
  *) if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {hops} ]; then export PERIL_PAUSE=0.6; fi;;
esac
"""
"""What happens on the nodes before ranks start: a run walks until it has been hit for the last time."""

LATE_SECONDS = 30
"""After snakemake has begun to wait for files that it does not see."""


def configure(
    study: ClusterStudy, experiments: dict[str, dict[str, Any]], hops: int = 1, **site: Any
) -> None:
    """Write a study, and what happens to its runs by themselves."""
    clock = study.folder / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(SHIFTED_CLOCK)
    lines = PRELUDE.format(clock=shlex.quote(str(clock)), hops=hops).strip().replace("\n", " ")
    study.configure(experiments, **ONE_RANK_A_NODE, prelude=[lines], **site)


def result(experiment: str, run: str = "d2.r1") -> str:
    """What to ask snakemake for: no tables, figures and reports, which other tests look at."""
    return f"results/{experiment}/runs/{run}/{RECORD}"


def from_step(summary: RunRecord) -> int:
    """Steps in the checkpoint that a run resumed from."""
    assert summary.measurements is not None
    return summary.measurements.from_step


@dataclass(frozen=True)
class RequeuedRuns:
    """A study with the faults that need no second machine.

    Args:
        study: its folder.
        output: of snakemake.
        stops: of each run that was warned, as its ranks recorded them.
    """

    study: ClusterStudy
    output: str
    stops: Mapping[str, list[Rank]]


@pytest.fixture(scope="module")
def requeued(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path
) -> Iterator[RequeuedRuns]:
    """Seven runs at once."""
    study = ClusterStudy(lab, tmp_path_factory.mktemp("hops"), python=preloaded_python)
    launched = {name: {**TRAINED, "launcher": name} for name in ("srun", "torchrun", "spawn")}
    alone = {"devices": [1]}
    experiments = {
        **launched,
        "limited": TRAINED,
        "undisturbed": TRAINED,
        # its sitecustomize hides the one that brings the tests' models
        "shifted": {**TRAINED, "epochs": 10, "model": "linear"},
        "late": alone,
    }
    configure(study, experiments, HOPS)
    wanted = [result(name, f"d{settings['devices'][0]}.r1") for name, settings in experiments.items()]
    try:
        with late_folder(study, study.run("late", "d1.r1")) as appear, ThreadPoolExecutor(8) as pool:
            profile = yaml.safe_load((ROOT / "profiles" / "slurm" / "config.yaml").read_text())
            process = study.start("--latency-wait", str(profile["latency-wait"]), "--", *wanted)
            late = pool.submit(appear)
            warned = {name: pool.submit(warn, study, name) for name in WARNED}
            stops = {name: stop.result() for name, stop in warned.items()}
            late.result()
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, output
        yield RequeuedRuns(study, output, stops)
    finally:
        study.end()


@contextmanager
def late_folder(study: ClusterStudy, folder: Path) -> Iterator[Callable[[], None]]:
    """A folder in which the head sees nothing of what the nodes write.

    As on a parallel file system whose client on the login node keeps what it once read of a folder.

    Yields:
        what lets the head see it, some time after snakemake has begun to wait for the files.
    """
    view = study.folder / "view"
    view.mkdir()
    folder.mkdir(parents=True)
    logs = study.folder / ".snakemake" / "log"

    def awaited() -> bool:
        words = f"for missing files:\n{folder.relative_to(study.folder)}/"
        return any(words in path.read_text() for path in logs.glob("*.log"))

    def appear() -> None:
        study.wait_until(awaited, "snakemake does not miss the results")
        time.sleep(LATE_SECONDS)
        shutil.copytree(folder, view, dirs_exist_ok=True)

    study.lab.run("mount", "--bind", view, folder)
    try:
        yield appear
    finally:
        study.lab.run("umount", "--lazy", folder)


def warn(study: ClusterStudy, experiment: str) -> list[Rank]:
    """Warn a run's job of the end of its time, each time that it has trained on; how its ranks ended."""
    lab, stops, epochs = study.lab, [], 0
    for _ in range(HOPS):
        study.wait_checkpoint(experiment, "d2.r1", epochs)
        job = study.job(experiment, "d2.r1")
        if experiment == "limited":
            # Slurm looks twice a minute whose time is about to end, and then sends what the job asked for
            lab.run("scontrol", "update", f"jobid={job}", "endtime=now+60")
        else:
            # what --signal=USR1@... does: to the steps and not to the shell of the job
            lab.run("scancel", "--signal=USR1", job)
        stops.append(stopped(study, experiment))
        epochs = study.newest_checkpoint(experiment, "d2.r1")
        if experiment == "limited":
            lab.wait(job, "PENDING", "REQUEUED", "COMPLETING")
            # the next start has the time that it was submitted with
            lab.run("scontrol", "update", f"jobid={job}", "timelimit=12")
    return stops


def stopped(study: ClusterStudy, experiment: str) -> Rank:
    """How rank 0 of a run ends."""
    found: list[Rank] = []

    def ended() -> bool:
        rank = study.rank_files(experiment, "d2.r1").read_rank(0)
        found.extend([rank] if rank is not None and rank.state == "stopped" else [])
        return bool(found)

    study.wait_until(ended, f"the ranks of {experiment} have not ended")
    return found[0]


@pytest.mark.fault(12)
@pytest.mark.parametrize("run", WARNED)
def test_run_longer_than_its_walltime_comes_to_its_end_in_hops_and_learns_the_same(
    requeued: RequeuedRuns, run: str, record_property: Record
) -> None:
    summary, stops = requeued.study.summary(run, "d2.r1"), requeued.stops[run]
    assert [stop.stop_source for stop in stops] == ["SIGUSR1"] * HOPS
    assert from_step(summary) % STEPS_PER_EPOCH == 0 < from_step(summary)
    assert_same(requeued, requeued.study, run)
    record_property(
        "figure", f"{run}: {HOPS} hops under 1 job id, from step {from_step(summary)}, weights identical"
    )
    assert summary.provenance is not None
    assert summary.provenance.restart_count == HOPS
    assert summary.provenance.failed_seconds > 0
    assert not (requeued.study.run(run, "d2.r1") / FAILURE).exists()


def assert_same(requeued: RequeuedRuns, study: ClusterStudy, experiment: str) -> None:
    """A run that was hit has learned what the undisturbed one has, to the bit."""
    weights, epochs = study.learned(experiment, "d2.r1")
    expected_weights, expected_epochs = requeued.study.learned("undisturbed", "d2.r1")
    assert weights == expected_weights
    assert epochs.equals(expected_epochs), f"{epochs}\n{expected_epochs}"
    assert len(epochs) == TRAINED["epochs"]
    assert from_step(requeued.study.summary("undisturbed", "d2.r1")) == 0


@pytest.mark.fault(23)
def test_results_that_appear_late_on_the_login_node_are_waited_for(
    requeued: RequeuedRuns, record_property: Record
) -> None:
    (log,) = (requeued.study.folder / ".snakemake" / "log").glob("*.log")
    assert "for missing files:\nresults/late/" in log.read_text()
    assert "Missing files after" not in requeued.output
    assert requeued.study.summary("late", "d1.r1").outcome == "completed"
    assert len(requeued.study.jobs_of("late", "d1.r1")) == 1
    record_property("figure", f"files {LATE_SECONDS} s late, 1 try")


@pytest.mark.fault(25)
def test_node_whose_clock_is_an_hour_ahead_changes_no_duration(
    requeued: RequeuedRuns, record_property: Record
) -> None:
    clock_file = requeued.study.folder / "clock" / "times"
    assert float(clock_file.read_text().splitlines()[0]) - clock_file.stat().st_mtime > AHEAD_SECONDS / 2
    summary = requeued.study.summary("shifted", "d2.r1")
    assert summary.outcome == "completed"
    assert summary.measurements is not None
    tables = [pd.json_normalize(summary.model_dump()), requeued.study.ranks("shifted", "d2.r1")]
    tables.append(pd.DataFrame([window.model_dump() for window in summary.measurements.windows]))
    found = [table.filter(regex="seconds$").melt()["value"] for table in tables]
    durations = pd.concat(found).dropna().astype(float)
    assert len(durations) > 20
    assert durations[~durations.between(0, AHEAD_SECONDS / 2)].empty
    record_property("figure", f"{len(durations)} durations, none off by the hour")


def test_run_that_was_hit_leaves_neither_checkpoints_nor_notes_nor_processes(requeued: RequeuedRuns) -> None:
    for run in WARNED:
        left = {path.name for path in requeued.study.run(run, "d2.r1").iterdir()}
        assert left == {path.name for path in requeued.study.run("undisturbed", "d2.r1").iterdir()}
        assert not left & {"checkpoints", "attempt"}
    assert requeued.study.processes() == []


@pytest.fixture(scope="module")
def interrupted(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path
) -> Iterator[dict[str, tuple[ClusterStudy, str]]]:
    """Three studies, each with its output: two are preempted, and of the third a node dies.

    Slurm requeues the jobs of one partition and ends those of the other.
    """
    first, _, third, fourth = lab.names
    studies = {
        name: ClusterStudy(lab, tmp_path_factory.mktemp(name), python=preloaded_python)
        for name in ("scavenge", "fragile", "dying")
    }
    preempted = {"extra": [f"--exclude={third},{fourth}"]}
    facts: dict[str, dict[str, Any]] = {
        "scavenge": {"slurm": preempted | {"partition": "scavenge"}},
        "fragile": {"slurm": preempted | {"partition": "fragile"}},
        "dying": {"slurm": {"extra": [f"--exclude={first}"]}},
    }
    processes = {}
    try:
        for name, study in studies.items():
            configure(study, {"e": TRAINED}, **facts[name])
            processes[name] = study.start("--", result("e"))
        for study in studies.values():
            study.wait_checkpoint("e", "d2.r1")
        # a job of the user that no snakemake waits for is preempted in the same folder
        own = ["--output=/dev/null", f"--chdir={studies['fragile'].folder}", "--wrap=sleep 600"]
        foreign = lab.ask("sbatch", "--parsable", "--partition=fragile", f"--nodelist={first}", *own).strip()
        wait_until(
            lambda: lab.ask("squeue", "--noheader", "--format=%T", f"--jobs={foreign}").strip() == "RUNNING",
            "the foreign job does not start",
            LIMIT_SECONDS,
        )
        _, dead = studies["dying"].rank_process("e", "d2.r1", 1)
        lab.stop_node(dead)
        lab.run("sbatch", "--exclusive", f"--nodelist={first}", "--output=/dev/null", "--wrap=sleep 1")
        outputs = {name: process.communicate(timeout=LIMIT_SECONDS)[0] for name, process in processes.items()}
        for name, process in processes.items():
            assert process.returncode == 0, outputs[name]
        of_foreign = lab.ask("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={foreign}")
        assert of_foreign.strip() == "PREEMPTED", "a job was requeued that is not of the study"
        assert dead not in set(studies["dying"].ranks("e", "d2.r1")["host"])
        lab.power_on(dead)
        yield {name: (study, outputs[name]) for name, study in studies.items()}
    finally:
        for study in studies.values():
            study.end()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("scavenge", marks=pytest.mark.fault(10)),
        pytest.param("fragile", marks=pytest.mark.fault(11)),
        pytest.param("dying", marks=pytest.mark.fault(16)),
    ],
)
def test_run_that_is_preempted_or_loses_a_node_resumes_and_learns_the_same(
    requeued: RequeuedRuns,
    interrupted: dict[str, tuple[ClusterStudy, str]],
    name: str,
    record_property: Record,
) -> None:
    study, output = interrupted[name]
    summary = study.summary("e", "d2.r1")
    assert from_step(summary) > 0
    assert_same(requeued, study, "e")
    record_property("figure", f"{name}: from step {from_step(summary)}, weights identical")
    if name != "dying":
        assert summary.provenance is not None
        assert summary.provenance.restart_count == 1
        assert {summary.provenance.slurm_job_id} == study.submitted()
        put_back = "was preempted or lost its node and had ended; it is back in the queue"
        assert (put_back in output) == (name == "fragile")
