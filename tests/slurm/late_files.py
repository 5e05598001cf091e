"""Files that the login node sees later than the nodes that wrote them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.slurm.study import ClusterStudy

LATE_SECONDS = 30
"""After snakemake has begun to wait for them."""


@contextmanager
def late_folder(study: ClusterStudy, folder: Path) -> Iterator[Callable[[], None]]:
    """A folder in which the head sees nothing of what the nodes write.

    As on a parallel file system whose client on the login node keeps what it once read of a folder.

    Yields:
        what lets the head see it, some time after snakemake has begun to wait for the files.
    """
    view = study.folder / "view"
    view.mkdir()
    folder.mkdir(parents=True)
    logs = study.folder / ".snakemake" / "log"

    def awaited() -> bool:
        words = f"for missing files:\n{folder.relative_to(study.folder)}/"
        return any(words in path.read_text() for path in logs.glob("*.log"))

    def appear() -> None:
        study.wait_until(awaited, "snakemake does not miss the results")
        time.sleep(LATE_SECONDS)
        shutil.copytree(folder, view, dirs_exist_ok=True)

    study.lab.run("mount", "--bind", view, folder)
    try:
        yield appear
    finally:
        study.lab.run("umount", "--lazy", folder)
