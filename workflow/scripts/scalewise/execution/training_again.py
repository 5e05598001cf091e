"""Train a run of the built-in training again, outside a study: its ranks only, without a supervisor."""

from __future__ import annotations

import sys
from pathlib import Path

from scalewise.execution.input_hashes import input_hashes
from scalewise.execution.messages import TrainSpec
from scalewise.execution.rank_files import ATTEMPT, RankFiles
from scalewise.execution.rank_processes import rank_setup_for
from scalewise.plan.config.settings import LauncherName
from scalewise.plan.jobs.launch import RankLaunch, SiteLaunch
from scalewise.plan.runs.runs import input_files
from scalewise.records import RECORD, read_summary, utc_now

TIMEOUT_SECONDS = 600
"""A rank waits this long for another, as by default in a study."""


def begin_training(
    run_folder: Path, folder: Path, launcher: LauncherName, network_interface: str | None
) -> int:
    """Write the files that the ranks of a training read; return the exit code.

    A training that was cut off resumes from its checkpoints in the folder.

    Args:
        run_folder: A completed run, whose definition is trained to the end; the weights are kept.
        folder: Receives the records and the checkpoints.
        launcher: The program that starts the ranks.
        network_interface: The interface between nodes; None for that of the node's name.

    Raises:
        RecordError: The run has no record that can be read.
    """
    definition = read_summary(run_folder).definition
    to_the_end = {"steps": None, "save_model": True}
    settings = definition.settings.model_copy(update=to_the_end)
    definition = definition.model_copy(update={"launcher": launcher, "settings": settings})
    inputs = input_files(definition)
    dataset, weights = (
        Path(path) if isinstance(path := inputs[name], str) else None for name in ("dataset", "weights")
    )
    problem = "is a run of a program. Run the program itself." if dataset is None else ""
    if (folder / RECORD).exists():
        problem = f"is not trained again: {folder} has a training that has ended. Name another folder."
    if problem or dataset is None:
        print(f"scalewise: {run_folder} {problem}", file=sys.stderr)
        return 1
    spec = TrainSpec(
        definition=definition, dataset=dataset, folder=folder, started_at=utc_now(), weights=weights
    )
    starts = [int(path.name) for path in spec.starts.glob("*")]
    hashes = input_hashes(dataset, weights)
    spec = spec.model_copy(update={"start_number": max(starts, default=0) + 1, "input_hashes": hashes})
    # as on a cluster: no process watches over the ranks
    site = SiteLaunch(slurm=True, network_interface=network_interface)
    rank_setup = rank_setup_for(RankLaunch.for_run(definition), site, TIMEOUT_SECONDS)
    RankFiles(folder / ATTEMPT).begin(rank_setup.model_copy(update={"training": spec}))
    return 0
