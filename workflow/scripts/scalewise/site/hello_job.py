"""Send the hello job of a preflight as the executor plugin sends runs, and follow it until it has ended."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.site.commands import Answer, ask
from scalewise.site.preflight import Finding, bad, ok

HELLO_MINUTES = 6
"""Time of the hello job once Slurm has judged the request with the study's longest time."""
LOOK_SECONDS = 3.0
HIDDEN_SECONDS = 60.0
"""A job that a query has not shown for so long is hidden from it."""

NEVER_STARTS = re.compile(
    r"(QOS|Assoc|Partition|Account|Invalid|Max|JobHeld)\w*|\w*(NodeLimit|TimeLimit)|BadConstraints|.*\bheld\b.*"
)
"""Reasons of a pending job that only an administrator or the user can change.

Source: Slurm's "Job Reason Codes". Limits of a group (``QOSGrp``, ``AssocGrp``) may be used up by others.
"""
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
)
"""States of a job that has ended."""


@dataclass
class HelloJob:
    """A job that was sent.

    Args:
        number: Slurm's number of it.
        query: The executor plugin's query of the states of its jobs.
        now: Gives monotonic seconds.
        sleep: Waits.
        state: Its latest state by Slurm; empty before it was seen.
    """

    number: str
    query: Sequence[str]
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    state: str = ""
    _reason: str = ""

    def follow(self) -> Iterator[Finding]:
        """Yield each change until the job has ended; it is cancelled if it cannot start or is not shown."""
        shown, ends_at = False, math.inf
        hidden_at = self.now() + HIDDEN_SECONDS
        try:
            yield ok(f"job {self.number} sent")
            while self.state not in ENDED:
                if not shown:
                    listed = ask(*self.query)
                    shown = any(_is_of(line, self.number) for line in listed.text.splitlines())
                    if not shown and self.now() > hidden_at:
                        yield self._hidden(listed)
                        return
                words = ("--noheader", "--states=all", f"--jobs={self.number}", "--format=%T|%r|%S")
                answer = ask("squeue", *words)
                state, reason, start, *_ = [*answer.text.split("|"), "", "", ""]
                if answer.ok and state:
                    finding = self._change(state, reason, start)
                    if finding is not None:
                        yield finding
                        if finding.state == "bad":
                            return
                elif self.state and "Invalid job id" in answer.error:
                    self.state = "COMPLETED"  # ended, and forgotten by the controller: its report says how
                    return
                if self.state == "RUNNING":
                    ends_at = min(ends_at, self.now() + 60 * HELLO_MINUTES + 30)
                if self.now() > ends_at:
                    fix = "Look for what is slow in its log: imports, the container, the network."
                    yield bad(f"job {self.number} has not ended after {HELLO_MINUTES} minutes", fix)
                    return
                if not self.state and self.now() > hidden_at:
                    yield bad(f"the state of job {self.number} is unknown: {answer.failure}", "Ask the site.")
                    return
                self.sleep(LOOK_SECONDS)
        finally:
            if self.state not in ENDED:
                ask("scancel", self.number)

    def _change(self, state: str, reason: str, start: str) -> Finding | None:
        """Return a finding if the state or the reason of the job has changed."""
        if (state, reason) == (self.state, self._reason):
            return None
        judged = reason not in ("", "None") or state != "PENDING"
        if judged and self.state in ("", "PENDING") and self._reason in ("", "None"):
            # from now on its real, short time: it starts sooner
            ask("scontrol", "update", f"JobId={self.number}", f"TimeLimit={HELLO_MINUTES}")
        self.state, self._reason = state, reason
        if state == "PENDING" and NEVER_STARTS.fullmatch(reason):
            used_up = " If other jobs use this limit up, wait for their end." if "Grp" in reason else ""
            return bad(
                f"Slurm does not start a job of this size: job {self.number} waits with the reason {reason}, "
                "and was cancelled",
                "Use fewer devices or less time, another account, partition or QOS, or ask the site to lift "
                f"the limit.{used_up}",
            )
        if state == "PENDING" and judged:
            when = f", Slurm expects its start at {start}" if start not in ("", "N/A") else ""
            return ok(f"job {self.number} waits in the queue ({reason}){when}")
        return ok(f"job {self.number} is running") if state == "RUNNING" else None

    def _hidden(self, listed: Answer) -> Finding:
        """Return the finding for a job that Slurm does not show to the executor plugin."""
        why = f"`{listed.command}` prints no line of it" if listed.ok else listed.failure
        other = (
            "set slurm-status-command to sacct in the profile"
            if self.query[0] == "squeue"
            else "ask the site"
        )
        return bad(
            f"Slurm does not show job {self.number}, which was sent: {why}",
            f"Snakemake would wait for it for ever. Put Slurm's own {self.query[0]} first in PATH, or "
            f"{other}.",
        )


def _is_of(line: str, number: str) -> bool:
    return line.partition("|")[0].strip() == number


def send(
    options: Sequence[str],
    command: str,
    log: Path,
    query: Sequence[str],
    name: str,
) -> HelloJob | Finding:
    """Send the hello job, or return Slurm's refusal.

    Args:
        options: Options of sbatch, as a run's.
        command: A line of shell.
        log: Receives the output.
        query: As for ``HelloJob``.
        name: The job's name, by which the query finds it.
    """
    answer = ask(
        "sbatch", "--parsable", f"--job-name={name}", f"--output={log}", *options, f"--wrap={command}"
    )
    # sites print further lines
    found = re.search(r"^(\d+)(;\S+)?$", answer.text, re.MULTILINE)
    if not answer.ok or found is None:
        reason = answer.error if not answer.ok else answer.text
        return bad(f"Slurm refuses the hello job: {reason}", "Correct the site file.")
    return HelloJob(found[1], query)
