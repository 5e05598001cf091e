"""What tests ask of the machine's processors."""

from __future__ import annotations

import os

import pytest

TOO_FEW = len(os.sched_getaffinity(0)) < 2
REASON = "several processes compute at once: needs 2 CPU cores"

needs_two_cores = pytest.mark.skipif(TOO_FEW, reason=REASON)


def skip_without_two_cores() -> None:
    """For a fixture, which takes no mark."""
    if TOO_FEW:
        pytest.skip(REASON)
