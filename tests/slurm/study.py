"""A study on the lab, run as a user runs it: the shipped profile, a site file, a configuration."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tests.slurm.lab import Lab
from tests.slurm.machines import until
from tests.slurm.records import Job

from scalewise.records import Failure, Summary, read_failure, read_summary

ROOT = Path(__file__).parents[2]

SITE: dict[str, Any] = {
    "accelerator": "cpu",
    "devices_per_node": 4,
    "cpus_per_node": 16,
    "memory_gb_per_node": 32,
    "max_nodes": 4,
    "slurm": {"account": "lab", "partition": "main", "gpu_request": "gres", "gpu_type": "h100"},
}
"""The lab: CPU processes stand in for its GPUs, which Slurm gives out all the same."""

TRAINING: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 240,
    "learning_rate": 0.05,
    "epochs": 2,
    "warmup_steps": 2,
    "repeats": 1,
    "timeout_seconds": 90,
    # a job more for each shape, where a test looks at its own
    "predict": False,
}
ENDLESS = {"epochs": 1_000_000}


@dataclass
class ClusterStudy:
    """A folder in which snakemake runs on the head of the lab."""

    lab: Lab
    folder: Path
    site: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(SITE)))
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    path: str = ""

    def configure(self, experiments: dict[str, dict[str, Any]], **site: Any) -> None:
        """Write the study and the site; ``slurm`` facts come on top of the lab's."""
        slurm = self.site["slurm"] | site.pop("slurm", {})
        facts = self.site | site | {"slurm": slurm}
        (self.folder / "site.yaml").write_text(yaml.safe_dump(facts))
        config = {"defaults": TRAINING, "experiments": experiments}
        (self.folder / "study.yaml").write_text(yaml.safe_dump(config))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Snakemake with the shipped profile, quick to look at its jobs."""
        program = Path(sys.executable).parent
        command: list[str | Path] = [
            *(program / "snakemake", "--snakefile", ROOT / "workflow" / "Snakefile"),
            *("--profile", ROOT / "profiles" / "slurm", "--config", "site=site.yaml"),
            *("--configfile", "study.yaml", "--slurm-init-seconds-before-status-checks", "3"),
            *("--latency-wait", "20", *arguments),
        ]
        path = os.pathsep.join(filter(None, [self.path, str(program), os.environ["PATH"]]))
        process = self.lab.start(*command, cwd=self.folder, env={"PATH": path})
        self.started.append(process)
        return process

    def snakemake(self, *arguments: str, limit: float = 240) -> tuple[int, str]:
        """Exit code and output, once it has ended."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output

    def run(self, experiment: str, name: str) -> Path:
        """The folder of a run."""
        return self.folder / "results" / experiment / "runs" / name

    def summary(self, experiment: str, name: str) -> Summary:
        """What the run left."""
        return read_summary(self.run(experiment, name))

    def failure(self, experiment: str, name: str) -> Failure:
        """Why the run has no result."""
        found = read_failure(self.run(experiment, name))
        assert found is not None
        return found

    def ranks(self, experiment: str, name: str) -> pd.DataFrame:
        """Its ranks, in order."""
        columns = {"visible_devices": str, "cpu_affinity": str}
        return pd.read_csv(self.run(experiment, name) / "ranks.csv", dtype=columns).sort_values("rank")

    def jobs(self, comment: str = "rule_train") -> dict[str, Job]:
        """The jobs of this study by their comment, the last of each."""
        mine = self.submitted()
        return {job.comment: job for job in self.lab.jobs() if job.job_id in mine and comment in job.comment}

    def submitted(self) -> set[str]:
        """The ids of all jobs of this study."""
        text = "".join(path.read_text() for path in (self.folder / ".snakemake" / "log").glob("*.log"))
        return set(re.findall(r"has been submitted with SLURM jobid (\d+)", text))

    def wait_for(self, path: Path, limit: float = 60) -> Path:
        """A file, once it is there."""
        self.wait_until(path.exists, f"{path.name} is missing", limit)
        return path

    def wait_training(self, experiment: str, name: str, limit: float = 90) -> Path:
        """The attempt's folder, once the run has trained an epoch."""
        return self.wait_for(self.run(experiment, name) / "attempt" / "progress.json", limit).parent

    def wait_until(self, reached: Callable[[], bool], complaint: str, limit: float = 60) -> None:
        """Wait, but not for a snakemake that has ended."""

        def over() -> bool:
            return reached() or (bool(self.started) and self.started[-1].poll() is not None)

        until(over, lambda: complaint, limit)
        if not reached():
            raise AssertionError(
                f"{complaint}, and snakemake has ended:\n{self.started[-1].communicate()[0]}"
            )

    def rank_process(self, experiment: str, name: str, rank: int) -> tuple[int, str]:
        """A rank's process number as seen from outside, and its host."""
        attempt = str(Path("results") / experiment / "runs" / name / "attempt")
        note = json.loads((self.folder / attempt / f"rank{rank}.started.json").read_text())
        for pid, line in self.lab.processes(note["host"]).items():
            status = Path(f"/proc/{pid}/status").read_text()
            inside = re.search(r"^NSpid:.*\t(\d+)$", status, re.MULTILINE)
            if attempt in line and inside is not None and int(inside[1]) == note["pid"]:
                return pid, str(note["host"])
        raise AssertionError(f"rank {rank} of {name} does not run")

    def processes(self) -> list[str]:
        """Everything of this study's jobs that runs on any node."""
        return [
            f"{host}: {line}"
            for host in self.lab.names
            for line in self.lab.processes(host).values()
            if str(self.folder) in line or "attempt" in line or "slurmstepd" in line
        ]

    def seconds_until_nothing_runs(self, limit: float = 30) -> float:
        """Until no process of a job is left on any node."""
        began = time.monotonic()
        until(lambda: not self.processes(), lambda: f"these are left: {self.processes()}", limit)
        return time.monotonic() - began

    def end(self) -> None:
        """Leave nothing to the next test."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        if jobs := self.lab.queue():
            self.lab.run("scancel", *jobs)
