"""A result that Snakemake has deleted is linked again if it is whole and of just this run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.planted_records import provenance, run_record
from tests.small_runs import definition

from scalewise.builtin.data.datasets import write
from scalewise.execution.finished_results import finished_result, publish, publish_again
from scalewise.execution.input_hashes import input_hashes
from scalewise.records import MODEL, RECORD, RUN_RECORDS, SUMMARY, write_json

DEFINITION = definition(save_model=True)
INPUTS = {"dataset": "abc"}
LOG = "train.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that has completed, with all that it leaves."""
    run = tmp_path / "results" / "study" / "runs" / "d1.r1"
    run.mkdir(parents=True)
    for name in (*RUN_RECORDS, MODEL, LOG):
        (run / name).write_text(f"{name} as it was", encoding="utf-8")
    write_record(run)
    return run


def write_record(run: Path, **changes: Any) -> None:
    usual = {"provenance": provenance(DEFINITION, inputs=INPUTS, commit="c0ffee")}
    write_json(run / RECORD, run_record(DEFINITION, **usual | changes))


def delete(folder: Path) -> None:
    """What snakemake does before it starts a job."""
    (folder / SUMMARY).unlink()
    (folder / LOG).unlink()


def found(folder: Path, inputs: Mapping[str, str] = INPUTS, commit: str | None = "c0ffee") -> bool:
    return finished_result(folder, DEFINITION, inputs, commit) is not None


def refuse_links(*_names: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_what_snakemake_deletes_comes_back_as_new_as_its_job(
    folder: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    for name in (RECORD, LOG):
        os.utime(folder / name, (1000, 1000))
    publish(folder, folder / LOG)
    assert ((folder / SUMMARY).stat().st_nlink == 2) == links
    delete(folder)
    assert found(folder)
    publish_again(folder, folder / LOG)
    assert (folder / SUMMARY).read_bytes() == (folder / RECORD).read_bytes()
    assert (folder / LOG).read_text(encoding="utf-8") == f"{LOG} as it was"
    assert (folder / SUMMARY).stat().st_mtime > 1000
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("missing", [*RUN_RECORDS, MODEL])
def test_a_result_that_is_not_whole_is_trained_again(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    assert not found(folder)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"definition": definition(save_model=True, epochs=9)}, id="other settings"),
        pytest.param({"provenance": None}, id="of unknown inputs"),
    ],
)
def test_a_result_of_something_else_is_trained_again(folder: Path, changes: dict[str, Any]) -> None:
    write_record(folder, **changes)
    assert not found(folder)


def test_a_result_of_other_data_or_of_another_workflow_is_trained_again(folder: Path) -> None:
    assert not found(folder, inputs={"dataset": "another"})
    assert not found(folder, commit="another")


def test_a_damaged_result_is_trained_again(folder: Path) -> None:
    (folder / RECORD).write_text("{", encoding="utf-8")
    assert not found(folder)


def prepared(path: Path, pixel: int = 0) -> Path:
    images = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    images[7, 0, 3, 3] = pixel
    write({"train_images": images, "train_labels": torch.arange(20) % 10}, path)
    return path


def test_data_that_was_prepared_again_is_the_same_and_another_pixel_is_not(tmp_path: Path) -> None:
    first = input_hashes(prepared(tmp_path / "a"), None)
    copy = prepared(tmp_path / "b")
    os.utime(copy, (1, 1))
    assert input_hashes(copy, None) == first
    assert input_hashes(prepared(tmp_path / "c", pixel=1), None) != first
    assert first.keys() == {"dataset"}


def test_weights_count_by_every_byte(tmp_path: Path) -> None:
    data, weights = prepared(tmp_path / "a"), tmp_path / "w.safetensors"
    write({"layer": torch.zeros(4)}, weights)
    first = input_hashes(data, weights)
    assert first.keys() == {"dataset", "weights"}

    write({"layer": torch.ones(4)}, weights)
    second = input_hashes(data, weights)
    assert {name for name in first if first[name] != second[name]} == {"weights"}


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x05\x00\x00\x00\x00\x00\x00\x00ab"])
def test_a_file_that_is_cut_has_a_fingerprint_of_its_own_and_is_refused_by_the_ranks(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "cut").write_bytes(content)
    assert input_hashes(tmp_path / "cut", None) != input_hashes(prepared(tmp_path / "a"), None)
