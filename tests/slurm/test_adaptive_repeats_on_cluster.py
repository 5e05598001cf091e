"""More repeats of the points that need them, each a job of its own, in one command."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.lab import Lab
from tests.slurm.study import ClusterStudy

from scalewise.plan.runs.repeats import read_round, round_file


def test_further_repeats_become_jobs_once_the_first_have_been_judged(lab: Lab, tmp_path: Path) -> None:
    study = ClusterStudy(lab, tmp_path)
    # two rates are never further apart than twice their mean, and never equal to a millionth of it
    study.configure(
        {
            "narrow": {"devices": ["2x2"], "repeats": {"min": 2, "max": 3, "until_interval": 1.0}},
            "wide": {"devices": [2], "repeats": {"min": 2, "max": 3, "until_interval": 1e-6}},
        },
        devices_per_node=2,
    )
    try:
        code, output = study.snakemake()
        assert code == 0, output
        jobs = study.jobs()
    finally:
        study.end()

    trained = {name.removeprefix("rule_train_wildcards_") for name in jobs if "rule_train" in name}
    assert trained == {"narrow_d2x2.r1", "narrow_d2x2.r2", "wide_d2.r1", "wide_d2.r2", "wide_d2.r3"}
    assert "wide: d2: half-width" in output
    assert ": repeat 3 asked for" in output
    (first,) = read_round(round_file(tmp_path / "results" / "wide", 1)).points
    (second,) = read_round(round_file(tmp_path / "results" / "wide", 2)).points
    assert (first.completed, first.verdict) == (2, "too wide")
    assert (second.completed, second.verdict) == (3, "most repeats")
    assert (tmp_path / "results" / "report.html").exists()
