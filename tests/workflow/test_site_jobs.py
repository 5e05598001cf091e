"""The sbatch and srun commands of each shipped site file, by the real executor plugin.

A site's jobs are those of the examples that name it; a small study stands in where there is none.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.paths import ROOT
from tests.shrunk_examples import EXAMPLES, FOLDER
from tests.workflow.recording_slurm import recording_slurm, submitted_jobs
from tests.workflow.workplace import ACCOUNT, LoginNode

from scalewise.config.site import Site
from scalewise.execution.job import RunJob, launch_of
from scalewise.plan.plan_file import Plan, TrainJob, read_plan
from scalewise.plan.planned_study import Study
from scalewise.plan.run_definition import RunDefinition
from scalewise.plan.runs import input_files
from scalewise.plan.study import load_study

SITES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("profiles/sites/*.yaml"), ROOT / "profiles/slurm/site.yaml"]
)
STUDY = """\
defaults: {dataset: digits, model: linear, epochs: 2, warmup_steps: 2, global_batch_size: 256, repeats: 1}
experiments: {study: {cpus_per_device: 4, runtime_minutes: 30, devices: COUNTS, MORE}}
"""


def examples_of(site: str) -> list[str]:
    """Return the files of the examples whose comment says to run them with this site file."""
    files = [FOLDER / f"{example}.yaml" for example in EXAMPLES]
    named = {file: re.findall(r"^#.* site=(\S+)", file.read_text(), re.MULTILINE) for file in files}
    return [
        str(file.relative_to(ROOT))
        for file in files
        if (named[file] or ["profiles/slurm/site.yaml"]) == [site]
    ]


def largest_of_each_launcher(study: Study) -> list[RunDefinition]:
    """Return a run on the most devices by partition and launcher."""
    runs = sorted(study.runs.values(), key=lambda run: run.shape.world_size)
    partitions = {name: parts[0].site.partition for name, parts in study.experiments.items()}
    return list({(partitions[run.experiment], run.launcher): run for run in runs}.values())


def srun_of(planned: TrainJob, plan: Plan, folder: Path) -> tuple[str, ...]:
    """Return the command that the job starts its ranks with."""
    site = Site.model_validate_json(plan["sites"][planned["site"]])
    return launch_of(RunJob(planned, site, 1, folder, folder / "train.log")).argv


def check_geometry(words: Sequence[str], run: RunDefinition, tasks_per_node: int) -> None:
    """As many tasks on every node, and all CPUs of its devices; nothing that spreads GPUs unevenly."""
    given = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    shape, cpus = run.shape, run.shape.devices_per_node * run.settings.cpus_per_device
    expected = {
        "nodes": shape.nodes,
        "ntasks-per-node": tasks_per_node,
        "cpus-per-task": cpus // tasks_per_node,
    }
    assert {f"--{name}": str(number) for name, number in expected.items()}.items() <= given.items()
    assert not [word for word in given if re.fullmatch("--(gpus|ntasks-per-gpu|cpus-per-gpu)", word)]
    # if the number of tasks is there too, it is the same
    assert given.get("--ntasks", tasks := str(shape.nodes * tasks_per_node)) == tasks


def check_site(words: Sequence[str], facts: Mapping[str, Any], run: RunDefinition, job: TrainJob) -> None:
    """What the site file says of its jobs, and nothing that it does not say."""
    slurm, given, devices = facts["slurm"], dict(pairwise(words)), run.shape.devices_per_node
    assert given.get("-A") == slurm.get("account")
    assert given.get("-p") == slurm.get("partition")
    assert given["-t"] == str(job["resources"]["runtime"])
    assert int(given["--mem"]) <= 1000 * facts["memory_gb_per_node"]
    gpus = ":".join(filter(None, ["gpu", slurm.get("gpu_type"), str(devices)]))
    assert {f"--gres={gpus}", "--requeue"} <= {*words}
    assert any(word.startswith("--signal=USR1@") for word in words)
    whole = slurm.get("exclusive", devices < facts["devices_per_node"])
    assert ("--exclusive" in words) == whole
    for extra in slurm.get("extra", []):
        name, _, value = extra.partition("=")
        assert extra in words or given[{"--constraint": "-C"}[name]] == value


@pytest.mark.parametrize("site", SITES)
def test_a_site_gets_the_requests_that_it_describes(
    site: str, login_node: LoginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    login_node.fill_in(site)
    monkeypatch.chdir(login_node.folder)
    facts = yaml.safe_load(Path(site).read_text(encoding="utf-8"))
    devices = facts["devices_per_node"]
    counts = [1, devices, *([f"2x{devices}"] if facts["max_nodes"] > 1 else [])]
    more = "partitions: all" if "partitions" in facts else ""
    login_node.write("study.yaml", STUDY.replace("COUNTS", str(counts)).replace("MORE", more))
    for file in examples_of(site) or ["study.yaml"]:
        study = load_study(yaml.safe_load(Path(file).read_text()), [file], site)
        runs = largest_of_each_launcher(study)
        requested = submitted(login_node, file, site, runs)
        for run in runs:
            words, environment = requested[f"{run.experiment}_{run.run}"]
            plan = read_plan(environment)
            job = plan["runs"][run.experiment][run.run]
            srun = srun_of(job, plan, login_node.folder / "results" / run.experiment / "runs" / run.run)
            check_geometry(words, run, run.shape.devices_per_node)
            check_site(words, facts, run, job)
            check_geometry(srun, run, run.shape.devices_per_node if run.launcher == "srun" else 1)
            assert {"--kill-on-bad-exit=1", "--mpi=none", "--input=none"} <= {*srun}


def submitted(
    node: LoginNode, file: str, site: str, runs: Sequence[RunDefinition]
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Submit these runs of a study; return the words and the environment of each sbatch by the run's name."""
    for run in runs:
        if dataset := input_files(run).get("dataset"):
            # no run reads it: all are submitted, none begins
            prepared = node.folder / str(dataset)
            prepared.parent.mkdir(parents=True, exist_ok=True)
            prepared.touch()
    record = recording_slurm(node.programs, ACCOUNT)
    record.unlink(missing_ok=True)
    outcome = node.snakemake(
        *(f"results/{run.experiment}/runs/{run.run}/record.json" for run in runs),
        *("--configfile", file, "--config", f"site={site}"),
        *("--retries", "0", "--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "0"),
    )
    assert record.exists(), outcome.text
    jobs: dict[str, tuple[list[str], dict[str, str]]] = {}
    for words, environment in submitted_jobs(record):
        _, _, name = words[words.index("--comment") + 1].partition("_wildcards_")
        jobs[name] = words, environment
    assert jobs.keys() == {f"{run.experiment}_{run.run}" for run in runs}, outcome.text
    return jobs
