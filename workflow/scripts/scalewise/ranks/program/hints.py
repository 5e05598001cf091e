"""Fixes for errors that the programs of others raise in a batch job, known by the words of the error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Place = Literal["anywhere", "CPU processes", "ranks on CPU processes"]


@dataclass(frozen=True)
class Hint:
    """The fix for one kind of error.

    Args:
        error: A regular expression, searched in the error's line.
        fix: Sentences for the user: the reason, then an instruction.
        source: A regular expression, searched in the traceback's lines of source.
        place: Devices for which the fix holds. Ranks have RANK set, unlike with ``starts: itself``.
    """

    error: str
    fix: str
    source: str = ""
    place: Place = "anywhere"


_NO_GPU = (
    r"Found no NVIDIA driver|No CUDA GPUs are available|Torch not compiled with CUDA|"
    r"insufficient CUDA devices|[Ii]nvalid device id|invalid device ordinal|Invalid CUDA|"
    r"requires at least one CUDA device|no GPUs found|have NCCL|CUDA (?:is )?not available|"
    r"torch\.cuda\.is_available\(\)|CUDA driver version|"
    r"(?:AssertionError|RuntimeError|ValueError).*\b(?:needs?|requires?)\b.*\b(?:CUDA|GPUs?)\b"
)

HINTS = (
    Hint(
        _NO_GPU,
        "It may take its GPU path because RANK is set: for one device, try `starts: itself`, without RANK.",
        place="ranks on CPU processes",
    ),
    Hint(
        _NO_GPU,
        "The devices of this site are CPU processes: give the program its option to train on CPUs.",
        place="CPU processes",
    ),
    Hint(
        r"not enough values to unpack|Inappropriate ioctl|list index out of range|invalid literal for int",
        "It asks the terminal for its width by `stty`, and a batch job has no terminal. Put an executable "
        "file `stty` with the lines `#!/bin/sh` and `echo 24 80` into a folder, and write "
        "`environment: {PATH: /that/folder:/usr/bin:/bin}`.",
        source=r"\bstty\b",
    ),
    Hint(
        r"Inappropriate ioctl",
        "A batch job has no terminal: in the program, write `shutil.get_terminal_size` for "
        "`os.get_terminal_size`. It then takes 80 columns.",
        source=r"get_terminal_size",
    ),
    Hint(
        r"urlopen error|Max retries exceeded|LocalEntryNotFoundError|[Cc]ouldn't connect to 'https?:|"
        r"Error downloading|Failed to resolve|"
        r"^(?!.*(?:Dist\w+Error|gai error)).*"
        r"(?:Name or service not known|Temporary failure in name resolution)",
        "Compute nodes may have no network: download it before, with `prepare`.",
    ),
    Hint(
        r"ModuleNotFoundError: No module named",
        "If another interpreter has this module, name that by `python:`.",
    ),
)


def hint(error: str, traceback: str, *, on_cpus: bool, as_ranks: bool) -> str:
    """Return the fix for an error, as sentences; empty if none is known.

    Args:
        error: The line that names the exception.
        traceback: The program's last lines.
        on_cpus: Whether the devices are CPU processes.
        as_ranks: Whether the program was started once for each device, with RANK set.
    """
    places: set[Place] = {"anywhere"}
    if on_cpus:
        places |= {"CPU processes", "ranks on CPU processes"} if as_ranks else {"CPU processes"}
    for each in HINTS:
        if each.place in places and re.search(each.error, error) and re.search(each.source, traceback):
            return each.fix
    return ""


NO_OUTPUT = (
    "The program printed nothing. One that starts a process for each GPU that it sees starts none on CPU "
    "processes: tell it {devices_per_node}, or its option to train on CPUs."
)
"""The hint for a program on CPU processes that ended in order without a step and without output."""

_FRAME = re.compile(r'^(?:\[rank\d+\]:)?\s*File "(.+)", line (\d+)')
_PREFIX = re.compile(r"^\[rank\d+\]:")


def with_source(error: str, lines: Sequence[str]) -> str:
    """Return an error; one without a message gets file, line and source from the traceback.

    Args:
        error: The line that names the exception.
        lines: The program's last lines.
    """
    if not re.fullmatch(r"[\w.]+", error):
        return error
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    if not frames or not (frame := _FRAME.match(lines[frames[-1]])):
        return error
    source = _PREFIX.sub("", lines[frames[-1] + 1]).strip() if frames[-1] + 1 < len(lines) else ""
    # without the source at hand, the next line is the error itself
    said = f": {source}" if source and source != error else ""
    return f"{error} at {frame[1].rpartition('/')[2]}:{frame[2]}{said}"
