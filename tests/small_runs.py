"""A run, its plan, its command and the start of its ranks, for tests that need no particular one."""

import json
import sys
from pathlib import Path
from typing import Any, cast

from tests.paths import CLI

from scalewise.config.settings import Settings
from scalewise.config.site import Site, SiteFile
from scalewise.config.slurm import Slurm
from scalewise.execution.rank_files import RankSetup
from scalewise.plan.plan_file import PLAN, TrainJob
from scalewise.plan.run_definition import RunDefinition
from scalewise.records import RECORD


def definition(devices: int = 1, **settings: Any) -> RunDefinition:
    """A run on CPUs of one node.

    Args:
        devices: of it.
        settings: Those that are not the usual ones.
    """
    return RunDefinition(
        experiment="study",
        run=f"d{devices}.r1",
        shape=f"1x{devices}",
        batch_size_per_device=8,
        global_batch_size=8 * devices,
        repeat=1,
        options={},
        accelerator="cpu",
        launcher="torchrun",
        settings={"dataset": "digits", "model": "linear", "global_batch_size": 8 * devices} | settings,
    )


def definition_of(settings: Settings) -> RunDefinition:
    """A run of one CPU process with a global batch."""
    batch = settings.global_batch_size
    assert batch is not None
    sizes = {"batch_size_per_device": batch // settings.accumulation_steps, "global_batch_size": batch}
    return definition(**settings.model_dump()).model_copy(update=sizes)


def site_of(slurm: Slurm | None = None, accelerator: str = "cpu", **facts: Any) -> Site:
    """A site of nodes with two devices.

    Args:
        slurm: Its cluster; None for one machine.
        accelerator: Its devices.
        facts: Of the site file.
    """
    content = SiteFile(slurm=slurm, **facts)
    sizes = {"devices_per_node": 2, "cpus_per_node": 8, "max_nodes": 2}
    return Site.model_validate({"accelerator": accelerator, "facts": content, **sizes})


def rank_setup(folder: Path = Path("run"), run: RunDefinition | None = None, **changes: Any) -> RankSetup:
    """What the ranks of a run read; without one, of two ranks of one node.

    Args:
        folder: Receives its records.
        changes: Fields that are not the usual ones.
    """
    usual: dict[str, Any] = {
        "launcher": "torchrun",
        "definition": run or definition(2),
        "dataset": None,
        "folder": folder,
        "inputs": {},
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "timeout_seconds": 120,
        "limit_seconds": 1000.0,
        "supervisor_host": "node-a",
    }
    return RankSetup(**usual | changes)


# --- the plan of a study that is one run -----------------------------------------------------------------


def job_of(run: RunDefinition, dataset: Path | None = None, **limits: Any) -> TrainJob:
    """The job of a run of ten minutes on this machine.

    Args:
        run: The run.
        dataset: The prepared file; None for a program.
        limits: Those that are not the usual ones.
    """
    usual = {"limit_seconds": 600.0, "limit_over_tries": False, "timeout_seconds": 60}
    job = {
        "site": "",
        "threads": 1,
        "resources": {},
        "definition": run.as_json(),
        "inputs": {"dataset": [] if dataset is None else str(dataset)},
        "priority": 0,
    }
    return cast(TrainJob, job | usual | limits)


def plan_one_run(
    path: Path, definition: str, dataset: Path | None, site: Site | None = None, **limits: Any
) -> dict[str, str]:
    """Write the plan of one run; return the variable that names the file.

    Args:
        path: File to write.
        definition: ``RunDefinition.as_json()``.
        dataset: The prepared file; None for a program.
        site: None for this machine.
        limits: Those that are not the usual ones.
    """
    run = RunDefinition.model_validate_json(definition)
    plan = {
        "sites": {"": (site or site_of()).model_dump_json()},
        "runs": {run.experiment: {run.run: job_of(run, dataset, **limits)}},
    }
    path.write_text(json.dumps(plan), encoding="utf-8")
    return {PLAN: str(path)}


def train_command(definition: str, folder: Path, attempt: int = 1) -> list[str]:
    """Return the command that trains a run whose records go into a folder."""
    run = RunDefinition.model_validate_json(definition)
    return [
        *(sys.executable, str(CLI), "train", "--log", str(folder.parent / f"{folder.name}.job.log")),
        *("--attempt", str(attempt), run.experiment, run.run, str(folder / RECORD)),
    ]
