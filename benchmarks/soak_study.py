"""The studies of a soak, and the command that trains one, given again as long as a user would."""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.slurm.study import ONE_RANK_A_NODE, ClusterStudy

TRAINING: dict[str, Any] = {
    # state of every kind: of the optimizer, of the schedule, of the random crops
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 60,
    "optimizer": "adam",
    "learning_rate": 0.002,
    "schedule": "cosine",
    "crop_padding": 1,
    "epochs": 50,
    "warmup_steps": 2,
    "devices": [1, 2],
    "deterministic": True,
    "save_model": True,
    "predict": False,
    "checkpoint_minutes": 0.03,
    "timeout_seconds": 60,
    # a single rank that was stopped keeps nobody waiting: its run ends at its time limit alone
    "runtime_minutes": 3,
}
SITES: dict[str, dict[str, Any]] = {
    # two devices are two of one node's, or one on each of two nodes
    "one-node": {},
    "two-nodes": ONE_RANK_A_NODE,
}
TRIES = 12
"""Times that the same command is given again after it has failed, for each study."""
DEVICES_AT_ONCE = 6


@dataclass
class Snakemake:
    """One study's snakemake, given again as a user would until all is there.

    Args:
        study: in whose folder it runs.
        log: receives what it says.
        starts: of the command.
        kills: by a fault.
        failures: times that it ended with an error of its own.
        done: it has ended well.
    """

    study: ClusterStudy
    log: Path
    arguments: tuple[str, ...] = ()
    starts: int = 0
    kills: int = 0
    failures: int = 0
    done: bool = False
    _process: subprocess.Popen[str] | None = None
    _killed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, *arguments: str) -> None:
        """Give the command, with these targets."""
        self.arguments, self.done = arguments, False
        self.starts += 1
        process = self.study.start("--resources", f"device_budget={DEVICES_AT_ONCE}", "--", *arguments)
        with self._lock:
            self._process, self._killed = process, False
        # a pipe that nobody reads would stop it
        threading.Thread(target=self._drain, args=(process,), daemon=True).start()

    def look(self) -> None:
        """Where it has ended, give the command again, unless it was for the last time."""
        process = self._process
        if process is None or self.done or process.poll() is None:
            return
        if process.returncode == 0:
            self.done = True
            return
        if self._killed:
            self.study.snakemake("--unlock", limit=180)
        else:
            self.failures += 1
            if self.given_up:
                return
        self.start(*self.arguments)

    @property
    def given_up(self) -> bool:
        """Whether it has failed too often."""
        return self.failures > TRIES

    def kill(self) -> str | None:
        """End it at once, if it runs."""
        with self._lock:
            if self._process is None or self._killed or self._process.poll() is not None:
                return None
            self._killed = True
            self._process.kill()
        self.kills += 1
        return self.study.folder.name

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self, limit: float) -> None:
        """For its end, but no longer than so many seconds."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(limit)

    def _drain(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "the lab opens it"
        with self.log.open("a", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
