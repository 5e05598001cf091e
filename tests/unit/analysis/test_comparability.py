"""What a speedup may join, what is an option's gain, and what is refused, with both values named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.planted_records import write_run

from scalewise.analysis.comparison.comparability import (
    Measured,
    compare,
    differences,
    named,
    origin_cautions,
)
from scalewise.analysis.comparison.fingerprint import Fingerprint
from scalewise.analysis.statistics.intervals import Interval, mean_interval
from scalewise.records import Provenance, RunRecord, read_summary


def summary_of(tmp_path: Path, run: str = "d2.r1", **changed: Any) -> RunRecord:
    """The summary of a run that is written and read back."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    return read_summary(write_run(folder, run, **changed))


def fingerprint(summary: RunRecord) -> Fingerprint:
    return Fingerprint.of(summary.definition, summary.provenance)


def test_runs_that_differ_in_devices_repeat_host_and_commit_have_one_fingerprint(
    tmp_path: Path,
) -> None:
    first = fingerprint(summary_of(tmp_path, "d1.r1"))
    other = fingerprint(summary_of(tmp_path, "d4.r3", origin={"hosts": ["node-b"], "commit": "def456"}))
    assert first.id == other.id
    assert len(first.id) == 12
    assert differences(first.conditions, other.conditions) == []


@pytest.mark.parametrize(
    ("changed", "field", "values"),
    [
        ({"settings": {"precision": "bf16"}}, "precision", ("fp32", "bf16")),
        ({"settings": {"momentum": 0.0}}, "momentum", ("0.9", "0.0")),
        ({"settings": {"bucket_cap_mb": 5}}, "bucket_cap_mb", ("default", "5")),
        ({"settings": {"channels_last": True}}, "channels_last", ("false", "true")),
        ({"origin": {"cpu_model": "B CPU"}}, "CPU model", ("A CPU", "B CPU")),
        ({"origin": {"launcher": "srun"}}, "launcher", ("torchrun", "srun")),
        (
            {"origin": {"devices": ["CPU process", "NVIDIA H200"]}},
            "device model",
            ("CPU process", "CPU process, NVIDIA H200"),
        ),
        ({"origin": {"versions": {"torch": "2.16.0"}}}, "torch version", ("2.15.0", "2.16.0")),
        (
            {"origin": {"versions": {"torch": "2.15.0", "driver": "580.1"}}},
            "driver version",
            ("not recorded", "580.1"),
        ),
    ],
)
def test_whatever_else_differs_is_named_with_both_values(
    tmp_path: Path, changed: dict[str, Any], field: str, values: tuple[str, str]
) -> None:
    first, other = fingerprint(summary_of(tmp_path)), fingerprint(summary_of(tmp_path, **changed))
    assert first.id != other.id
    assert differences(first.conditions, other.conditions) == [(field, *values)]


def test_a_newer_snakemake_changes_no_throughput(tmp_path: Path) -> None:
    newer = summary_of(tmp_path, origin={"versions": {"torch": "2.15.0", "snakemake": "9.9"}})
    assert fingerprint(summary_of(tmp_path)).id == fingerprint(newer).id


def imported(**files: str) -> dict[str, str]:
    return {f"contents of the imported /home/a/project/{name}.py": value for name, value in files.items()}


def test_imported_files_are_named_last_by_name_and_folder_and_without_hashes() -> None:
    first = imported(model="sha256 a", data="sha256 b") | {"precision": "fp32"}
    other = imported(model="sha256 c", loader="sha256 b") | {"precision": "bf16"}
    found = differences(first, other)
    assert named(found) == (
        "precision is bf16, not fp32; project/model.py differs; project/data.py was imported by some runs "
        "only; and 1 other file"
    )
    assert [difference.second_side for difference in found] == [
        "precision bf16", "another project/model.py", "without project/data.py", "with project/loader.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("differing", "more"),
    [
        (imported(**{f"m{number}": "x" for number in range(63)}), "; and 60 other files"),
        ({f"option {number}": "x" for number in range(5)} | imported(model="x"), "; and 3 other differences"),
    ],
)
def test_a_sentence_names_three_differences_and_counts_the_others(
    differing: dict[str, str], more: str
) -> None:
    sentence = named(differences(differing, dict.fromkeys(differing, "y")))
    assert sentence.count(";") == 3
    assert sentence.endswith(more)


def test_strong_scaling_keeps_the_global_batch_and_weak_the_one_per_device(
    tmp_path: Path,
) -> None:
    small, large = summary_of(tmp_path, "d1.r1"), summary_of(tmp_path, "d2.r1")
    assert small.definition.batch_size_per_device != large.definition.batch_size_per_device
    assert fingerprint(small).id == fingerprint(large).id
    weak = [summary_of(tmp_path, f"d{n}.r1", settings={"scaling": "weak"}) for n in (1, 2)]
    assert differences(*(fingerprint(summary).conditions for summary in weak)) == [
        ("batch_size_per_device", "256", "128")
    ]


def test_devices_alone_make_a_speedup() -> None:
    same = {"precision": "fp32"}
    found = compare(Measured(1, 100.0, same), Measured(4, 320.0, same))
    assert (found.kind, found.ratio) == ("speedup", 3.2)
    assert found.efficiency == pytest.approx(0.8)
    assert found.sentence() == "4 devices: 3.20x the throughput of 1, 80.0 % of ideal."


def test_more_than_ideal_is_said_to_be_an_error() -> None:
    found = compare(Measured(1, 100.0, {}), Measured(2, 240.0, {}))
    assert found.sentence() == (
        "2 devices: 2.40x the throughput of 1, 120.0 % of ideal. More than ideal is an error until it is "
        "explained."
    )


def test_at_equal_devices_the_ratio_is_an_options_gain_and_has_no_efficiency() -> None:
    found = compare(Measured(2, 100.0, {"compile": False}), Measured(2, 150.0, {"compile": True}))
    assert (found.kind, found.ratio, found.efficiency) == ("option", 1.5, None)
    assert found.sentence() == (
        "On 2 devices, 1.50x the throughput of the other where compile is true, not false: an option's gain, "
        "not scaling."
    )


def test_other_devices_and_other_options_give_no_ratio_at_all() -> None:
    found = compare(
        Measured(1, 100.0, {"precision": "fp32", "loader": "workers"}),
        Measured(8, 1600.0, {"precision": "bf16", "loader": "workers"}),
    )
    assert (found.kind, found.ratio, found.efficiency) == ("refused", None, None)
    assert found.sentence() == "No speedup joins 1 device and 8 devices: precision is bf16, not fp32."


def test_runs_of_one_point_are_repeats() -> None:
    found = compare(Measured(2, 100.0, {}), Measured(2, 102.0, {}))
    assert (found.kind, found.efficiency) == ("repeat", None)
    assert found.sentence() == "On 2 devices, 1.02x the throughput of a run under equal conditions."


def test_without_figures_nothing_is_claimed() -> None:
    found = compare(Measured(1, None, {}), Measured(2, 100.0, {}, wall_seconds=3.0))
    assert (found.kind, found.ratio) == ("refused", None)
    assert found.sentence() == (
        "No speedup joins 1 device and 2 devices: throughput and wall time of one of them are not known."
    )


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (0.74, 0.69, True),
        (0.74, 0.73, False),  # may be the draw of the test images
        (0.69, 0.74, False),
        (mean_interval([0.93, 0.94, 0.95]), mean_interval([0.90, 0.91, 0.92]), True),
        (mean_interval([0.93, 0.94, 0.95]), mean_interval([0.90, 0.91, 0.935]), False),
        (mean_interval([0.94]), mean_interval([0.93]), False),
    ],
)
def test_accuracy_that_is_lost_beyond_doubt_stands_beside_the_speedup(
    before: Interval | float, after: Interval | float, lost: bool
) -> None:
    found = compare(Measured(1, 1.0, {}, before), Measured(4, 2.9, {}, after))
    assert ("points of accuracy lost" in found.sentence()) is lost
    assert (found.accuracy is not None) is lost


def test_lost_accuracy_is_named_with_both_values() -> None:
    sentence = compare(Measured(1, 1.0, {}, 0.74), Measured(4, 2.9, {}, 0.69)).sentence()
    assert sentence == (
        "4 devices: 2.90x the throughput of 1, 72.5 % of ideal; 5.0 points of accuracy lost "
        "(74.0 % to 69.0 %)."
    )


def test_another_commit_or_kernel_is_a_caution_and_no_refusal(
    tmp_path: Path,
) -> None:
    origins: list[Provenance] = []
    for origin in ({}, {"commit": "def456"}, {"operating_system": "Linux 7", "commit": None}):
        found = summary_of(tmp_path, origin=origin).provenance
        assert found is not None
        origins.append(found)
    commits, kernels = origin_cautions(origins)
    assert commits.startswith(
        "The runs differ in the commit of the workflow (abc123; def456; not recorded). Speedups join them"
    )
    assert "the operating system (Linux; Linux 7)" in kernels
    assert origin_cautions(origins[:1]) == []
