"""A container for tests: a root tree without Slurm's commands, and an overlay with a Python's settings."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

RUNTIME = Path(__file__).with_name("container_runtime.sh")
"""Starts programs in namespaces of Linux, by the command line of Apptainer."""

PROGRAMS = ("bash", "sh")
"""What the image has; Slurm's commands are not among them."""

ENV = """\
export PATH={python}:/usr/bin PYTHONPATH=/ext3/python
"""
WITNESS = """\
import json, os, shutil, sys

def refusal(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror

if any(word.endswith("/train.py") for word in sys.orig_argv):
    rank = os.environ["RANK"]
    seen = {{
        "mounts": os.readlink("/proc/self/ns/mnt"),
        "root": sorted(os.listdir("/")),
        "refusal": refusal("/ext3/written"),
        "scontrol": shutil.which("scontrol"),
    }}
    with open(os.path.join({record!r}, f"inside.rank{{rank}}.json"), "w") as file:
        json.dump(seen, file)
"""
"""Python reads this at its start, so the program of a rank itself writes what it sees, before all else."""


def make_image(folder: Path) -> Path:
    """Make a root tree of directories and few programs; libraries and Python come by binds.

    Returns:
        The image, which ``binds`` belong to.
    """
    image = folder / "image with a space"
    (image / "usr" / "bin").mkdir(parents=True)
    for link in Path("/").iterdir():
        if link.is_symlink() and link.resolve().is_dir():  # /bin -> usr/bin
            (image / link.name).symlink_to(link.readlink())
    for name in PROGRAMS:
        shutil.copy(Path("/usr/bin") / name, image / "usr" / "bin" / name)
    (image / "etc").mkdir()
    shutil.copy("/etc/ld.so.cache", image / "etc")
    (image / "made-for-tests").touch()
    return image


def binds() -> list[str]:
    """Return what the image takes from this machine: libraries, Python and the tests."""
    python = Path(sys.base_prefix)
    # a Python of the system: its program and not the folder, in which Slurm's commands are, too
    own = [str(Path(sys.executable).resolve())] if python == Path("/usr") else [str(python)]
    roots = [Path("/usr/lib"), Path("/usr/lib64"), Path(sys.prefix), Path(__file__).parents[1]]
    return [*own, *dict.fromkeys(str(path) for path in roots if path.is_dir())]


def make_overlay(folder: Path, record: Path) -> Path:
    """Make an overlay with ``/ext3/env.sh``, whose Python writes into a folder what each rank sees.

    Returns:
        The overlay, to mount read-only.
    """
    overlay = folder / "overlay"
    ext3 = overlay / "upper" / "ext3"
    (ext3 / "python").mkdir(parents=True)
    (overlay / "work").mkdir()
    (ext3 / "env.sh").write_text(ENV.format(python=Path(sys.executable).parent))
    (ext3 / "python" / "sitecustomize.py").write_text(WITNESS.format(record=str(record)))
    return overlay


def assert_contained(record: Path, outside: Sequence[int | None]) -> None:
    """Check that each rank ran in a mount namespace with the image's root, read-only and without Slurm.

    Args:
        record: The folder that the overlay writes into.
        outside: For each rank, a process that runs on its host and in no container.
    """
    seen = [json.loads((record / f"inside.rank{rank}.json").read_text()) for rank in range(len(outside))]
    hosts = {str(Path(f"/proc/{pid}/ns/mnt").readlink()) for pid in outside}
    assert not Path("/ext3").exists()
    assert len({rank["mounts"] for rank in seen} - hosts) == len(outside)
    for rank in seen:
        assert {"made-for-tests", "ext3"} <= set(rank["root"])
        assert rank["refusal"] == "Read-only file system"
        assert rank["scontrol"] is None
