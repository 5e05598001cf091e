"""Open a study in Snakemake's main process: check the configuration and where snakemake was started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewise.config.errors import StudyError
from scalewise.config.paths import invalid_command
from scalewise.plan.planned_study import Study
from scalewise.plan.study import load_study
from scalewise.site.commands import SUBMISSION_COMMANDS, ignore_variables, missing_commands


def open_study(
    config: Mapping[str, Any],
    files: Sequence[str],
    *,
    checkout: Path,
    is_module: bool,
    snakefile: str = "",
    starts_jobs: bool = False,
) -> Study:
    """Check the configuration and make the runs of the study.

    Args:
        config: Keys and values of all configuration files and of the command.
        files: The configuration files.
        checkout: Scalewise's folder.
        is_module: Whether another workflow uses this one as a module.
        snakefile: The command's Snakefile.
        starts_jobs: Whether the command sends jobs.

    Raises:
        StudyError: Names all mistakes.
    """
    study = load_study(
        config,
        files,
        config.get("site"),
        checkout=checkout,
        is_module=is_module,
    )
    if study.site.slurm is None:
        return study
    if job := os.environ.get("SLURM_JOB_ID"):
        raise StudyError(
            [
                f"snakemake was started inside Slurm job {job}, whose settings its own jobs would inherit. "
                "Start it on a login node; where the site wants it inside a job, as "
                "`env -u SLURM_JOB_ID snakemake ...`."
            ]
        )
    if refusals := [
        refusal for path in (*files, snakefile, str(Path.cwd())) if (refusal := invalid_command(path))
    ]:
        raise StudyError([f"the name of a file or folder {text}. {fix}" for text, fix in refusals])
    if starts_jobs and (missing := missing_commands(*SUBMISSION_COMMANDS)):
        raise StudyError(
            [
                f"{', '.join(missing)} not on PATH, so no job can be sent. Go to a login node, or load the "
                "Slurm module."
            ]
        )
    ignored = ignore_variables(os.environ)
    if study.site.slurm.partition is None:
        # the executor plugin would request sinfo's default; now sinfo shows none, and Slurm chooses
        os.environ["SINFO_PARTITION"] = "none"
    if ignored:
        text = (
            f"{', '.join(ignored)} of the environment: ignored, as the study decides what its jobs request."
        )
        return replace(study, warnings=[*study.warnings, text])
    return study
