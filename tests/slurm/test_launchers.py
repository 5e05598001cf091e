"""Launchers and rendezvous over nodes, started as for users: what ranks learn, and where they listen."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.listening_ports import listening
from tests.prepared_digits import place_digits
from tests.slurm.lab import Lab
from tests.slurm.study import (
    ENDLESS,
    LIMIT_SECONDS,
    ONE_RANK_A_NODE,
    ROOT,
    SITE,
    TRAINING,
    TRAININGS,
    ClusterStudy,
)
from tests.small_runs import rank_launch

from scalewise.execution.rank_files import ENDPOINT, RankFiles
from scalewise.execution.rank_processes import rank_setup_for
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.study import load_study

pytestmark = pytest.mark.starts_ranks


def test_every_launcher_and_rendezvous_trains_the_same_over_nodes(study: ClusterStudy) -> None:
    sweep = {"launcher": ["srun", "torchrun", "spawn"], "rendezvous": ["tcp", "file"]}
    study.configure({"e": {"devices": ["2x2"], "sweep": sweep}})
    code, output = study.snakemake("--resources", "device_budget=8", *TRAININGS)
    assert code == 0, output
    losses = {}
    for launcher in sweep["launcher"]:
        for rendezvous in sweep["rendezvous"]:
            name = f"d2x2.launcher-{launcher}.rendezvous-{rendezvous}.r1"
            ranks = study.ranks("e", name)
            assert list(ranks["rank"]) == [0, 1, 2, 3]
            assert sorted(ranks.groupby("host")["local_rank"].apply(list)) == [[0, 1], [0, 1]]
            provenance = study.summary("e", name).provenance
            assert provenance is not None
            assert provenance.launcher == launcher
            losses[name] = pd.read_csv(study.run("e", name) / "epochs.csv")["train_loss"].to_numpy()
    first = losses.pop("d2x2.launcher-srun.rendezvous-tcp.r1")
    for name, loss in losses.items():
        assert loss == pytest.approx(first, rel=1e-4), name
    steps = {job.comment: job.steps for job in study.jobs().values()}
    tasks = {
        re.sub(r".*launcher-(\w+).*", r"\1", comment): step.tasks
        for comment, found in steps.items()
        for step in found
        if step.name == "0"
    }
    assert tasks == {"srun": 4, "torchrun": 2, "spawn": 2}


@pytest.fixture
def slow_network(lab: Lab) -> Iterator[None]:
    """Nodes joined at 1 Gbit/s."""
    lab.limit_network("1gbit")
    yield
    lab.unlimit_network()


@pytest.mark.usefixtures("slow_network")
def test_two_nodes_learn_the_weights_of_one(lab: Lab, tmp_path: Path) -> None:
    place_digits(tmp_path / "dataset.safetensors")
    site = tmp_path / "site.json"
    site.write_text(json.dumps(SITE))
    experiment = TRAINING | {"devices": [1, 2], "epochs": 3}
    runs = load_study({"experiments": {"e": experiment}}, site_file=site).runs
    variants = tmp_path / "variants.json"
    learned: dict[str, dict[str, torch.Tensor]] = {}
    for shape, nodes in (("1x1", 1), ("2x1", 2)):
        definition = json.loads(runs["e", f"d{nodes}.r1"].as_json())
        variants.write_text(json.dumps([{"name": "linear", "definition": definition, "train": True}]))
        folder = tmp_path / shape
        RankFiles(folder).begin(
            rank_setup_for(rank_launch(shape=shape, launcher="srun"), SiteLaunch(slurm=True), 600)
        )
        probe = ROOT / "tests" / "distributed" / "probe.py"
        program: list[str | Path] = [
            sys.executable,
            probe,
            variants,
            tmp_path / "dataset.safetensors",
            folder,
        ]
        path = f"{ROOT / 'workflow' / 'scripts'}:{ROOT}"
        lab.run(
            *("srun", f"--nodes={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"),
            *program,
            env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            timeout=LIMIT_SECONDS,
        )
        tensors = load_file(folder / "linear.rank0.safetensors")
        learned[shape] = {name: tensor for name, tensor in tensors.items() if name.startswith("end/")}
    assert learned["1x1"]
    for name, alone in learned["1x1"].items():
        torch.testing.assert_close(learned["2x1"][name], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.refuses("security: port on a login node")
def test_nothing_listens_where_snakemake_runs_and_ranks_do_for_their_jobs_life(
    study: ClusterStudy, record_property: Callable[[str, object], None]
) -> None:
    by_file = {"launcher": "torchrun", "rendezvous": "file"}
    study.configure(
        {"e": {"devices": ["2x1"], **ENDLESS}, "file": {"devices": ["2x1"], **ENDLESS, **by_file}},
        **ONE_RANK_A_NODE,
    )
    process = study.start()
    study.wait_training("e", "d2x1.r1")

    here = psutil.Process(process.pid)
    tree = [here.pid, *(child.pid for child in here.children(recursive=True))]
    ranks = [study.rank_process("e", "d2x1.r1", rank)[0] for rank in (0, 1)]
    opened = [listening(pid) for pid in ranks]
    assert [listening(pid) for pid in tree] == [set()] * len(tree)
    assert all(opened), "the ranks were looked at in the right way"
    record_property("figure", f"0 ports where snakemake runs, {sum(map(len, opened))} on two nodes")

    # agents that meet by a file publish no address
    attempt = study.wait_training("file", "d2x1.r1")
    assert (attempt / "rendezvous.agents").stat().st_size
    assert (attempt / "rendezvous").exists()
    assert not (attempt / ENDPOINT).exists()

    study.end()
    study.seconds_until_nothing_runs()
    assert [listening(pid) for pid in ranks] == [set(), set()]
