"""`snakemake preflight`: the site's facts proved, or the fix, before anything expensive."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml
from tests.slurm.study import ROOT, ClusterStudy

from scalewise.plan.jobs.make_plan import make_plan, write_plan
from scalewise.plan.plan_file import PLAN
from scalewise.plan.study import load_study

pytestmark = pytest.mark.starts_ranks

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
    assert "Slurm takes the largest job (2x2); it would start at " in found
    for rank in range(4):
        assert f"rank {rank} on {study.lab.prefix}" in found
    assert "all-reduce over 4 ranks" in lines
    assert "resources/datasets/digits/dataset.safetensors: " in found
    assert output.index("All is ok: the study can start.") > output.index("all-reduce")
    assert set(study.jobs("")) == {"rule_hello"}

    code, output = study.snakemake("preflight")
    assert code == 0, output
    assert "all-reduce over 4 ranks" in output


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
    program = ROOT / "workflow" / "scripts" / "cli.py"
    done = study.lab.run(
        sys.executable, program, "check-site", "--output", found, env={PLAN: str(plan)}, check=False
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
    assert "Set `accelerator: cpu` in the site file to train on CPUs" in output
    assert "Something is not ok: see above." in output
