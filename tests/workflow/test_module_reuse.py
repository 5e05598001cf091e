"""The workflow as a module of another one."""

from __future__ import annotations

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


def test_another_workflow_can_use_its_rules(workplace: Workplace) -> None:
    indented = "".join(f"  {line}\n" for line in TINY.splitlines())
    (workplace.folder / "parent.yaml").write_text(f"scaling:\n  site: site.yaml\n{indented}")
    (workplace.folder / "site.yaml").write_text(SITE)
    (workplace.folder / "Snakefile").write_text(PARENT)
    plan = workplace.run(["snakemake", "-n", "--cores", "1"])
    assert plan.code == 0, plan.text
    assert "scaling_train" in plan.text
    done = workplace.run(["snakemake", "--cores", "1", "resources/datasets/digits/dataset.safetensors"])
    assert done.code == 0, done.text
    assert (workplace.folder / "resources" / "datasets" / "digits" / "dataset.safetensors").is_file()
