"""Versions of a process's libraries, the user's source files, and the device and CPUs of the process."""

from __future__ import annotations

import hashlib
import os
import platform
import site
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from email import message_from_string
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "",
    "TORCH_EXTENSIONS_DIR": "",
    "TORCH_HOME": "hub",
    "HF_MODULES_CACHE": "",
    "HF_HOME": "modules",
    "XDG_CACHE_HOME": "",
}
"""Variables that name a folder, and the folder in it with modules that libraries compile or download."""

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
    """Return the versions of Python, torch, CUDA and of each distribution with an imported module.

    Args:
        cuda: Whether a GPU is trained on, so that NCCL's counts.
    """
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if cuda and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    imported = {name.partition(".")[0] for name in list(sys.modules)} - set(sys.stdlib_module_names)
    for distribution in metadata.distributions():
        if not imported.isdisjoint(_modules_of(distribution)):
            # below the headers is the project's description, of up to 100 kB: it is not parsed
            text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
            headers = message_from_string(text.partition("\n\n")[0])
            if headers["Name"]:
                found.setdefault(headers["Name"], headers["Version"])
    return found


def _modules_of(distribution: metadata.Distribution) -> set[str]:
    """Return the modules of a distribution, as it declares them, or by the list of its files."""
    declared = distribution.read_text("top_level.txt")
    if declared:
        return set(declared.split())
    recorded = distribution.read_text("RECORD") or ""
    first_parts = {line.partition(",")[0].partition("/")[0] for line in recorded.splitlines()}
    return {part.partition(".")[0] for part in first_parts if not part.endswith((".dist-info", ".data"))}


def imported_files(others: Iterable[Path], process_began: float) -> dict[str, str]:
    """Return the hashes, by path, of the files of all modules of the user.

    Modules that were generated are not: PyG and torch.compile write some of another name in each process. Nor
    are those in caches, which the first run has just written and the next one finds.

    Args:
        others: Folders with none of the user's modules, such as those of the probe.
        process_began: Time of day, in seconds since the epoch; files written later are generated.
    """
    libraries = [*site.getsitepackages(), site.getusersitepackages()]
    libraries += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    outside = _folders([*libraries, *map(str, others)])
    caches = [f"{os.environ[name]}/{within}" for name, within in CACHES.items() if os.environ.get(name)]
    temporary = [tempfile.gettempdir(), os.environ.get("TMPDIR") or "/tmp", "/tmp"]  # noqa: S108
    caches.append(os.path.expanduser("~/.cache"))  # noqa: PTH111  # Path raises for a user without a home
    generated = _folders([*temporary, *caches])
    # a program that lies in a temporary folder has its modules there
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    homes = _folders([str(Path.cwd()), str(Path(os.path.realpath(main)).parent)])
    found = {}
    for real_path in _real_paths_of_modules():
        if real_path.startswith(outside):
            continue
        path = Path(real_path)
        if {"site-packages", "dist-packages"}.intersection(path.parts):
            continue
        around = [folder for folder in generated if str(path).startswith(folder)]
        if around and not any(
            str(path).startswith(home) and home not in around and home.startswith(max(around, key=len))
            for home in homes
        ):
            continue
        try:
            status = path.stat()
            if status.st_size <= LARGEST_HASHED and status.st_mtime < process_began:
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            continue  # of a module that came from an archive, or is gone
    return dict(sorted(found.items()))


def _real_paths_of_modules() -> Iterator[str]:
    """Yield the files of all modules without links; each folder is resolved once, as thousands share it."""
    real_folders: dict[str, str] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            folder, name = os.path.split(file)
            if folder not in real_folders:
                real_folders[folder] = os.path.realpath(folder)
            path = os.path.join(real_folders[folder], name)  # noqa: PTH118  # a Path takes ten times as long
            yield os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114


def _folders(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{os.path.realpath(path).rstrip(os.sep)}{os.sep}" for path in paths)
