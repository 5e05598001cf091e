"""Open a study in Snakemake's main process: check what the command says, then the configuration."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalewise.plan.config.errors import StudyError
from scalewise.plan.jobs.hand_over import site_environment
from scalewise.plan.jobs.submission import (
    check_environment,
    check_job_arrays,
    check_operating_system,
    check_site_is_given,
)
from scalewise.plan.study import Study, check_results_folder, check_spelling, load_study
from scalewise.snakemake_adapter import Snakemake

DEFAULT_CONFIG = "config/experiments.yaml"


@contextmanager
def mistakes_end_the_command() -> Iterator[None]:
    """End this process with the mistakes that are found; Snakemake would add lines of its own to them."""
    try:
        yield
    except StudyError as error:
        sys.exit(str(error))


def reads_shipped_study(snakemake: Snakemake, config: Mapping[str, Any]) -> bool:
    """Return whether the study is that of ``DEFAULT_CONFIG``: no file and no other workflow gives another.

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
        StudyError: Names every mistake that could be found.
    """
    site_file, files = config.get("site"), snakemake.config_files
    on_cluster = snakemake.device_budget is not None
    check_site_is_given(site_file, on_cluster)
    study = load_study(
        config, files, site_file, own_environments=snakemake.makes_environments, checkout=checkout
    )
    check_results_folder(Path("results"))
    check_environment(study.site, on_cluster, os.environ, [*files, snakemake.snakefile, Path.cwd()])
    check_job_arrays(sys.argv[1:])
    os.environ.update(site_environment(study.site))
    return study


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
