"""How ranks find each other: which interface, which port, and for how long they look."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from scalewise.execution.messages import Endpoint
from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.distributed import network_interface
from scalewise.ranks.distributed.network_interface import Interface, choose_interface, interface_addresses
from scalewise.ranks.distributed.process_group import open_store

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


def test_the_interface_that_the_site_names_is_used(interfaces: dict[str, str]) -> None:
    assert choose_interface(2, "ib0") == Interface("ib0", "10.1.0.7")


def test_the_interface_of_the_name_of_the_node_comes_first(
    interfaces: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_interface, "_address_of", lambda host: "10.1.0.7")

    assert choose_interface(2, None) == Interface("ib0", "10.1.0.7")


def test_where_the_name_of_the_node_leads_to_loopback_the_default_route_is_taken(
    interfaces: dict[str, str],
) -> None:
    assert choose_interface(2, None) == Interface("eth0", "10.0.0.7")


def test_without_a_name_and_a_route_the_first_is_taken(
    interfaces: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_interface, "_address_of", lambda host: None)
    monkeypatch.setattr(network_interface, "_default_route", lambda: None)

    assert choose_interface(2, None) == Interface("ib0", "10.1.0.7")


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
