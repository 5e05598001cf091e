"""Reasons for which a program leaves no measurement, and the fixes of common errors in batch jobs."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalewise.config.program import ProgramSettings
from scalewise.ranks.program.child import Child, say
from scalewise.ranks.results.probe_record import ProbeRecord, backwards_without_step, steps_done

NCCL_TIMEOUT = "Watchdog caught collective operation timeout"
"""Text of NCCL's watchdog before it aborts a rank that has waited too long for another one."""


_WITHOUT_MEMORY = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "'out of memory'",
)
"""Phrases of torch's allocator, CUDA, its libraries and NCCL if a GPU has no memory left."""


def is_out_of_memory(error: str) -> bool:
    """Whether an error, given by the exception's type and message, means that a device had no memory left."""
    return any(words in error for words in _WITHOUT_MEMORY)


class ProgramError(Exception):
    """A program left no measurement; the message is for the user.

    Args:
        message: One sentence or more.
        traceback: The program's last lines; empty if they add nothing.
        permanent: Whether another try would fail for the same reason.
    """

    def __init__(self, message: str, traceback: str = "", permanent: bool = False) -> None:
        super().__init__(message)
        self.traceback = traceback
        self.permanent = permanent


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


def find_fix(error: str, traceback: str, *, on_cpus: bool, as_ranks: bool) -> str:
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
    for hint in HINTS:
        if hint.place in places and re.search(hint.error, error) and re.search(hint.source, traceback):
            return hint.fix
    return ""


PORT_TAKEN = re.compile(r"port: (\d+)\b.*EADDRINUSE|EADDRINUSE.*\bport: (\d+)")
"""The error of torch's store if another process listens at the port of the rendezvous."""


def own_port(error: str, port: int | None) -> str:
    """Return the fix for a port that is taken and that the program has set; empty for another error.

    Args:
        error: The line that names the exception.
        port: Scalewise's MASTER_PORT, which was free; None if unknown.
    """
    found = PORT_TAKEN.search(error)
    if found is None or port is None or int(found[1] or found[2]) == port:
        return ""
    return (
        "The program sets MASTER_PORT itself, and another process on the node has that port, such as another "
        "run. Remove that line: Scalewise sets MASTER_ADDR and MASTER_PORT."
    )


_FRAME = re.compile(r'^(?:\[rank\d+\]:)?\s*File "(.+)", line (\d+)')
_PREFIX = re.compile(r"^\[rank\d+\]:")


def add_source(error: str, lines: Sequence[str]) -> str:
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
    # if the traceback has no source, the next line is the error itself
    quote = f": {source}" if source and source != error else ""
    return f"{error} at {frame[1].rpartition('/')[2]}:{frame[2]}{quote}"


NO_OUTPUT = (
    "The program printed nothing. One that starts a process for each GPU that it sees starts none on CPU "
    "processes: tell it {devices_per_node}, or its option to train on CPUs."
)
"""The fix for a program on CPU processes that ended with code 0, without a step and without output."""


def check_end(
    child: Child,
    code: int,
    settings: ProgramSettings,
    *,
    on_cpus: bool,
    records: Sequence[ProbeRecord],
    rank_count: int,
    probe_folder: Path,
    port: int | None = None,
) -> None:
    """Check that a program that has ended left a whole measurement of its ranks.

    Args:
        child: The program.
        code: Exit code, negative for a signal.
        settings: The program's.
        on_cpus: Whether the devices are CPU processes.
        records: One for each rank that left its record.
        rank_count: Number of its ranks.
        probe_folder: The folder of the probe's files.
        port: Scalewise's MASTER_PORT; None if unknown.

    Raises:
        ProgramError: It did not.
    """
    program, traceback = settings.program, child.traceback()
    if Path(program).is_absolute():
        program = Path(program).name
    if len(records) >= rank_count and all(record.ended == "steps" or code == 0 for record in records):
        if code:
            say(f"{program} ended with code {code} after its last measured step")
        return
    if code < 0:
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        sender = ", as the system's out-of-memory killer does" if code == -signal.SIGKILL else ""
        if code == -signal.SIGABRT and any(NCCL_TIMEOUT in line for line in child.tail):
            sender = " after NCCL had timed out: another rank did not come"
        raise ProgramError(f"{program} was ended by {name}{sender}", traceback)
    if code:
        error = add_source(child.last_error(), child.tail)
        fix = own_port(error, port) or find_fix(
            error, traceback, on_cpus=on_cpus, as_ranks=settings.starts == "ranks"
        )
        reason = (
            f"{program} ended with code {code}: {error}" if error else f"{program} ended with code {code}"
        )
        raise ProgramError(f"{reason.rstrip('.')}. {fix}" if fix else reason, traceback)
    if backwards := backwards_without_step(probe_folder):
        raise ProgramError(
            f"{program} made {backwards} backward passes or more and no step of a torch.optim.Optimizer, "
            "by which steps are counted. Its optimizer is of another kind, or it never steps.",
            traceback,
            permanent=True,
        )
    if steps := steps_done(probe_folder):
        raise ProgramError(
            f"{program} made optimizer steps, at least {steps}, and ended with code 0, but without "
            "Python's exit handlers, which write down its times. Replace os._exit by sys.exit.",
            traceback,
        )
    last = child.last_error()
    output = f"Its last line: {last}" if last else NO_OUTPUT if on_cpus else "It printed nothing."
    raise ProgramError(
        f"{program} ended without error before its first optimizer step. {output}",
        traceback if last or not on_cpus else "",
    )
