"""Guards of the probe's functions in a program, which must notice neither their errors nor themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._compile import _disable_dynamo

from .probe_spec import FAULT

Function = Callable[..., Any]

MOST_EVENTS = 50


class Notes:
    """Events that a user should know, each once."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def begin_process(self) -> None:
        """Forget the events of the process that this one was forked from, except for the probe's errors."""
        self.events = [event for event in self.events if event.startswith(FAULT)]

    def note(self, event: str) -> None:
        """Keep an event."""
        if event not in self.events and len(self.events) < MOST_EVENTS:
            self.events.append(event)

    def fault(self, where: str, error: Exception) -> None:
        """Keep an error of the probe itself."""
        self.note(f"{FAULT}{where}: {error!r}")


def guarded(notes: Notes, where: str, function: Function) -> Function:
    """Return a function whose errors are noted and not raised; SystemExit is no error and is raised."""

    def call(*args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
            notes.fault(where, error)

    return call


def untraced(notes: Notes, where: str, function: Function) -> Function:
    """Return a guarded function that torch.compile neither traces nor compiles.

    A traced one would be a part of the graph, and each change of its numbers would compile that again. If
    nothing is compiled it costs two short calls: it serves what is done in each step.
    """
    disabled = _disable_dynamo(lambda *args: function(*args))  # noqa: PLW0108  # a method takes no attributes
    # of functions that are called from a compiled one, dynamo compiles those too that it could not trace
    eval_frame = getattr(torch._C._dynamo, "eval_frame", None)
    compiler_of_frames = getattr(eval_frame, "get_eval_frame_callback", None)
    is_compiling = torch.compiler.is_dynamo_compiling
    if compiler_of_frames is None:  # another version of torch
        return guarded(notes, where, disabled)

    def call(*args: Any) -> None:
        try:
            if is_compiling() or compiler_of_frames() is not None:
                disabled(*args)
            else:
                function(*args)
        except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
            notes.fault(where, error)

    return call
