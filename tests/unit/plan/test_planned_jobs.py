"""The jobs of a plan: what each requests of Slurm, and where it is sent."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.golden import compare
from tests.unit.plan.conftest import Load, sbatch_line
from tests.unit.plan.refusals import CPUS, MACHINES

from scalewise.plan.allocation import SHARED_NODE, most_jobs, sbatch_options
from scalewise.plan.plan_file import TrainJob
from scalewise.plan.planned_study import Study, make_plan

WORDS = Path(__file__).with_name("planned_jobs.txt")

# ---- jobs of one study on one site

STUDY = """\
defaults: {dataset: digits, model: linear, global_batch_size: 240, repeats: 1}
experiments:
  both: {devices: [1, 2, 8], partitions: all}
  plain: {devices: [1, 2]}
"""
PARTITIONS = """\
accelerator: cuda
cpus_per_node: 64
memory_gb_per_node: 240
slurm: {account: p1}
partitions:
  a100: {partition: gpu-a100, gpu_type: a100, devices_per_node: 4, max_nodes: 2, price_per_device_hour: 1.2}
  h200:
    partition: gpu-h200
    gpu_type: h200
    devices_per_node: 8
    cpus_per_node: 96
    prelude: [module load new]
    price_per_device_hour: 2.5
"""
ONLY_BOTH = STUDY.split("  plain", maxsplit=1)[0]
OF_ONE_MACHINE = """\
defaults: {dataset: digits, model: linear, global_batch_size: 240, repeats: 1, devices: [1]}
experiments:
  usual: {memory_gb: 4, timeout_seconds: 77}
  other: {runtime_minutes: 20}
"""


PLANS = {
    "two partitions": (STUDY, PARTITIONS),
    "device counts that one partition does not have": (
        ONLY_BOTH.replace("[1, 2, 8]", '[1, "2x4", 16]').replace("all", "[h200, a100]"),
        PARTITIONS.replace("es: 2", "es: 4"),
    ),
    "device counts up to a partition's": (
        ONLY_BOTH.replace("[1, 2, 8]", "{up_to: 8}").replace("240, repeats: 1", "256"),
        PARTITIONS.replace("es: 2", "es: 1"),
    ),
    "one machine": (OF_ONE_MACHINE, CPUS),
}


def job_text(job: TrainJob) -> str:
    """Return what a job requests, and its limits."""
    facts = {**job["resources"], **{key: job[key] for key in ("limit_seconds", "timeout_seconds")}}
    words = " ".join(f"{key}={value}" for key, value in facts.items() if value not in ("", 0))
    return f"on {job['site']!r}: threads={job['threads']} {words}"


def texts_of(study: Study) -> Iterator[str]:
    """Yield what jobs read of experiments, and each job but for further repeats."""
    plan = make_plan(study)
    for name, planned in plan["experiments"].items():
        yield f"{name} ({planned['title']}) on {list(planned['definitions'])}"
    for name, runs in plan["runs"].items():
        yield from (f"{name}/{run} {job_text(job)}" for run, job in runs.items() if run.endswith(".r1"))
    yield f"on {list(plan['sites'])}"
    yield from study.warnings


# ---- the line that the executor plugin gives to sbatch

NODE = MACHINES["cluster"].replace("slurm: {}\n", "")
MEMORY = "memory_gb_per_node: 240\n"
OF_SHAPES = """\
defaults: {dataset: digits, model: linear, global_batch_size: 240, repeats: 1, runtime_minutes: 30}
experiments: {a: {devices: [1, 2, 4, 8], cpus_per_device: 8, MORE}}
"""
SHAPES = {"1x1": "d1.r1", "1x2": "d2.r1", "1x4": "d4.r1", "2x4": "d8.r1"}
SLURM: dict[str, tuple[tuple[str, ...], str]] = {
    "all keys": (
        (
            *("account: a", "partition: p1", "exclusive: true"),
            "extra: [--qos=devel, '--constraint=a&b', --reservation=training, --exclude=n1, "
            "--mail-user=anna@example.org, '--wait-all-nodes=1', '--licenses=a b;$(x)']",
        ),
        MEMORY,
    ),
    "part of a GPU": (("gpu_type: nvidia_3g.40gb",), MEMORY),
    "a type with hyphens": (("gpu_type: a100-sxm4-80gb",), MEMORY),
    "no GPUs are requested": (("gpu_type: none",), MEMORY),
    "CPU processes": (("account: a",), "accelerator: cpu\n"),
    "an experiment's memory": (("account: a",), ""),
}
"""Lines below ``slurm:``, and lines of the node."""


def sbatch(job: TrainJob) -> list[str]:
    """Return the words of the plugin's line for a job, from where a run can change them."""
    words = shlex.split(sbatch_line(job["resources"], job["threads"]))
    return words[words.index("rule_train") + 1 :]


def on_slurm(load: Load, lines: Iterable[str], node: str = "", own: str = "seed: 1") -> Study:
    """Plan one experiment, with another key, on a cluster with these lines below ``slurm:``."""
    kept = [line for line in NODE.splitlines() if not node.startswith(line.partition(":")[0])]
    site = "".join(f"{line}\n" for line in kept) + node + "slurm:\n"
    return load(OF_SHAPES.replace("MORE", own), site + "".join(f"  {line}\n" for line in lines))


@pytest.mark.refuses("slurm: gpu type with hyphens")
def test_jobs_are_as_they_are_kept(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for name, plan in PLANS.items():
        parts.append("\n".join([f"# {name}", *texts_of(load(*plan)), ""]))
    for name, (lines, node) in SLURM.items():
        own = "memory_gb: 64" if name.startswith("an experiment's memory") else "seed: 1"
        study = on_slurm(load, lines, node, own)
        parts.append(f"# sbatch: {name}")
        for shape, run in list(SHAPES.items())[1::2]:
            job = make_plan(study)["runs"]["a"][run]
            # nothing that would place GPUs or tasks unevenly
            uneven = {"gpu", "gpus", "gpu_model", "tasks_per_gpu", "tasks_per_node"}
            assert not uneven & job["resources"].keys()
            parts.append(f"{shape} {shlex.join(sbatch(job))}")
            shown = sbatch_options(job["resources"])
            assert set(shown) <= in_long_form(sbatch(job)), "what the user sees is what sbatch gets"
        parts.append("")
    compare(WORDS, "\n".join(parts), __file__, capsys)


@pytest.mark.parametrize(
    ("line", "node", "whole", "one_at_a_time"),
    [
        pytest.param("account: a", "", "1x1 1x2", "", id="by default"),
        pytest.param("exclusive: true", "", "1x1 1x2 1x4 2x4", "", id="all"),
        pytest.param("exclusive: false", "", "", "1x1 1x2", id="none"),
        # Slurm knows no devices, and 32 of 64 CPUs are taken
        pytest.param("gpu_type: none", "", "1x1 1x2 1x4 2x4", "", id="devices that Slurm does not know"),
        pytest.param("account: a", "accelerator: cpu\n", "1x1 1x2 1x4 2x4", "", id="CPU processes"),
        pytest.param("exclusive: false", "accelerator: cpu\n", "", "1x1 1x2 1x4 2x4", id="shared CPUs"),
        pytest.param("gpu_type: none", "cpus_per_node: 32\n", "1x1 1x2", "", id="all CPUs"),
    ],
)
def test_runs_that_leave_a_part_of_a_node_free_hold_whole_nodes_or_run_one_at_a_time(
    load: Load, line: str, node: str, whole: str, one_at_a_time: str
) -> None:
    study = on_slurm(load, (line,), node)
    jobs = {shape: make_plan(study)["runs"]["a"][run] for shape, run in SHAPES.items()}

    assert [shape for shape, job in jobs.items() if "--exclusive" in sbatch(job)] == whole.split()
    assert [shape for shape, job in jobs.items() if job["resources"].get(SHARED_NODE) == 1] == (
        one_at_a_time.split()
    )
    # the profile's budget counts the devices that a job holds
    assert jobs["1x1"]["resources"]["device_budget"] == (4 if whole else 1)


def in_long_form(words: Iterable[str]) -> set[str]:
    left = iter(words)
    long = {"-t": "--time", "--mem": "--mem", "-A": "--account", "-p": "--partition", "-C": "--constraint"}
    return {f"{long[word]}={next(left)}" if word in long else word for word in left}


# ---- how long a job may take


HOUR = 'longest_walltime: "01:00:00"'


@pytest.mark.parametrize(
    ("lines", "minutes", "expected"),
    [
        pytest.param(("account: a",), 30, (32, 1800, 30, 1), id="two minutes to end in"),
        pytest.param((HOUR,), 30, (32, 1800, 30, 1), id="below the longest"),
        pytest.param((HOUR,), 58, (60, 3480, 30, 1), id="up to the longest"),
        pytest.param(('longest_walltime: "00:03:00"',), 2, (3, 120, 0, 1), id="a minute to end in"),
        pytest.param(('longest_walltime: "00:03:00"',), 3, (3, 150, 0, 1), id="as long: ended 30 s earlier"),
        pytest.param(('longest_walltime: "00:01:00"',), 1, (1, 30, 0, 1), id="a minute in all"),
        pytest.param((HOUR,), 59, (60, 3540, 60, 2), id="nearly as long"),
        pytest.param((HOUR,), 150, (60, 9000, 60, 3), id="two and a half times as long"),
        pytest.param(('longest_walltime: "2-00:00:00"',), 6000, (2880, 360_000, 60, 3), id="days"),
    ],
)
def test_a_run_is_ended_before_its_job_is_and_a_longer_one_takes_several_jobs(
    lines: tuple[str, ...], minutes: int, expected: tuple[int, int, int, int], load: Load
) -> None:
    study = on_slurm(load, lines, own=f"runtime_minutes: {minutes}")

    job = make_plan(study)["runs"]["a"]["d8.r1"]
    job_minutes, limit_seconds, signal_seconds, jobs = expected
    assert (job["resources"]["runtime"], job["limit_seconds"]) == (job_minutes, limit_seconds)
    assert most_jobs(minutes, study.site.longest_minutes) == jobs
    signals = [word for word in sbatch(job) if word.startswith("--signal")]
    assert signals == ([f"--signal=USR1@{signal_seconds}"] if signal_seconds else [])
    if jobs == 1:
        assert limit_seconds < job_minutes * 60
        # Slurm may send it a minute early, and even then not before the run ends by itself
        assert signal_seconds == 0 or job_minutes * 60 - signal_seconds - 60 >= limit_seconds


# ---- an experiment on partitions


def test_an_experiment_without_partitions_is_the_one_of_a_site_without_any(load: Load) -> None:
    of_whole = PARTITIONS[: PARTITIONS.index("partitions:")]
    of_whole = of_whole.replace("p1", "p1, partition: gpu-a100, gpu_type: a100")
    sites = (f"{of_whole}devices_per_node: 4\nmax_nodes: 2\n", PARTITIONS)
    before, after = (
        load(text, site)
        for text, site in zip((STUDY.replace(", partitions: all", ""), STUDY), sites, strict=True)
    )

    plans = [make_plan(each) for each in (before, after)]
    of_site, of_partition = (plan["runs"]["plain"] for plan in plans)
    assert {name: job | {"site": "a100"} for name, job in of_site.items()} == of_partition
    before_plan, after_plan = (plan["experiments"]["plain"]["definitions"] for plan in plans)
    assert before_plan == after_plan


def test_a_price_changes_the_answer_and_no_run(load: Load) -> None:
    plan, other = (
        make_plan(load(STUDY, PARTITIONS.replace("hour: 2.5", price))) for price in ("hour: 2.5", "hour: 9")
    )

    assert other["runs"] == plan["runs"]
    plain, changed, old = (
        plans["experiments"][name]["definitions"]
        for name, plans in (("plain", other), ("both", other), ("both", plan))
    )
    assert plain == plan["experiments"]["plain"]["definitions"]
    assert [partition for partition in old if changed[partition] != old[partition]] == ["h200"]
