"""Start and end of a Python process that imports large libraries, without work that serves nothing."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def imports_uncollected() -> Iterator[None]:
    """Import in here: the garbage collector neither looks at what comes meanwhile nor ever at it again.

    The collector goes through all objects as they grow in number, and modules stay to the end. For torch
    that is a fifth of the CPU time of its import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # a process that does not end quickly: extension modules would complain of what was not collected
        atexit.register(gc.unfreeze)


def quick_exit(code: int) -> NoReturn:
    """End this process as ``multiprocessing`` ends its children, without taking the modules apart one by one.

    What was registered to be done at the end is done, and what was printed is written. For a process with
    torch in it the rest takes a quarter of the CPU time of its import.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
