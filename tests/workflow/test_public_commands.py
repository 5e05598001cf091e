"""Commands of README and docs that run a study, each once to its end, in a copy of the checkout."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tests.clone import shorten
from tests.paths import ROOT
from tests.shrunk_examples import place_data, shrunk
from tests.workflow.test_docs import OWN_PROGRAM, PROGRAM, blocks
from tests.workflow.workplace import Outcome, Workplace, copy_checkout

pytestmark = pytest.mark.contract


def checkout(place: Path, python: Path) -> Workplace:
    """Return a copy of the checkout with an installed .venv, as after `make setup`."""
    copy_checkout(place)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place)
    (venv := place / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    (venv / "run.installed").touch()
    return Workplace(place, python)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Workplace:
    """A checkout whose shipped study is short: one repeat of one series each."""
    workplace = checkout(tmp_path_factory.mktemp("checkout"), preloaded_python)
    shorten(workplace.folder / "config" / "experiments.yaml")
    return workplace


@pytest.fixture(scope="module")
def first(shipped: Workplace) -> Outcome:
    """The shipped study, run by `make run`."""
    outcome = shipped.run(["make", "run"])
    assert outcome.code == 0, outcome.text
    return outcome


def test_make_run_runs_the_shipped_study_to_its_report_and_prints_its_decisions(
    shipped: Workplace, first: Outcome
) -> None:
    results = shipped.folder / "results"
    decisions = json.loads((results / "decision.json").read_text(encoding="utf-8"))
    assert [each["experiment"] for each in decisions] == ["digits-strong", "digits-transformer"]
    assert len(list(results.glob("*/runs/*/record.json"))) == 4
    # with nothing left to do it prints them by the status
    again = shipped.run(["make", "run"])
    assert again.code == 0, again.text
    assert "Nothing to be done" in again.text
    assert "of 1 done" in again.text
    for outcome in (first, again):
        lines = outcome.text.splitlines()
        for each in decisions:
            assert f"{each['experiment']}: {each['verdict']}" in " ".join(outcome.text.split())
        assert "Report: results/report.html" in lines


@pytest.mark.usefixtures("first")
def test_the_preflight_of_the_shipped_study_finds_all_ok_on_one_machine(shipped: Workplace) -> None:
    outcome = shipped.run(["snakemake", "preflight", "--profile", "profiles/local"])
    assert outcome.code == 0, outcome.text
    assert "All is ok: the study can start." in outcome.text
    timed = re.search(
        r"all-reduce inside a node, 2 devices: 26.2 MB in ([\d.,]+) ms, ([\d.]+) GB/s", outcome.text
    )
    assert timed is not None, outcome.text
    assert float(timed[2]) == pytest.approx(26.2 / float(timed[1].replace(",", "")), rel=0.02)


def test_princetons_example_of_one_epoch_runs_to_its_report_with_a_machines_facts_in_olivias_site_file(
    tmp_path: Path, preloaded_python: Path
) -> None:
    workplace = checkout(tmp_path / "checkout", preloaded_python)
    site, example = "profiles/sites/sigma2-olivia.yaml", "config/examples/princeton-mnist.yaml"
    facts = {"accelerator": "cpu", "devices_per_node": 1, "cpus_per_node": 2, "python": str(preloaded_python)}
    place_data(workplace.folder)
    (workplace.folder / site).write_text(yaml.safe_dump(facts), encoding="utf-8")
    name = "princeton-mnist"
    study = shrunk(name, {name: [1], f"{name}-nodes": [1]})[name]
    del study["cpus_per_device"]
    study["sweep"] = {"cpus_per_device": [1, 2]}
    (workplace.folder / example).write_text(yaml.safe_dump({"experiments": {name: study}}), encoding="utf-8")
    command = f"snakemake --profile profiles/local --config site={site} --configfile {example}"
    outcome = workplace.run(command.split())
    assert outcome.code == 0, outcome.text
    (decision,) = json.loads((workplace.folder / "results" / "decision.json").read_text(encoding="utf-8"))
    assert decision["experiment"] == name
    assert f"{name}: {decision['verdict']}" in outcome.text
    assert len(list(workplace.folder.glob("results/*/runs/*/record.json"))) == 2
    assert "Report: results/report.html" in outcome.text
    # what the guide leaves to its reader is drawn: a panel for each number of CPUs
    results = workplace.folder / "results" / name
    for figure in ("loss", "accuracy"):
        drawn = (results / "figures" / f"{figure}.svg").read_text()
        assert set(re.findall(r">cpus-per-device-(\d+)</text>", drawn)) == {"1", "2"}
    assert set(pd.read_csv(results / "epochs.csv")["cpus_per_device"]) == {1, 2}


def test_scalewises_snakefile_runs_a_program_from_its_project_and_leaves_the_results_there(
    tmp_path: Path, preloaded_python: Path
) -> None:
    scalewise = checkout(tmp_path / "scalewise", preloaded_python).folder
    project = Workplace(tmp_path / "project", preloaded_python)
    project.folder.mkdir()
    (project.folder / "SW").symlink_to(scalewise)
    shutil.copy(OWN_PROGRAM, project.folder / "train.py")
    (text, *_) = blocks(ROOT / "docs" / "own-training.md", "yaml")
    study = yaml.safe_load(text.replace(PROGRAM, "train.py"))
    (experiment,) = study["experiments"].values()
    experiment |= {"devices": [1], "steps": 12, "warmup_steps": 3, "repeats": 1}
    (project.folder / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    before = sorted(scalewise.iterdir())
    command = ["snakemake", "--snakefile", "SW/workflow/Snakefile", "--profile", "SW/profiles/local"]
    outcome = project.run([*command, "--configfile", "study.yaml"])
    assert outcome.code == 0, outcome.text
    assert "Report: results/report.html" in outcome.text
    assert (project.folder / "results" / "report.html").exists()
    assert sorted(scalewise.iterdir()) == before
