"""The memory that an option saves, as a user reads it: in the options.csv and the report of a real study."""

from __future__ import annotations

import re
import sys

import pandas as pd
import pytest
from tests.bucket_view_study import COPIES, STUDY, TOLERANCE, compared_options
from tests.workflow.workplace import Workplace

MB = 1e6
SITE = f"accelerator: cpu\ndevices_per_node: 2\ncpus_per_node: 2\npython: {sys.executable}\n"
"""Ranks start as real processes: a fork has the memory of the process that it was forked from."""


def test_gradients_as_bucket_views_save_one_copy_of_the_parameters(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what glibc keeps of freed tensors, for each thread, is up to half a copy, by the threads' timing
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    outcome = workplace.snakemake("--scheduler", "greedy", config=STUDY, site=SITE)
    assert outcome.code == 0, outcome.text
    results = workplace.folder / "results"
    html = (results / "report.html").read_text(encoding="utf-8")
    for name, copies in COPIES.items():
        gain = compared_options(results / name)
        runs = pd.read_csv(results / name / "runs.csv")
        # with interpreter and libraries, some 500 MB
        assert set(runs["peak_memory_kind"]) == {"process peak RSS, evaluation included"}
        parameters = 4 * int(runs["parameters"].iloc[0])
        assert parameters > 4 * 20e6
        assert gain["reference_peak_memory_bytes"] / parameters > copies
        assert gain["peak_memory_saved_bytes"] / parameters == pytest.approx(1, rel=TOLERANCE)
        cells = [f"{gain[f'peak_memory{end}_bytes'] / MB:,.0f}" for end in ("", "_saved")]
        assert re.search("".join(rf'<td data-v="[^"]+">{cell}</td>' for cell in cells), html), name
