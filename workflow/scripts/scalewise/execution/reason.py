"""State why ranks left no result, for the user: which rank, on which host, and what to do."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scalewise.execution.rank_files import (
    GROUP,
    PROBE,
    Rank,
    RankFiles,
    RankSetup,
    is_consequence,
    read_waits,
    steps_by_rank,
)
from scalewise.execution.watchdog import Ended
from scalewise.plan.formatting import listed

MOST_NAMED = 8
"""Most ranks, and most hosts, that a reason names."""

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
    return min(primary or failed, key=lambda rank: rank.changed_at, default=None)


def would_end_alike(files: RankFiles, setup: RankSetup, ended: Ended) -> bool:
    """Whether another try would: one that made steps until its limit, or a rank that has found a mistake."""
    if ended.cause == "limit":
        return files.read_progress() is not None and ended.silent_seconds <= SILENT_SECONDS
    cause = root_cause(files.ranks(setup.world_size))
    return ended.cause in {"error", None} and cause is not None and cause.permanent


def failure_reason(files: RankFiles, setup: RankSetup, ended: Ended) -> str:
    """Return why there is no result, with rank and host if they are known."""
    if ended.outcome == "interrupted":
        begins = "resumes from what it has saved" if setup.resumes else "starts from the beginning"
        return f"ended by {ended.stop_source or 'a signal'}. The same command {begins}."
    if ended.cause == "limit":
        return f"stopped after {in_minutes(setup.limit_seconds)}, {_last_place(files, setup, ended)}"
    if ended.cause == "not in group":
        return f"not all ranks were in the process group in time, {_last_place(files, setup, ended)}"
    if ended.cause == "no step":
        fix = "If a start, an evaluation or a checkpoint takes that long, raise timeout_seconds."
        return f"no step for {in_minutes(ended.silent_seconds)}, {_last_place(files, setup, ended)} {fix}"
    return _error(files, setup, ended)


def _error(files: RankFiles, setup: RankSetup, ended: Ended) -> str:
    """Return why ranks ended by themselves, from what they have left."""
    world_size = setup.world_size
    ranks = files.ranks(world_size)
    cause = root_cause(ranks)
    if cause is not None and not is_consequence(cause.error):
        return cause.failure
    if addresses_of_program(files):
        return where_ranks_wait(files, world_size)
    if not ranks:
        name = "the process of a rank" if setup.definition.launcher == "popen" else "the launcher"
        return f"no rank started, and {name} exited with code {ended.code}. Its output is below."
    if missing := sorted(set(range(world_size)) - {rank.rank for rank in ranks}):
        return f"{len(ranks)} of {world_size} ranks started; missing: {', '.join(map(str, missing))}."
    # srun and torchrun end the peers of a rank that failed: those have left a note
    if silent := ", ".join(str(rank) for rank in ranks if rank.state == "running"):
        return (
            f"{silent} ended without an error message. Slurm or the kernel's out-of-memory killer sent "
            "SIGKILL, or the rank hung and the others did not wait any longer."
        )
    return cause.failure if cause else f"the ranks ended with code {ended.code} and left no result."


def _last_place(files: RankFiles, setup: RankSetup, ended: Ended) -> str:
    """Return how far a run came that reached its limit, or made no step for long, and where it may hang."""
    progress, world_size = files.read_progress(), setup.world_size
    last = f"The last line of its output: {ended.last_line}" if ended.last_line else "It printed nothing."
    if progress is None:
        return " ".join(filter(None, ["before its first step.", where_ranks_wait(files, world_size), last]))
    if ended.silent_seconds <= SILENT_SECONDS:
        return f"at {progress.text}. {MORE_TIME}"
    steps = steps_by_rank(files.folder / PROBE)
    behind = [rank for rank, done in steps.items() if done == min(steps.values())]
    slowest = ""
    if 0 < len(behind) < world_size:
        named = name_ranks(behind, files.ranks(world_size))
        slowest = f" {named} made the fewest steps, {min(steps.values())}."
    hang = f"It may hang: its last step was {ended.silent_seconds:.0f} s ago."
    return f"at {progress.text}. {hang}{slowest} {last}"


def addresses_of_program(files: RankFiles) -> list[str]:
    """Return the addresses at which ranks wait for rank 0 because their program says so."""
    waits = read_waits(files.folder / PROBE).values()
    return sorted({wait["address"] for wait in waits if wait["where"] == GROUP} - {"", files.endpoint()})


def where_ranks_wait(files: RankFiles, world_size: int) -> str:
    """Return where ranks wait that made no step, those in one place together; empty of a single rank."""
    states, waits = files.ranks(world_size), read_waits(files.folder / PROBE)
    started = {rank.rank for rank in states}
    places: dict[str, list[int]] = {}
    for rank in range(world_size):
        wait = waits.get(rank, {"where": None})
        place = f"waited in torch.distributed.{wait['where']}"
        if rank not in started:
            place = "never started"
        elif wait["where"] is None:
            place = f"did not reach torch.distributed.{GROUP}"
        elif not wait["where"]:
            place = f"passed torch.distributed.{GROUP}"
        elif wait["where"] == GROUP and wait["address"]:
            place += f" at {wait['address']}"
        places.setdefault(place, []).append(rank)
    if world_size == 1:
        return ""
    sentences = [f"{name_ranks(ranks, states)} {place}." for place, ranks in places.items()]
    if addresses := addresses_of_program(files):
        sentences.append(f"The program sets {listed(addresses)}.")
        sentences.append("Remove that line: Scalewise sets MASTER_ADDR and MASTER_PORT.")
    return " ".join(sentences)


def name_ranks(numbers: Iterable[int], states: Iterable[Rank]) -> str:
    """Return ``Rank 2 on node1``, or ``Ranks 0, 1, 2 and 60 more on node1 and node2``."""
    names = list(map(str, numbers))
    hosts = list(dict.fromkeys(rank.host for rank in states if str(rank.rank) in names))[:MOST_NAMED]
    many = "s" if len(names) > 1 else ""
    if len(names) > MOST_NAMED:
        names = [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
    return f"Rank{many} {listed(names)}{f' on {listed(hosts)}' if hosts else ''}"


def in_minutes(seconds: float) -> str:
    """Write seconds as minutes in plain digits, with a fraction if they are few: ``1 minute``."""
    minutes = seconds / 60
    number = f"{minutes:.0f}" if minutes >= 100 else f"{minutes:.3g}"
    return f"{number} minute{'' if number == '1' else 's'}"


# ---- errors of the file system

FIXES = {
    errno.ENOSPC: "Free space there; a quota may also be spent although space is free.",
    errno.EDQUOT: "Your quota there is spent: delete files, or ask for more.",
    errno.EFBIG: "A file may not be so large here: raise `ulimit -f`.",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make it writable, or use another folder."),
}


def explain_os_error(folder: Path, error: OSError) -> str:
    """Return a message of what failed, with the path or else the folder, the reason and the fix."""
    path = Path(str(error.filename or folder))
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    room = f" ({free_bytes(path):,} bytes free)" if is_full else ""
    fix = FIXES.get(error.errno or 0, "Check the file system there.")
    return f"failed: {path}: {error.strerror or error}{room}. {fix} Then give the same command again."


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write at a path; 0 if unknown."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
