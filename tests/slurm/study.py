"""A study on the lab, run as a user runs it: the shipped profile, a site file, a configuration."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tests.paths import ROOT, SCRIPTS, SNAKEFILE
from tests.prepared_digits import place_digits_of_study
from tests.slurm.lab import Lab
from tests.slurm.records import Job
from tests.waiting import ended_output, wait_until

from scalewise.execution.rank_files import RankFiles
from scalewise.records import EPOCHS, MODEL, Failure, RunRecord, read_failure, read_run

PROMPT = Path(__file__).with_name("prompt_snakemake.py")
TRAININGS = ("--until", "train")
"""For snakemake, where a test asks nothing of tables, figures and reports."""

LIMIT_SECONDS = 900
"""Of a study, and of all that a test waits for: none takes so long, even while other tests run."""

SITE: dict[str, Any] = {
    "accelerator": "cpu",
    "devices_per_node": 4,
    "cpus_per_node": 16,
    "memory_gb_per_node": 32,
    "max_nodes": 4,
    "slurm": {"account": "lab", "partition": "main", "gpu_type": "h100"},
}
"""The lab: CPU processes stand in for its GPUs, which Slurm gives out as their type is named."""

TRAINING: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 240,
    "learning_rate": 0.05,
    "epochs": 2,
    "warmup_steps": 2,
    "repeats": 1,
    # of a start, too: many at once take their time
    "timeout_seconds": 600,
    # a job more for each shape, where a test looks at its own
}
ENDLESS = {"epochs": 1_000_000, "model": "planted_unhurried"}

ONE_RANK_A_NODE = {"devices_per_node": 1, "memory_gb_per_node": 4}
"""Facts of a site on which two devices are two nodes, and many runs fit on those."""


@dataclass
class ClusterStudy:
    """A folder in which snakemake runs on the head of the lab.

    Args:
        prepared: the digits lie there already, as a study before this one has left them.
        prompt: snakemake looks at its jobs every two seconds, not less and less often as it does for users.
        python: The interpreter of a prompt snakemake, and by it of its jobs and of their ranks.
    """

    lab: Lab
    folder: Path
    prepared: bool = True
    prompt: bool = True
    site: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(SITE)))
    python: Path = Path(sys.executable)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    path: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def configure(self, experiments: dict[str, dict[str, Any]], **site: Any) -> None:
        """Write the study and the site; ``slurm`` facts come on top of the lab's."""
        slurm = self.site["slurm"] | site.pop("slurm", {})
        facts = self.site | site | {"slurm": slurm}
        (self.folder / "site.yaml").write_text(yaml.safe_dump(facts))
        config = {"defaults": TRAINING, "experiments": experiments}
        if self.prepared:
            place_digits_of_study(self.folder)
        (self.folder / "study.yaml").write_text(yaml.safe_dump(config))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Snakemake with the shipped profile, quick to look at its jobs."""
        program = Path(sys.executable).parent
        snakemake: list[str | Path] = [self.python, PROMPT] if self.prompt else [program / "snakemake"]
        command: list[str | Path] = [
            *(*snakemake, "--snakefile", SNAKEFILE),
            *("--profile", ROOT / "profiles" / "slurm", "--config", "site=site.yaml"),
            *("--configfile", "study.yaml", "--slurm-init-seconds-before-status-checks", "3"),
            *("--latency-wait", "20", *arguments),
        ]
        self.started.append(self._at_work(*command))
        return self.started[-1]

    def _at_work(self, *command: str | Path) -> subprocess.Popen[str]:
        program = Path(sys.executable).parent
        path = os.pathsep.join(filter(None, [self.path, str(program), os.environ["PATH"]]))
        return self.lab.start(*command, cwd=self.folder, env={"PATH": path, **self.environ})

    def call(self, script: str, *arguments: str) -> str:
        """Return what a script of Scalewise prints on the head."""
        process = self._at_work("python", SCRIPTS / script, *arguments)
        printed, _ = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, printed
        return printed

    def snakemake(self, *arguments: str, limit: float = LIMIT_SECONDS) -> tuple[int, str]:
        """Exit code and output, once it has ended."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output

    def run(self, experiment: str, name: str) -> Path:
        """The folder of a run."""
        return self.folder / "results" / experiment / "runs" / name

    def summary(self, experiment: str, name: str) -> RunRecord:
        """What the run left."""
        return read_run(self.run(experiment, name))

    def failure(self, experiment: str, name: str) -> Failure:
        """Why the run has no result."""
        found = read_failure(self.run(experiment, name))
        assert found is not None
        return found

    def ranks(self, experiment: str, name: str) -> pd.DataFrame:
        """Its ranks, in order."""
        columns = {"visible_devices": str, "cpu_affinity": str}
        return pd.read_csv(self.run(experiment, name) / "ranks.csv", dtype=columns).sort_values("rank")

    @property
    def notes_gpus(self) -> str:
        """A line of a site's prelude by which each rank notes the GPUs that Slurm shows it.

        The lab's devices are CPU processes, and Scalewise hides all GPUs from the programs of those.
        """
        return f'echo "$CUDA_VISIBLE_DEVICES" > "{self.folder}/gpus.$SLURM_JOB_ID.$SLURM_PROCID"'

    def gpus(self, experiment: str, name: str) -> list[list[str]]:
        """The GPUs that Slurm showed each rank of a run, whose prelude has noted them."""
        origin = self.summary(experiment, name).provenance
        assert origin is not None
        noted = [self.folder / f"gpus.{origin.slurm_job_id}.{rank}" for rank in range(len(origin.devices))]
        return [path.read_text().rstrip().split(",") for path in noted]

    def jobs(self, comment: str = "rule_train") -> dict[str, Job]:
        """The jobs of this study by their comment, the last of each."""
        mine = self.submitted()
        return {job.comment: job for job in self.lab.jobs() if job.job_id in mine and comment in job.comment}

    def jobs_of(self, experiment: str, name: str) -> list[Job]:
        """Every job of a run that accounting knows."""
        mine, comment = self.submitted(), f"rule_train_wildcards_{experiment}_{name}"
        return [job for job in self.lab.jobs() if job.job_id in mine and job.comment == comment]

    def log(self) -> str:
        """All that Snakemake and its plugin have logged; the terminal shows less."""
        return "".join(path.read_text() for path in (self.folder / ".snakemake" / "log").glob("*.log"))

    def submitted(self) -> set[str]:
        """The ids of all jobs of this study."""
        return set(re.findall(r"has been submitted with SLURM jobid (\d+)", self.log()))

    def wait_for(self, path: Path) -> Path:
        """A file, once it is there."""
        self.wait_until(path.exists, f"{path.name} is missing")
        return path

    def wait_training(self, experiment: str, name: str) -> Path:
        """The attempt's folder, once a rank has made a step."""
        attempt = self.run(experiment, name) / "attempt"
        self.wait_until(lambda: any(attempt.glob("probe/*.steps")), f"{experiment}/{name} makes no step")
        return attempt

    def wait_until(self, reached: Callable[[], bool], complaint: str) -> None:
        """Wait, but not for a snakemake that has ended."""
        process = self.started[-1] if self.started else None
        wait_until(
            reached,
            complaint,
            LIMIT_SECONDS,
            ended=lambda: None if process is None else ended_output(process),
        )

    def rank_process(self, experiment: str, name: str, rank: int) -> tuple[int, str]:
        """A rank's process number as seen from outside, and its host."""
        run = str(Path("results") / experiment / "runs" / name)
        note = json.loads((self.folder / run / "attempt" / f"rank{rank}.json").read_text())
        for pid, line in self.lab.processes(note["host"]).items():
            status = ""
            with suppress(OSError):  # it may have ended since
                status = Path(f"/proc/{pid}/status").read_text()
            inside = re.search(r"^NSpid:.*\t(\d+)$", status, re.MULTILINE)
            if run in line and inside is not None and int(inside[1]) == note["pid"]:
                return pid, str(note["host"])
        raise AssertionError(f"rank {rank} of {name} does not run")

    def job(self, experiment: str, name: str) -> str:
        """The id of a run's job in the queue; accounting learns a comment when its job has ended."""
        queued = self.lab.ask("squeue", "--noheader", "--format=%i|%k|%Z").splitlines()
        wanted = [f"rule_train_wildcards_{experiment}_{name}", str(self.folder)]
        (found,) = (job for job, *rest in (line.split("|") for line in queued) if rest == wanted)
        return found

    def rank_files(self, experiment: str, name: str) -> RankFiles:
        """What the ranks of a run tell."""
        return RankFiles(self.run(experiment, name) / "attempt")

    def newest_checkpoint(self, experiment: str, name: str) -> int:
        """The epochs in the newest checkpoint of a run; 0 where there is none."""
        found = (self.run(experiment, name) / "program" / "checkpoints").glob("epoch-*")
        return max((int(path.name.removeprefix("epoch-")) for path in found), default=0)

    def wait_checkpoint(self, experiment: str, name: str, after: int = 0) -> None:
        """Until a checkpoint holds more than this many epochs."""
        self.wait_until(
            lambda: self.newest_checkpoint(experiment, name) > after,
            f"{experiment}/{name} has written no checkpoint after epoch {after}",
        )

    def learned(self, experiment: str, name: str) -> tuple[bytes, pd.DataFrame]:
        """The weights that a run left, to the byte, and its epochs to the digit, but not their times."""
        folder = self.run(experiment, name)
        epochs = pd.read_csv(folder / EPOCHS, dtype=str)
        timed = ["train_seconds", "evaluation_seconds", "samples_per_second"]
        return (folder / MODEL).read_bytes(), epochs.drop(columns=timed)

    def processes(self) -> list[str]:
        """Everything of this study's jobs that runs on any node."""
        return [
            f"{host}: {line}"
            for host in self.lab.names
            for line in self.lab.processes(host).values()
            if str(self.folder) in line or "attempt" in line or "slurmstepd" in line
        ]

    def seconds_until_nothing_runs(self, limit: float = 120) -> float:
        """Until no process of a job is left on any node."""
        began = time.monotonic()
        wait_until(lambda: not self.processes(), lambda: f"these are left: {self.processes()}", limit)
        return time.monotonic() - began

    def end(self) -> None:
        """Leave nothing to the next test."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        if jobs := self.lab.queue():
            self.lab.run("scancel", *jobs)
