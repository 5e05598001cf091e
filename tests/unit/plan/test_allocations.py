"""What a run asks of Slurm, up to the line that the executor plugin gives to sbatch."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from tests.stand_ins import Resources
from tests.unit.plan.conftest import Load
from tests.unit.plan.refusals import MACHINES

from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.plan_file import TrainJob, requested
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import (
    Allocation,
    job_threads,
)

refuses = pytest.mark.refuses
NODE = MACHINES["cluster"].replace("slurm: {}\n", "")
MEMORY = "memory_gb_per_node: 240\n"
EXPERIMENT = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 240,
    "devices": [1, 2, 4, 8],
    "repeats": 1,
    "cpus_per_device": 8,
    "runtime_minutes": 30,
}
SHAPES = {"1x1": "d1.r1", "1x2": "d2.r1", "1x4": "d4.r1", "2x4": "d8.r1"}

Plan = Callable[..., Study]


@pytest.fixture
def plan(load: Load) -> Plan:
    """The study of one experiment a name, on a cluster with these lines below ``slurm:``."""

    def plan(
        *slurm: str, node: str = NODE + MEMORY, others: dict[str, dict[str, Any]] | None = None, **own: Any
    ) -> Study:
        lines = "".join(f"  {line}\n" for line in slurm)
        experiments = {"a": EXPERIMENT | own}
        experiments |= {name: EXPERIMENT | more for name, more in (others or {}).items()}
        text = yaml.safe_dump({"experiments": experiments})
        return load(text, f"{node}slurm:\n{lines}" if slurm else node)

    return plan


def of(study: Study, shape: str, experiment: str = "a") -> Allocation:
    return study.allocations[experiment, SHAPES[shape]]


def resources_of(study: Study, shape: str, experiment: str = "a") -> dict[str, Any]:
    """What is requested for one job."""
    return dict(job_of(study, shape, experiment)["resources"])


def job_of(study: Study, shape: str, experiment: str = "a") -> TrainJob:
    """The job of a run."""
    return make_plan(study)["runs"][experiment][SHAPES[shape]]


def sbatch(study: Study, shape: str, experiment: str = "a") -> list[str]:
    """The words of the plugin's own line for one job, from where a run can change them."""
    resources = resources_of(study, shape, experiment)
    threads = job_threads(of(study, shape, experiment), study.site)
    job = SimpleNamespace(resources=Resources(**resources), threads=threads)
    validate_slurm_extra(job)
    params = {
        "run_uuid": "uuid",
        "slurm_logfile": "log",
        "comment_str": "rule_train",
        # as the plugin's get_account_arg and get_partition_arg make them
        "account": f"-A {shlex.quote(resources['slurm_account'])}" if "slurm_account" in resources else "",
        "partition": f"-p {resources['slurm_partition']}" if "slurm_partition" in resources else "",
        "workdir": "/work",
    }
    words = shlex.split(get_submit_command(job, params) + set_gres_string(job))
    return words[words.index("rule_train") + 1 :]


DEVICES = {"1x1": 1, "1x2": 2, "1x4": 4, "2x4": 4}
NTASKS = {"1x1": 1, "1x2": 2, "1x4": 4, "2x4": 8}
every_shape = pytest.mark.parametrize("shape", SHAPES)


@every_shape
def test_one_device_or_many_are_asked_for_by_the_same_line(shape: str, plan: Plan) -> None:
    words = sbatch(
        plan(
            *("account: a", "partition: p1,p2", "qos: devel", "constraint: a&b", "exclusive: true"),
            *("reservation: training", "mail_user: anna@example.org", "mail_type: [END, FAIL]"),
            "extra: ['--wait-all-nodes=1', '--licenses=a b;$(x)']",
        ),
        shape,
    )

    assert words == [
        *("-A", "a", "-p", "p1,p2", "-t", "32", "-C", "a&b", "--qos=devel"),
        *("--mem", str(60_000 * DEVICES[shape]), f"--nodes={shape[0]}", "--cpus-per-task=8"),
        *(f"--ntasks-per-node={shape[2]}", "--exclusive", "--reservation=training"),
        *("--mail-user=anna@example.org", "--mail-type=END,FAIL", "--wait-all-nodes=1"),
        *("--licenses=a b;$(x)", "--signal=USR1@30", "-D", "/work", f"--gres=gpu:{DEVICES[shape]}"),
    ]


@every_shape
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(("account: a",), "--gres=gpu:{}", id="default"),
        pytest.param(("gpu_request: gres", "gpu_type: h100"), "--gres=gpu:h100:{}", id="gres with a type"),
        pytest.param(("gpu_type: nvidia_3g.40gb",), "--gres=gpu:nvidia_3g.40gb:{}", id="part of a GPU"),
        pytest.param(("gpu_request: gpus-per-node",), "--gpus-per-node={}", id="per node"),
        pytest.param(
            ("gpu_request: gpus-per-node", "gpu_type: h100"),
            "--gpus-per-node=h100:{}",
            id="per node with a type",
        ),
        pytest.param(
            ("gpu_type: a100-sxm4-80gb",),
            "--gpus-per-node=a100-sxm4-80gb:{}",
            id="hyphens",
            marks=refuses("slurm: gpu type with hyphens"),
        ),
        pytest.param(("gpu_request: none",), None, id="not at all"),
        pytest.param(("CPUs",), None, id="CPU processes"),
    ],
)
def test_gpus_are_asked_for_once_and_alike_on_every_node(
    shape: str, lines: tuple[str, ...], expected: str | None, plan: Plan
) -> None:
    cpus = lines == ("CPUs",)
    study = plan("account: a", node=NODE.replace("cuda", "cpu")) if cpus else plan(*lines)
    words = sbatch(study, shape)

    asked = [word for word in words if "gpu" in word or "gres" in word]
    assert asked == ([expected.format(DEVICES[shape])] if expected else [])
    tasks = [word for word in words if word.startswith("--ntasks")]
    by_gres = expected is not None and expected.startswith("--gres")
    whole = [] if by_gres else [f"--ntasks={NTASKS[shape]}"]
    assert sorted(tasks) == sorted([*whole, f"--ntasks-per-node={shape[2]}"])
    # nothing that would place GPUs or tasks unevenly
    resources = resources_of(study, shape)
    assert not {"gpu", "gpus", "gpu_model", "tasks_per_gpu", "tasks_per_node"} & resources.keys()
    assert resources["device_budget"] == NTASKS[shape]


@pytest.mark.parametrize("shape", ["1x2", "2x4"])
@pytest.mark.parametrize(
    ("line", "own", "node", "expected"),
    [
        pytest.param("account: a", {}, MEMORY, ("--mem", 60_000), id="share of the node"),
        pytest.param("memory: per-cpu", {}, MEMORY, ("--mem-per-cpu", 7_500), id="share, for each CPU"),
        pytest.param("account: a", {}, "", None, id="left to the cluster"),
        pytest.param("memory: none", {}, "", None, id="not asked for"),
        pytest.param("memory: per-node", {"memory_gb": 64}, "", ("--mem", 0), id="an experiment's"),
        pytest.param("memory: per-cpu", {"memory_gb": 64}, "", ("--mem-per-cpu", 0), id="its CPUs'"),
    ],
)
def test_memory_is_asked_for_as_the_site_wants_it(
    shape: str,
    line: str,
    own: dict[str, Any],
    node: str,
    expected: tuple[str, int] | None,
    plan: Plan,
) -> None:
    study = plan(line, node=NODE + node, others={"b": own})
    words = sbatch(study, shape, "b")
    per_node = DEVICES[shape]

    asked = [(word, int(words[words.index(word) + 1])) for word in words if word.startswith("--mem")]
    if expected is None:
        assert asked == []
    elif own:
        assert asked == [(expected[0], 64_000 if expected[0] == "--mem" else 8_000 // per_node)]
        # the other experiment of the study leaves it to the cluster
        assert not [word for word in sbatch(study, shape) if word.startswith("--mem")]
    else:
        assert asked == [(expected[0], expected[1] * (per_node if expected[0] == "--mem" else 1))]


HOUR = 'longest_walltime: "01:00:00"'


@pytest.mark.parametrize(
    ("lines", "minutes", "expected"),
    [
        pytest.param(("account: a",), 30, (32, 1800, 30, 1), id="two minutes to end in"),
        pytest.param(("signal_seconds: 10",), 30, (32, 1800, 10, 1), id="a later signal"),
        pytest.param(("signal_seconds: 0",), 30, (32, 1800, 0, 1), id="no signal"),
        pytest.param((HOUR,), 30, (32, 1800, 30, 1), id="below the longest"),
        pytest.param((HOUR,), 58, (60, 3480, 30, 1), id="up to the longest"),
        pytest.param((HOUR, "signal_seconds: 0"), 59, (60, 3540, 0, 1), id="a minute to end in"),
        pytest.param((HOUR, "signal_seconds: 0"), 60, (60, 3570, 0, 1), id="as long: ended 30 s earlier"),
        pytest.param(('longest_walltime: "00:01:00"',), 1, (1, 30, 0, 1), id="a minute in all"),
        pytest.param((HOUR,), 59, (60, 3540, 60, 2), id="nearly as long"),
        pytest.param((HOUR,), 150, (60, 9000, 60, 3), id="two and a half times as long"),
        pytest.param((HOUR, "signal_seconds: 600"), 150, (60, 9000, 600, 4), id="an earlier signal"),
        pytest.param(('longest_walltime: "2-00:00:00"',), 6000, (2880, 360_000, 60, 3), id="days"),
    ],
)
def test_a_run_is_ended_before_its_job_is_and_a_longer_one_takes_several_jobs(
    lines: tuple[str, ...], minutes: int, expected: tuple[int, int, int, int], plan: Plan
) -> None:
    study = plan(*lines, runtime_minutes=minutes)

    allocation = of(study, "2x4")
    job_minutes, limit_seconds, signal_seconds, jobs = expected
    assert (allocation.minutes, allocation.limits.limit_seconds) == (job_minutes, limit_seconds)
    assert (allocation.signal_seconds, allocation.jobs) == (signal_seconds, jobs)
    words = sbatch(study, "2x4")
    assert words[words.index("-t") + 1] == str(job_minutes)
    assert job_of(study, "2x4")["limits"]["limit_seconds"] == limit_seconds
    signals = [word for word in words if word.startswith("--signal")]
    assert signals == ([f"--signal=USR1@{signal_seconds}"] if signal_seconds else [])
    if jobs == 1:
        assert limit_seconds < job_minutes * 60
        # Slurm may send it a minute early, and even then not before the run ends by itself
        assert signal_seconds == 0 or job_minutes * 60 - signal_seconds - 60 >= limit_seconds


def test_what_the_user_is_shown_is_what_sbatch_is_given(plan: Plan) -> None:
    long = {"-t": "--time", "--mem": "--mem", "--mem-per-cpu": "--mem-per-cpu"}
    for memory, request in product(("per-node", "per-cpu"), ("gres", "gpus-per-node", "none")):
        study = plan(f"memory: {memory}", f"gpu_request: {request}", "extra: ['--licenses=a b']")

        words = iter(sbatch(study, "2x4"))
        given = {f"{long[word]}={next(words)}" if word in long else word for word in words}
        assert given - {"-D", "/work", "--ntasks=8"} == set(shlex.split(of(study, "2x4").sbatch_args()))


def test_runs_of_all_sizes_are_jobs_of_one_rule(plan: Plan) -> None:
    study = plan("account: a")
    jobs = {shape: job_of(study, shape) for shape in SHAPES}

    stated = requested(jobs, str)["resources"]

    assert callable(stated["gres"])
    assert (stated["slurm_account"], stated["runtime"]) == ("a", 32)
    assert [job["threads"] for job in jobs.values()] == [8, 16, 32, 32]


def test_without_slurm_a_run_takes_the_machine_and_asks_for_nothing_of_a_cluster(plan: Plan) -> None:
    study = plan(devices=[1, 2, 4], memory_gb=4, timeout_seconds=77)

    job = job_of(study, "1x1")
    assert job["resources"] == {"runtime": 30, "mem_mb": 4000}
    assert job["threads"] == 1024
    assert (job["limits"]["limit_seconds"], job["limits"]["timeout_seconds"]) == (1800, 77)


def test_a_run_writes_checkpoints_as_its_experiment_says(plan: Plan) -> None:
    for lines in ((), ("account: a",)):
        others = {"b": {"checkpoint_minutes": 0.02, "keep_checkpoints": True}}
        study = plan(*lines, devices=[1], others=others)

        usual, own = (job_of(study, "1x1", name)["limits"] for name in ("a", "b"))
        assert (usual["checkpoint_seconds"], usual["keep_checkpoints"]) == (600, False)
        assert (own["checkpoint_seconds"], own["keep_checkpoints"]) == (1.2, True)


def test_a_job_without_a_training_requests_the_same_but_no_signal(plan: Plan) -> None:
    study = plan("account: a")
    made = make_plan(study)

    of_run = resources_of(study, "2x4") | {"runtime": 6}
    of_run["slurm_extra"] = "--ntasks-per-node=4"
    assert made["sites"][""]["hello"]["resources"] == of_run
    assert made["sites"][""]["hello"]["threads"] == made["runs"]["a"][SHAPES["2x4"]]["threads"]
