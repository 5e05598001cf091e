"""The shipped examples on a cluster, all in one study, each started as its tutorial starts it."""

import html
import json
from typing import Any

import yaml
from tests.shrunk_examples import EXAMPLES, place_data, shrunk
from tests.slurm.study import ClusterStudy

from scalewise.config.shape import Shape

# launchers are shown here, not scaling; on several nodes where the model is small
DEVICES: dict[str, list[int | str]] = {
    "hello-ddp": ["2x2"],
    "nyu-ddp": ["2x2"],
    "nyu-ddp-memory": [2],
    "olivia-weak": [2],
    "olivia-strong": [1],
    "olivia-one-gpu": [1],
    "olivia-options": [1],
    "olivia-fast": [1],
    "palmetto-plain": [1],
    "palmetto-torchrun": ["2x2"],
    "princeton-mnist": [1],
    "princeton-mnist-nodes": ["2x2"],
    "resnet18-launchers": [2],
}


def test_every_example_runs_to_its_report_on_a_cluster_under_its_own_launcher(study: ClusterStudy) -> None:
    experiments: dict[str, dict[str, Any]] = {}
    for example in EXAMPLES:
        experiments |= shrunk(example, DEVICES)
    assert experiments.keys() == DEVICES.keys()
    study.configure({})
    place_data(study.folder)
    (study.folder / "study.yaml").write_text(yaml.safe_dump({"experiments": experiments}))

    code, output = study.snakemake("--resources", "device_budget=8")
    assert code == 0, output
    report = html.unescape((study.folder / "results" / "report.html").read_text(encoding="utf-8"))
    for name, experiment in experiments.items():
        answer = json.loads((study.folder / "results" / name / "answer.json").read_text(encoding="utf-8"))
        assert experiment["title"] in report
        assert answer["verdict"] in report

    found: dict[str, set[str]] = {}
    for name, experiment in experiments.items():
        (devices,) = experiment["devices"]
        shape = Shape.parse(devices) if isinstance(devices, str) else Shape(1, devices)
        for folder in (study.folder / "results" / name / "runs").iterdir():
            summary = study.summary(name, folder.name)
            assert summary.outcome == "completed"
            assert summary.provenance is not None
            found.setdefault(name, set()).add(summary.provenance.launcher)
            ranks = study.ranks(name, folder.name)
            assert list(ranks["rank"]) == list(range(shape.world_size))
            assert ranks["host"].nunique() == shape.nodes
    requested = {name: _launchers(experiment) for name, experiment in experiments.items()}
    assert found == requested
    assert set().union(*requested.values()) == {"srun", "torchrun", "spawn"}


def _launchers(experiment: dict[str, Any]) -> set[str]:
    """Those it names; srun is a cluster's own."""
    return set(experiment.get("sweep", {}).get("launcher", [experiment.get("launcher", "srun")]))
