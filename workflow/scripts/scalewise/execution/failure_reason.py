"""State why ranks left no result, for the user."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.execution.messages import Rank, RankError
from scalewise.execution.rank_waits import why_not_begun, wrong_address
from scalewise.execution.supervisor import ExitStatus, RankGroup
from scalewise.execution.watchdog import STOP_SECONDS, Kept

SILENT_SECONDS = 30.0
"""Time without progress after which a run that reached its limit may hang."""


def failure_reason(group: RankGroup, ended: ExitStatus, cause: RankError | None) -> str:
    """Return why there is no result, with rank and host if they are known."""
    if ended.outcome == "timed-out" and group.rank_files.read_progress() is None:
        why = why_not_begun(group.rank_files, group.world_size, ended.last_line)
        return f"stopped after {in_minutes(group.limit_seconds)}, before its first step. {why}"
    if ended.outcome == "timed-out":
        kept = _what_is_kept(group, ended)
        return f"stopped after {in_minutes(group.limit_seconds)}{_reached(group)}. {group.fix}{kept}"
    if ended.outcome == "interrupted":
        by = ended.stopped.stop_source if ended.stopped is not None else ended.stop_source
        return f"ended by {by}.{_what_is_kept(group, ended)}"
    if ended.unstarted_seconds is not None:
        return (
            f"no rank started within {ended.unstarted_seconds:.0f} s. The launcher's output is below. "
            "If nodes need longer to load PyTorch, raise timeout_seconds."
        )
    if cause is not None and not cause.is_secondary:
        return f"rank {cause.rank} on {cause.host}: {cause.first_line}"
    if not group.rank_files.folder.exists():
        return (
            f"{group.rank_files.folder} was removed while the run was at work. Give the same command to run "
            "it again."
        )
    if address := wrong_address(group.rank_files):
        return address
    missing = group.rank_files.never_started(group.world_size)
    if missing and len(missing) < group.world_size:
        return (
            f"{group.world_size - len(missing)} of {group.world_size} ranks started; "
            f"missing: {', '.join(map(str, missing))}."
        )
    if missing:
        return f"no rank started, and {_started(group)} exited with code {ended.code}. Its output is below."
    if silent := group.rank_files.died_without_note(group.world_size):
        return _silence(group, ended, silent)
    if cause is not None:
        if unresponsive := group.rank_files.unresponsive(group.world_size):
            return _unresponsive_text(unresponsive)
        return f"rank {cause.rank} on {cause.host}: {cause.first_line}"
    return f"{_started(group)} exited with code {ended.code}."


def _silence(group: RankGroup, ended: ExitStatus, silent: list[Rank]) -> str:
    """Return why ranks that started left no note."""
    aborted = [rank for rank in silent if group.rank_files.aborted(rank.rank)]
    if len(aborted) == len(silent):
        unresponsive = group.rank_files.unresponsive(group.world_size)
        if others := [rank for rank in unresponsive if rank not in aborted]:
            return _unresponsive_text(others)
        return (
            f"{_names(aborted)} ended by SIGABRT: NCCL gave up waiting for another rank, or a library "
            "failed. The log has its output."
        )
    silent = [rank for rank in silent if rank not in aborted]
    if by_scalewise := _ended_by_scalewise(group, ended, silent):
        return by_scalewise
    silent = [rank for rank in silent if rank.rank in ended.dead_before] or silent
    return (
        f"{_names(silent)} ended without an error message. Slurm or the kernel's out-of-memory killer "
        "sent SIGKILL, or the rank hung."
    )


def _ended_by_scalewise(group: RankGroup, ended: ExitStatus, silent: Sequence[Rank]) -> str:
    """Return why Scalewise ended ranks that left no note; empty if something else may have ended one."""
    errors = [rank.error for rank in group.rank_files.ranks(group.world_size) if rank.error is not None]
    first = min(errors, key=lambda error: error.time, default=None)
    noticed = "" if first is None else f"rank {first.rank} on {first.host}: {first.first_line.rstrip('.')}"
    if whose := [rank for rank in silent if rank.ended_because]:
        then = f" Then {noticed}." if noticed else ""
        return f"Scalewise ended {_names(whose)}: {whose[0].ended_because}.{then}"
    if not silent or any(rank.rank not in ended.ended_alive for rank in silent):
        return ""
    if first is None:
        return f"{_names(silent)} showed no sign of life, and Scalewise ended it. It hung, or was suspended."
    if first.is_timeout:
        return f"{_unresponsive_text(silent)} Scalewise ended it."
    return f"{noticed}. Scalewise then ended {_names(silent)}."


def _names(ranks: Sequence[Rank]) -> str:
    return ", ".join(f"rank {rank.rank} on {rank.host} (pid {rank.pid})" for rank in ranks)


def _unresponsive_text(ranks: Sequence[Rank]) -> str:
    why = "it hangs, or its network connection is lost"
    return f"{_names(ranks)} did not answer the other ranks in time: {why}."


def _started(rank_group: RankGroup) -> str:
    return "the process of a rank" if rank_group.launch.name == "popen" else "the launcher"


def in_minutes(seconds: float) -> str:
    """Write seconds as minutes in plain digits, with a fraction if they are few: ``1 minute``."""
    minutes = seconds / 60
    number = f"{minutes:.0f}" if minutes >= 100 else f"{minutes:.3g}"
    return f"{number} minute{'' if number == '1' else 's'}"


def would_end_alike(group: RankGroup, ended: ExitStatus, cause: RankError | None) -> bool:
    """Whether another try would end the same way.

    A run that made steps until its limit would, and one whose program sets a wrong address; one that hung, or
    waited for something else, may not.
    """
    if ended.outcome == "interrupted":
        return False
    if group.rank_files.read_progress() is None and wrong_address(group.rank_files):
        return True
    if ended.outcome == "failed":
        return cause is not None and cause.permanent
    return group.rank_files.read_progress() is not None and _silent_seconds(group) is None


def _silent_seconds(group: RankGroup) -> float | None:
    """Return the time since the last progress if it is so long that the ranks may hang; else None."""
    silent = group.rank_files.seconds_since_progress()
    # ranks that can save have had time for that since
    most = SILENT_SECONDS if group.kept is Kept.NOTHING else SILENT_SECONDS + STOP_SECONDS
    return silent if silent > most else None


def _reached(group: RankGroup) -> str:
    """Return the progress at the end, and that the ranks may hang if the last steps are long ago."""
    progress = group.rank_files.read_progress()
    if progress is None:
        return ""
    silent = _silent_seconds(group)
    hangs = "" if silent is None else f". It may hang: its last progress was {silent:.0f} s ago"
    return f", at {progress}{hangs}"


def _what_is_kept(group: RankGroup, ended: ExitStatus) -> str:
    if group.kept is Kept.NOTHING:
        return " The program starts again from the beginning next time."
    if ended.stopped is None:
        return ""
    return " The same command resumes it from what it has saved."
