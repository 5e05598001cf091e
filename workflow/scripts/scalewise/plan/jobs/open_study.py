"""Open a study in Snakemake's main process: check the command, the configuration and the cluster."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewise.config.errors import StudyError
from scalewise.config.paths import invalid_command
from scalewise.config.site import Site
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import SHARED_NODE
from scalewise.plan.study import check_results_folder, check_spelling, load_study
from scalewise.site.commands import ignore_variables, missing_commands
from scalewise.site.slurm_checks import SUBMISSION_COMMANDS
from scalewise.snakemake_adapter import Snakemake, array_jobs, own_settings, profile_values

DEFAULT_CONFIG = "config/experiments.yaml"

LOST_SITE = (
    "The runs would go to a cluster, but no site file describes it: a --config on the command line replaces "
    "the profile's own. Add site=profiles/slurm/site.yaml to it."
)


@contextmanager
def exit_on_mistakes() -> Iterator[None]:
    """End this process with the mistakes; for an exception, Snakemake would print further lines."""
    try:
        yield
    except StudyError as error:
        sys.exit(str(error))


def reads_shipped_study(snakemake: Snakemake, config: Mapping[str, Any]) -> bool:
    """Return whether the study is that of ``DEFAULT_CONFIG``, which no file and no other workflow replaces.

    Raises:
        StudyError: The file is missing or Snakemake could not read it.
    """
    check_operating_system(platform.system())
    if config.get("experiments") or snakemake.has_named_config_files:
        return False
    check_spelling(DEFAULT_CONFIG)
    return True


def open_study(snakemake: Snakemake, config: Mapping[str, Any], checkout: Path) -> Study:
    """Check the command and the configuration, and make the runs of the study.

    Args:
        snakemake: The main process.
        config: Keys and values of all configuration files and of the command.
        checkout: Scalewise's folder.

    Raises:
        StudyError: Names all mistakes.
    """
    site_file, files = config.get("site"), snakemake.config_files
    on_cluster = snakemake.device_budget is not None
    if on_cluster and site_file is None:
        # the facts of this machine would stand for those of the cluster
        raise StudyError([LOST_SITE])
    study = load_study(
        config,
        files,
        site_file,
        conda_environments=snakemake.makes_environments,
        checkout=checkout,
        is_module=snakemake.is_module,
    )
    if study.site.slurm is not None:
        snakemake.limit(SHARED_NODE, 1)
    check_results_folder(Path("results"))
    check_environment(study.site, on_cluster, os.environ, [*files, snakemake.snakefile, Path.cwd()])
    check_job_arrays(sys.argv[1:])
    warnings = list(profile_warnings(sys.argv[1:], checkout / "profiles", study.site))
    if study.site.slurm is not None and (ignored := ignore_variables(os.environ)):
        warnings.append(
            f"{', '.join(ignored)} of the environment: ignored, as the study decides what its jobs request."
        )
    return replace(study, warnings=[*study.warnings, *warnings])


def check_operating_system(system: str) -> None:
    """Stop on a system other than Linux: ranks use its calls for CPUs, signals and processes.

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


def check_environment(
    site: Site, cluster_profile: bool, environ: Mapping[str, str], paths: Iterable[str | Path] = ()
) -> None:
    """Stop if the plan would be wrong in this environment.

    Args:
        site: Facts of the machine or cluster.
        cluster_profile: The command came with the profile of a cluster.
        environ: Variables of snakemake.
        paths: Files and folders in the command lines of jobs.

    Raises:
        StudyError: With the fix.
    """
    if cluster_profile and site.slurm is None:
        raise StudyError([LOST_SITE])
    if site.slurm is not None and (
        refusals := [refusal for path in paths if (refusal := invalid_command(str(path)))]
    ):
        raise StudyError([f"the name of a file or folder {text}. {fix}" for text, fix in refusals])
    if site.slurm is not None and "SLURM_JOB_ID" in environ:
        raise StudyError(
            [
                f"snakemake was started inside Slurm job {environ['SLURM_JOB_ID']}, whose settings its own "
                "jobs would inherit. Start it on a login node; where the site wants it inside a job, as "
                "`env -u SLURM_JOB_ID snakemake ...`."
            ]
        )


def prepare_submission(site: Site, sends_jobs: bool) -> None:
    """Stop before the first job if no job can be sent; without a partition in the site file, Slurm chooses.

    Args:
        site: Facts of the machine or cluster.
        sends_jobs: The executor does not run jobs on this machine.

    Raises:
        StudyError: With the fix.
    """
    if site.slurm is None:
        if sends_jobs:
            raise StudyError([LOST_SITE])
        return
    if not sends_jobs:
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
        # the executor plugin would request sinfo's default; now sinfo shows none, and Slurm chooses
        os.environ["SINFO_PARTITION"] = "none"


def profile_warnings(arguments: Sequence[str], profiles: Path, site: Site) -> Iterator[str]:
    """Yield a warning for each profile of the user, and for variables, that change how jobs run.

    Args:
        arguments: The command line of Snakemake, without the program.
        profiles: The folder of Scalewise's profiles.
        site: Facts of the machine or cluster.
    """
    own = list(own_settings(arguments, profiles))
    if not own:
        return
    sends = site.slurm is not None or any(each.values.get("executor") == "slurm" for each in own)
    name = "slurm" if sends else "local"
    shipped = profile_values(profiles / name)
    for each in own:
        changed = [
            f"{key} {value} (Scalewise: {shipped.get(key, 'not set')})"
            for key, value in each.values.items()
            if value != shipped.get(key)
        ]
        if changed:
            requests = any(key in each.values for key in ("set-resources", "set-threads"))
            yield (
                f"{each.source} is not Scalewise's and changes how jobs run: {'; '.join(changed)}."
                + (" set-resources and set-threads replace what runs request." if requests else "")
                + f" Without it: --profile profiles/{name} --workflow-profile none, no SNAKEMAKE_ variables."
            )


def check_job_arrays(arguments: Sequence[str]) -> None:
    """Stop if the executor plugin would send job arrays: every job of one gets the resources of the first.

    Args:
        arguments: The command line of Snakemake, without the program.

    Raises:
        StudyError: With the value, its source and the fix.
    """
    if (requested := array_jobs(arguments)) is not None:
        raise StudyError(
            [
                f"{requested.source}: slurm-array-jobs is {requested.rules!r}, and the plugin gives every "
                "run of a job array the resources of the first. Remove it, or add --slurm-array-jobs= to the "
                "command."
            ]
        )


def check_handlers(snakemake: Snakemake) -> None:
    """Stop if the top-level Snakefile has replaced a module's handlers by later ones.

    Raises:
        StudyError: With the fix.
    """
    if replaced := snakemake.replaced_handlers:
        raise StudyError(
            [
                f"{snakemake.snakefile}: {', '.join(replaced)} below the module replaces the module's own. "
                "Move it above the first `use rule` of the module."
            ]
        )
