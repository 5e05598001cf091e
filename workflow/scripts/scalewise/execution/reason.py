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
    RankFiles,
    is_consequence,
    is_timeout,
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

MORE_TIME = "Raise runtime_minutes, or train fewer epochs or steps."


def root_cause(ranks: Iterable[Rank]) -> Rank | None:
    """Return the first rank that failed, and not as the consequence of another's end; else the first."""
    states = list(ranks)
    failed = [rank for rank in states if rank.error]
    primary = [rank for rank in failed if not is_consequence(rank.error)]
    if not primary and any(rank.state == "running" for rank in states):
        return None  # that rank was killed
    return min(primary or failed, key=lambda rank: rank.failed_at, default=None)


def failure_reason(group: RankGroup, ended: Ended) -> str:
    """Return why there is no result, with rank and host if they are known."""
    files, after = group.rank_files, in_minutes(ended.seconds)
    progress = files.read_progress()
    if ended.cause == "limit" and progress is not None:
        silent = ended.silent_seconds
        hangs = f". It may hang: its last progress was {silent:.0f} s ago" if silent > SILENT_SECONDS else ""
        return f"stopped after {after}, at {progress}{hangs}. {MORE_TIME}"
    if ended.cause in {"limit", "not in group"}:
        where = where_ranks_wait(files, group.world_size, ended.last_line)
        if ended.cause == "not in group":
            return f"not all ranks were in the process group after {after}. {where}"
        return f"stopped after {after}, before its first step. {where}"
    if ended.cause == "no step":
        return _no_step(group, ended)
    if ended.outcome == "interrupted":
        source = ended.stop_source or "a signal"
        if group.resumes:
            return f"ended by {source}. The same command resumes from what it has saved."
        return f"ended by {source}. The same command starts from the beginning."
    return _error(group, ended)


def _error(group: RankGroup, ended: Ended) -> str:
    """Return why ranks ended by themselves, from what they have left."""
    ranks = group.rank_files.ranks(group.world_size)
    cause = root_cause(ranks)
    if cause is not None and not is_consequence(cause.error):
        return cause.failure
    if not group.rank_files.folder.exists():
        return f"{group.rank_files.folder} was removed while the run was at work. Run the same command again."
    if address := wrong_address(group.rank_files):
        return address
    if not ranks:
        name = "the process of a rank" if group.launch.name == "popen" else "the launcher"
        return f"no rank started, and {name} exited with code {ended.code}. Its output is below."
    if missing := sorted(set(range(group.world_size)) - {rank.rank for rank in ranks}):
        return f"{len(ranks)} of {group.world_size} ranks started; missing: {', '.join(map(str, missing))}."
    # srun and torchrun end the peers of a rank that failed: those have left a note
    silent = [rank for rank in ranks if rank.state == "running"]
    failed = [rank for rank in ranks if rank.error]
    if failed and is_timeout(min(failed, key=lambda rank: rank.failed_at).error):
        # Slurm continues a stopped rank before it ends it: that one has no timeout
        others = [rank for rank in ranks if not is_timeout(rank.error)]
        if silent := silent or (others if len(others) == 1 < len(ranks) else []):
            names = ", ".join(map(str, silent))
            return f"{names} did not answer the other ranks in time: it hangs, or its network is lost."
    if silent:
        names = ", ".join(map(str, silent))
        return (
            f"{names} ended without an error message. Slurm or the kernel's out-of-memory killer sent "
            "SIGKILL, or the rank hung."
        )
    return cause.failure if cause else f"the ranks ended with code {ended.code} and left no result."


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
    if address := wrong_address(rank_files):
        return address
    last = f"The last line of its output: {last_line}" if last_line else "It printed nothing."
    return " ".join(filter(None, [_where(rank_files, world_size), last]))


def _where(rank_files: RankFiles, world_size: int) -> str:
    started = {rank.rank for rank in rank_files.ranks(world_size)}
    if missing := [rank for rank in range(world_size) if rank not in started]:
        return f"{ranks_text(missing)} of {world_size} never started."
    if world_size == 1 or not (rank_files.folder / PROBE).exists():
        return ""
    waits = read_waits(rank_files.folder / PROBE)
    if not waits:
        return "No rank reached torch.distributed.init_process_group."
    absent = [rank for rank in range(world_size) if rank not in waits]
    in_group = [rank for rank, wait in waits.items() if wait.where == GROUP]
    at_barrier = [rank for rank, wait in waits.items() if wait.where == BARRIER]
    others = [rank for rank in waits if rank not in at_barrier]
    if absent:
        come, place, away = list(waits), GROUP, absent
    elif at_barrier and others and not in_group:
        come, place, away = at_barrier, BARRIER, others
    elif in_group:
        address = waits[in_group[0]].address
        by = "" if address == str(rank_files.endpoint()) else ", which the program sets"
        at = f" at {address}{by}" if address else ""
        return f"{ranks_text(in_group)} waited in torch.distributed.init_process_group{at}."
    else:
        return f"All {world_size} ranks are in the process group."
    text = f"{ranks_text(come)} reached torch.distributed.{place}"
    return f"{text} and waited for {ranks_text(away).lower()}, which did not."


def wrong_address(rank_files: RankFiles) -> str:
    """Return which ranks look for rank 0 where it is not, as the program sets the address; else empty."""
    waits, endpoint = read_waits(rank_files.folder / PROBE), rank_files.endpoint()
    waiting, first = [wait for wait in waits.values() if wait.where == GROUP], waits.get(0)
    addresses = {wait.address for wait in waiting}
    wrong = [
        wait
        for wait in waiting
        if wait.address
        and wait.address != str(endpoint)
        # one address for all is right if it leads to rank 0's host from the others
        and (len(addresses) > 1 or (first and wait.host != first.host and LOOPBACK.match(wait.address)))
    ]
    if endpoint is None or not wrong:
        return ""
    wrong = [wait for wait in wrong if wait.rank] or wrong
    look = [wait for wait in wrong if wait.address == wrong[0].address]
    hosts = listed(list(dict.fromkeys(wait.host for wait in look))[:MOST_NAMED])
    looks = "looks" if len(look) == 1 else "look"
    place = f"; it waits at {first.address} on {first.host}" if first else ""
    return (
        f"{ranks_text(wait.rank for wait in look)} on {hosts} {looks} for rank 0 at {look[0].address}, "
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


def explain_os_error(folder: Path, error: OSError) -> str:
    """Return a message of what failed, with the path or else the folder, the reason and the fix."""
    if error.errno == errno.ENOENT and not folder.exists():
        return f"failed: {folder} was removed while it ran. Give the same command to run it again."
    path = Path(str(error.filename or folder))
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    room = f" ({free_bytes(path):,} bytes free)" if is_full else ""
    fix = FIXES.get(error.errno or 0, "Check the file system there.")
    return (
        f"failed: {path}: {error.strerror or error}{room}. {fix} Then give the same command again. "
        "Other runs and complete checkpoints are not affected."
    )


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write at a path; 0 if unknown."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
