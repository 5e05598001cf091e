"""Two studies that begin at once and need the same dataset fetch it once, and both get it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.data_files import class_images, write_checksums, write_cifar10
from tests.file_server import dribble, serving
from tests.waiting import LIMIT_SECONDS

from scalewise.builtin.data import datasets
from scalewise.plan.catalog.datasets import CHECKSUMS_VARIABLE, MIRROR_VARIABLE

CLI = Path(__file__).parents[3] / "workflow" / "scripts" / "cli.py"


@pytest.mark.fault(22)
@pytest.mark.slow
def test_two_preparations_of_one_dataset_at_once_make_one_download_and_both_have_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    near = tmp_path / "near"
    near.mkdir()
    archive = write_cifar10(near).read_bytes()
    write_checksums(near)
    path = tmp_path / "prepared" / "dataset.safetensors"
    # slow enough that the second comes while the first is at it
    with serving(archive, dribble(0.1, len(archive) // 20)) as server:
        environment = {
            name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
        } | {MIRROR_VARIABLE: server.address, CHECKSUMS_VARIABLE: str(near / "SHA256SUMS")}
        processes = [
            subprocess.Popen(
                [sys.executable, str(CLI), "prepare-dataset", "--dataset", "cifar10", "--output", str(path)],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(2)
        ]
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said
        assert server.ranges == [None]

    images, _ = class_images(200, 10, (3072,))
    assert torch.equal(datasets.load(path).train_images.flatten(1), torch.from_numpy(images))
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    record_property("figure", f"{len(server.ranges)} download for {len(processes)} processes")
