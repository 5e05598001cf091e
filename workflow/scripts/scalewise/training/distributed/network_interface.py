"""The network interface that ranks meet on."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Interface:
    """A network interface with its IPv4 address."""

    name: str
    address: str


def choose_interface(nodes: int, named: str | None) -> Interface:
    """The interface that the ranks of a run use on this host.

    Ranks of one node meet on loopback. Between nodes it is the one that the site names; else the one
    that has the address of this host's name; where that name is missing or leads to loopback, as it
    does on many machines, the one of the default route, else the first.

    Args:
        nodes: Number of nodes of the run.
        named: The site's ``network_interface``, if any.

    Raises:
        RuntimeError: There is none; the message names those that there are.
    """
    if nodes == 1:
        return Interface(
            next(name for _, name in socket.if_nameindex() if name.startswith("lo")), "127.0.0.1"
        )
    addresses = interface_addresses()
    outward = {name: address for name, address in addresses.items() if not address.startswith("127.")}
    host = socket.gethostname()
    if named is not None:
        if named not in outward:
            raise RuntimeError(
                f"{host} has no network interface {named!r} with an IPv4 address. It has {_listed(outward)}. "
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
    """The IPv4 address of every interface that has one, in the system's order."""
    known = psutil.net_if_addrs()
    found: dict[str, str] = {}
    for _, name in socket.if_nameindex():
        for each in known.get(name, ()):
            if each.family == socket.AF_INET:
                found.setdefault(name, each.address)
    return found


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


def _listed(addresses: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({address})" for name, address in addresses.items()) or "none"
