"""Datasets and weights are prepared by the rules, and made again only for what changes them."""

from __future__ import annotations

import torch
from tests.data_files import write_checksums, write_mirror
from tests.workflow.workplace import SITE, Outcome, Workplace

from scalewise.plan.catalog.datasets import prepared_path

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


def test_a_mirror_of_the_site_is_used_and_its_change_reruns_nothing(workplace: Workplace) -> None:
    write_mirror(workplace.folder / "near", samples=100, test_samples=100)
    site = f"{SITE}data_mirror: near\ndata_checksums: near/SHA256SUMS\n"
    first = prepare(workplace, "mnist", site=site)
    assert first.code == 0, first.text
    assert "train_samples=100, test_samples=100" in first.text
    assert (workplace.folder / "resources/downloads/mnist/t10k-labels-idx1-ubyte.gz").exists()

    elsewhere = f"{SITE}data_mirror: https://mirror.example/data\n"
    assert "Nothing to be done" in prepare(workplace, "mnist", site=elsewhere).text


def test_a_refused_download_is_an_error_without_a_traceback(workplace: Workplace) -> None:
    (workplace.folder / "resources/downloads/mnist").mkdir(parents=True)
    (workplace.folder / "resources/downloads/mnist/train-images-idx3-ubyte.gz").write_bytes(b"<html>")
    outcome = prepare(workplace, "mnist")
    assert outcome.code != 0
    assert "train-images-idx3-ubyte.gz is there already, but is not" in outcome.text
    assert "Traceback" not in outcome.text


def test_weights_of_a_mirror_with_sums_are_prepared(workplace: Workplace) -> None:
    near = workplace.folder / "near"
    near.mkdir()
    torch.save({"fc.bias": torch.ones(3)}, near / "resnet18-f37072fd.pth")
    write_checksums(near)
    site = f"{SITE}data_mirror: near\ndata_checksums: near/SHA256SUMS\n"
    target = "resources/weights/resnet18/model.safetensors"
    outcome = workplace.snakemake(target, config=STUDY.format(dataset="digits"), site=site)
    assert (workplace.folder / target).exists(), outcome.text
