"""Starts runs through train.py, ends them at chosen steps, and reads what they leave."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from tests.machine import on_small_disk, processes_in
from tests.preloading import COUNTS_OTHERS
from tests.prepared_digits import place_digits
from tests.small_runs import plan_one_run, site_of, train_command
from tests.waiting import Found, ended_output, wait_until

from scalewise.execution.rank_files import RANK_SETUP
from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, MODEL, RANKS, Failure, Measurements, RunRecord, read_failure, read_run

SETTINGS: dict[str, Any] = {
    "model": "linear",
    "dataset": "digits",
    "global_batch_size": 250,
    "epochs": 3,
    "learning_rate": 0.05,
    "warmup_steps": 2,
    "devices": [1, 2],
    "repeats": 1,
}
ENDLESS: dict[str, Any] = {"epochs": 1_000_000, "model": "planted_unhurried"}
TIMINGS = ("train_seconds", "evaluation_seconds", "samples_per_second")
END_SECONDS = 900
"""Longest wait for the end of a run, which may wait for others on this machine."""

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOUR_CPUS = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\n"


@dataclass(frozen=True)
class Started:
    """A train.py that was started, and where it leaves its records."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def attempt(self) -> Path:
        return self.folder / "attempt"

    def end(self) -> tuple[int, str]:
        """Exit code and stderr, once it has ended."""
        _, stderr = self.process.communicate(timeout=END_SECONDS)
        return self.process.returncode, stderr

    def fail(self, outcome: str = "failed") -> tuple[Failure, str]:
        """Return how it failed, and stderr, once it has ended so and nothing of it runs on."""
        code, stderr = self.end()
        assert code == 1, stderr
        failure = self.failure()
        assert failure.outcome == outcome, failure.reason
        assert self.left_over() == {}
        return failure, stderr

    def failure(self) -> Failure:
        """Return how it failed, as it has left it."""
        failure = read_failure(self.folder)
        assert failure is not None
        return failure

    @property
    def saved(self) -> list[str]:
        """The names of its checkpoints, the newest last."""
        return sorted(path.name for path in (self.folder / "program" / "checkpoints").glob("epoch-*"))

    def wait_for_checkpoint(self) -> str:
        """The newest checkpoint, once there is one."""
        self.wait_until(lambda: self.saved, "no checkpoint is written")
        return self.saved[-1]

    def stopped(self, outcome: str, because: str) -> str:
        """Return the newest checkpoint of a run that stopped in order, once all that it leaves says so."""
        failure, stderr = self.fail(outcome)
        assert failure.reason in stderr
        assert because in failure.reason
        self.forget()
        return self.saved[-1]

    def forget(self) -> None:
        """Remove its notes, or the test of the next start would take them for its own."""
        for path in [*self.attempt.iterdir(), *self.attempt.glob("probe/*.steps")]:
            if path.is_file() and path.name != RANK_SETUP:
                path.unlink()

    def finish(self) -> Finished:
        """Return what it leaves, once it has ended in order."""
        code, stderr = self.end()
        assert code == 0, stderr
        return Finished(self.folder, stderr)

    def wait_until(
        self, reached: Callable[[], Found | None], missing: str, longest_pause_seconds: float = 0.05
    ) -> Found:
        """Wait for something to happen while it runs; an end before that fails the test."""
        return wait_until(
            reached,
            f"{self.folder.parent.name}/{self.folder.name}: {missing}",
            ended=lambda: ended_output(self.process),
            longest_pause_seconds=longest_pause_seconds,
        )

    def wait_for(self, name: str) -> Path:
        """A file of the attempt, once the ranks have written it."""
        path = self.attempt / name
        self.wait_until(path.exists, f"{name} is missing")
        return path

    def wait_for_step(self) -> None:
        """Wait until a rank has made a step."""
        self.wait_until(lambda: [*self.attempt.glob("probe/*.steps")], "no rank makes a step")

    def wait_for_line(self, pattern: str) -> str:
        """The first part of the log that matches."""
        log = self.folder / "train.log"

        def line() -> re.Match[str] | None:
            return re.search(pattern, log.read_text(encoding="utf-8")) if log.exists() else None

        return self.wait_until(line, f"the log has no {pattern!r}")[0]

    def pid(self, rank: int) -> int:
        note = json.loads(self.wait_for(f"rank{rank}.json").read_text(encoding="utf-8"))
        return int(note["pid"])

    def processes(self) -> dict[int, str]:
        """All of it that still runs."""
        return {process.pid: command for command, process in processes_in(self.folder)}

    def left_over(self) -> dict[int, str]:
        """What still runs once ranks that must look for themselves have had the time to."""
        with suppress(TimeoutError):
            wait_until(lambda: not self.processes(), "processes are left", 90)
        return self.processes()


@dataclass(frozen=True)
class Finished:
    """A run that has ended in order."""

    folder: Path
    stderr: str = ""

    @property
    def summary(self) -> RunRecord:
        return read_run(self.folder)

    @property
    def measured(self) -> Measurements:
        measured = self.summary.measurements
        assert measured is not None
        return measured

    @property
    def from_step(self) -> int:
        return self.measured.from_step

    @property
    def epochs(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / EPOCHS)

    @property
    def ranks(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / RANKS)

    @property
    def log(self) -> list[str]:
        return (self.folder / "train.log").read_text(encoding="utf-8").splitlines()

    @property
    def learned(self) -> tuple[str, list[list[str]]]:
        """What must not depend on how often it was cut off: the sum of its weights, its epochs as text."""
        with (self.folder / EPOCHS).open(encoding="utf-8") as file:
            rows = [[text for key, text in row.items() if key not in TIMINGS] for row in csv.DictReader(file)]
        return hashlib.sha256((self.folder / MODEL).read_bytes()).hexdigest(), rows


@dataclass
class Runs:
    """Starts runs below a folder; their lock is apart from that of a user's training on this machine.

    Args:
        folder: of all of them.
        settings: of their experiments.
        limits: of their plans.
        facts: of the machine, as the text of a site file.
        python: interpreter of ranks, if that is not the one of train.py.
    """

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)
    limits: Mapping[str, Any] = field(default_factory=dict)
    facts: str = FOUR_CPUS
    python: Path | None = None
    started: list[Started] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._site = self.folder / "site.yaml"
        self._site.write_text(self.facts, encoding="utf-8")
        self.dataset = place_digits(self.folder / "digits.safetensors")

    def start(
        self,
        name: str,
        devices: int,
        changed: Mapping[str, Any] | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        dataset: Path | None = None,
        attempt: int = 1,
        first: tuple[str, ...] = (),
        within: tuple[Path, str] | None = None,
        **limits: Any,
    ) -> Started:
        """A train.py at work.

        Args:
            name: of the experiment, and of the folder.
            devices: ranks.
            changed: settings that are not the usual ones.
            settings: in place of the usual ones.
            dataset: prepared; None for the digits.
            attempt: of Snakemake at the run.
            first: words ahead of the whole command.
            within: a folder in place of which it sees an empty disk, and the size of that.
            limits: of the plan, which are not the usual ones.
        """
        chosen = dict(settings or self.settings) | dict(changed or {})
        run = load_study({"experiments": {name: chosen}}, site_file=self._site).runs[name, f"d{devices}.r1"]
        folder = self.folder / name / run.run
        folder.mkdir(parents=True, exist_ok=True)
        plan = plan_one_run(
            folder.with_name(f"{run.run}.plan.json"),
            run.as_json(),
            None if "program" in chosen else dataset or self.dataset,
            site_of(python=str(self.python) if self.python else None),
            **{**self.limits, **limits},
        )
        environment = plan | {
            "SCALEWISE_MACHINE_LOCK": str(self.folder.parent / "machine.lock"),
            "SCALEWISE_COMMIT": COMMIT,
            COUNTS_OTHERS: "yes",
        }
        command = [*first, *train_command(run.as_json(), folder, attempt)]
        process = subprocess.Popen(
            on_small_disk(*within, command) if within else command,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        training = Started(process, folder)
        self.started.append(training)
        return training

    def complete(
        self, name: str, devices: int, changed: Mapping[str, Any] | None = None, **given: Any
    ) -> Finished:
        """Start a run, or go on with it, to its end."""
        return self.start(name, devices, changed, **given).finish()

    def kill(self, pid: int) -> None:
        """Kill a process, which may have ended."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End what a failed test has left: it may slow the next one."""
        for training in self.started:
            if training.process.poll() is None:
                training.process.kill()
                training.process.communicate()
            for pid in training.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
