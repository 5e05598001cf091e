"""Launchers and rendezvous over nodes, started as for users: what ranks learn, and where they listen."""

import re
from contextlib import suppress
from itertools import product

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.machine import listening
from tests.marked_outcomes import Record
from tests.slurm.study import ENDLESS, ONE_RANK_A_NODE, TRAININGS, ClusterStudy

from scalewise.records import MODEL

pytestmark = pytest.mark.starts_ranks


def processes_with(*words: str) -> list[int]:
    """The processes of all hosts in whose command all of these words are."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            found += [process.pid] if all(word in line for word in words) else []
    return found


LAUNCHERS = {"srun": 4, "torchrun": 2, "spawn": 2}
"""Tasks of each for two ranks on each of two nodes."""


def test_every_launcher_and_rendezvous_trains_over_nodes_what_one_rank_does(study: ClusterStudy) -> None:
    sweep = {"launcher": list(LAUNCHERS), "rendezvous": ["tcp", "file"]}
    saved = {"save_model": True}
    study.configure({"e": saved | {"devices": ["2x2"], "sweep": sweep}, "alone": saved | {"devices": [1]}})
    code, output = study.snakemake("--resources", "device_budget=8", *TRAININGS)
    assert code == 0, output
    expected = load_file(study.run("alone", "d1.r1") / MODEL)
    for launcher, rendezvous in product(*sweep.values()):
        name = f"d2x2.launcher-{launcher}.rendezvous-{rendezvous}.r1"
        ranks = study.ranks("e", name)
        assert list(ranks["rank"]) == [0, 1, 2, 3]
        assert sorted(ranks.groupby("host")["local_rank"].apply(list)) == [[0, 1], [0, 1]]
        provenance = study.summary("e", name).provenance
        assert provenance is not None
        assert provenance.launcher == launcher
        learned = load_file(study.run("e", name) / MODEL)
        torch.testing.assert_close(learned, expected, rtol=1e-4, atol=1e-4)
    tasks = {
        re.sub(r".*launcher-(\w+).*", r"\1", comment): step.tasks
        for comment, job in study.jobs("rule_train_wildcards_e").items()
        for step in job.steps
        if step.name == "0"
    }
    assert tasks == LAUNCHERS


@pytest.mark.refuses("security: port on a login node")
def test_nothing_listens_where_snakemake_runs_and_ranks_do_for_their_jobs_life(
    study: ClusterStudy, record_property: Record
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
    ranks = processes_with("train.py", str(study.run("e", "d2x1.r1")))
    opened = [listening(pid) for pid in ranks]
    assert [listening(pid) for pid in tree] == [set()] * len(tree)
    assert all(opened), "the ranks were looked at in the right way"
    record_property("figure", f"0 ports where snakemake runs, {sum(map(len, opened))} on two nodes")

    attempt = study.wait_training("file", "d2x1.r1")
    assert (attempt / "rendezvous.agents").stat().st_size
    assert (attempt / "rendezvous").exists()

    study.end()
    study.seconds_until_nothing_runs()
    assert [listening(pid) for pid in ranks] == [set(), set()]
