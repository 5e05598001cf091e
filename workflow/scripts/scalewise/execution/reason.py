"""State why ranks left no result, for the user: which rank, on which host, and what to do."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scalewise.execution.rank_files import (
    BARRIER,
    GROUP,
    PROBE,
    Rank,
    RankError,
    RankFiles,
    read_waits,
    steps_of_ranks,
)
from scalewise.execution.watchdog import Ended, RankGroup
from scalewise.plan.formatting import listed

MOST_NAMED = 8
"""Most ranks, and most hosts, that a reason names."""

LOOPBACK = re.compile(r"localhost:|127\.|\[?::1\]?:|0\.0\.0\.0:")
"""Addresses that lead each host to itself."""

SILENT_SECONDS = 90.0
"""Time without progress after which a run that reached its limit may hang."""


def root_cause(ranks: Iterable[Rank]) -> RankError | None:
    """Return the first exception that is not the consequence of another rank's end; else the first."""
    states = list(ranks)
    errors = [rank.error for rank in states if rank.error is not None]
    primary = [error for error in errors if not error.is_secondary]
    if not primary and any(rank.state == "running" for rank in states):
        return None  # that rank was killed
    return min(primary or errors, key=lambda error: error.time, default=None)


def failure_reason(group: RankGroup, ended: Ended) -> str:
    """Return why there is no result, with rank and host if they are known."""
    progress = group.rank_files.read_progress()
    if ended.cause == "limit" and progress is None:
        why = where_ranks_wait(group.rank_files, group.world_size, ended.last_line)
        return f"stopped after {in_minutes(ended.seconds)}, before its first step. {why}"
    if ended.cause == "limit":
        silent = ended.silent_seconds
        hangs = f". It may hang: its last progress was {silent:.0f} s ago" if silent > SILENT_SECONDS else ""
        return f"stopped after {in_minutes(ended.seconds)}, at {progress}{hangs}. {group.fix}"
    if ended.cause == "not started":
        return (
            f"no rank started within {ended.seconds:.0f} s. The launcher's output is below. "
            "If nodes need longer to load PyTorch, raise timeout_seconds."
        )
    if ended.cause == "not in group":
        why = where_ranks_wait(group.rank_files, group.world_size, ended.last_line)
        return f"not all ranks were in the process group after {in_minutes(ended.seconds)}. {why}"
    if ended.cause == "no step":
        return _no_step(group, ended)
    if ended.outcome == "interrupted":
        again = " It starts from the beginning next time."
        if group.resumes:
            again = " The same command resumes from what it has saved."
        return f"ended by {ended.stop_source or 'a signal'}.{again}"
    return _error(group, ended)


def _error(group: RankGroup, ended: Ended) -> str:
    """Return why ranks ended by themselves, from what they have left."""
    ranks = group.rank_files.ranks(group.world_size)
    cause = root_cause(ranks)
    if cause is not None and not cause.is_secondary:
        return str(cause)
    if not group.rank_files.folder.exists():
        return f"{group.rank_files.folder} was removed while the run was at work. Run the same command again."
    if address := wrong_address(group.rank_files):
        return address
    started = {rank.rank for rank in ranks}
    if not started:
        name = "the process of a rank" if group.launch.name == "popen" else "the launcher"
        return f"no rank started, and {name} exited with code {ended.code}. Its output is below."
    if missing := sorted(set(range(group.world_size)) - started):
        return f"{len(started)} of {group.world_size} ranks started; missing: {', '.join(map(str, missing))}."
    # srun and torchrun end the peers of a rank that failed: those have left a note
    silent = [rank for rank in ranks if rank.state == "running"]
    noticed = min((rank.error for rank in ranks if rank.error), key=lambda error: error.time, default=None)
    if not silent and noticed is not None and noticed.is_timeout:
        silent = _only_one_that_did_not_wait(ranks)
    names = ", ".join(map(str, silent))
    if silent and noticed is not None and noticed.is_timeout:
        return f"{names} did not answer the other ranks in time: it hangs, or its network connection is lost."
    if silent:
        return (
            f"{names} ended without an error message. Slurm or the kernel's out-of-memory killer sent "
            "SIGKILL, or the rank hung."
        )
    return str(cause) if cause is not None else f"the ranks ended with code {ended.code} and left no result."


def _only_one_that_did_not_wait(ranks: list[Rank]) -> list[Rank]:
    """Return the only rank without a timeout: Slurm continues a stopped rank before it ends it."""
    others = [rank for rank in ranks if rank.error is None or not rank.error.is_timeout]
    return others if len(others) == 1 < len(ranks) else []


def _no_step(group: RankGroup, ended: Ended) -> str:
    """Return which ranks are behind after a long time without a step, and their hosts."""
    steps = steps_of_ranks(group.rank_files.folder / PROBE)
    behind = [rank for rank, done in steps.items() if done == min(steps.values())]
    who = ""
    if 0 < len(behind) < group.world_size:
        on = [rank.host for rank in group.rank_files.ranks(group.world_size) if rank.rank in behind]
        hosts = ", ".join(dict.fromkeys(on))
        who = f" {ranks_text(behind)} on {hosts} made the fewest steps, {min(steps.values())}."
    last = f" The last line of its output: {ended.last_line}" if ended.last_line else ""
    return (
        f"no step for {in_minutes(ended.seconds)}, at {group.rank_files.read_progress()}.{who}{last} If an "
        "evaluation or a checkpoint takes that long, raise timeout_seconds."
    )


def would_end_alike(group: RankGroup, ended: Ended) -> bool:
    """Whether another try would end the same way.

    A run that made steps until its limit would, and one whose program sets a wrong address; one that hung, or
    waited for something else, may not.
    """
    has_progress = group.rank_files.read_progress() is not None
    if ended.cause in {"signal", "no step"}:
        return False
    if not has_progress and wrong_address(group.rank_files):
        return True
    if ended.cause == "limit":
        return has_progress and ended.silent_seconds <= SILENT_SECONDS
    cause = root_cause(group.rank_files.ranks(group.world_size))
    return cause is not None and cause.permanent


def in_minutes(seconds: float) -> str:
    """Write seconds as minutes in plain digits, with a fraction if they are few: ``1 minute``."""
    minutes = seconds / 60
    number = f"{minutes:.0f}" if minutes >= 100 else f"{minutes:.3g}"
    return f"{number} minute{'' if number == '1' else 's'}"


# ---- where ranks wait


def where_ranks_wait(rank_files: RankFiles, world_size: int, last_line: str) -> str:
    """Return where ranks wait that made no step, as sentences.

    Args:
        rank_files: The files of the ranks.
        world_size: Number of ranks.
        last_line: The last line that they printed; empty if they printed none.
    """
    last = f"The last line of its output: {last_line}" if last_line else "It printed nothing."
    started = {rank.rank for rank in rank_files.ranks(world_size)}
    missing = [rank for rank in range(world_size) if rank not in started]
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
    hosts_text = listed(list(dict.fromkeys(each.host for each in look))[:MOST_NAMED])
    looks = "looks" if len(look) == 1 else "look"
    place = "" if first is None else f"; it is on {first.host}" if away else f"; it waits at {first.address}"
    return (
        f"{ranks_text(each.rank for each in look)} on {hosts_text} {looks} for rank 0 at {look[0].address}, "
        f"which the program sets{place}. Remove that line: Scalewise sets MASTER_ADDR and MASTER_PORT."
    )


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``Rank 2``, ``Ranks 0, 1 and 2``, or ``Ranks 0, 1, 2, 3 and 60 more``."""
    names = list(map(str, ranks))
    if len(names) > MOST_NAMED:
        names = [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
    return f"Rank{'s' if len(names) > 1 else ''} {listed(names)}"


# ---- errors of the file system

FIXES = {
    errno.ENOSPC: "Free space there; a quota may also be spent although space is free.",
    errno.EDQUOT: "Your quota there is spent: delete files, or ask for more.",
    errno.EFBIG: "A file may not be so large here: raise `ulimit -f`.",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make it writable, or use another folder."),
}


def explain_os_error(label: str, folder: Path, error: OSError) -> str:
    """Return a message of what failed, with the path or else the folder, the reason and the fix."""
    if error.errno == errno.ENOENT and not folder.exists():
        return f"{label} failed: {folder} was removed while it ran. Give the same command to run it again."
    path = Path(str(error.filename or folder))
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    room = f" ({free_bytes(path):,} bytes free)" if is_full else ""
    fix = FIXES.get(error.errno or 0, "Check the file system there.")
    return (
        f"{label} failed: {path}: {error.strerror or error}{room}. {fix} Then give the same command again. "
        "Other runs and complete checkpoints are not affected."
    )


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write at a path; 0 if unknown."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
