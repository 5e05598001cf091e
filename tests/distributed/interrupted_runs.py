"""Runs that are ended at chosen steps and started again, and what must not differ because of that."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from tests.distributed.whole_runs import COMMIT, END_SECONDS, RANK_PYTHON, Training, clean_up
from tests.planned_job import plan_one_run, train_command
from tests.prepared_digits import place_digits
from tests.small_disk import on_small_disk
from tests.waiting import wait_until

from scalewise.builtin.data.datasets import write
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, MODEL, Resumption, read_summary

SETTINGS: dict[str, Any] = {
    "model": "planted_perilous",
    "dataset": "digits",
    "global_batch_size": 240,
    "epochs": 30,
    "learning_rate": 0.05,
    "schedule": "cosine",
    "learning_rate_warmup_epochs": 1.5,
    "crop_padding": 1,
    "warmup_steps": 2,
    "deterministic": True,
    "save_model": True,
    "devices": [1, 2, 4],
    "repeats": 1,
}
STEPS_PER_EPOCH = 6
CHECKPOINT_SECONDS = 0.3
TIMINGS = ("train_seconds", "evaluation_seconds", "samples_per_second")
PAUSE_SECONDS = 0.03
"""Of a step of a run that is to be ended: time for it to write checkpoints, and for us to hit it."""


@dataclass(frozen=True)
class Kill:
    """What ends a run: at which pass of a process, counted from its first, and how.

    Args:
        at: the pass.
        how: ``forward`` or ``backward``: a rank kills itself in the middle of that; ``ranks``: all are
            killed; ``train.py``: it is killed alone; ``stop``: train.py gets SIGTERM; ``nan``: a rank's
            loss is not a number.
        rank: that kills itself.
    """

    at: int
    how: str
    rank: int = 0


def planned_kills(seed: str, world_size: int, earliest: int) -> Kill:
    """A kill at random, the same for the same seed, not before a pass of the process."""
    chosen = random.Random(seed)
    how = chosen.choice(["forward", "backward", "ranks", "train.py"])
    return Kill(chosen.randint(earliest, 110), how, chosen.randrange(world_size))


@dataclass(frozen=True)
class Ended:
    """What a completed run leaves that must not depend on how often it was cut off."""

    weights: str
    epochs: list[list[str]]


def ended(folder: Path) -> Ended:
    """Of a completed run: the sum of its weights' file, and its records as text without the timings."""
    with (folder / EPOCHS).open(encoding="utf-8") as file:
        rows = [[text for key, text in row.items() if key not in TIMINGS] for row in csv.DictReader(file)]
    return Ended(hashlib.sha256((folder / MODEL).read_bytes()).hexdigest(), rows)


def resumption(folder: Path) -> Resumption:
    """As its summary tells."""
    measured = read_summary(folder).measurements
    assert measured is not None
    return measured.resumption


@dataclass
class Runs:
    """Starts runs below a folder.

    Args:
        folder: of all of them.
        changed: settings that are not the usual ones.
    """

    folder: Path
    changed: Mapping[str, Any] = field(default_factory=dict)
    started: list[Training] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._site = self.folder / "site.yaml"
        text = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\n"
        self._site.write_text(text, encoding="utf-8")
        self.dataset = self.folder / "digits.safetensors"
        place_digits(self.dataset)

    def start(
        self,
        name: str,
        devices: int,
        changed: Mapping[str, Any] | None = None,
        *,
        peril: Kill | None = None,
        pause_seconds: float = 0.0,
        first: tuple[str, ...] = (),
        within: tuple[Path, str] | None = None,
        dataset: Path | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> Training:
        """A train.py at work.

        Args:
            name: of the experiment, and of the folder.
            devices: ranks.
            changed: settings.
            peril: that its model is to tell of, or to bring about.
            pause_seconds: that each of its steps takes longer.
            first: words ahead of the whole command.
            within: a folder in place of which it sees an empty disk, and the size of that.
            dataset: prepared; None for the digits.
            checkpoint_seconds: between two checkpoints.
        """
        chosen = SETTINGS | dict(self.changed) | dict(changed or {})
        run = load_study({"experiments": {name: chosen}}, site_file=self._site).runs[name, f"d{devices}.r1"]
        folder = self.folder / name / run.run
        folder.mkdir(parents=True, exist_ok=True)
        self.mark(folder).unlink(missing_ok=True)
        command = [*first, *train_command(run.as_json(), folder)]
        plan = plan_one_run(
            folder.with_name(f"{run.run}.plan.json"),
            run.as_json(),
            dataset or self.dataset,
            SiteLaunch(python=os.environ.get(RANK_PYTHON)),
            limit_seconds=2000.0,
            checkpoint_seconds=checkpoint_seconds,
        )
        environment = plan | {
            "SCALEWISE_MACHINE_LOCK": str(self.folder.parent / "machine.lock"),
            "SCALEWISE_COMMIT": COMMIT,
            "PERIL_PAUSE": str(pause_seconds),
            "PERIL_MARK": str(self.mark(folder)),
        }
        if peril is not None:
            environment["PERIL_AT"] = str(peril.at)
            if peril.how in {"forward", "backward", "nan"}:
                environment |= {"PERIL_RANK": str(peril.rank), "PERIL_IN": peril.how}
        process = subprocess.Popen(
            on_small_disk(*within, command) if within else command,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        training = Training(process, folder)
        self.started.append(training)
        return training

    def mark(self, folder: Path) -> Path:
        """Made when a run comes to the pass at which it meets its peril."""
        return folder.with_suffix(".mark")

    def kill_on_the_way(self, name: str, devices: int, peril: Kill) -> tuple[Training, int]:
        """Start a run, or go on with it, until its peril has ended it or it has completed: its exit code."""
        # a request to end is looked for once a second: it must not be over by then
        pause_seconds = 0.1 if peril.how == "stop" else PAUSE_SECONDS
        training = self.start(name, devices, peril=peril, pause_seconds=pause_seconds)
        wait_until(
            lambda: self.mark(training.folder).exists() or training.process.poll() is not None,
            f"{name} does not come to {peril}",
            END_SECONDS,
            longest_pause_seconds=0.01,
        )
        if peril.how == "stop":
            training.process.send_signal(signal.SIGTERM)
        elif peril.how == "train.py":
            training.process.kill()
        elif peril.how == "ranks":
            for rank in range(devices):
                # one that is near its end may be over before it is hit: it then counts as no kill
                with suppress(ProcessLookupError, FileNotFoundError):
                    note = (training.attempt / f"rank{rank}.json").read_text(encoding="utf-8")
                    os.kill(json.loads(note)["pid"], signal.SIGKILL)
        code, _ = training.end()
        assert training.left_over() == {}
        return training, code

    def begun(self, folder: Path) -> Path:
        """A copy of what a run has left, to go on with under the same name: its folder."""
        copy = self.folder / folder.relative_to(folder.parents[1])
        shutil.copytree(folder, copy)
        return copy

    def complete(self, name: str, devices: int, changed: Mapping[str, Any] | None = None) -> Path:
        """Start a run, or go on with it, to its end: its folder."""
        training = self.start(name, devices, changed)
        code, stderr = training.end()
        assert code == 0, stderr
        return training.folder

    def close(self) -> None:
        """End what a failed test has left."""
        clean_up(self.started)


def prepare_some_digits(path: Path, samples: int = 331, test_samples: int = 83) -> None:
    """The first of the handwritten digits, as every rank maps them."""
    digits = load_digits()
    images = torch.from_numpy((digits.images[: samples + test_samples, np.newaxis] * 15).astype(np.uint8))
    labels = torch.from_numpy(digits.target[: len(images)].astype(np.int64))
    tensors = {}
    for split, part in (("train", slice(samples)), ("test", slice(samples, None))):
        tensors[f"{split}_images"] = images[part].clone()
        tensors[f"{split}_labels"] = labels[part].clone()
    write(tensors, path)


def resumed_at(folder: Path) -> list[int]:
    """The steps that a run's log tells it went on from."""
    text = (folder / "train.log").read_text(encoding="utf-8")
    return [int(step) for step in re.findall(r"resumed at step (\d+) from ", text)]


def kill_again_and_again(runs: Runs, name: str, devices: int, kills: int, expected: Ended) -> int:
    """Kill a run until it has been killed so often, and let it complete; one that completes begins anew.

    Returns:
        how many starts went on from a checkpoint.
    """
    killed, resumed, starts = 0, 0, 0
    checkpoints = runs.folder / name / f"d{devices}.r1" / "checkpoints"
    while killed < kills:
        starts += 1
        assert starts <= 10 * kills, f"{name} ends before it is killed"
        # one that is cut off before its first checkpoint shows little
        earliest = 2 if any(checkpoints.glob("step-*")) else 70
        training, code = runs.kill_on_the_way(
            name, devices, planned_kills(f"{name} {devices} {starts}", devices, earliest)
        )
        if code == 0:
            assert ended(training.folder) == expected
            resumed += len(resumed_at(training.folder))
            shutil.rmtree(training.folder)
        else:
            killed += 1
    folder = runs.complete(name, devices)
    assert ended(folder) == expected
    found = resumption(folder)
    assert found.resumed_at_steps == sorted(found.resumed_at_steps)
    assert found.starts >= len(found.resumed_at_steps) + 1
    return resumed + len(resumed_at(folder))
