"""Commands of README and docs that run a study, each once to its end, in a clone of this checkout."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tests.machine import needs_two_cores
from tests.paths import ROOT
from tests.shrunk_examples import place_data, shrunk
from tests.workflow.test_docs import OWN_PROGRAM, PROGRAM, blocks, commands, spans
from tests.workflow.workplace import Outcome, Workplace

pytestmark = pytest.mark.contract


def clone(folder: Path) -> Path:
    """Copy the files that git has, and link the installed environment, as after `make setup`."""
    if not (Path(sys.prefix) / "bin" / "activate").exists():
        pytest.skip(f"{sys.prefix} is no virtual environment")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"{ROOT} is no git repository")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (venv := folder / ".venv").mkdir()
    for part in ("bin", "lib", "pyvenv.cfg"):
        (venv / part).symlink_to(Path(sys.prefix) / part)
    (venv / "run.installed").touch()
    return folder


def shorten(shipped: Path) -> None:
    """Make the shipped study short: one repeat of one series each.

    Args:
        shipped: Its configuration, config/experiments.yaml of a copy.
    """
    config = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    strong, transformer = config["experiments"].values()
    strong |= {"epochs": 2, "warmup_steps": 4, "repeats": 1}
    transformer |= {"model": "transformer-1M", "steps": 4, "repeats": 1}
    transformer["sweep"] = {"gradient_as_bucket_view": [False]}
    shipped.write_text(yaml.safe_dump(config), encoding="utf-8")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Workplace:
    """A checkout whose shipped study is short: one repeat of one series each."""
    workplace = Workplace(clone(tmp_path_factory.mktemp("checkout")), preloaded_python)
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
    workplace = Workplace(clone(tmp_path / "checkout"), preloaded_python)
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
    scalewise = clone(tmp_path / "scalewise")
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


# --- the README's commands work one after the other, in an empty folder and a new shell ----------------


README = ROOT / "README.md"
CLONE = ["git clone <address of this repository> scalewise", "cd scalewise"]
REPORT = "python workflow/scripts/cli.py report"


@needs_two_cores
@pytest.mark.starts_ranks
def test_its_commands_for_one_machine_run_in_their_order(tmp_path: Path) -> None:
    """What is replaced: the clone by a copy of its files, the installation by this Python's, repeats by 1."""
    own = commands(README)
    assert own[:2] == CLONE
    (cluster,) = (number for number, command in enumerate(own) if command == "make setup")
    assert any(command.startswith("snakemake ") for command in own[:cluster])
    assert REPORT in spans(README)
    folder = clone(tmp_path / "scalewise")
    shorten(folder / "config" / "experiments.yaml")
    (example,) = blocks(README, "yaml")
    # as written, but for its repeats
    (folder / "study.yaml").write_text(f"defaults: {{repeats: 1}}\n{example}", encoding="utf-8")
    script = "\n".join(["set -ex", *own[2:cluster], REPORT])
    shell = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert subprocess.run(["/bin/sh", "-c", "command -v snakemake"], env=shell, check=False).returncode != 0
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env=shell, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # the shipped study's, then that of study.yaml
    for experiment in ("digits-strong", "my-training"):
        answer = json.loads((folder / "results" / experiment / "answer.json").read_text(encoding="utf-8"))
        assert f"{experiment}: {answer['verdict']}" in done.stderr
    (answer,) = json.loads((folder / "results" / "decision.json").read_text(encoding="utf-8"))
    assert answer["experiment"] == "my-training"
    assert done.stdout.splitlines()[-1] == "Report on all runs: results/report.html"
