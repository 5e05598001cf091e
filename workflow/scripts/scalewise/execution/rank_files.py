"""The folder of small files by which the ranks of one attempt talk to the supervisor.

Files work for every launcher and across nodes, and a rank that is killed cannot write the one that
says it finished.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import shutil
import time
import traceback
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
    TrainSpec,
    Waiting,
)
from scalewise.records import write_json, write_text

RANK_SETUP, SPEC, ENDPOINT = "rank_setup.json", "spec.json", "endpoint.json"
"""Files that the supervisor lays out for ranks before they start, and the one that says where rank 0 is."""

FAULT_BYTES = 200
"""Begin of the note of a fatal signal, which names it."""

PROGRESS = "progress.json"
"""The file that says how far the training has come, for all who look at it from outside."""

WAITING = "waiting.json"
"""The file that states what a job waits for, until it begins to start its ranks."""


@dataclass(frozen=True)
class RankFiles:
    """The folder of one attempt at a run.

    Args:
        folder: Used again by the next attempt.
        token: Names the process that began this attempt; empty where nobody else begins one here. Processes
            that were stopped for long may find the folder another's: they leave no notes in it.
    """

    folder: Path
    token: str = ""

    @classmethod
    def join(cls, folder: Path) -> RankFiles:
        """The attempt that a process belongs to, which was started for it just now."""
        return cls(folder, cls(folder).rank_setup().token)

    def begin(self, rank_setup: RankSetup) -> None:
        """Forget an earlier attempt and lay out for the ranks how they meet."""
        self.clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / RANK_SETUP, rank_setup.model_copy(update={"token": self.token}))

    @property
    def is_current(self) -> bool:
        """Whether no other attempt has the folder, as far as anybody can say: it may also be gone."""
        try:
            return not self.token or self.rank_setup().token == self.token
        except OSError:
            return True

    def check_current(self) -> None:
        """Refuse to go on before something is written that another attempt may write, too.

        Raises:
            OSError: The folder is another attempt's by now.
        """
        if not self.is_current:
            raise OSError(errno.ESTALE, "another attempt's by now", str(self.folder))

    def _own(self, name: str) -> Path:
        """The path of a note that is to be written; raises as ``check_current`` does."""
        self.check_current()
        return self.folder / name

    def clear(self) -> None:
        """Take the folder from whichever attempt has it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def rank_setup(self) -> RankSetup:
        """Read how the ranks meet."""
        return RankSetup.model_validate_json((self.folder / RANK_SETUP).read_text(encoding="utf-8"))

    def write_spec(self, spec: TrainSpec) -> None:
        """Lay out what the ranks are to do, before they are started."""
        write_json(self._own(SPEC), spec)

    def end(self) -> None:
        """Leave nothing behind; a rank on another node may still close a file."""
        if self.is_current:
            self.clear()

    def train_spec(self) -> TrainSpec:
        """Read what the ranks are to do."""
        text = (self.folder / SPEC).read_text(encoding="utf-8")
        return TrainSpec.model_validate_json(text)

    @property
    def rendezvous_file(self) -> Path:
        """The file by which ranks meet without a port."""
        return self.folder.absolute() / "rendezvous"

    def publish_endpoint(self, host: str, port: int) -> None:
        """Tell the others where to connect."""
        write_json(self._own(ENDPOINT), Endpoint(host=host, port=port))

    def wait_for_endpoint(self, timeout_seconds: float) -> Endpoint:
        """Wait for the address to connect to.

        Raises:
            TimeoutError: Nobody told it in time.
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
        if (known := self.read_rank(rank)) is not None:
            self._write_rank(known.model_copy(update={"state": "finished"}))

    def terminated(self, rank: int) -> None:
        """State that a rank was requested to end, unless it has ended: a signal comes at any time."""
        self.check_current()
        if (known := self.read_rank(rank)) is not None and known.state == "running":
            self._write_rank(known.model_copy(update={"state": "terminated"}))

    def failed(self, rank: int, host: str, error: BaseException, out_of_memory: bool) -> None:
        """Note the exception that ends a rank."""
        message, told = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        self.failed_with(rank, host, message, told, out_of_memory=out_of_memory)

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
        """Note the reason that ends a rank, in the words of whoever saw it."""
        error = RankError(
            rank=rank,
            host=host,
            time=time.time(),
            message=message,
            traceback=traceback,
            out_of_memory=out_of_memory,
            permanent=permanent,
        )
        known = self.read_rank(rank) or Rank(rank=rank, host=host, pid=os.getpid())
        self._write_rank(known.model_copy(update={"state": "failed", "error": error}))

    def _write_rank(self, rank: Rank) -> None:
        # not by one draft for all states: a signal's handler may write while another state is written
        path = self._own(f"rank{rank.rank}.json")
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
        """Have Python note a fatal signal that this process raises, such as SIGABRT by NCCL's watchdog."""
        # open as long as the process lives
        faulthandler.enable(self._own(f"rank{rank}.fault").open("wb"), all_threads=False)

    def aborted(self, rank: int) -> bool:
        """Whether a rank has ended itself by SIGABRT: under NCCL those do that waited for another in vain."""
        try:
            return b"Aborted" in (self.folder / f"rank{rank}.fault").read_bytes()[:FAULT_BYTES]
        except OSError:
            return False

    def request_stop(self, because: str) -> None:
        """Ask the ranks to write a checkpoint at the next step edge and to end; from outside of them."""
        write_text(self._own("stop"), because)

    def stop_request(self) -> str | None:
        """The reason that the ranks are asked to end, if they are; listed, as in ``wait_for_endpoint``."""
        if not any(path.name == "stop" for path in self.folder.iterdir()):
            return None
        return (self.folder / "stop").read_text(encoding="utf-8")

    def stopped(self, note: GracefulStop) -> None:
        """Note that all ranks end as asked; rank 0 does, before it leaves."""
        write_json(self._own("stopped.json"), note)

    def read_stopped(self) -> GracefulStop | None:
        """Read the end of the ranks, if they ended as they were asked to."""
        path = self.folder / "stopped.json"
        return GracefulStop.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def heartbeat(self) -> None:
        """Show that rank 0 is alive: set the time of its file."""
        os.utime(self._own("rank0.json"))

    def last_heartbeat(self) -> float | None:
        """Return the time of the last ``heartbeat`` by the file's server; None before rank 0 has started."""
        try:
            # opened: a network file system may remember an old time
            with (self.folder / "rank0.json").open("rb") as file:
                return os.fstat(file.fileno()).st_mtime
        except OSError:
            return None

    def waits(self, reason: str) -> None:
        """State what the job waits for; nothing fails if the disk does not take it."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / WAITING, Waiting(reason=reason, since=time.time()))

    def progress(self, progress: Progress) -> None:
        """Write the progress of the training, for the supervisor and the display."""
        # not flushed to disk: it is written while the clock runs
        path, now = self._own(PROGRESS), time.time()
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
        """The first exception that is not the consequence of another rank's end."""
        errors = [rank.error for rank in self.ranks(world_size) if rank.error is not None]
        first_hand = [error for error in errors if not error.is_secondary]
        if not first_hand and self.died_without_note(world_size):
            return None
        return min(first_hand or errors, key=lambda error: error.time, default=None)

    def died_without_note(self, world_size: int) -> list[Rank]:
        """Ranks that started and stated no end: killed from outside."""
        return [rank for rank in self.ranks(world_size) if rank.state == "running"]

    def unresponsive(self, world_size: int) -> list[Rank]:
        """Ranks that started and stated neither success nor an error; a signal may have requested their end.

        If all left an error, the single rank whose error is not a timeout: to end a rank that was stopped,
        Slurm wakes it first, and then it finds the others gone.
        """
        ranks = self.ranks(world_size)
        quiet = [rank for rank in ranks if rank.state in {"running", "terminated"}]
        if not quiet and all(rank.error is not None for rank in ranks) and len(ranks) == world_size:
            quiet = [rank for rank in ranks if rank.error is not None and not rank.error.is_timeout]
            quiet = quiet if len(quiet) == 1 < world_size else []
        return quiet

    def never_started(self, world_size: int) -> list[int]:
        """Ranks that never started."""
        started = {rank.rank for rank in self.ranks(world_size)}
        return [rank for rank in range(world_size) if rank not in started]
