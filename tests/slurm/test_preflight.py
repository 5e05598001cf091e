"""The site file written from the cluster's own reports, and `snakemake preflight`, which proves its facts."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml
from tests.paths import CLI
from tests.slurm.study import TRAININGS, ClusterStudy
from tests.stand_ins import stand_ins

from scalewise.plan.make_plan import make_plan, write_plan
from scalewise.plan.plan_file import PLAN
from scalewise.plan.study import load_study

LARGEST = {"e": {"devices": [1, "2x2"]}}


def test_every_fact_and_every_rank_is_shown_to_be_ok(study: ClusterStudy) -> None:
    slurm = {"qos": "short", "longest_walltime": "01:00:00"}
    study.configure(LARGEST, slurm=slurm)
    code, output = study.snakemake("preflight")
    assert code == 0, output
    lines = [line.removeprefix("ok      ") for line in output.splitlines() if line.startswith("ok  ")]
    found = "\n".join(lines)
    assert "account lab" in lines
    assert "QoS short" in lines
    assert "partition main" in found
    assert "4 nodes with 2 CPUs, 16000 MB and gpu:h100:2 or more; the largest run takes 2" in lines
    assert "Slurm takes the largest job (2x2, whole nodes); it would start at " in found
    for rank in range(4):
        assert f"rank {rank} on {study.lab.prefix}" in found
    assert "all-reduce over 4 ranks" in lines
    assert "resources/datasets/digits/dataset.safetensors: " in found
    assert output.index("All is ok: the study can start.") > output.index("all-reduce")
    assert set(study.jobs("")) == {"rule_hello"}


WRONG = {"e": {"devices": [1, "2x2"], "runtime_minutes": 100}}
NOBODY = "account nobody is not yours. Set slurm.account to one of yours. Known: "


@pytest.mark.refuses("slurm: unknown account")
def test_fact_that_is_wrong_ends_the_preflight_before_anything_is_sent(study: ClusterStudy) -> None:
    study.configure(WRONG, slurm={"account": "nobody"})
    code, output = study.snakemake("preflight")
    assert code == 1
    assert f"NOT OK  {NOBODY}" in output
    assert "Nothing was sent to the cluster." in output
    assert study.submitted() == set()


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"slurm": {"account": "nobody"}}, NOBODY),
        pytest.param(
            {"slurm": {"partition": "gpus"}},
            "partition gpus does not exist. Set slurm.partition",
            marks=pytest.mark.refuses("slurm: unknown partition"),
        ),
        pytest.param(
            {"slurm": {"partition": "brief"}},
            "partition brief ends jobs after 01:00:00, and the longest requests 102",
            marks=pytest.mark.refuses("slurm: walltime over the limit"),
        ),
        pytest.param(
            {"slurm": {"qos": "urgent"}},
            "QoS urgent is not open to your account.",
            marks=pytest.mark.refuses("slurm: unknown qos"),
        ),
        ({"slurm": {"gpu_type": "a100"}}, "0 nodes have 2 CPUs, 16000 MB and gpu:a100:2"),
        ({"memory_gb_per_node": 4000}, "0 nodes have 2 CPUs, 2000000 MB"),
        ({"slurm": {"reservation": "course"}}, "reservation course does not exist now."),
        ({"slurm": {"constraint": "hbm80g"}}, "Slurm refuses the largest job: "),
    ],
    ids=lambda value: next(iter(value.get("slurm", value))) if isinstance(value, dict) else "",
)
def test_every_fact_that_is_wrong_is_named(study: ClusterStudy, wrong: dict[str, Any], line: str) -> None:
    """By the program that the preflight's first rule starts."""
    study.configure(WRONG, **wrong)
    planned = load_study(
        yaml.safe_load((study.folder / "study.yaml").read_text()), site_file=study.folder / "site.yaml"
    )
    plan = write_plan(make_plan(planned), study.folder)
    found = study.folder / "site.json"
    done = study.lab.run(
        study.python, CLI, "check-site", "--output", found, env={PLAN: str(plan)}, check=False
    )
    assert done.returncode == 1
    assert f"NOT OK  {line}" in done.stdout
    assert "Nothing was sent to the cluster." in done.stdout
    assert not found.exists()


def test_hello_that_fails_says_why_and_what_to_do(study: ClusterStudy) -> None:
    study.configure(LARGEST, accelerator="cuda")
    code, output = study.snakemake("preflight")
    assert code == 1
    assert "NOT OK  the hello job over 2x2 ended without a result: rank " in output
    assert re.search(r"needs a GPU, but torch \S+ sees 0 on \S+ \(CUDA_VISIBLE_DEVICES=\d", output)
    assert "Set `accelerator: cpu` in the site file to train on CPUs" in output
    assert "Something is not ok: see above." in output


OF_THE_SITE = """\
for word in "$@"; do case "$word" in
-o | -u | -j | -t) ;; -*) echo "unknown option $word" >&2; exit 1 ;;
esac; done
exec /usr/bin/squeue "$@"
"""
"""A squeue that a site has put in front of Slurm's own."""


def test_a_squeue_that_does_not_know_snakemakes_options_ends_the_preflight(study: ClusterStudy) -> None:
    study.path = str(stand_ins(study.folder / "wrappers", {"squeue": OF_THE_SITE}))
    study.configure(LARGEST)
    code, output = study.snakemake("preflight", limit=300)
    assert code == 1
    (hello,) = study.submitted()
    assert f"NOT OK  Slurm does not show job {hello}, which was sent: `squeue " in output
    assert "unknown option --format=%i|%T" in output
    assert "All is ok" not in output
    # it has ended, or was cancelled
    assert hello not in study.lab.queue()


def test_variables_that_hide_jobs_or_change_requests_have_no_effect(study: ClusterStudy) -> None:
    study.environ = {
        "SQUEUE_PARTITION": "brief",
        "SQUEUE_LICENSES": "matlab",
        "SQUEUE_USERS": "nobody",
        "SINFO_PARTITION": "brief",
        "SBATCH_WAIT": "1",
        "SBATCH_ARRAY_INX": "1-2",
        "SBATCH_GPUS": "1",
        "SBATCH_OVERCOMMIT": "1",
        # sites and users mean these
        "SQUEUE_ALL": "1",
        "SBATCH_ACCOUNT": "lab",
    }
    study.configure({"e": {"devices": [2]}})
    code, output = study.snakemake(*TRAININGS, limit=300)
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if "SBATCH_" in line]
    assert line.startswith("Warning: SBATCH_ARRAY_INX, SBATCH_GPUS, SBATCH_OVERCOMMIT, SBATCH_WAIT of the ")
    assert study.summary("e", "d2.r1").outcome == "completed"
    assert len(study.submitted()) == 1


def site(study: ClusterStudy, *words: str) -> subprocess.CompletedProcess[str]:
    return study.lab.run(
        study.python, CLI, "site", "--output", study.folder / "site.yaml", *words, check=False
    )


def test_site_file_of_this_cluster_passes_plan_and_preflight(study: ClusterStudy) -> None:
    study.configure({"e": {"devices": [1, 2, "2x4"]}})
    written = study.folder / "site.yaml"
    written.unlink()

    refused = site(study)
    assert refused.returncode == 1
    assert (
        "there are 4 partitions to choose from. Add one to the command, such as --partition main."
        in refused.stderr
    )
    assert "To compare some: --partition main,brief, or --partition all." in refused.stderr
    assert re.search(r"main +4 +4 h100, 16 CPUs, 64 GB +no limit +the default", refused.stderr)
    assert "lab  the default; QOS normal, short" in refused.stderr

    done = site(study, "--partition", "main", "--account", "lab")
    assert done.returncode == 0, done.stderr
    text = written.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == {
        "accelerator": "cuda",
        "devices_per_node": 4,
        "cpus_per_node": 16,
        "max_cpus_per_device": 4,
        "memory_gb_per_node": 64,
        "max_nodes": 4,
        "slurm": {
            "account": "lab",
            "partition": "main",
            "gpu_request": "gres",
            "gpu_type": "h100",
            "partial_nodes": "allowed",
            "test_partition": {"name": "brief", "longest_walltime": "01:00:00", "max_nodes": 4},
            "use_test_partition": False,
        },
        "not_found": ["network_interface", "internet"],
    }
    assert "sbatch --test-only accepts --gres=gpu:h100:1" in text
    assert site(study, "--partition", "main", "--account", "lab").returncode == 1, "it was overwritten"

    code, output = study.snakemake("-n")
    assert code == 0, output
    assert "Test partition brief (01:00:00 a job, 4 nodes): 3 of 3 runs to do fit, in 3 jobs" in output

    # nothing can compute on the cluster's pretended GPUs; and the runs that fit go to the partition for tests
    written.write_text(
        text.replace("accelerator: cuda", "accelerator: cpu").replace("partition: false", "partition: true")
    )
    code, output = study.snakemake("preflight")
    assert code == 0, output
    assert "partition brief, jobs up to 01:00:00" in output
    assert "network_interface: the site command did not find it." in output
    assert re.search(r"ok +network_interface eth0; \S+ has eth0", output)
    assert "internet: the site command did not find it." in output
    assert re.search(r"\? +internet: \S+ does not reach https://pypi.org/simple/", output)
    assert "All is ok: the study can start." in output
    assert {job.partition for job in study.jobs("").values()} == {"brief"}


def test_site_file_of_two_partitions_plans_runs_on_each(study: ClusterStudy) -> None:
    study.configure({"e": {"devices": [1, 2], "partitions": "all"}})
    written = study.folder / "site.yaml"
    written.unlink()

    done = site(study, "--partition", "brief", "--partition", "main", "--account", "lab")

    assert done.returncode == 0, done.stderr
    assert (
        "describes 2 partitions: brief, main. `partitions: all` in an experiment compares them."
        in done.stdout
    )
    text = written.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == {
        "accelerator": "cuda",
        "devices_per_node": 4,
        "cpus_per_node": 16,
        "max_cpus_per_device": 4,
        "memory_gb_per_node": 64,
        "max_nodes": 4,
        "slurm": {
            "account": "lab",
            "gpu_request": "gres",
            "gpu_type": "h100",
            "partial_nodes": "allowed",
        },
        "default_partition": "brief",
        "partitions": {
            "brief": {"partition": "brief", "longest_walltime": "01:00:00"},
            "main": {
                "partition": "main",
                "test_partition": {"name": "brief", "longest_walltime": "01:00:00", "max_nodes": 4},
                "use_test_partition": False,
            },
        },
        "not_found": ["network_interface", "internet"],
    }

    code, output = study.snakemake("-n")
    assert code == 0, output
    for partition in ("brief", "main"):
        assert re.search(rf"e@{partition}/d2\.\S+ +1x2 .*--gres=gpu:h100:2", output), output
