"""Whether and how a session of Snakemake is watched: what it was asked for, and what it is about to do."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.plan.study import Study
from scalewise.watch.jobs import Silence, stream_handlers
from scalewise.watch.points import WatchedStudy
from scalewise.watch.slurm_queue import SlurmQueue
from scalewise.watch.terminal import display_for
from scalewise.watch.watcher import Watcher

PROGRESS = "SCALEWISE_PROGRESS"
"""Variable that has Snakemake's own log on the terminal instead, if it is ``off``."""


def watch_session(study: Study, workflow: Any, environ: Mapping[str, str] = os.environ) -> Watcher | None:
    """A watcher for what Snakemake is about to run; None where that has no trainings, or watching fails.

    The profiles have the study shown by ``show-failed-logs``: beside it the terminal then shows the log of
    what fails, and nothing else. Whoever asks Snakemake for more of its log, for less or for another form
    of it gets that; other processes then still learn how the study stands.

    Args:
        study: Checked.
        workflow: Snakemake's, with all that is to be done known.
        environ: The environment of Snakemake.
    """
    logger = logging.getLogger("snakemake.logging")
    try:
        return _watcher(study, workflow, environ, logger)
    except Exception as error:  # noqa: BLE001 - whatever it is, the study goes on
        logger.warning(f"The study is not shown ({type(error).__name__}: {error}); Snakemake's log follows.")
        return None


def shows_study(workflow: Any, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal shows the study instead of Snakemake's log.

    Args:
        workflow: Snakemake's.
        environ: The environment of Snakemake.
    """
    asked = workflow.output_settings
    own = (asked.verbose, asked.quiet, asked.debug_dag, asked.printshellcmds, asked.log_handler_settings)
    return asked.show_failed_logs and not any(own) and environ.get(PROGRESS) != "off"


def silence_opening(workflow: Any) -> Silence | None:
    """Keep Snakemake's banner and job statistics from the terminal, until the silence is switched off.

    A dry run prints its log as ever.

    Args:
        workflow: Snakemake's, while it is parsed.

    Returns:
        The silence; None if the user gets Snakemake's log.
    """
    if not shows_study(workflow):
        return None
    silence = Silence(lambda: not workflow.dryrun)
    for handler in stream_handlers(logging.getLogger("snakemake.logging")):
        handler.addFilter(silence)
    return silence


def _watcher(
    study: Study, workflow: Any, environ: Mapping[str, str], logger: logging.Logger
) -> Watcher | None:
    if workflow.touch:
        return None
    jobs = list(workflow.dag.needrun_jobs())
    if not any(job.rule.name in {"train", "judge_round"} for job in jobs):
        return None
    session = {(job.wildcards.experiment, job.wildcards.run) for job in jobs if job.rule.name == "train"}
    budget = None
    if study.site.slurm is not None and workflow.non_local_exec:
        budget = _device_budget(workflow)
    return Watcher(
        WatchedStudy.of(study, budget),
        {name: planned.spec for name, planned in study.experiments.items()},
        Path.cwd(),
        session,
        logger,
        display_for(sys.stderr, environ) if shows_study(workflow, environ) else None,
        slurm=None if budget is None else SlurmQueue(),
    )


def _device_budget(workflow: Any) -> int:
    """The devices that jobs may ask for together; plenty where nothing limits them."""
    told = workflow.global_resources.get("device_budget")
    value = getattr(told, "value", told)
    return value if isinstance(value, int) else 10**9
