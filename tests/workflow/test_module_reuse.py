"""The workflow as a module of another one."""

import html
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.paths import SNAKEFILE
from tests.workflow.workplace import ON_PARTITIONS, PARTITIONS, SITE, TINY, Workplace

PARENT = f"""
configfile: "parent.yaml"

rule mine:
    input: "resources/datasets/digits/dataset.safetensors", "results/report.html"

module scalewise:
    snakefile: "{SNAKEFILE}"
    config: config["scaling"]

use rule * from scalewise as scaling_*

use rule train from scalewise as scaling_train with:
    priority: 1
    resources: mem_mb=4000
"""


def write_parent(folder: Path, study: str, site: str) -> None:
    """Write a workflow that has Scalewise as a module, with a study."""
    indented = "".join(f"  {line}\n" for line in study.splitlines())
    # the other keys are not Scalewise's, which would want them otherwise
    (folder / "parent.yaml").write_text(
        f"trim: yes\nstart: 12:30:00\nscaling:\n  site: site.yaml\n{indented}"
    )
    (folder / "site.yaml").write_text(site)
    (folder / "Snakefile").write_text(PARENT)


@pytest.mark.contract
def test_another_workflow_runs_a_study_to_its_report(workplace: Workplace) -> None:
    common, _, weak = TINY.partition("experiments:\n")
    study = f"{common}experiments:\n{weak[weak.index('  weak:') :]}"
    write_parent(workplace.folder, study, f"{SITE}python: {workplace.python}\n")
    plan = workplace.run(["snakemake", "-n", "--cores", "1"])
    assert plan.code == 0, plan.text
    assert "scaling_train" in plan.text
    assert plan.text.count("Devices are ") == 1
    done = workplace.run(["snakemake", "--cores", "2"])
    assert done.code == 0, done.text
    results = workplace.folder / "results"
    (decision,) = json.loads((results / "decision.json").read_text(encoding="utf-8"))
    assert decision["experiment"] == "weak"
    page = html.unescape((results / "report.html").read_text(encoding="utf-8"))
    assert decision["verdict"] in page
    assert len(list(results.glob("*/runs/*/record.json"))) == 1


def test_a_mistake_in_a_modules_study_is_named_without_a_line(workplace: Workplace) -> None:
    write_parent(workplace.folder, ON_PARTITIONS.replace("repeats: 2", "repeats: 0"), PARTITIONS)
    refused = workplace.run(["snakemake", "-n", "--cores", "1"])
    assert refused.code == 1
    # the parent's files are its own: a value of it may come from anywhere
    assert "config: experiments.digits.repeats: " in refused.text
    assert "(is 0)" in refused.text


@pytest.mark.parametrize(
    ("place", "change", "text"),
    [
        (
            "use rule *",
            '    prefix: "below"\n\nuse rule *',
            "prefix and replace_prefix of a module are not possible",
        ),
        ("mem_mb=4000", 'gres="gpu:8", nodes=3', "another workflow sets gres, nodes of the runs"),
        ("priority: 1", "threads: 3", "another workflow sets threads of the runs"),
    ],
)
def test_what_another_workflow_cannot_change_is_refused_before_anything_runs(
    place: str, change: str, text: str, workplace: Workplace
) -> None:
    write_parent(workplace.folder, ON_PARTITIONS, PARTITIONS)
    snakefile = workplace.folder / "Snakefile"
    snakefile.write_text(snakefile.read_text().replace(place, change, 1))
    refused = workplace.run(["snakemake", "-n", "--cores", "1"])
    assert refused.code == 1
    assert text in refused.text


def test_a_module_from_a_git_address_is_refused_with_the_fix(workplace: Workplace) -> None:
    copy = workplace.folder / "remote"
    shutil.copytree(SNAKEFILE.parent, copy / "workflow", ignore=shutil.ignore_patterns("scripts"))
    who = ["-c", "user.name=tests", "-c", "user.email=tests@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--message", "First"]):
        subprocess.run(["git", *command], cwd=copy, check=True)
    address = f'gitfile("{copy}", path="workflow/Snakefile", ref="HEAD")'
    (workplace.folder / "Snakefile").write_text(PARENT.replace(f'"{SNAKEFILE}"', address))
    (workplace.folder / "parent.yaml").write_text("scaling: {}\n")
    refused = workplace.run(["snakemake", "-n", "--cores", "1"])
    assert refused.code == 1
    assert "Clone Scalewise to a folder that all nodes see" in refused.text.splitlines()[-1]
