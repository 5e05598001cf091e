"""Images made at random become what every rank maps, and a model can learn from them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from scalewise.builtin.data.datasets import load
from scalewise.builtin.data.preparation import prepare
from scalewise.plan.catalog.datasets import DatasetFacts, dataset_facts


def test_synthetic_images_are_what_their_name_says_and_always_the_same(tmp_path: Path) -> None:
    name = "synthetic-2x5x7-3classes-400samples"
    facts = prepare(name, tmp_path / "a.safetensors")
    prepare(name, tmp_path / "b.safetensors")

    assert facts == DatasetFacts(400, 40, 2, 5, 7) == dataset_facts(name)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    data = load(tmp_path / "a.safetensors")
    assert data.classes == 3
    assert len(data.train_images.unique(dim=0)) == 400


def test_a_model_learns_from_synthetic_images(tmp_path: Path) -> None:
    prepare("synthetic-1x6x6-4classes-400samples", tmp_path / "a.safetensors")
    data = load(tmp_path / "a.safetensors")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(data.train_images / 255), data.train_labels).backward()
        optimizer.step()
    found = network(data.test_images / 255).argmax(1)
    assert (found == data.test_labels).float().mean() > 0.9
