"""Waits that end: after a limit each fails with a message that names what has not happened."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

LIMIT_SECONDS = 300
"""For what takes seconds on a quiet machine: other processes may use this one, too."""

Found = TypeVar("Found")


def wait_until(
    reached: Callable[[], Found | None],
    missing: str | Callable[[], str],
    limit_seconds: float = LIMIT_SECONDS,
    *,
    ended: Callable[[], str | None] = lambda: None,
    longest_pause_seconds: float = 0.3,
) -> Found:
    """Look again and again, less and less often, until something has happened.

    Args:
        reached: Returns something true when it has happened.
        missing: What has not happened, as a clause for the message.
        ended: Returns the last output of a process if it has ended: then nothing more can happen.
        longest_pause_seconds: Between two looks. Many looks start a process; some must not come late.

    Returns:
        what `reached` has found.

    Raises:
        TimeoutError: It has not happened within the limit.
        AssertionError: The process has ended before it happened.
    """
    end = time.monotonic() + limit_seconds
    pause = min(0.05, longest_pause_seconds)
    while True:
        # what happens between these looks and the last is seen
        late, output = time.monotonic() > end, ended()
        if found := reached():
            return found
        if late or output is not None:
            clause = missing if isinstance(missing, str) else missing()
            if output is not None:
                raise AssertionError(f"{clause}, and the process has ended:\n{output}")
            raise TimeoutError(f"After {limit_seconds:g} s {clause}")
        time.sleep(pause)
        pause = min(1.2 * pause, longest_pause_seconds)


def ended_output(process: subprocess.Popen[Any]) -> str | None:
    """Return None while a process runs, then its exit code and what is left in its pipes."""
    if process.poll() is None:
        return None
    outputs: tuple[Any, ...] = ()
    # a child that it has left may keep the pipes open
    with suppress(subprocess.TimeoutExpired, ValueError):
        outputs = process.communicate(timeout=30)
    texts = [text.decode() if isinstance(text, bytes) else text for text in outputs if text]
    return "\n".join([f"exit code {process.returncode}", *texts])
