"""Versions of a process's libraries, the user's source files, and the device and CPUs of the process."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

CACHES = (
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    *("TORCH_HOME", "HF_HOME", "HF_MODULES_CACHE", "XDG_CACHE_HOME"),
)
"""Variables that name a folder with modules that libraries compile or download."""

INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")

LARGEST_HASHED = 64 * 2**20
"""Most bytes of a source file."""


def place_on_machine(device: torch.device | None) -> dict[str, Any]:
    """Return device, threads and CPUs of this process, as JSON values; no device is a CPU process."""
    properties = None if device is None else torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "host": platform.node(),
        "device": properties.name if properties is not None else "CPU process",
        "device_uuid": None if uuid is None else str(uuid),
        "cuda": device is not None,
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "threads": torch.get_num_threads(),
        "affinity": sorted(affinity(0)) if affinity is not None else [],
    }


def process_started(otherwise: float) -> float:
    """Return the monotonic seconds at which this process began, to the kernel's tick of 10 ms.

    Args:
        otherwise: Returned if the system does not report it.
    """
    try:
        # proc_pid_stat(5): the 22nd field, counted after the name, which may hold anything
        fields = (
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return perf_counter() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return otherwise


def versions(cuda: bool) -> dict[str, str]:
    """Return the versions of Python, torch, CUDA and of all imported libraries that have one.

    Args:
        cuda: Whether a GPU is trained on, so that NCCL's counts.
    """
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if cuda and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for name, module in list(sys.modules.items()):
        # not by getattr: of a module that is lazy it would import the rest
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str) and "." not in name and name not in sys.stdlib_module_names:
            found.setdefault(name, version)
    return found


def imported_files(others: Iterable[Path], process_began: float) -> dict[str, str]:
    """Return the hashes, by path, of the files of all modules of the user.

    Modules that were generated are not: PyG and torch.compile write some of another name in each process. Nor
    are those in caches, which the first run has just written and the next one finds.

    Args:
        others: Folders with none of the user's modules, such as those of the probe.
        process_began: Time of day, in seconds since the epoch; files written later are generated.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    homes = _folders([os.getcwd(), os.path.dirname(os.path.realpath(main))])  # noqa: PTH109, PTH120
    caches = [os.environ[name] for name in CACHES if os.environ.get(name)]
    caches += [os.path.expanduser("~/.cache"), tempfile.gettempdir(), "/tmp"]  # noqa: PTH111, S108
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    # a program that lies in a temporary folder has its modules there
    outside = tuple(
        folder
        for folder in _folders([*libraries, *caches, *map(str, others)])
        if not any(home.startswith(folder) for home in homes)
    )
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        # most by their name: it takes longer to find what a link refers to
        if not isinstance(file, str) or file.startswith(outside) or INSTALLED.search(file):
            continue
        path = os.path.realpath(file)
        if path.startswith(outside) or INSTALLED.search(path):
            continue
        with suppress(OSError):  # of a module that came from an archive, or is gone
            status = os.stat(path)  # noqa: PTH116
            if status.st_size <= LARGEST_HASHED and status.st_mtime < process_began:
                found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return dict(sorted(found.items()))


def _folders(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{os.path.realpath(path).rstrip(os.sep)}{os.sep}" for path in paths)
