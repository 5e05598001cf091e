"""Send the hello job of a preflight as the executor plugin sends runs, and follow it until it has ended."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from scalewise.site.commands import Answer, ask
from scalewise.site.preflight import Finding, bad, ok

HELLO_MINUTES = 6
"""Time of the hello job once Slurm has judged the request with the study's longest time."""
LOOK_SECONDS = 3.0
HIDDEN_SECONDS = 60.0
"""A job that the executor plugin's query has not shown for so long is hidden from it."""
SILENT_SECONDS = 300.0
"""Longest time without an answer on a job, such as from a controller that restarts."""

NEVER_STARTS = re.compile(
    r"(QOS|Assoc|Partition|Account|Invalid|Max|JobHeld|JobHold)\w*|\w*(NodeLimit|TimeLimit)"
    r"|BadConstraints|ReservationDeleted|.*\bheld\b.*"
)
"""Reasons of a pending job that only an administrator or the user can change.

Source: Slurm's "Job Reason Codes". Limits of a group (``QOSGrp``, ``AssocGrp``) may be used up by others.
"""
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
"""States of a job that has ended."""


def send(options: Sequence[str], command: str, log: Path, name: str) -> Answer:
    """Send the hello job; the answer's text is its number.

    Args:
        options: Options of sbatch, as a run's.
        command: A line of shell.
        log: Receives the output.
        name: The job's name, by which the executor plugin's query finds it.
    """
    answer = ask(
        "sbatch", "--parsable", f"--job-name={name}", f"--output={log}", *options, f"--wrap={command}"
    )
    # sites print further lines
    number = re.search(r"^(\d+)(;\S+)?$", answer.text, re.MULTILINE)
    if answer.ok and number:
        return replace(answer, text=number[1])
    return replace(answer, ok=False, text="", error=answer.error or answer.text)


def follow(number: str, query: Sequence[str]) -> Generator[Finding, None, str]:
    """Yield each change of a job until it has ended; it is cancelled if it cannot start or is not shown.

    Args:
        number: Slurm's number of the job.
        query: The executor plugin's query of the states of its jobs.

    Returns:
        The last state of the job; empty after a bad finding.
    """
    state = ""
    try:
        yield ok(f"job {number} sent")
        if hidden := _hidden(number, query):
            yield hidden
            return ""
        for latest, finding in _changes(number):
            state = latest
            if finding is not None:
                yield finding
                if finding.state == "bad":
                    return ""
        return state
    finally:
        if state not in ENDED:
            ask("scancel", number)


def _changes(number: str) -> Iterator[tuple[str, Finding | None]]:
    """Yield each state of a job until it has ended, with a finding if there is something to say."""
    state, shown = "", ("", "")
    silent_at, ends_at = time.monotonic() + SILENT_SECONDS, math.inf
    while state not in ENDED:
        time.sleep(LOOK_SECONDS)
        answer = ask("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T|%r|%S")
        latest, reason, start = (*answer.text.split("|"), "", "", "")[:3]
        if latest:
            state, silent_at = latest, time.monotonic() + SILENT_SECONDS
        elif state and "Invalid job id" in answer.error:
            state = "COMPLETED"  # ended, and forgotten by the controller: its report says how
        elif time.monotonic() > silent_at:
            yield state, bad(f"the state of job {number} is unknown: {answer.failure}", "Ask the site.")
        finding = None
        # without a reason for waiting, Slurm has not compared the job with its limits yet
        if latest and (state, reason) not in (shown, ("PENDING", ""), ("PENDING", "None")):
            if state == "PENDING":
                finding = _waits(number, reason, start)
            elif state == "RUNNING":
                ends_at = time.monotonic() + 60 * HELLO_MINUTES + 30
                finding = ok(f"job {number} is running")
            if shown == ("", "") and finding is not None and finding.state == "ok":
                # from now on its real, short time: it starts sooner
                ask("scontrol", "update", f"JobId={number}", f"TimeLimit={HELLO_MINUTES}")
            shown = state, reason
        if time.monotonic() > ends_at:
            fix = "Look for what is slow in its log: imports, the container, the network."
            finding = bad(f"job {number} has not ended after {HELLO_MINUTES} minutes", fix)
        yield state, finding


def _waits(number: str, reason: str, start: str) -> Finding:
    """Return a finding on a pending job, which is bad if it cannot start."""
    if not NEVER_STARTS.fullmatch(reason):
        when = f", Slurm expects its start at {start}" if start not in ("", "N/A") else ""
        return ok(f"job {number} waits in the queue ({reason}){when}")
    used_up = " If other jobs use this limit up, wait for their end." if "Grp" in reason else ""
    return bad(
        f"Slurm does not start a job of this size: job {number} waits with the reason {reason}, and was "
        "cancelled",
        "Use fewer devices or less time, another account, partition or QOS, or ask the site to lift the "
        f"limit.{used_up}",
    )


def _hidden(number: str, query: Sequence[str]) -> Finding | None:
    """Wait until the executor plugin's query shows a job; return a finding if it does not."""
    deadline = time.monotonic() + HIDDEN_SECONDS
    while time.monotonic() <= deadline:
        listed = ask(*query)
        if number in (line.partition("|")[0].strip() for line in listed.text.splitlines()):
            return None
        time.sleep(LOOK_SECONDS)
    why = f"`{listed.command}` prints no line of it" if listed.ok else listed.failure
    other = "set slurm-status-command to sacct in the profile" if query[0] == "squeue" else "ask the site"
    return bad(
        f"Slurm does not show job {number}, which was sent: {why}",
        f"Snakemake would wait for it for ever. Put Slurm's own {query[0]} first in PATH, or {other}.",
    )
