"""The checkpoints of a run as files, and which of them may be used. Needs no torch.

A checkpoint is a folder, ``step-000000120``: one file a rank with something of its own to keep, one that
all ranks read, and the manifest. It is written under a name that begins with a dot, flushed to disk, and
renamed; the one before stays until the next but one is there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import utc_now, write_json

KEPT = 2
"""Checkpoints: the newest, and the one before it for when the newest is damaged."""

VERSION = 1
"""The layout of a checkpoint's files; a checkpoint of another version is not used."""

MANIFEST = "manifest.json"


MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that say a checkpoint is damaged; one that cannot be read for another reason may be whole."""


class CheckpointError(Exception):
    """A checkpoint that cannot be written or used: the message names the path, and what is wrong."""


class FileSum(BaseModel):
    """A file as it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """``manifest.json`` of a checkpoint.

    Args:
        version: The layout of the files.
        definition: The run, with every setting written out.
        inputs: Hashes of what else defines the run, by name.
        step: Optimizer steps done since the training began.
        elapsed_seconds: Time that all starts together took for what this checkpoint holds.
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
        """The checksum of all fields but ``sha256``."""
        return hashlib.sha256(self.model_dump_json(exclude={"sha256"}).encode()).hexdigest()

    def with_checksum(self) -> Manifest:
        """A copy that carries its checksum."""
        return self.model_copy(update={"sha256": self.checksum()})


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose manifest could be read."""

    folder: Path
    manifest: Manifest

    def check(self, name: str) -> Path:
        """The path of one file, whose bytes were found to be those that were written.

        Raises:
            CheckpointError: The bytes differ, or the file is missing.
            OSError: The file cannot be read, and may be whole.
        """
        path, expected = self.folder / name, self.manifest.files.get(name)
        if expected is None:
            raise CheckpointError(f"{path} is not in {self.folder / MANIFEST}")
        try:
            size = path.stat().st_size
            if size != expected.bytes:
                raise CheckpointError(f"{path} has {size} bytes, not the {expected.bytes} that were written")
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except MISSING as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        if found != expected.sha256:
            raise CheckpointError(f"{path} has sha256 {found[:12]}, not {expected.sha256[:12]} as written")
        return path


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: Holds the checkpoints and nothing else.
        definition: The run; checkpoints of another are not used.
        inputs: Hashes of what else defines the run, by name.
    """

    folder: Path
    definition: RunDefinition
    inputs: Mapping[str, str]

    def valid(self, refused: list[str]) -> Iterator[Checkpoint]:
        """Checkpoints of this run, the newest first, judged by their manifests alone.

        Args:
            refused: Receives a sentence for each checkpoint that may not be used.

        Raises:
            OSError: A manifest cannot be read, and its checkpoint may be whole.
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
            raise CheckpointError(f"{path} is damaged: its sum is not that of what it says")
        if manifest.definition != self.definition:
            raise CheckpointError(f"{path} is of other settings: {_differences(manifest, self.definition)}")
        if manifest.inputs != dict(self.inputs):
            changed = sorted(
                name
                for name in {*manifest.inputs, *self.inputs}
                if manifest.inputs.get(name) != self.inputs.get(name)
            )
            raise CheckpointError(f"{path} is of another {' and '.join(changed)}")
        return Checkpoint(folder, manifest)

    def begin(self, step: int) -> Path:
        """Make an empty folder to write files into; what earlier writers left half-way goes.

        Raises:
            OSError: The folder cannot be made.
        """
        self._tidy()
        part = self.folder / f".step-{step:09d}"
        part.mkdir(parents=True)
        return part

    def commit(
        self, part: Path, step: int, elapsed_seconds: float, files: Mapping[str, FileSum]
    ) -> Checkpoint:
        """Give what was written its name, and take away all but the last two.

        Raises:
            OSError: The manifest cannot be written; the checkpoints before are whole.
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
        # one of the same step was refused, or it would have been gone on from
        self._delete(folder)
        part.rename(folder)
        _flush(self.folder)
        self._delete_old(folder)
        return Checkpoint(folder, manifest)

    def _delete_old(self, newest: Path) -> None:
        """Keep this one and the last before it; those of later steps are damaged, or another training's."""
        earlier = sorted(path for path in self.folder.glob("step-*") if path.name < newest.name)
        kept = {newest, *earlier[-(KEPT - 1) :]}
        for path in self.folder.glob("step-*"):
            if path not in kept:
                self._delete(path)

    def delete_newer_than(self, chosen: Checkpoint | None) -> None:
        """Take away those that came after the one that is used, or all: they would count among the kept."""
        for folder in self.folder.glob("step-*"):
            if chosen is None or folder.name > chosen.folder.name:
                self._delete(folder)
        self._tidy()

    def _delete(self, folder: Path) -> None:
        """Hidden first: half of a checkpoint must not be found as one when this is cut off."""
        hidden = self.folder / f".gone-{folder.name}"
        shutil.rmtree(hidden, ignore_errors=True)
        with suppress(OSError):
            folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _tidy(self) -> None:
        """Take away what was written or deleted half-way."""
        for pattern in (".step-*", ".gone-*"):
            for left in self.folder.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)

    def abandon(self, part: Path) -> None:
        """Take away what was half written."""
        shutil.rmtree(part, ignore_errors=True)

    def clear(self) -> None:
        """Take all of them away."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _differences(manifest: Manifest, definition: RunDefinition) -> str:
    """The fields in which two definitions differ, with both values."""
    found, wanted = manifest.definition.values, definition.values
    return ", ".join(
        f"{name} is {found.get(name)!r}, not {wanted.get(name)!r}"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    )


def _flush(folder: Path) -> None:
    """A name survives a crash of the machine once its folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
