"""Submission to Slurm: what must hold before jobs are sent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.paths import invalid_command
from scalewise.plan.config.site import Site
from scalewise.plan.jobs.slurm_checks import SUBMISSION_COMMANDS, missing_commands
from scalewise.snakemake_adapter import array_jobs

SINFO_PARTITION = "SINFO_PARTITION"

LOST_SITE = (
    "The runs would go to a cluster, but no site file describes it: a --config on the command line replaces "
    "the profile's own. Add site=profiles/slurm/site.yaml to it."
)


def check_operating_system(system: str) -> None:
    """Stop on a system other than Linux, whose calls for CPUs, signals and processes ranks use everywhere.

    Args:
        system: The operating system, spelled as ``platform.system`` does.

    Raises:
        StudyError: With the fix.
    """
    if system != "Linux":
        raise StudyError(
            [
                f"this machine runs {system or 'an unknown system'}, and Scalewise needs Linux. Run it on a "
                "Linux machine, in a Linux container or, on Windows, in WSL."
            ]
        )


def check_site_is_given(site_file: object, cluster_profile: bool) -> None:
    """Stop before a study is judged by this machine that was meant for a cluster.

    Args:
        site_file: The configuration's key ``site``; None where there is none.
        cluster_profile: The command came with the profile of a cluster.

    Raises:
        StudyError: with the fix.
    """
    if cluster_profile and site_file is None:
        raise StudyError([LOST_SITE])


def check_environment(
    site: Site, cluster_profile: bool, environ: Mapping[str, str], named: Iterable[str | Path] = ()
) -> None:
    """Stop where the plan itself would be wrong.

    Args:
        site: Facts of the machine or cluster.
        cluster_profile: The command came with the profile of a cluster.
        environ: Variables that snakemake runs with.
        named: Files and folders that stand in the command lines of jobs.

    Raises:
        StudyError: with the fix.
    """
    if cluster_profile and site.slurm is None:
        raise StudyError([LOST_SITE])
    if site.slurm is not None and (
        odd := [refusal for path in named if (refusal := invalid_command(str(path)))]
    ):
        raise StudyError([f"the name of a file or folder {what}. {fix}" for what, fix in odd])
    if site.slurm is not None and "SLURM_JOB_ID" in environ:
        raise StudyError(
            [
                f"snakemake was started inside Slurm job {environ['SLURM_JOB_ID']}, whose settings its own "
                "jobs would inherit. Start it on a login node; where the site wants it inside a job, as "
                "`env -u SLURM_JOB_ID snakemake ...`."
            ]
        )


def prepare_submission(site: Site, elsewhere: bool) -> None:
    """Stop before the first job where none could be sent; leave to Slurm a partition that is not named.

    Args:
        site: Facts of the machine or cluster.
        elsewhere: The executor does not run jobs on this machine.

    Raises:
        StudyError: with the fix.
    """
    if site.slurm is None:
        if elsewhere:
            raise StudyError([LOST_SITE])
        return
    if not elsewhere:
        raise StudyError(
            [
                "The site file describes a Slurm cluster, but the runs would start here, on the login node. "
                "Use --profile profiles/slurm, or --profile profiles/local for this machine."
            ]
        )
    if missing := missing_commands(*SUBMISSION_COMMANDS):
        raise StudyError(
            [
                f"{', '.join(missing)} not on PATH, so no job can be sent. Go to a login node, or load "
                "the Slurm module."
            ]
        )
    if site.slurm.partition is None:
        # the executor plugin would name the cluster's default, which it looks up with sinfo: with this,
        # sinfo shows none, and the choice is Slurm's
        os.environ[SINFO_PARTITION] = "none"


def check_job_arrays(arguments: Sequence[str]) -> None:
    """Stop if the executor plugin would send job arrays, which give every job the resources of the first.

    Args:
        arguments: The command line of Snakemake, without the program.

    Raises:
        StudyError: With the value, where it was set, and the fix.
    """
    if (wish := array_jobs(arguments)) is not None:
        raise StudyError(
            [
                f"{wish.source}: slurm-array-jobs is {wish.rules!r}, and the plugin gives every run of a job "
                "array the resources of the first. Remove it, or add --slurm-array-jobs= to the command."
            ]
        )
