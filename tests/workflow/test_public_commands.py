"""Commands of README and docs that run a study, each once to its end, in a copy of the checkout."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from tests.workflow.conftest import ROOT, Workplace

pytestmark = pytest.mark.contract


def checkout(place: Path, python: Path) -> Workplace:
    """Return a copy of the checkout with an installed .venv, as after `make setup`."""
    for folder in ("config", "profiles", "workflow"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place)
    (venv := place / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    (venv / "run.installed").touch()
    return Workplace(place, python)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Workplace:
    """A checkout whose shipped study is short: one repeat of one series, two epochs."""
    workplace = checkout(tmp_path_factory.mktemp("checkout"), preloaded_python)
    path = workplace.folder / "config" / "experiments.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["defaults"] |= {
        "epochs": 2,
        "warmup_steps": 4,
        "repeats": 1,
        "sweep": {"gradient_as_bucket_view": [False]},
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return workplace


def test_make_run_runs_the_shipped_study_to_its_report_and_prints_its_decisions(shipped: Workplace) -> None:
    first = shipped.run(["make", "run"])
    assert first.code == 0, first.text
    results = shipped.folder / "results"
    decisions = json.loads((results / "decision.json").read_text(encoding="utf-8"))
    assert [each["experiment"] for each in decisions] == ["digits-strong", "digits-weak"]
    assert len(list(results.glob("*/runs/*/summary.json"))) == 4
    # with nothing left to do it prints them, too
    again = shipped.run(["make", "run"])
    assert again.code == 0, again.text
    assert "Nothing to be done" in again.text
    for outcome in (first, again):
        lines = outcome.text.splitlines()
        for each in decisions:
            assert f"{each['experiment']}: {each['sentence']}" in lines
        assert "Report: results/report.html" in lines


def test_snakemakes_own_report_is_packed(shipped: Workplace) -> None:
    outcome = shipped.run(["snakemake", "--profile", "profiles/local", "--report", "report.zip"])
    assert outcome.code == 0, outcome.text
    with zipfile.ZipFile(shipped.folder / "report.zip") as packed:
        assert any(name.endswith("report.html") for name in packed.namelist())
