"""Choose the network interface for the traffic between ranks."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

PORTS = range(20_000, 32_000)
"""Ports outside the kernel's range for outgoing connections, which could take one before the program does."""


@dataclass(frozen=True)
class Interface:
    """A network interface with its IPv4 address."""

    name: str
    address: str


def choose_interface(nodes: int, named: str | None) -> Interface:
    """Return the interface that the ranks of a run use on this host.

    Ranks of one node use loopback. Between nodes it is the interface that the site names; else the one with
    the address of this host's name. On many machines that name is missing or means loopback: then it is the
    interface of the default route, else the first.

    Args:
        nodes: Number of nodes of the run.
        named: The site's ``network_interface``, if any; of several the first is taken.

    Raises:
        RuntimeError: There is none; the message lists the existing ones.
    """
    if nodes == 1:
        return Interface(
            next(name for _, name in socket.if_nameindex() if name.startswith("lo")), "127.0.0.1"
        )
    addresses = interface_addresses()
    outward = {name: address for name, address in addresses.items() if not address.startswith("127.")}
    host = socket.gethostname()
    if named is not None:
        named = named.partition(",")[0]
        if named not in outward:
            listed = ", ".join(f"{name} ({address})" for name, address in outward.items()) or "none"
            raise RuntimeError(
                f"{host} has no network interface {named!r} with an IPv4 address. It has {listed}. "
                "Correct network_interface in the site file, or leave it out."
            )
        return Interface(named, outward[named])
    if not outward:
        raise RuntimeError(
            f"{host} has no network interface but loopback, and {nodes} nodes cannot meet on that."
        )
    own = _address_of(host)
    candidates = [name for name, address in outward.items() if address == own]
    candidates += [name for name in (_default_route(),) if name in outward]
    name = next(iter([*candidates, *outward]))
    return Interface(name, outward[name])


def interface_addresses() -> dict[str, str]:
    """Return the IPv4 address of every interface that has one, in the system's order."""
    known = psutil.net_if_addrs()
    addresses: dict[str, str] = {}
    for _, name in socket.if_nameindex():
        for each in known.get(name, ()):
            if each.family == socket.AF_INET:
                addresses.setdefault(name, each.address)
    return addresses


def _address_of(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _default_route() -> str | None:
    try:
        lines = Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    return next((line.split()[0] for line in lines if line.split()[1:2] == ["00000000"]), None)


def free_port(address: str) -> int:
    """Return a free port of ``PORTS``.

    Raises:
        OSError: There is none.
    """
    for port in random.SystemRandom().sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop} on {address}")
