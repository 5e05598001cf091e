"""Compilers that torch.compile needs beside torch, looked for as torch and Triton do."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from scalewise.plan.config.errors import Place, Problem
from scalewise.plan.config.site import Site


def check_compiler(place: Place, site: Site) -> Iterator[Problem]:
    """Refuse to compile where a compiler is missing, if the runs are on this machine.

    Args:
        place: Place of the key ``compile``, set to true.
        site: Facts of the machine or cluster.
    """
    if site.slurm is not None or site.facts.container is not None:
        return
    if site.accelerator == "cpu":
        yield from _check_cpp_compiler(place)
    elif site.facts.python is None:
        yield from _check_c_compiler(place)


def _check_cpp_compiler(place: Place) -> Iterator[Problem]:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        yield Problem(
            place,
            f"is true, but this machine has no {compiler}, which torch.compile builds with for CPUs",
            "Install it, or name another C++ compiler in the variable CXX.",
        )


def _check_c_compiler(place: Place) -> Iterator[Problem]:
    """Triton builds a module of C for the Python of the ranks."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    header = Path(sysconfig.get_paths(scheme)["include"]) / "Python.h"
    if not any(map(shutil.which, compilers)):
        yield Problem(
            place,
            f"is true, but this machine has none of {', '.join(compilers)}; torch.compile needs one for GPUs",
            "Install one, or name another C compiler in the variable CC.",
        )
    elif not header.exists():
        yield Problem(
            place,
            f"is true, but there is no {header}, which torch.compile needs for GPUs",
            "Install Python's headers, as in python3-dev or python3-devel, or use another Python.",
        )
