"""A rank knows who it is, how to find the others, and which versions it runs, or says what is missing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
import torch

from scalewise.execution.messages import Endpoint
from scalewise.execution.rank_files import RankFiles
from scalewise.measure.origins import versions
from scalewise.plan.config.shape import Shape
from scalewise.ranks.distributed import network_interface
from scalewise.ranks.distributed.cpus import cpu_list, take_cpus
from scalewise.ranks.distributed.devices import claim_device
from scalewise.ranks.distributed.identity import Identity, check_place, identify, node_rank, tasks_on_node
from scalewise.ranks.distributed.network_interface import Interface, choose_interface, interface_addresses
from scalewise.ranks.distributed.process_group import open_store
from scalewise.ranks.monitoring.environments import commit, merge_environments, source_version
from scalewise.ranks.monitoring.sensors import driver_version
from scalewise.records import Environment, utc_now

RANK_LAUNCHERS = ("popen", "torchrun", "spawn")
TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "11",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
}


BY_TORCHRUN, BY_SRUN = (5, 1, 8, 4), (9, 1, 11, 3)
"""Rank, local rank, world size and local world size."""


@pytest.mark.parametrize(
    ("launcher", "environ", "place", "job"),
    [
        ("torchrun", TORCHRUN, BY_TORCHRUN, (None, 0)),
        ("srun", SRUN, BY_SRUN, ("4711", 0)),
        ("srun", SRUN | {"SLURM_RESTART_COUNT": "2"}, BY_SRUN, ("4711", 2)),
        # inside a Slurm job the word of the launcher counts
        *((launcher, SRUN | TORCHRUN, BY_TORCHRUN, ("4711", 0)) for launcher in RANK_LAUNCHERS),
        ("srun", SRUN | TORCHRUN, BY_SRUN, ("4711", 0)),
    ],
)
def test_a_rank_knows_who_it_is_by_its_launcher(
    launcher: str, environ: dict[str, str], place: tuple[int, ...], job: tuple[str | None, int]
) -> None:
    it = identify(environ, launcher)
    assert (it.rank, it.local_rank, it.world_size, it.local_world_size) == place
    assert (it.slurm_job_id, it.restart_count) == job
    assert it.host == socket.gethostname()


@pytest.mark.parametrize(
    ("launcher", "given", "left_out"),
    [
        *((launcher, TORCHRUN, ("RANK",)) for launcher in RANK_LAUNCHERS),
        ("torchrun", TORCHRUN, ("WORLD_SIZE", "LOCAL_WORLD_SIZE")),
        ("popen", TORCHRUN, tuple(TORCHRUN)),
        ("srun", SRUN, ("SLURM_PROCID",)),
        ("srun", SRUN, ("SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE")),
    ],
)
def test_a_half_set_identity_is_an_error_that_names_what_is_missing(
    launcher: str, given: dict[str, str], left_out: tuple[str, ...]
) -> None:
    environ = {name: value for name, value in given.items() if name not in left_out}
    with pytest.raises(RuntimeError, match=f"not started as a rank by {launcher}") as refused:
        identify(environ, launcher)
    assert f": {', '.join(left_out)} not set" in str(refused.value)
    assert "Only a job of Scalewise starts ranks." in str(refused.value)


@pytest.mark.parametrize(
    ("counts", "tasks"),
    [("4", [4]), ("4(x2),3", [4, 4, 3]), ("1(x3)", [1, 1, 1]), ("2,1(x2),16", [2, 1, 1, 16])],
)
def test_the_tasks_of_every_node_are_read_from_the_notation_of_slurm(counts: str, tasks: list[int]) -> None:
    assert [tasks_on_node(counts, node) for node in range(len(tasks))] == tasks


def test_the_process_of_a_node_knows_which_node_it_is() -> None:
    assert node_rank({}) == 0
    assert node_rank({"SLURM_PROCID": "3"}) == 3


def at_place(world_size: int, local_world_size: int) -> Identity:
    return Identity(0, 0, world_size, local_world_size, "node-a", None, 0)


def test_ranks_that_stand_as_planned_pass() -> None:
    check_place(at_place(8, 4), Shape(2, 4))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ((8, 8), "planned were 8 ranks, 4 on each node (2x4), but 8 were started, 8 of them on node-a."),
        ((4, 4), "planned were 8 ranks, 4 on each node (2x4), but 4 were started, 4 of them on node-a."),
        ((8, 1), "planned were 8 ranks, 4 on each node (2x4), but 8 were started, 1 of them on node-a."),
    ],
)
def test_ranks_that_stand_elsewhere_are_not_measured_and_both_shapes_are_named(
    found: tuple[int, int], says: str
) -> None:
    with pytest.raises(RuntimeError) as refused:
        check_place(at_place(*found), Shape(2, 4))
    assert str(refused.value).startswith(says)
    assert "srun_extra" in str(refused.value)


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0-1"),
        ([0, 1, 2, 8], "0-2,8"),
        ([9, 4, 5, 0], "0,4-5,9"),
    ],
)
def test_cpus_are_written_as_the_kernel_writes_them(cpus: list[int], text: str) -> None:
    assert cpu_list(cpus) == text


def test_a_device_of_a_machine_without_gpus_is_a_cpu_process() -> None:
    assert claim_device("cpu", 3) == torch.device("cpu")


IN_SLURM = pytest.mark.parametrize("job", [None, "7"], ids=["one machine", "Slurm"])


@IN_SLURM
def test_advice_on_cpus_names_options_of_srun_only_where_srun_starts_ranks(job: str | None) -> None:
    with pytest.raises(RuntimeError, match="but cpus_per_device is 4096") as refused:
        take_cpus("gpu", Identity(0, 0, 1, 1, "node-a", job, 0), 4096)
    assert ("srun_extra" in str(refused.value)) == (job is not None)
    assert ("cpus_per_node" in str(refused.value)) == (job is None)


@IN_SLURM
def test_advice_on_a_single_visible_gpu_names_options_of_srun_only_where_srun_starts_ranks(
    job: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match=r"local rank 1 on .* sees one GPU only") as refused:
        claim_device("cuda", 1, in_slurm=job is not None)
    assert ("srun_extra" in str(refused.value)) == (job is not None)
    assert ("devices_per_node" in str(refused.value)) == (job is None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so nothing is missing")
def test_a_gpu_that_is_not_there_is_an_error_and_never_a_silent_cpu() -> None:
    with pytest.raises(RuntimeError, match="local rank 0 needs a GPU") as refused:
        claim_device("cuda", 0)
    message = str(refused.value)
    assert f"torch {torch.__version__} sees 0" in message
    assert "CUDA_VISIBLE_DEVICES" in message
    assert "`accelerator: cpu`" in message


def test_versions_are_those_of_the_distributions_with_an_imported_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for distribution, file in {"wheel.dist-info": "METADATA", "old.egg-info": "PKG-INFO"}.items():
        name = distribution.partition(".")[0]
        (tmp_path / distribution).mkdir()
        (tmp_path / distribution / file).write_text(f"Name: a-{name}\nVersion: 1.2\n\nName: described\n")
        (tmp_path / distribution / "top_level.txt").write_text(f"module_of_{name}\n")
        monkeypatch.setitem(sys.modules, f"module_of_{name}", ModuleType(name))
    monkeypatch.delitem(sys.modules, "module_of_old")
    found = versions(cuda=False)

    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    assert {"python", "numpy"} <= found.keys()
    assert {name: found.get(name) for name in ("a-wheel", "a-old", "described")} == {
        "a-wheel": "1.2",
        "a-old": None,
        "described": None,
    }
    monkeypatch.setitem(sys.modules, "module_of_old", ModuleType("old"))
    assert versions(cuda=False)["a-old"] == "1.2"


def test_a_cpu_process_names_no_nccl_that_it_does_not_use() -> None:
    assert "nccl" not in versions(cuda=False)


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_a_gpu_process_names_its_driver_and_nccl() -> None:
    assert str(driver_version()).split(".")[0].isdigit()
    assert versions(cuda=True)["nccl"].count(".") == 2


def test_hosts_that_have_all_alike_share_an_environment_and_others_have_their_own() -> None:
    mine = Environment(hosts=["node-a"], cpu_model="a CPU", operating_system="Linux", versions={"torch": "2"})
    other = mine.model_copy(update={"hosts": ["node-c"], "cpu_model": "another CPU"})
    same = mine.model_copy(update={"hosts": ["node-b"]})
    merged = merge_environments([mine, mine, other, other, same, same])
    assert [each.hosts for each in merged] == [["node-a", "node-b"], ["node-c"]]
    assert merged[1].cpu_model == "another CPU"


def test_outside_a_checkout_the_commit_is_unknown_and_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALEWISE_COMMIT", raising=False)
    assert commit() is None
    monkeypatch.setenv("SCALEWISE_COMMIT", "")
    assert commit() is None
    monkeypatch.setenv("SCALEWISE_COMMIT", "abc-dirty")
    assert commit() == "abc-dirty"


def test_times_say_that_they_are_utc() -> None:
    assert utc_now().endswith("+00:00")


SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"
OUTWARD = {name: it for name, it in interface_addresses().items() if not it.startswith("127.")}
needs_network = pytest.mark.skipif(not OUTWARD, reason="needs a network interface beside loopback")

MEET = """
import sys
from datetime import timedelta
from pathlib import Path
from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.distributed.process_group import open_store
rank = sys.argv[2]
store = open_store(RankFiles(Path(sys.argv[1])), rank == "0", "127.0.0.1", timedelta(seconds=60))
store.set(f"from {rank}", f"rank {rank} was here")
other = "1" if rank == "0" else "0"
print(store.port, store.get(f"from {other}").decode(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A node with a network of each kind; its name leads to loopback and its default route to eth0."""
    addresses = {"lo": "127.0.0.1", "ib0": "10.1.0.7", "eth0": "10.0.0.7"}
    monkeypatch.setattr(network_interface, "interface_addresses", lambda: addresses)
    monkeypatch.setattr(network_interface, "_address_of", lambda host: "127.0.1.1")
    monkeypatch.setattr(network_interface, "_default_route", lambda: "eth0")
    return addresses


def test_ranks_of_one_node_meet_on_loopback_whatever_the_site_names() -> None:
    for named in (None, "ib0", "no-such"):
        assert choose_interface(1, named) == Interface("lo", "127.0.0.1")


def test_the_interfaces_of_this_machine_are_found_with_their_addresses() -> None:
    addresses = interface_addresses()

    assert addresses["lo"] == "127.0.0.1"
    assert set(addresses) <= {name for _, name in socket.if_nameindex()}


@needs_network
def test_between_nodes_an_interface_is_chosen_that_others_can_reach() -> None:
    chosen = choose_interface(2, None)

    assert OUTWARD[chosen.name] == chosen.address
    for name, address in OUTWARD.items():
        assert choose_interface(2, name) == Interface(name, address)


@pytest.mark.parametrize(
    ("named", "address", "route", "chosen"),
    [
        pytest.param("ib0", "127.0.1.1", "eth0", "ib0", id="that of the site"),
        pytest.param(None, "10.1.0.7", "eth0", "ib0", id="that of the node's name"),
        pytest.param(None, "127.0.1.1", "eth0", "eth0", id="by the default route, as the name is loopback"),
        pytest.param(None, None, None, "ib0", id="the first, without a name and a route"),
    ],
)
def test_between_nodes_the_best_known_interface_is_used(
    named: str | None,
    address: str | None,
    route: str | None,
    chosen: str,
    interfaces: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_interface, "_address_of", lambda _host: address)
    monkeypatch.setattr(network_interface, "_default_route", lambda: route)
    assert choose_interface(2, named) == Interface(chosen, interfaces[chosen])


@pytest.mark.parametrize("named", ["hsn0", "lo"])
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(
    named: str, interfaces: dict[str, str]
) -> None:
    with pytest.raises(RuntimeError) as refused:
        choose_interface(2, named)

    assert str(refused.value) == (
        f"{socket.gethostname()} has no network interface {named!r} with an IPv4 address. It has "
        "ib0 (10.1.0.7), eth0 (10.0.0.7). Correct network_interface in the site file, or leave it out."
    )


def test_nodes_do_not_look_for_each_other_on_loopback(
    interfaces: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_interface, "interface_addresses", lambda: {"lo": "127.0.0.1"})

    with pytest.raises(RuntimeError, match="no network interface but loopback, and 2 nodes cannot meet"):
        choose_interface(2, None)


@pytest.fixture
def met(rank_files: RankFiles) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that know nothing of each other but the folder; the second of them comes first."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEET, str(rank_files.folder), rank],
            env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("1", "0")
    ]
    yield started[::-1]
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.fault(7)
@pytest.mark.slow
def test_two_processes_meet_through_the_folder_at_a_port_that_was_free(
    met: list[subprocess.Popen[str]], rank_files: RankFiles
) -> None:
    words = []
    for process in met:
        assert process.stdout is not None
        words.append(process.stdout.readline().split(maxsplit=1))

    assert [word for _, word in words] == ["rank 1 was here\n", "rank 0 was here\n"]
    (port,) = {int(port) for port, _ in words}
    assert rank_files.wait_for_endpoint(0) == Endpoint(host="127.0.0.1", port=port)


@pytest.mark.fault(7)
def test_any_number_of_runs_meet_on_one_machine_at_once(tmp_path: Path) -> None:
    attempts = [RankFiles(tmp_path / str(number)) for number in range(5)]
    for rank_files in attempts:
        rank_files.folder.mkdir()
    stores = [open_store(rank_files, True, "127.0.0.1", timedelta(seconds=30)) for rank_files in attempts]

    assert len({store.port for store in stores}) == 5
    for number, rank_files in enumerate(attempts):
        open_store(rank_files, False, "127.0.0.1", timedelta(seconds=30)).set("who", str(number))
    assert [store.get("who") for store in stores] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_rank_that_nobody_waits_for_ends_with_a_reason(rank_files: RankFiles) -> None:
    with pytest.raises(TimeoutError, match=r"timed out: no rank waited at a rendezvous within 0\.2 s"):
        open_store(rank_files, False, "127.0.0.1", timedelta(seconds=0.2))


def test_a_rank_that_nobody_waits_for_is_not_taken_for_the_cause(rank_files: RankFiles) -> None:
    rank_files.started(1, "node-a")
    try:
        rank_files.wait_for_endpoint(0)
    except TimeoutError as error:
        rank_files.failed(1, "node-a", error, out_of_memory=False)

    cause = rank_files.root_cause(2)
    assert cause is not None
    assert cause.is_secondary
    assert rank_files.never_started(2) == [0]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An entry script in a checkout with one commit."""
    folder = tmp_path / "checkout" / "workflow" / "scripts"
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text("print()\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "First")
    return script


def test_a_checkout_is_its_commit_whatever_its_tag_and_dirty_once_a_file_has_changed(script: Path) -> None:
    commit = git(script.parent, "rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert source_version(script.parent) == commit
    git(script.parent, "tag", "--annotate", "--message", "First", "v1.0")
    assert source_version(script.parent) == commit
    script.write_text("print('changed')\n")
    assert source_version(script.parent) == f"{commit}-dirty"


def test_a_folder_that_is_no_checkout_has_no_version(tmp_path: Path) -> None:
    assert source_version(tmp_path) == ""
