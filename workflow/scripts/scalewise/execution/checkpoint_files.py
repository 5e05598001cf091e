"""Write, check and delete the checkpoints of a run. Needs no torch.

A checkpoint is a folder, ``step-000000120``: the manifest, a file that all ranks read, and a file for each
rank whose state differs from that of the others. It is written under a name that begins with a dot, flushed
to disk, and renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import utc_now, write_json

KEPT = 2
"""Number of checkpoints that are kept: the newest, and the one before in case the newest is damaged."""

VERSION = 1
"""The layout of a checkpoint's files; a checkpoint of another version is not used."""

MANIFEST = "manifest.json"

MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that mean a damaged checkpoint; after another error it may be complete."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or used; the message names the path, and what is wrong."""


class FileSum(BaseModel):
    """Size and checksum of a file when it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """``manifest.json`` of a checkpoint.

    Args:
        version: The layout of the files.
        definition: The run, with every setting written out.
        inputs: Hashes of the input files that define the run, by name.
        step: Optimizer steps done since the training began.
        elapsed_seconds: Time that all starts together took to reach this checkpoint.
        written_at: UTC, ISO 8601.
        sha256: Checksum of all other fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = VERSION
    definition: RunDefinition
    inputs: dict[str, str]
    step: int
    elapsed_seconds: float
    files: dict[str, FileSum]
    written_at: str
    sha256: str = ""

    def checksum(self) -> str:
        """Return the checksum of all fields but ``sha256``."""
        return hashlib.sha256(self.model_dump_json(exclude={"sha256"}).encode()).hexdigest()

    def with_checksum(self) -> Manifest:
        """Return a copy with its checksum."""
        return self.model_copy(update={"sha256": self.checksum()})


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose manifest could be read."""

    folder: Path
    manifest: Manifest

    def check(self, name: str) -> Path:
        """Return the path of a file after a check that its bytes are those that were written.

        Raises:
            CheckpointError: The bytes differ, or the file is missing.
            OSError: The file cannot be read, and may be complete.
        """
        path, expected = self.folder / name, self.manifest.files.get(name)
        if expected is None:
            raise CheckpointError(f"{path} is not in {self.folder / MANIFEST}")
        try:
            size = path.stat().st_size
            if size != expected.bytes:
                raise CheckpointError(f"{path} has {size} bytes, not the {expected.bytes} that were written")
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except MISSING as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        if sha256 != expected.sha256:
            raise CheckpointError(f"{path} has sha256 {sha256[:12]}, not {expected.sha256[:12]} as written")
        return path


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: Holds the checkpoints, and ``starts/`` with what the ranks measured up to them.
        definition: The run; checkpoints of another are not used.
        inputs: Hashes of the input files that define the run, by name.
    """

    folder: Path
    definition: RunDefinition
    inputs: Mapping[str, str]

    def valid(self, refused: list[str]) -> Iterator[Checkpoint]:
        """Yield the checkpoints of this run, the newest first; only their manifests are checked.

        Args:
            refused: Receives a sentence for each checkpoint that may not be used.

        Raises:
            OSError: A manifest cannot be read, and its checkpoint may be complete.
        """
        for folder in sorted(self.folder.glob("step-*"), reverse=True):
            try:
                yield self._read(folder)
            except CheckpointError as error:
                refused.append(str(error))

    def _read(self, folder: Path) -> Checkpoint:
        path = folder / MANIFEST
        try:
            manifest = Manifest.model_validate_json(path.read_text(encoding="utf-8"))
        except MISSING as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except (ValidationError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} is damaged") from error
        if manifest.version != VERSION:
            raise CheckpointError(f"{path} is of version {manifest.version}, not {VERSION}")
        if manifest.sha256 != manifest.checksum():
            raise CheckpointError(f"{path} is damaged: its checksum does not match its contents")
        if manifest.definition != self.definition:
            values = _differences(manifest.definition.values, self.definition.values)
            raise CheckpointError(f"{path} is of other settings: {', '.join(values.values())}")
        if changed := _differences(manifest.inputs, self.inputs):
            raise CheckpointError(f"{path} is of another {' and '.join(changed)}")
        return Checkpoint(folder, manifest)

    def begin(self, step: int) -> Path:
        """Create an empty folder for a checkpoint, and delete incomplete ones of earlier writers.

        Raises:
            OSError: The folder cannot be created.
        """
        self._tidy()
        part = self.folder / f".step-{step:09d}"
        part.mkdir(parents=True)
        return part

    def commit(
        self, part: Path, step: int, elapsed_seconds: float, files: Mapping[str, FileSum]
    ) -> Checkpoint:
        """Write the manifest, rename the folder, and delete all checkpoints but the last two.

        Raises:
            OSError: The manifest cannot be written; the earlier checkpoints are complete.
        """
        manifest = Manifest(
            definition=self.definition,
            inputs=dict(self.inputs),
            step=step,
            elapsed_seconds=elapsed_seconds,
            files=dict(files),
            written_at=utc_now(),
        ).with_checksum()
        write_json(part / MANIFEST, manifest)
        _flush(part)
        folder = self.folder / part.name.removeprefix(".")
        # one of the same step was refused, or the training would have resumed from it
        self._delete(folder)
        part.rename(folder)
        _flush(self.folder)
        self._delete_old(folder)
        return Checkpoint(folder, manifest)

    def _delete_old(self, newest: Path) -> None:
        """Delete all but the newest and the one before; later steps are damaged or of another training."""
        earlier = sorted(path for path in self.folder.glob("step-*") if path.name < newest.name)
        kept = {newest, *earlier[-(KEPT - 1) :]}
        for path in self.folder.glob("step-*"):
            if path not in kept:
                self._delete(path)

    def delete_newer_than(self, chosen: Checkpoint | None) -> None:
        """Delete the checkpoints after the one that is used, or all: they would count as kept."""
        for folder in self.folder.glob("step-*"):
            if chosen is None or folder.name > chosen.folder.name:
                self._delete(folder)
        self._tidy()

    def _delete(self, folder: Path) -> None:
        """Rename a checkpoint, then delete it: an interrupted deletion must not leave half a checkpoint."""
        hidden = self.folder / f".gone-{folder.name}"
        shutil.rmtree(hidden, ignore_errors=True)
        with suppress(OSError):
            folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _tidy(self) -> None:
        """Delete checkpoints that were written or deleted in part."""
        for pattern in (".step-*", ".gone-*"):
            for left in self.folder.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)

    def abandon(self, part: Path) -> None:
        """Delete an incomplete checkpoint."""
        shutil.rmtree(part, ignore_errors=True)

    def clear(self) -> None:
        """Delete all checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, str]:
    """Return each name whose values differ, with a text of both."""
    return {
        name: f"{name} is {saved.get(name)!r}, not {current.get(name)!r}"
        for name in sorted({*saved, *current})
        if saved.get(name) != current.get(name)
    }


def _flush(folder: Path) -> None:
    """Flush a folder to disk, so that the names in it survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
