"""Send the hello job of a preflight as the executor plugin sends runs, and follow it until it has ended."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from scalewise.site.commands import Answer, ask
from scalewise.site.preflight import Finding, bad, ok

HELLO_MINUTES = 6
"""Time limit of the hello job once Slurm has judged the request with the study's longest time."""
LOOK_SECONDS = 3.0
HIDDEN_SECONDS = 60.0
"""A job that the executor plugin's query has not shown for so long is hidden from it."""
SILENT_SECONDS = 300.0
"""Longest time without an answer on a job, such as from a controller that restarts."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

NEVER_STARTS = re.compile(
    r"(QOS|Assoc|Partition|Account|Invalid|Max|JobHeld|JobHold)\w*|\w*(NodeLimit|TimeLimit)"
    r"|(Bad)?Constraints|Reservation(Deleted|Invalid)|DependencyNeverSatisfied|.*\bheld\b.*"
)
"""Reasons of a pending job that only an administrator or the user can change.

Source: Slurm's "Job Reason Codes". Limits of a group (``QOSGrp``, ``AssocGrp``) may be used up by others.
"""
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("COMPLETING", "REVOKED", "TIMEOUT"),
}
"""States of a job whose processes have ended, or are ended by Slurm."""


def run_job(
    options: Sequence[str], command: str, log: Path, name: str, query: Sequence[str]
) -> Generator[Finding, None, str]:
    """Send a job, and yield each change of it until it has ended; it is cancelled if it cannot start.

    Args:
        options: Options of sbatch, as a run's.
        command: A line of shell.
        log: Receives the output.
        name: The job's name, by which the executor plugin's query finds it.
        query: The executor plugin's query of the states of its jobs.

    Returns:
        The job's number and last state; empty after a bad finding.
    """
    form, found = ("--parsable", f"--job-name={name}", f"--output={log}"), None
    try:
        sent = ask("sbatch", *form, *options, f"--wrap={command}")
        # sites print further lines
        found = re.search(r"^(\d+)(;\S+)?$", sent.text, re.MULTILINE) if sent.ok else None
    finally:
        if found is None:  # an sbatch that was interrupted, or was too slow, may have sent it
            cancel(f"--name={name}")
    if found is None:
        yield bad(f"Slurm refuses the hello job: {sent.error or sent.text}", "Correct the site file.")
        return ""
    return (yield from follow(found[1], query))


def cancel(job: str) -> None:
    """Cancel a job; scancel ignores a second Ctrl-C and SIGTERM, too."""
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in ENDING_SIGNALS}
    ask("scancel", job)
    for each, handler in handlers.items():
        signal.signal(each, handler)


def follow(number: str, query: Sequence[str]) -> Generator[Finding, None, str]:
    """Yield each change of a job as ``run_job`` does.

    Args:
        number: Slurm's number of the job.
        query: The executor plugin's query of the states of its jobs.
    """
    problem: Finding | None = None
    state, shown, silent_at = "", "", time.monotonic() + HIDDEN_SECONDS
    try:
        yield ok(f"job {number} sent")
        while problem is None and state not in ENDED:
            time.sleep(LOOK_SECONDS)
            listed, now = ask(*query), time.monotonic()
            states = dict(re.findall(r"^\s*(\d+)\s*\|\s*(\w+)", listed.text, re.MULTILINE))
            if number in states:
                state, silent_at = states[number], now + SILENT_SECONDS
            elif state and listed.ok:
                state = "is no longer shown"  # ended, and forgotten by the controller: its report says how
                break
            elif now > silent_at:
                problem = _hidden(number, query[0], listed)
            reason, text = "", "is running"
            if state != "RUNNING" and state not in ENDED:  # PENDING, or a kind of it such as REQUEUE_HOLD
                reason = ask("squeue", "--noheader", f"--jobs={number}", "--format=%r").text
                text = f"waits in the queue ({reason})"
            if NEVER_STARTS.fullmatch(reason):
                problem = bad(
                    f"Slurm does not start a job of this size: job {number} waits with the reason {reason}, "
                    "and was cancelled",
                    "Use fewer devices or less time, another account, partition or QOS, or ask the site. "
                    "Your other jobs may use up a limit, and those of others one with Grp in its name.",
                )
            # a job waits without a reason before Slurm has compared it with its limits
            elif text != shown and (state == "RUNNING" or reason not in ("", "None")):
                yield ok(f"job {number} {text}")
                if not shown:  # from now on its real, short time: it starts sooner
                    ask("scontrol", "update", f"JobId={number}", f"TimeLimit={HELLO_MINUTES}")
                shown = text
    finally:
        if state not in ENDED:
            cancel(number)
    if problem is None:
        return f"job {number} {state}"
    yield problem
    return ""


def _hidden(number: str, command: str, listed: Answer) -> Finding:
    """Return a finding on a job that the executor plugin's query does not show."""
    why = f"`{listed.command}` prints no line of it" if listed.ok else listed.failure
    other = "set slurm-status-command to sacct in the profile" if command == "squeue" else "ask the site"
    return bad(
        f"Slurm does not show job {number}, which was sent: {why}",
        f"Snakemake would wait for it for ever. Put Slurm's own {command} first in PATH, or {other}.",
    )
