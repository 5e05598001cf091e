"""The site file that is written on the cluster itself, from its daemons' reports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from tests.slurm.study import ROOT, ClusterStudy

pytestmark = pytest.mark.starts_ranks

CLI = ROOT / "workflow" / "scripts" / "cli.py"


def site(study: ClusterStudy, *words: str) -> subprocess.CompletedProcess[str]:
    return study.lab.run(
        sys.executable, CLI, "site", "--output", study.folder / "site.yaml", *words, check=False
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


def test_site_file_of_two_partitions_plans_and_tests_each(study: ClusterStudy) -> None:
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

    # nothing can compute on the cluster's pretended GPUs
    written.write_text(text.replace("accelerator: cuda", "accelerator: cpu"))
    code, output = study.snakemake("preflight")
    assert code == 0, output
    assert "All is ok: the study can start." in output
    assert {job.partition for job in study.jobs("").values()} == {"brief", "main"}
