"""What a study opens to the network: ports on the nodes of a job, for the job's life, and none elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
from tests.listening_ports import listening
from tests.slurm.study import ENDLESS, ONE_RANK_A_NODE, ClusterStudy

pytestmark = pytest.mark.starts_ranks


@pytest.mark.refuses("security: port on a login node")
def test_nothing_listens_where_snakemake_runs_and_ranks_do_for_their_jobs_life(
    study: ClusterStudy, record_property: Callable[[str, object], None]
) -> None:
    study.configure({"e": {"devices": ["2x1"], **ENDLESS}}, **ONE_RANK_A_NODE)
    process = study.start()
    study.wait_training("e", "d2x1.r1")

    here = psutil.Process(process.pid)
    tree = [here.pid, *(child.pid for child in here.children(recursive=True))]
    ranks = [study.rank_process("e", "d2x1.r1", rank)[0] for rank in (0, 1)]
    opened = [listening(pid) for pid in ranks]
    assert [listening(pid) for pid in tree] == [set()] * len(tree)
    assert all(opened), "the ranks were looked at in the right way"
    record_property("figure", f"0 ports where snakemake runs, {sum(map(len, opened))} on two nodes")

    study.end()
    study.seconds_until_nothing_runs()
    assert [listening(pid) for pid in ranks] == [set(), set()]
