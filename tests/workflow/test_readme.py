"""What the README says is true: its make targets, the messages and files it shows, nothing left open."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.workflow.conftest import ROOT, Workplace
from tests.workflow.test_docs import OWN_PROGRAM, blocks, commands

from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import load_study

ABBREVIATIONS = {"CPU", "DDP", "FSDP", "GPU", "HTML"}


def test_it_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_make_command_of_the_readme_is_a_target(workplace: Workplace) -> None:
    targets = {command.split()[1] for command in commands(ROOT / "README.md") if command.startswith("make ")}
    assert {"run", "test"} <= targets
    for target in targets:
        outcome = workplace.run(["make", "-C", str(ROOT), "-n", target])
        assert outcome.code == 0, outcome.text


def test_the_messages_it_shows_are_those_a_user_gets(tmp_path: Path) -> None:
    shown = re.findall(
        r"^config/experiments\.yaml(:\d+: .*)$", (ROOT / "docs" / "first-study.md").read_text(), re.MULTILINE
    )
    text = (ROOT / "config" / "experiments.yaml").read_text()
    broken = text.replace("    epochs: 10\n", "    epoch: 10\n")
    messages = []
    for variant in (broken, text.replace("global_batch_size: 256", "global_batch_size: 255")):
        file = tmp_path / "experiments.yaml"
        file.write_text(variant)
        (tmp_path / "site.yaml").write_text("accelerator: cpu\ncpus_per_node: 2\n")
        with pytest.raises(StudyError) as caught:
            load_study(yaml.safe_load(variant), [file], tmp_path / "site.yaml")
        messages += [line.removeprefix(str(file)) for line in caught.value.lines]
    assert len(shown) == 2
    assert set(shown) <= set(messages)


def test_the_examples_of_the_configuration_guide_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, own, with_partitions, workstation = blocks(ROOT / "config" / "README.md", "yaml")
    (tmp_path / "site.yaml").write_text("accelerator: cpu\ncpus_per_node: 2\n")
    study = load_study(yaml.safe_load(block), [], tmp_path / "site.yaml")
    assert ("digits-strong", "d2.bucket-view-on.r1") not in study.runs
    assert ("digits-strong", "d2.bucket-view-off.r1") in study.runs

    monkeypatch.chdir(tmp_path)
    shutil.copy(OWN_PROGRAM, tmp_path / "train.py")
    (tmp_path / "site.yaml").write_text("accelerator: cpu\ndevices_per_node: 8\ncpus_per_node: 8\n")
    assert ("my-training", "d2.lr-0.1.r1") in load_study(yaml.safe_load(own), [], "site.yaml").runs

    (tmp_path / "site.yaml").write_text(with_partitions)
    experiment = {"dataset": "digits", "model": "linear", "global_batch_size": 256, "devices": [1, 8]}
    experiment |= {"partitions": "all", "decision": {"by": "cost"}}
    compared = load_study({"experiments": {"digits": experiment}}, [], "site.yaml")
    assert compared.comparisons == {"digits": ["digits@a100", "digits@h200"]}

    (tmp_path / "site.yaml").write_text(workstation)
    compared = load_study({"experiments": {"digits": experiment | {"devices": [1]}}}, [], "site.yaml")
    assert compared.comparisons == {"digits": ["digits@a100", "digits@t4"]}


def test_the_files_it_promises_are_those_the_rules_make() -> None:
    readme = (ROOT / "docs" / "results.md").read_text()
    rules = "".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    promised = re.findall(r"`results/(?:\{experiment\}/)?([a-z_]+\.(?:html|csv|json))`", readme)
    assert len(promised) >= 5
    assert [name for name in promised if name not in rules] == []


def unfinished(text: str) -> set[str]:
    """Return words in capitals that are no abbreviation, nor the name of a file, and placeholders."""
    capitals = set(re.findall(r"(?<![`(/\w])[A-Z]{2,}\b(?!\.)", text)) - ABBREVIATIONS
    return capitals | set(re.findall(r"<[a-z][\w ]*>|\?\?+|\.\.\.$", text, re.MULTILINE))


def test_nothing_in_it_waits_to_be_filled_in() -> None:
    assert unfinished((ROOT / "README.md").read_text(encoding="utf-8")) == set()
    assert unfinished("TODO, TBD: a <name here> ??") == {"TODO", "TBD", "<name here>", "??"}
