"""Read and write the files of ``attempt/``: messages between the ranks of one attempt and their supervisor.

Files work for every launcher and across nodes, and a rank that is killed cannot state that it has finished.

=================  ====================================  =====================================
file               written by                            read by
=================  ====================================  =====================================
waiting.json       job, while another one trains         display
rank_setup.json    supervisor, before the ranks start    ranks, supervisor
endpoint.json      rank 0, or a program's first rank     the other ranks
rendezvous         torch's file store                    torch's file store
rank{n}.json       rank n; its time is the heartbeat     supervisor
rank{n}.fault      Python, on a fatal signal in rank n   supervisor
progress.json      rank 0                                supervisor, display, next start
stop               supervisor, or a node's launcher      ranks
stopped.json       rank 0                                supervisor, next start
=================  ====================================  =====================================

The hello job and programs add files, which their modules name.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scalewise.execution.messages import (
    Endpoint,
    GracefulStop,
    Progress,
    Rank,
    RankError,
    RankSetup,
    Waiting,
)
from scalewise.records import write_json, write_text

ATTEMPT = "attempt"
"""The folder of the last attempt, below that of the run's records."""

WAITING, RANK_SETUP, ENDPOINT = "waiting.json", "rank_setup.json", "endpoint.json"
PROGRESS, STOP, STOPPED = "progress.json", "stop", "stopped.json"

RANK_HEARTBEAT_SECONDS = 2.0
"""Time between two heartbeats of rank 0."""

FAULT_BYTES = 200
"""The beginning of a rank's fault file, which names the fatal signal."""


@dataclass(frozen=True)
class RankFiles:
    """The folder of one attempt at a run.

    Args:
        folder: Used again by the next attempt.
        token: Names the process that began this attempt; empty if no other process begins one here. After a
            long suspension, processes of an earlier attempt may find another token: they write nothing.
    """

    folder: Path
    token: str = ""

    @classmethod
    def join(cls, folder: Path) -> RankFiles:
        """Return the current attempt in a folder, for a process that was started for it."""
        return cls(folder, cls(folder)._read_token())

    def begin(self, rank_setup: RankSetup) -> None:
        """Delete an earlier attempt and write how the ranks meet, and their work."""
        self.clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / RANK_SETUP, rank_setup.model_copy(update={"token": self.token}))

    @property
    def is_current(self) -> bool:
        """Whether no other attempt has the folder; true also if the folder is gone."""
        try:
            return not self.token or self._read_token() == self.token
        except OSError:
            return True

    def check_current(self) -> None:
        """Check that this attempt may still write the run's files.

        Raises:
            OSError: Another attempt has the folder by now.
        """
        if not self.is_current:
            raise OSError(errno.ESTALE, "another attempt has it by now", str(self.folder))

    def _to_write(self, name: str) -> Path:
        """Return the path of a file to write; raises as ``check_current`` does."""
        self.check_current()
        return self.folder / name

    def clear(self) -> None:
        """Delete the folder, whichever attempt has it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def rank_setup(self) -> RankSetup:
        """Read how the ranks meet, and their work."""
        return RankSetup.model_validate_json((self.folder / RANK_SETUP).read_text(encoding="utf-8"))

    def _read_token(self) -> str:
        token: str = json.loads((self.folder / RANK_SETUP).read_bytes())["token"]
        return token

    def end(self) -> None:
        """Delete the folder, unless another attempt has it."""
        if self.is_current:
            self.clear()

    @property
    def rendezvous_file(self) -> Path:
        """Return the path of the file by which ranks meet without a port."""
        return self.folder.absolute() / "rendezvous"

    def publish_endpoint(self, host: str, port: int) -> None:
        """Write the address to which the other ranks connect."""
        write_json(self._to_write(ENDPOINT), Endpoint(host=host, port=port))

    def endpoint(self) -> Endpoint | None:
        """Read the address to which the ranks connect; None before it is published."""
        path = self.folder / ENDPOINT
        return Endpoint.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def wait_for_endpoint(self, timeout_seconds: float) -> Endpoint:
        """Wait for the address to connect to.

        Raises:
            TimeoutError: There was none in time.
        """
        deadline = time.monotonic() + timeout_seconds
        # listed, not looked up: a network file system may remember for a minute that a file was missing
        while not any(path.name == ENDPOINT for path in self.folder.iterdir()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"timed out: no rank waited at a rendezvous within {timeout_seconds:g} s")
            time.sleep(0.05)
        try:
            text = (self.folder / ENDPOINT).read_text(encoding="utf-8")
        except FileNotFoundError:
            # the listing was an earlier attempt's
            time.sleep(0.05)
            return self.wait_for_endpoint(deadline - time.monotonic())
        return Endpoint.model_validate_json(text)

    def started(self, rank: int, host: str, pid: int | None = None) -> None:
        """State that a rank runs, in this process or in another one."""
        self._write_rank(Rank(rank=rank, host=host, pid=os.getpid() if pid is None else pid))

    def finished(self, rank: int) -> None:
        """State that a rank has ended in order."""
        self.check_current()
        if (earlier := self.read_rank(rank)) is not None:
            self._write_rank(earlier.model_copy(update={"state": "finished"}))

    def terminated(self, rank: int) -> None:
        """State that a rank was requested to end, unless it has ended: a signal comes at any time."""
        self.check_current()
        if (earlier := self.read_rank(rank)) is not None and earlier.state == "running":
            self._write_rank(earlier.model_copy(update={"state": "terminated"}))

    def ended(self, rank: int, because: str) -> None:
        """State that Scalewise ended the program of a rank."""
        self.check_current()
        if (earlier := self.read_rank(rank)) is not None:
            self._write_rank(earlier.model_copy(update={"ended_because": because}))

    def failed(self, rank: int, host: str, error: BaseException, out_of_memory: bool) -> None:
        """State the exception that ends a rank."""
        message, lines = f"{type(error).__name__}: {error}", traceback.format_exception(error)
        self.failed_with(rank, host, message, "".join(lines), out_of_memory=out_of_memory)

    def failed_with(
        self,
        rank: int,
        host: str,
        message: str,
        traceback: str,
        *,
        out_of_memory: bool = False,
        permanent: bool = False,
    ) -> None:
        """State the reason that ends a rank."""
        error = RankError(
            rank=rank,
            host=host,
            time=time.time(),
            message=message,
            traceback=traceback,
            out_of_memory=out_of_memory,
            permanent=permanent,
        )
        earlier = self.read_rank(rank) or Rank(rank=rank, host=host, pid=os.getpid())
        self._write_rank(earlier.model_copy(update={"state": "failed", "error": error}))

    def _write_rank(self, rank: Rank) -> None:
        # one draft per state: a signal's handler may write while another state is written
        path = self._to_write(f"rank{rank.rank}.json")
        draft = path.with_name(f".{path.name}.{rank.state}")
        draft.write_text(rank.model_dump_json(), encoding="utf-8")
        draft.replace(path)

    def read_rank(self, rank: int) -> Rank | None:
        """Read the state of a rank; None before it has started."""
        try:
            text = (self.folder / f"rank{rank}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return Rank.model_validate_json(text)

    def keep_fault(self, rank: int) -> None:
        """Let Python write a fatal signal that this process raises, such as SIGABRT by NCCL's watchdog."""
        # stays open as long as the process lives
        faulthandler.enable(self._to_write(f"rank{rank}.fault").open("wb"), all_threads=False)

    def aborted(self, rank: int) -> bool:
        """Whether a rank ended itself by SIGABRT, as NCCL does if another rank does not answer."""
        try:
            return b"Aborted" in (self.folder / f"rank{rank}.fault").read_bytes()[:FAULT_BYTES]
        except OSError:
            return False

    def request_stop(self, because: str) -> None:
        """Request the ranks to write a checkpoint at the next step edge and to end."""
        write_text(self._to_write(STOP), because)

    def stop_request(self) -> str | None:
        """Return the reason of a request to stop, if there is one; listed, as in ``wait_for_endpoint``."""
        if not any(path.name == STOP for path in self.folder.iterdir()):
            return None
        return (self.folder / STOP).read_text(encoding="utf-8")

    def stopped(self, note: GracefulStop) -> None:
        """State that all ranks end as requested; rank 0 does so before it ends."""
        write_json(self._to_write(STOPPED), note)

    def read_stopped(self) -> GracefulStop | None:
        """Read how the ranks ended, if they ended as requested."""
        path = self.folder / STOPPED
        return GracefulStop.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def heartbeat(self) -> None:
        """Show that rank 0 is alive: set the time of its file."""
        os.utime(self._to_write("rank0.json"))

    def start_heartbeats(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Show from a thread that rank 0 is alive: if it is the only rank, no other would miss it.

        Args:
            is_stopped: Whether a signal has stopped the process that trains; then no heartbeat is sent.
        """

        def send() -> None:
            while True:
                if not is_stopped():
                    with suppress(OSError):
                        self.heartbeat()
                time.sleep(RANK_HEARTBEAT_SECONDS)

        threading.Thread(target=send, name="heartbeat", daemon=True).start()

    def last_heartbeat(self) -> float | None:
        """Return the time of the last ``heartbeat`` by the file's server; None before rank 0 has started."""
        try:
            # opened: a network file system may remember an old time
            with (self.folder / "rank0.json").open("rb") as file:
                return os.fstat(file.fileno()).st_mtime
        except OSError:
            return None

    def waits(self, reason: str) -> None:
        """State what the job waits for, unless the disk is full."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / WAITING, Waiting(reason=reason, since=time.time()))

    def progress(self, progress: Progress) -> None:
        """Write the progress of the training, for the supervisor and the display."""
        # not flushed to disk: it is written while the clock runs
        path, now = self._to_write(PROGRESS), time.time()
        draft = path.with_name(f".{path.name}")
        earlier = self.read_progress()
        first = (progress.step, now) if earlier is None else (earlier.first_step, earlier.first_reported_at)
        times = {"reported_at": now, "first_step": first[0], "first_reported_at": first[1]}
        reported = progress.model_copy(update=times)
        draft.write_text(reported.model_dump_json(), encoding="utf-8")
        draft.replace(path)

    def read_progress(self) -> Progress | None:
        """Read the progress that rank 0 reported last."""
        path = self.folder / PROGRESS
        return Progress.model_validate_json(path.read_text()) if path.exists() else None

    def seconds_since_progress(self) -> float:
        """Return the time since rank 0 last reported progress; 0 if it has not."""
        progress = self.read_progress()
        return max(time.time() - progress.reported_at, 0.0) if progress is not None else 0.0

    def ranks(self, world_size: int) -> list[Rank]:
        """Read the states of the ranks that have started."""
        return [rank for number in range(world_size) if (rank := self.read_rank(number)) is not None]

    def root_cause(self, world_size: int) -> RankError | None:
        """Return the first exception that is not the consequence of another rank's end."""
        errors = [rank.error for rank in self.ranks(world_size) if rank.error is not None]
        primary = [error for error in errors if not error.is_secondary]
        if not primary and self.died_without_note(world_size):
            return None
        return min(primary or errors, key=lambda error: error.time, default=None)

    def died_without_note(self, world_size: int) -> list[Rank]:
        """Return the ranks that started and stated no end: they were killed."""
        return [rank for rank in self.ranks(world_size) if rank.state == "running"]

    def unresponsive(self, world_size: int) -> list[Rank]:
        """Return the ranks that started and stated neither success nor an error, also if a signal ended them.

        If all have an error, the single rank whose error is not a timeout: to end a rank that was stopped,
        Slurm continues it first, and then its connections to the others fail.
        """
        ranks = self.ranks(world_size)
        silent = [rank for rank in ranks if rank.state in {"running", "terminated"}]
        if not silent and all(rank.error is not None for rank in ranks) and len(ranks) == world_size:
            silent = [rank for rank in ranks if rank.error is not None and not rank.error.is_timeout]
            silent = silent if len(silent) == 1 < world_size else []
        return silent

    def never_started(self, world_size: int) -> list[int]:
        """Return the ranks that never started."""
        started = {rank.rank for rank in self.ranks(world_size)}
        return [rank for rank in range(world_size) if rank not in started]
