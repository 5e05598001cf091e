"""State why ranks made no step until their limit: which rank waits for which other, and at what address."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.execution.rank_files import RankFiles
from scalewise.execution.run_log import log_tail
from scalewise.plan.formatting import listed

PROBE = "probe"
"""The folder of the probe's files, below that of the attempt of a user's program."""

GROUP, BARRIER = "init_process_group", "barrier"
"""Functions in which each rank waits for all others, as measure/rank_waits.py names them."""

_OF_SCALEWISE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\S* ")
"""The time before a line that Scalewise adds to the output."""

MOST_RANKS = 8
"""Most ranks, and most hosts, that a reason names."""

LOOPBACK = re.compile(r"localhost:|127\.|\[?::1\]?:|0\.0\.0\.0:")
"""Addresses that lead each host to itself."""

LONGEST_LINE = 200
"""Most characters of the last line of output in a reason."""


class RankWait(BaseModel):
    """``{rank}.{pid}.wait``: the place where a rank waits for the others; the probe writes it.

    Args:
        address: Host and port at which it looks for rank 0; empty if unknown.
        where: The function that it is in; empty after it has returned.
    """

    model_config = ConfigDict(frozen=True)

    rank: int
    host: str
    address: str
    where: str


def read_waits(folder: Path) -> dict[int, RankWait]:
    """Return the last note of each rank that has reached ``init_process_group``, by rank."""
    found: dict[int, RankWait] = {}
    for path in folder.glob("*.wait"):
        with suppress(OSError, ValidationError):
            wait = RankWait.model_validate_json(path.read_text(encoding="utf-8"))
            found[wait.rank] = wait
    return dict(sorted(found.items()))


def why_not_begun(rank_files: RankFiles, world_size: int, last_line: str) -> str:
    """Return why ranks made no step, as sentences.

    Args:
        rank_files: The files of the ranks.
        world_size: Number of ranks.
        last_line: The last line that they printed; empty if they printed none.
    """
    last = f"The last line of its output: {last_line}" if last_line else "It printed nothing."
    missing = rank_files.never_started(world_size)
    if missing:
        return f"{ranks_text(missing)} of {world_size} never started. {last}"
    folder = rank_files.folder / PROBE
    if world_size == 1 or not folder.exists():
        return last
    waits = read_waits(folder)
    if not waits:
        return f"No rank reached torch.distributed.init_process_group. {last}"
    if address := wrong_address(rank_files):
        return address
    in_group = [each for each in waits.values() if each.where == GROUP]
    if absent := [rank for rank in range(world_size) if rank not in waits]:
        come = f"{ranks_text(waits)} reached torch.distributed.init_process_group"
        return f"{come} and waited for {ranks_text(absent).lower()}, which did not. {last}"
    if in_group:
        address, endpoint = in_group[0].address, rank_files.endpoint()
        by = "" if endpoint is None or address == str(endpoint) else ", which the program sets"
        come = f"{ranks_text(each.rank for each in in_group)} waited in torch.distributed.init_process_group"
        return f"{come}{f' at {address}{by}' if address else ''}. {last}"
    at_barrier = [each.rank for each in waits.values() if each.where == BARRIER]
    others = [rank for rank in waits if rank not in at_barrier]
    if at_barrier and others:
        come = f"{ranks_text(at_barrier)} reached torch.distributed.barrier"
        return f"{come} and waited for {ranks_text(others).lower()}, which did not. {last}"
    return f"All {world_size} ranks are in the process group. {last}"


def wrong_address(rank_files: RankFiles) -> str:
    """Return which ranks look for rank 0 where it is not, as the program sets the address; else empty."""
    waits, endpoint = read_waits(rank_files.folder / PROBE), rank_files.endpoint()
    waiting, first = [each for each in waits.values() if each.where == GROUP], waits.get(0)
    if endpoint is None:
        return ""
    wrong = [each for each in waiting if each.address and each.address != str(endpoint)]
    others = [each for each in wrong if each.rank] or wrong
    away = [each for each in others if first is not None and each.host != first.host]
    # one address for all is right if it leads to rank 0's host from the others
    if len({each.address for each in waiting}) <= 1:
        others = away = [each for each in away if LOOPBACK.match(each.address)]
    if not others:
        return ""
    look = [each for each in away or others if each.address == (away or others)[0].address]
    hosts_text = listed(list(dict.fromkeys(each.host for each in look))[:MOST_RANKS])
    looks = "looks" if len(look) == 1 else "look"
    place = "" if first is None else f"; it is on {first.host}" if away else f"; it waits at {first.address}"
    return (
        f"{ranks_text(each.rank for each in look)} on {hosts_text} {looks} for rank 0 at {look[0].address}, "
        f"which the program sets{place}. Remove that line: Scalewise sets MASTER_ADDR and MASTER_PORT."
    )


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``Rank 2``, ``Ranks 0, 1 and 2``, or ``Ranks 0, 1, 2, 3 and 60 more``."""
    names = list(map(str, ranks))
    if len(names) > MOST_RANKS:
        names = [*names[:MOST_RANKS], f"{len(names) - MOST_RANKS} more"]
    return f"Rank{'s' if len(names) > 1 else ''} {listed(names)}"


def last_line(log: Path) -> str:
    """Return the last line that the ranks printed; empty without one."""
    lines = [line.strip() for line in log_tail(log) if not _OF_SCALEWISE.match(line)]
    return next((line[:LONGEST_LINE] for line in reversed(lines) if line), "")
