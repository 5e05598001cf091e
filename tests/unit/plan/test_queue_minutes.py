"""What a site says of its queue and its bill reaches the decision, and trains nothing again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import Study, load_study

NODE = "accelerator: cuda\ndevices_per_node: 4\ncpus_per_node: 64\nmax_nodes: 2\n"
EXPERIMENT = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1, 2, 4, 8]}

LoadCluster = Callable[[str], Study]


@pytest.fixture
def load_cluster(tmp_path: Path) -> LoadCluster:
    """The study on a cluster with these lines below ``slurm:``."""

    def load(slurm: str) -> Study:
        path = tmp_path / "site.yaml"
        path.write_text(f"{NODE}slurm:\n  account: mine\n{slurm}", encoding="utf-8")
        return load_study({"experiments": {"digits": EXPERIMENT}}, (), path)

    return load


def definition(study: Study) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(study.experiments["digits"].analysis_definition)
    return values


def test_each_device_count_waits_as_long_as_the_next_larger_one_that_is_named(
    load_cluster: LoadCluster,
) -> None:
    study = load_cluster("  queue_minutes: {8: 60, 1: 5}\n")
    assert definition(study)["queue_minutes"] == {"1": 5, "2": 60, "4": 60, "8": 60}


def test_beyond_the_largest_count_that_is_named_its_wait_holds(load_cluster: LoadCluster) -> None:
    study = load_cluster("  queue_minutes:\n    2: 7.5\n")
    assert definition(study)["queue_minutes"] == {"1": 7.5, "2": 7.5, "4": 7.5, "8": 7.5}


def test_a_queue_changes_the_decision_and_no_run(load_cluster: LoadCluster) -> None:
    without, short, long = (
        load_cluster(text) for text in ("", "  queue_minutes: {8: 5}\n", "  queue_minutes: {8: 50}\n")
    )
    assert "queue_minutes" not in definition(without)
    assert len({study.experiments["digits"].analysis_definition for study in (without, short, long)}) == 3
    assert without.runs == short.runs == long.runs
    assert without.allocations == short.allocations == long.allocations


@pytest.mark.parametrize("line", ["partial_nodes: billed-whole", "exclusive: true"])
def test_a_site_that_bills_whole_nodes_tells_the_decision(load_cluster: LoadCluster, line: str) -> None:
    assert definition(load_cluster(f"  {line}\n"))["billed_devices"] == {"1": 4, "2": 4}
    assert "billed_devices" not in definition(load_cluster(""))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{1: 5, 1: 6}", "is written twice"),
        ("{1.5: 5}", "a key that YAML reads as float"),
        ("{8: 1:00}", "base 60"),
    ],
)
def test_traps_of_yaml_in_a_queue_are_named(load_cluster: LoadCluster, value: str, says: str) -> None:
    with pytest.raises(StudyError) as refused:
        load_cluster(f"  queue_minutes: {value}\n")
    assert any(says in line for line in refused.value.lines)
