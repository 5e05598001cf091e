"""State why ranks left no result, for the user: which rank, on which host, and what to do."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scalewise.execution.rank_files import Rank, RankFiles, is_consequence, steps_by_rank
from scalewise.execution.run_folder import OUTPUT, log_tail, printable
from scalewise.execution.watchdog import Ended
from scalewise.plan.formatting import duration_text, listed
from scalewise.records import Failure, later

REASON_CHARACTERS = 4000
"""Most characters of a reason, which begins with what matters."""

FULL_BYTES = 1 << 20
"""Free bytes below which a disk counts as full: the last files of the ranks may be missing."""

MOST_NAMED = 8
"""Most ranks, and most hosts, that a reason names."""

SILENT_SECONDS = 90.0
"""Time without progress after which a run that reached its limit may hang."""

MORE_TIME = "Raise runtime_minutes, or train fewer epochs or steps."


def failure_of(files: RankFiles, ended: Ended, limit_seconds: float) -> Failure:
    """Return how a run ended that has no result.

    Args:
        files: Those of its ranks, with the setup of this start.
        ended: The end of the ranks.
        limit_seconds: The limit of all starts.
    """
    setup = files.setup
    cause = root_cause(files.ranks())
    reason, permanent = _why(files, ended, cause, limit_seconds)
    if (free := free_bytes(setup.folder)) < FULL_BYTES:
        reason += f" {setup.folder} has {free:,} free bytes left: make room there."
    # whole: the log may hold those of other ranks in its place
    traceback = printable(cause.traceback.rstrip()).splitlines() if cause else []
    tail = log_tail(setup.folder / OUTPUT)
    return Failure(
        definition=setup.definition,
        inputs=setup.inputs,
        outcome=ended.outcome,
        reason=printable(reason[:REASON_CHARACTERS]),
        permanent=permanent,
        ended_at=later(setup.started_at, ended.seconds),
        limit_seconds=limit_seconds,
        seconds=setup.failed_seconds + ended.seconds,
        output=tail if set(traceback[-1:]) <= set(tail) else traceback,
    )


def root_cause(ranks: Iterable[Rank]) -> Rank | None:
    """Return the first rank that failed, and not as the consequence of another's end; else the first."""
    states = list(ranks)
    failed = [rank for rank in states if rank.error]
    primary = [rank for rank in failed if not is_consequence(rank.error)]
    if not primary and any(rank.state == "running" for rank in states):
        return None  # that rank was killed
    return min(primary or failed, key=lambda rank: rank.changed_at, default=None)


def _why(files: RankFiles, ended: Ended, cause: Rank | None, limit_seconds: float) -> tuple[str, bool]:
    """Return why there is no result, and whether another try would end the same way."""
    setup = files.setup
    if ended.outcome == "interrupted":
        begins = "resumes from what it has saved" if setup.resumes else "starts from the beginning"
        return f"ended by {ended.stop_source or 'a signal'}. The same command {begins}.", False
    if not files.folder.exists():
        return f"{files.folder} was removed while ranks were at work. Keep it until the run has ended.", False
    if ended.cause == "limit" and setup.limit_seconds <= 0:
        return f"all of its {duration_text(limit_seconds)} are used. {MORE_TIME}", True
    if ended.cause == "limit":
        made_steps = files.steps() > 0 and ended.silent_seconds <= SILENT_SECONDS
        return f"stopped after {duration_text(setup.limit_seconds)}, {_last_place(files, ended)}", made_steps
    if ended.cause == "not in group":
        return f"not all ranks were in the process group in time, {_last_place(files, ended)}", False
    if ended.cause == "no step":
        fix = "If a start, an evaluation or a checkpoint takes that long, raise timeout_seconds."
        return f"no step for {duration_text(ended.silent_seconds)}, {_last_place(files, ended)} {fix}", False
    return _error(files, ended, cause), cause is not None and cause.permanent


def _error(files: RankFiles, ended: Ended, cause: Rank | None) -> str:
    """Return why ranks ended by themselves, from what they have left."""
    ranks, world_size = files.ranks(), files.setup.world_size
    if cause is not None and not is_consequence(cause.error):
        return cause.failure
    if addresses_of_program(files):
        return where_ranks_wait(files)
    if not ranks:
        return f"no rank started, and the launcher exited with code {ended.code}. Its output is below."
    if missing := sorted(set(range(world_size)) - {rank.rank for rank in ranks}):
        return f"{len(ranks)} of {world_size} ranks started; missing: {', '.join(map(str, missing))}."
    # srun and torchrun end the peers of a rank that failed: those have left a note
    if silent := ", ".join(str(rank) for rank in ranks if rank.state == "running"):
        return (
            f"{silent} ended without an error message. Slurm or the kernel's out-of-memory killer sent "
            "SIGKILL, or the rank hung and the others did not wait any longer."
        )
    # launchers send it once a rank has failed; before, it was a user, or a service that frees memory
    for rank in ranks:
        if rank.state == "terminated" and (cause is None or rank.changed_at < cause.changed_at):
            return f"{rank} was ended by SIGTERM and left no result."
    return cause.failure if cause else f"the ranks ended with code {ended.code} and left no result."


def _last_place(files: RankFiles, ended: Ended) -> str:
    """Return how far a run came that reached its limit, or made no step for long, and where it may hang."""
    progress = files.progress()
    last = f"The last line of its output: {ended.last_line}" if ended.last_line else "It printed nothing."
    if not progress:
        return " ".join(filter(None, ["before its first step.", where_ranks_wait(files), last]))
    if ended.silent_seconds <= SILENT_SECONDS:
        return f"at {progress}. {MORE_TIME}"
    steps = steps_by_rank(files.probe)
    behind = [rank for rank, done in steps.items() if done == min(steps.values())]
    slowest = ""
    if 0 < len(behind) < files.setup.world_size:
        slowest = f" {name_ranks(behind, files.ranks())} made the fewest steps, {min(steps.values())}."
    hang = f"It may hang: its last step was {ended.silent_seconds:.0f} s ago."
    return f"at {progress}. {hang}{slowest} {last}"


def addresses_of_program(files: RankFiles) -> list[str]:
    """Return the addresses at which ranks wait for rank 0 because their program says so."""
    addresses = {wait["address"] for wait in files.waits().values() if wait["address"]}
    return sorted(addresses - {files.endpoint()})


def where_ranks_wait(files: RankFiles) -> str:
    """Return where ranks wait that made no step, those in one place together; empty of a single rank."""
    if files.setup.world_size == 1:
        return ""
    states, waits = files.ranks(), files.waits()
    started = {rank.rank for rank in states}
    places: dict[str, list[int]] = {}
    for rank in range(files.setup.world_size):
        if rank not in started:
            place = "never started"
        elif (wait := waits.get(rank)) is None:
            place = "did not reach torch.distributed.init_process_group"
        elif not wait["where"]:
            place = "passed torch.distributed.init_process_group"
        else:
            at = f" at {wait['address']}" if wait["address"] else ""
            place = f"waited in torch.distributed.{wait['where']}{at}"
        places.setdefault(place, []).append(rank)
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


# ---- errors of the file system

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def explain_os_error(folder: Path, error: OSError) -> str:
    """Return a message of what failed, with the path or else the folder, the reason and the fix."""
    path = Path(str(error.filename or folder))
    fix = ". Check the file system there."
    if error.errno in FULL:
        fix = f" ({free_bytes(path):,} bytes free). Free space there; a quota or `ulimit -f` may be less."
    elif error.errno in FORBIDDEN:
        fix = ". Make it writable, or use another folder."
    return f"{path}: {error.strerror or error}{fix} Then give the same command again."


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write at a path; 0 if unknown."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
