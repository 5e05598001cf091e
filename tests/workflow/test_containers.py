"""Ranks in a container, started as the shipped site files start them, in real namespaces of Linux."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tests.containers import RUNTIME, assert_contained, binds, make_image, make_overlay, missing
from tests.paths import ROOT
from tests.stand_ins import stand_ins
from tests.workflow.workplace import Workplace

STUDY = """\
experiments:
  study:
    dataset: digits
    model: linear
    devices: [2]
    global_batch_size: 64
    epochs: 2
    warmup_steps: 2
    repeats: 1
"""


@pytest.mark.parametrize("runtime", ["namespaces", "apptainer"])
def test_ranks_run_in_the_container_of_nyus_guide(runtime: str, workplace: Workplace) -> None:
    program = str(RUNTIME) if runtime == "namespaces" else shutil.which("apptainer")
    if reason := missing() if program else "apptainer is not installed.":
        pytest.skip(reason)
    folder = workplace.folder
    stand_ins(folder, {"singularity": f'exec {shlex.quote(str(program))} "$@"'})
    site = nyu_site(folder)
    outcome = workplace.snakemake("--until", "train", config=STUDY, site=f"# NYU's\n{yaml.safe_dump(site)}")
    run = folder / "results" / "study" / "runs" / "d2.r1"
    assert (run / "record.json").exists(), outcome.text

    assert_contained(folder, [os.getpid()] * 2)
    assert list(pd.read_csv(run / "ranks.csv")["rank"]) == [0, 1]


def nyu_site(folder: Path) -> dict[str, Any]:
    """Return this machine as a site with NYU's container, whose image and overlay are those of the tests."""
    shipped = yaml.safe_load((ROOT / "profiles/sites/nyu-greene.yaml").read_text(encoding="utf-8"))
    container = shipped["container"]
    nv, overlay = container["arguments"]
    assert nv == "--nv"
    assert overlay.startswith("--overlay=/scratch/<netid>/")
    assert overlay.endswith(":ro")
    container |= {
        "image": str(make_image(folder)),
        "arguments": [nv, f"--overlay={make_overlay(folder, folder)}:ro"],
        "binds": binds(),
    }
    return {
        "accelerator": "cpu",
        "devices_per_node": 2,
        "cpus_per_node": 2,
        "prelude": [f"export PATH={shlex.quote(str(folder))}:$PATH"],
        "container": container,
    }
