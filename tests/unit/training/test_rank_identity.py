"""A rank finds its place, the others and its devices, and knows its versions, or says what is missing."""

import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalewise.config.shape import Shape
from scalewise.ranks.distributed import cpus as cpus_of_ranks
from scalewise.ranks.distributed import network_interface
from scalewise.ranks.distributed.cpus import cpus_near
from scalewise.ranks.distributed.identity import Identity, check_place
from scalewise.ranks.distributed.network_interface import Interface, choose_interface
from scalewise.ranks.monitoring.environments import source_version
from scalewise.ranks.program.environment import check_gpus


@pytest.mark.parametrize(("ranks", "of_node"), [(8, 8), (4, 4), (8, 1)])
def test_ranks_that_stand_elsewhere_than_planned_are_refused_with_both_shapes(
    ranks: int, of_node: int
) -> None:
    place = Identity(0, 0, 8, 4, "node-a", None)
    check_place(place, Shape(2, 4))
    with pytest.raises(RuntimeError) as refused:
        check_place(replace(place, world_size=ranks, local_world_size=of_node), Shape(2, 4))
    planned = "planned were 8 ranks, 4 on each node (2x4)"
    assert f"{planned}, but {ranks} were started, {of_node} of them on node-a." in str(refused.value)
    assert "slurm.extra" in str(refused.value)


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A node with a network of each kind; its name leads to loopback and its default route to eth0."""
    addresses = {"lo": "127.0.0.1", "ib0": "10.1.0.7", "eth0": "10.0.0.7"}
    monkeypatch.setattr(network_interface, "interface_addresses", lambda: addresses)
    monkeypatch.setattr(network_interface, "_address_of", lambda host: "127.0.1.1")
    monkeypatch.setattr(network_interface, "_default_route", lambda: "eth0")
    return addresses


def test_ranks_of_one_node_meet_on_loopback_though_the_site_names_an_interface() -> None:
    for named in (None, "ib0", "no-such"):
        assert choose_interface(1, named) == Interface("lo", "127.0.0.1")


@pytest.mark.parametrize(
    ("named", "address", "route", "chosen"),
    [
        pytest.param("ib0", "127.0.1.1", "eth0", "ib0", id="that of the site"),
        pytest.param("ib0,ib1", "127.0.1.1", "eth0", "ib0", id="the first of several of the site"),
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


@pytest.mark.parametrize(
    ("gpu", "names", "cpus"),
    [
        pytest.param("1", ["H100", "H100"], {4, 5, 8}, id="a number"),
        pytest.param("GPU-of-1", ["H100", "A100"], {4, 5, 8}, id="a UUID"),
        pytest.param("1", ["H100", "A100"], set(), id="GPUs that CUDA may sort in another way"),
        pytest.param("7", ["H100", "H100"], set(), id="no such GPU"),
    ],
)
def test_the_cpus_next_to_a_gpu_are_those_that_the_kernel_names(
    gpu: str, names: list[str], cpus: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid.removeprefix("GPU-of-")),
        nvmlDeviceGetName=lambda index: names[index],
        nvmlDeviceGetPciInfo=lambda index: SimpleNamespace(busId=f"0000000{index}:AB:00.0".encode()),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(cpus_of_ranks, "PCI", tmp_path)
    for address, text in (("0000:ab:00.0", "0-3"), ("0001:ab:00.0", "4-5,8\n")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "local_cpulist").write_text(text)
    assert cpus_near(gpu) == cpus


@pytest.mark.parametrize(
    ("visible", "job", "says"),
    [
        pytest.param("0", "7", "Slurm binds GPUs to tasks here", id="bound by Slurm"),
        pytest.param("0", None, "name more GPUs", id="one named in the shell"),
        pytest.param("MIG-a,MIG-b", "7", "NCCL does not span them", id="MIG"),
        pytest.param("0,1", "7", "", id="enough"),
    ],
)
def test_a_rank_that_does_not_see_its_gpu_is_refused_before_its_program_starts(
    visible: str, job: str | None, says: str
) -> None:
    second = Identity(1, 1, 2, 2, "node-a", job)
    with pytest.raises(RuntimeError, match=says) if says else nullcontext():
        check_gpus(visible, second, 1)


COMMIT = """
git init --quiet && git add . && git -c user.name=Test -c user.email=test@example.org \\
    -c commit.gpgsign=false commit --quiet --message First && git rev-parse HEAD
"""


def test_a_checkout_is_its_commit_and_dirty_once_a_file_has_changed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    assert source_version(tmp_path) == ""
    commit = subprocess.check_output(["sh", "-c", COMMIT], cwd=tmp_path, text=True).strip()
    assert source_version(tmp_path) == commit
    (tmp_path / "train.py").write_text("print('changed')\n")
    assert source_version(tmp_path) == f"{commit}-dirty"
