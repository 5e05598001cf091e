"""Starts whole runs through train.py, and reads what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tests.planned_job import plan_one_run, train_command
from tests.prepared_digits import place_digits
from tests.waiting import Found, ended_output, wait_until

from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, RANKS, RunRecord, read_summary

SETTINGS = {
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
END_SECONDS = 900
"""Longest wait for the end of a run, which may wait for others on this machine."""
RANK_PYTHON = "RANK_PYTHON"
"""Variable with the interpreter of ranks, if that is not the one of train.py."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Training:
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
        """Launcher and ranks that still run: the attempt's folder is their argument, or they left a note."""
        found = {}
        notes = [path.read_text(encoding="utf-8") for path in self.attempt.glob("rank?.json")]
        ranks = {int(json.loads(note)["pid"]) for note in notes if note}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes().decode().split("\0")
                    # the command of one that has died and still stands in the table is empty
                    if str(self.attempt) in command or (int(entry.name) in ranks and command != [""]):
                        found[int(entry.name)] = " ".join(command)
        return found

    def left_over(self) -> dict[int, str]:
        """What still runs once ranks that must look for themselves have had the time to."""
        with suppress(TimeoutError):
            wait_until(lambda: not self.processes(), "processes are left", 90)
        return self.processes()


def heeds(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, or has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is None or bool(int(caught[1], 16) >> (number - 1) & 1)


Start = Callable[..., Training]


TWO_CPUS = "accelerator: cpu\ndevices_per_node: 2\ncpus_per_node: 2\n"


def starter(folder: Path, facts: str = TWO_CPUS) -> tuple[Start, list[Training]]:
    """Starts runs below a folder; its lock is apart from that of a user's training on this machine.

    Args:
        folder: of all of them.
        facts: of the machine, as the text of a site file.
    """
    site = folder / "site.yaml"
    site.write_text(facts, encoding="utf-8")
    digits = place_digits(folder / "digits.safetensors")
    started: list[Training] = []

    def start(
        name: str,
        devices: int,
        changed: Mapping[str, Any] | None = None,
        dataset: Path = digits,
        limit_seconds: float = 1000,
        timeout_seconds: int = 60,
        settings: Mapping[str, Any] = SETTINGS,
        attempt: int = 1,
        **limits: Any,
    ) -> Training:
        config = {"experiments": {name: dict(settings) | dict(changed or {})}}
        run = load_study(config, site_file=site).runs[name, f"d{devices}.r1"]
        run_folder = folder / name / run.run
        run_folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            train_command(run.as_json(), run_folder, attempt),
            env=os.environ
            | plan_one_run(
                run_folder.with_name(f"{run.run}.plan.json"),
                run.as_json(),
                None if "program" in settings else dataset,
                SiteLaunch(python=os.environ.get(RANK_PYTHON)),
                limit_seconds=limit_seconds,
                timeout_seconds=timeout_seconds,
                **limits,
            )
            | {
                "SCALEWISE_MACHINE_LOCK": str(folder.parent / "machine.lock"),
                "SCALEWISE_COMMIT": COMMIT,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        training = Training(process, run_folder)
        started.append(training)
        return training

    return start, started


def clean_up(started: list[Training]) -> None:
    """Nothing that a failed test has left may slow the next one."""
    for training in started:
        if training.process.poll() is None:
            training.process.kill()
            training.process.communicate()
        for pid in training.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Finished:
    """A run that has ended in order."""

    folder: Path
    stderr: str
    summary: RunRecord
    epochs: pd.DataFrame
    ranks: pd.DataFrame

    @property
    def log(self) -> list[str]:
        return (self.folder / "train.log").read_text(encoding="utf-8").splitlines()


def finish(training: Training) -> Finished:
    code, stderr = training.end()
    assert code == 0, stderr
    folder = training.folder
    return Finished(
        folder,
        stderr,
        read_summary(folder),
        pd.read_csv(folder / EPOCHS),
        pd.read_csv(folder / RANKS),
    )
