"""Datasets and weights are prepared by the rules, and made again only for what changes them."""

from __future__ import annotations

import pytest
from tests.workflow.workplace import SITE, Outcome, Workplace

from scalewise.config.catalog.datasets import MIRROR_VARIABLE, prepared_path

STUDY = """\
experiments:
  study:
    dataset: {dataset}
    image_size: 16
    model: linear
    devices: [1]
    global_batch_size: 20
    epochs: 1
    repeats: 1
    warmup_steps: 1
"""


def prepare(workplace: Workplace, dataset: str, *arguments: str, site: str = SITE) -> Outcome:
    target = str(prepared_path(dataset))
    return workplace.snakemake(*arguments, target, config=STUDY.format(dataset=dataset), site=site)


def test_a_mirror_is_used_and_its_change_reruns_nothing(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace.folder / "near").mkdir()
    name = "train-images-idx3-ubyte.gz"
    (workplace.folder / "near" / name).write_bytes(b"other bytes")
    monkeypatch.setenv(MIRROR_VARIABLE, "near")
    outcome = prepare(workplace, "mnist")
    assert outcome.code != 0
    assert f"{workplace.folder}/near/{name}" in outcome.text
    assert "Traceback" not in outcome.text

    assert prepare(workplace, "digits").code == 0
    monkeypatch.setenv(MIRROR_VARIABLE, "https://mirror.example/data")
    assert "Nothing to be done" in prepare(workplace, "digits").text
