"""The site file written from the cluster's own reports, and `snakemake preflight`, which proves its facts."""

import os
import re
import subprocess
from typing import Any

import pytest
import yaml
from tests.paths import CLI
from tests.slurm.study import TRAININGS, ClusterStudy
from tests.stand_ins import stand_ins

from scalewise.plan.plan_file import PLAN
from scalewise.plan.planned_study import make_plan, write_plan
from scalewise.plan.study import load_study

LARGEST = {"e": {"devices": [1, "2x2"]}}


def preflight(study: ClusterStudy) -> tuple[int, str]:
    """Exit code and lines of the program that the rule of the preflight starts."""
    planned = load_study(
        yaml.safe_load((study.folder / "study.yaml").read_text()), site_file=study.folder / "site.yaml"
    )
    plan = write_plan(make_plan(planned), study.folder)
    output = study.folder / "logs" / "preflight"
    path = os.pathsep.join(filter(None, [study.path, os.environ["PATH"]]))
    done = study.lab.run(
        *(study.python, CLI, "preflight", "--output", output),
        env={PLAN: str(plan), "PATH": path, **study.environ},
        cwd=study.folder,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_fact_and_every_rank_is_shown_to_be_ok(study: ClusterStudy) -> None:
    study.configure(LARGEST, slurm={"extra": ["--qos=short"], "longest_walltime": "01:00:00"})
    code, output = study.snakemake("preflight")
    assert code == 0, output
    lines = [line.removeprefix("ok      ") for line in output.splitlines() if line.startswith("ok  ")]
    found = "\n".join(lines)
    assert "account lab in partition main" in lines
    assert "Slurm takes the largest job (2x2); it would start at " in found
    assert "Slurm takes the smallest job (1x1)" in found
    for rank in range(4):
        assert f"rank {rank} on {study.lab.prefix}" in found
    assert "all-reduce over 4 ranks" in lines
    assert "all-reduce inside a node, 2 devices: " in found
    assert "all-reduce across nodes, 4 devices: " in found
    assert "resources/datasets/digits/dataset.safetensors: " in found
    assert output.index("All is ok: the study can start.") > output.index("all-reduce")
    (number,) = re.findall(r"job (\d+) sent", output)
    job = study.lab.accounting(number)
    # the request of a run, and its own short time
    assert (job.partition, job.nodes) == ("main", 2)


WRONG = {"e": {"devices": [1, "2x2"], "runtime_minutes": 100}}
REFUSED = "Slurm refuses the largest job (2x2): "


@pytest.mark.parametrize(
    ("wrong", "lines"),
    [
        pytest.param(
            {"slurm": {"account": "strangers"}},
            ["account strangers is not yours in partition main. Set slurm.account to one of yours: "],
            marks=pytest.mark.refuses("slurm: unknown account"),
        ),
        pytest.param(
            {"slurm": {"partition": "gpus"}},
            [REFUSED, "invalid partition specified: gpus"],
            marks=pytest.mark.refuses("slurm: unknown partition"),
        ),
        pytest.param(
            {"slurm": {"partition": "brief"}},
            [REFUSED, "Requested time limit is invalid", "--time=102"],
            marks=pytest.mark.refuses("slurm: walltime over the limit"),
        ),
        pytest.param(
            {"slurm": {"extra": ["--qos=urgent"]}},
            [REFUSED, "Invalid qos specification", '"--qos=NAME"'],
            marks=pytest.mark.refuses("slurm: unknown qos"),
        ),
        ({"slurm": {"gpu_type": "a100"}}, [REFUSED, "--gres=gpu:a100:2", "main: 4 nodes with 16 CPUs"]),
        pytest.param(
            {"memory_gb_per_node": 4000},
            [REFUSED, "--mem=2000000", "64000 MB, gpu:h100:4"],
            marks=pytest.mark.refuses("slurm: memory where forbidden"),
        ),
        ({"slurm": {"extra": ["--constraint=hbm80g"]}}, [REFUSED, "--constraint=hbm80g"]),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_every_fact_that_is_wrong_is_named(
    study: ClusterStudy, wrong: dict[str, Any], lines: list[str]
) -> None:
    study.configure(WRONG, **wrong)
    code, output = preflight(study)
    assert code == 1
    named = "\n".join(line for line in output.splitlines() if line.startswith("NOT OK  "))
    for line in lines:
        assert line in named, output
    assert "Nothing was sent to the cluster." in output
    assert not (study.folder / "results").exists()
    assert study.lab.queue() == []


LIMITS = [
    pytest.param("qos normal", "MaxTRESPerUser", "gres/gpu=2", "QOSMaxGRESPerUser", id="GPUs of a user"),
    pytest.param("qos normal", "MaxTRESPerJob", "node=1", "QOSMaxNodePerJobLimit", id="nodes of a job"),
    pytest.param("qos normal", "GrpTRES", "cpu=3", "QOSGrpCpuLimit", id="CPUs of a group"),
    pytest.param("qos normal", "MaxWall", "10", "QOSMaxWallDurationPerJobLimit", id="time of a job"),
    pytest.param("account lab", "GrpTRES", "gres/gpu=2", "AssocGrpGRES", id="GPUs of an account"),
]


@pytest.mark.parametrize(("owner", "limit", "value", "reason"), LIMITS)
def test_a_limit_that_only_an_administrator_can_lift_is_named_and_the_job_cancelled(
    study: ClusterStudy, owner: str, limit: str, value: str, reason: str
) -> None:
    study.configure({"e": {"devices": [1, "2x2"], "runtime_minutes": 30}})
    modify = ("sacctmgr", "--immediate", "modify", *owner.split(), "set")
    study.lab.run(*modify, f"{limit}={value}")
    try:
        code, output = preflight(study)
    finally:
        lifted = f"{value.partition('=')[0]}=-1" if "=" in value else "-1"
        study.lab.run(*modify, f"{limit}={lifted}")
    assert code == 1, output
    assert f"waits with the reason {reason}, and was cancelled" in output, output
    assert study.lab.queue() == []


def test_a_job_that_waits_for_others_is_followed_with_its_reason(study: ClusterStudy) -> None:
    study.configure(LARGEST)
    study.lab.run(
        "sbatch", "--nodes=4", "--exclusive", "--account=lab", "--wrap=sleep 20", "--output=/dev/null"
    )
    code, output = preflight(study)
    assert code == 0, output
    assert re.search(r"ok +job \d+ waits in the queue \((Resources|Priority)\)", output)
    assert "All is ok" in output


def test_hello_that_fails_says_why_and_what_to_do(study: ClusterStudy) -> None:
    study.configure(LARGEST, accelerator="cuda")
    code, output = preflight(study)
    assert code == 1
    assert "NOT OK  the hello job over 2x2 ended without a report (job " in output
    assert re.search(r"without a report \(job \d+ \w+\): .*\w+Error: .*(NVIDIA|CUDA)", output)
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
    code, output = preflight(study)
    assert code == 1
    (number,) = re.findall(r"job (\d+) sent", output)
    assert f"NOT OK  Slurm does not show job {number}, which was sent: `squeue " in output
    assert "unknown option --format=%i|%T" in output
    assert "All is ok" not in output
    # it has ended, or was cancelled
    assert number not in study.lab.queue()


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


OF_MAIN = {"account": "lab", "partition": "main", "gpu_type": "h100"}
OF_NODES = {"accelerator": "cuda", "devices_per_node": 4, "cpus_per_node": 16, "memory_gb_per_node": 64}
OF_NODES |= {"max_nodes": 4}


def test_site_file_of_this_cluster_passes_plan_and_preflight(study: ClusterStudy) -> None:
    study.configure({"e": {"devices": [1, 2, "2x4"]}})
    written = study.folder / "site.yaml"
    written.unlink()

    refused = site(study)
    assert refused.returncode == 1
    assert "there are 4 partitions to choose from. Add one to the command" in refused.stderr
    assert "main: 4 nodes with 4 h100, 16 CPUs, 64 GB; no limit; the default" in refused.stderr

    done = site(study, "--partition", "main")
    assert done.returncode == 0, done.stderr
    text = written.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == {**OF_NODES, "slurm": OF_MAIN}
    assert "refuses" not in done.stdout
    assert site(study, "--partition", "main").returncode == 1, "it was overwritten"

    code, output = study.snakemake("-n")
    assert code == 0, output
    # nothing can compute on the cluster's pretended GPUs
    written.write_text(text.replace("accelerator: cuda", "accelerator: cpu"))
    code, output = study.snakemake("preflight")
    assert code == 0, output
    assert re.search(r"ok +network_interface eth0", output)
    assert "All is ok: the study can start." in output


def test_site_file_of_two_partitions_plans_runs_on_each(study: ClusterStudy) -> None:
    study.configure({"e": {"devices": [1, 2], "partitions": "all"}})
    written = study.folder / "site.yaml"
    written.unlink()

    done = site(study, "--partition", "brief", "--partition", "main", "--account", "lab")

    assert done.returncode == 0, done.stderr
    assert "describes partitions brief, main. `partitions: all` in an experiment" in done.stdout
    assert yaml.safe_load(written.read_text(encoding="utf-8")) == {
        "partitions": {
            "brief": {**OF_NODES, **OF_MAIN, "partition": "brief", "longest_walltime": "01:00:00"},
            "main": {**OF_NODES, **OF_MAIN},
        }
    }

    code, output = study.snakemake("-n")
    assert code == 0, output
    for partition in ("brief", "main"):
        assert re.search(rf"^ *d2\.{partition} +1 +1x2 ", output, re.MULTILINE), output
        request = rf"^  1x2 on {partition}: nodes=1 gres=gpu:h100:2 (.* )?slurm_partition={partition}\b"
        assert re.search(request, output.replace("\n    ", " "), re.MULTILINE), output
    assert re.search("^Each job requests .*slurm_account=lab", output, re.MULTILINE), output
