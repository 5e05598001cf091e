"""What each shipped site file asks of its cluster, word by word, by the real executor plugin.

``SCALEWISE_UPDATE_SNAPSHOTS=1 pytest tests/workflow/test_site_snapshots.py`` writes the snapshots anew.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import cast

import pytest
import yaml
from tests.workflow.conftest import ROOT
from tests.workflow.login_node import ACCOUNT, LoginNode
from tests.workflow.recording_slurm import recording_slurm, submitted_jobs

from scalewise.execution.rank_files import RankFiles
from scalewise.execution.train_job import launch_of
from scalewise.plan.config.shape import Shape
from scalewise.plan.jobs.launch import start_of
from scalewise.plan.runs.runs import Run
from scalewise.plan.study import load_study
from scalewise.records import Definition

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "SCALEWISE_UPDATE_SNAPSHOTS"
PLUGINS = ("snakemake-executor-plugin-slurm", "snakemake-executor-plugin-slurm-jobstep")
SITES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("profiles/sites/*.yaml"), ROOT / "profiles/slurm/site.yaml"]
)
STUDY = """\
experiments:
  study:
    dataset: digits
    model: linear
    epochs: 2
    warmup_steps: 2
    global_batch_size: 256
    repeats: 1
    cpus_per_device: 4
    runtime_minutes: 30
    devices: [1, {devices}, "2x{devices}"]
    predict: false
"""
CHANGING = {
    re.escape(str(ROOT / "workflow" / "scripts")): "/SCRIPTS",
    rf"^{re.escape(sys.executable)}$": "/PYTHON",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "RUN-ID",
    # the job itself: snakemake once more
    r"(?s)^--wrap=.*-m snakemake.*": "--wrap=... -m snakemake ...",
}


def name_of(site: str) -> str:
    """``profiles/sites/x.yaml`` -> ``x``; the profile's own is called by its profile."""
    path = Path(site)
    return path.stem if path.parent.name == "sites" else path.parent.name


def named_partition(site: str) -> str | None:
    slurm = yaml.safe_load((ROOT / site).read_text(encoding="utf-8"))["slurm"]
    return cast("str | None", slurm.get("partition"))


def shown(words: Sequence[str], folder: Path) -> str:
    """A command on lines that a diff can compare, without what differs from call to call."""
    lines: list[str] = []
    for word in words:
        plain = word.replace(str(folder), "/CHECKOUT")
        for pattern, text in CHANGING.items():
            plain = re.sub(pattern, text, plain)
        if word.startswith("-") or not lines:
            lines.append(f"{'    ' if lines else ''}{shlex.quote(plain)}")
        else:
            lines[-1] += f" {shlex.quote(plain)}"
    return " \\\n".join(lines)


def srun_of(run: Run, environment: dict[str, str], folder: Path) -> tuple[str, ...]:
    """Return the command that the job starts its ranks with, by the environment that sbatch exports."""
    dataset = folder / "resources" / "datasets" / "digits" / "dataset.safetensors"
    rank_files = RankFiles(folder / "results" / run.experiment / "runs" / run.name / "attempt")
    definition = Definition.model_validate_json(run.definition)
    return launch_of(definition, dataset, None, start_of(environment), rank_files).argv


def option(words: Sequence[str], name: str) -> int:
    """The number of an option, which must stand there once."""
    (value,) = [word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")]
    return int(value)


def check_geometry(words: Sequence[str], shape: Shape) -> None:
    """As many tasks as devices on every node, each with its CPUs; nothing that spreads them unevenly."""
    assert option(words, "--nodes") == shape.nodes
    assert option(words, "--ntasks-per-node") == shape.devices_per_node
    assert option(words, "--nodes") * option(words, "--ntasks-per-node") == shape.world_size
    assert option(words, "--cpus-per-task") == 4
    assert not [
        word for word in words if re.match(r"--(gpus|ntasks-per-gpu|cpus-per-gpu)\b(?!-per-node)", word)
    ]
    # where the plugin says the number of tasks itself, it is the same
    assert all(int(word.split("=")[1]) == shape.world_size for word in words if word.startswith("--ntasks="))


@pytest.mark.parametrize("site", SITES, ids=name_of)
def test_a_site_is_asked_in_the_words_of_its_snapshot(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = LoginNode.at(tmp_path)
    node.fill_in(site)
    devices = yaml.safe_load((node.folder / site).read_text(encoding="utf-8"))["devices_per_node"]
    node.write("study.yaml", STUDY.format(devices=devices))
    # no run reads it: all are asked for, none begins
    dataset = node.folder / "resources" / "datasets" / "digits" / "dataset.safetensors"
    dataset.parent.mkdir(parents=True)
    dataset.touch()
    record = recording_slurm(node.programs, ACCOUNT)
    outcome = node.snakemake(
        *("--configfile", "study.yaml", "--config", f"site={site}"),
        *("--retries", "0", "--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "0"),
    )
    assert record.exists(), outcome.text

    monkeypatch.chdir(node.folder)
    study = load_study(yaml.safe_load(Path("study.yaml").read_text()), ["study.yaml"], site)
    asked = {
        re.search(r"wildcards_study_(\S+)$", words[words.index("--comment") + 1])[1]: (words, environment)  # type: ignore[index]
        for words, environment in submitted_jobs(record)
    }
    assert set(asked) == {f"d{shape}.r1" for shape in (1, devices, f"2x{devices}")}, outcome.text
    lines = [f"# {', '.join(f'{plugin} {version(plugin)}' for plugin in PLUGINS)}", f"# {site}"]
    for run in sorted(study.runs.values(), key=lambda run: run.shape):
        words, environment = asked[run.name]
        srun = srun_of(run, environment, node.folder)
        check_geometry(words, run.shape)
        check_geometry(srun, run.shape)
        lines += ["", f"# {run.shape}", shown(["sbatch", *words[1:]], node.folder), shown(srun, node.folder)]
    compare(SNAPSHOTS / f"{name_of(site)}.txt", "\n".join(lines) + "\n")


def compare(file: Path, text: str) -> None:
    """Fail with the difference to the snapshot, or write it where that was asked for."""
    if os.environ.get(UPDATE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    kept = file.read_text(encoding="utf-8") if file.exists() else ""
    difference = difflib.unified_diff(
        kept.splitlines(), text.splitlines(), f"{file.name} as kept", f"{file.name} as it is now", lineterm=""
    )
    where = Path(__file__).relative_to(ROOT)
    assert kept == text, "\n".join(
        [*difference, "", f"If that is meant, write it down:  {UPDATE}=1 pytest {where}"]
    )


def test_every_snapshot_is_of_a_site_that_is_shipped() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.txt")} == set(map(name_of, SITES))


@pytest.mark.parametrize("site", [site for site in SITES if not named_partition(site)], ids=name_of)
def test_a_site_that_names_no_partition_is_sent_none(site: str) -> None:
    snapshot = (SNAPSHOTS / f"{name_of(site)}.txt").read_text(encoding="utf-8")
    assert re.findall(r"^    -p \S+", snapshot, re.MULTILINE) == []
