"""How often a test repeats what it does at random moments: a few times on every run, many for the table."""

import os
from typing import TypeVar

Amount = TypeVar("Amount")


def times(quick: Amount, thorough: Amount) -> Amount:
    """Returns how often to repeat, or for which cases: `quick`, or `thorough` where SCALEWISE_THOROUGH is 1.

    Args:
        quick: Repetitions in `make test`, which is run on every change.
        thorough: Repetitions in `make reliability`, whose figures are written to docs/reliability.md.
    """
    return thorough if os.environ.get("SCALEWISE_THOROUGH") == "1" else quick
