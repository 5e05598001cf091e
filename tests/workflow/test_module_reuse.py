"""The workflow as a module of another one."""

from __future__ import annotations

import html
import json

import pytest
from tests.workflow.conftest import SITE, SNAKEFILE, TINY, Workplace

PARENT = f"""
configfile: "parent.yaml"

module scalewise:
    snakefile: "{SNAKEFILE}"
    config: config["scaling"]

use rule * from scalewise as scaling_*

rule mine:
    default_target: True
    input: "resources/datasets/digits/dataset.safetensors", "results/report.html"
"""


@pytest.mark.contract
def test_another_workflow_runs_a_study_to_its_report(workplace: Workplace) -> None:
    indented = "".join(f"  {line}\n" for line in TINY.splitlines())
    (workplace.folder / "parent.yaml").write_text(f"scaling:\n  site: site.yaml\n{indented}")
    (workplace.folder / "site.yaml").write_text(SITE)
    (workplace.folder / "Snakefile").write_text(PARENT)
    plan = workplace.run(["snakemake", "-n", "--cores", "1"])
    assert plan.code == 0, plan.text
    assert "scaling_train" in plan.text
    done = workplace.run(["snakemake", "--cores", "2"])
    assert done.code == 0, done.text
    results = workplace.folder / "results"
    decisions = json.loads((results / "decision.json").read_text(encoding="utf-8"))
    assert [each["experiment"] for each in decisions] == ["strong", "weak"]
    page = html.unescape((results / "report.html").read_text(encoding="utf-8"))
    assert all(each["card"]["verdict"] in page for each in decisions)
    assert len(list(results.glob("*/runs/*/summary.json"))) == 3
