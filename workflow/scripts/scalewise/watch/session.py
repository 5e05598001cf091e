"""A session: what the user sees and finds around the jobs of one command of Snakemake."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.execution.finished_results import forget_all, set_aside
from scalewise.execution.preemption_watch import PreemptionWatch
from scalewise.plan.jobs.hand_over import write_plan
from scalewise.plan.jobs.submission import prepare_submission
from scalewise.plan.plan_file import PLAN, Plan
from scalewise.plan.study import Study
from scalewise.plan.terminal.final_message import EarlierFiles, decisions, end_with_errors
from scalewise.plan.terminal.plan_table import plan_table, predicted_plan
from scalewise.watch.jobs import Silence, stream_handlers
from scalewise.watch.points import WatchedStudy
from scalewise.watch.slurm_queue import SlurmQueue
from scalewise.watch.terminal import display_for
from scalewise.watch.watcher import Watcher

PROGRESS = "SCALEWISE_PROGRESS"
"""Variable that has Snakemake's own log on the terminal instead, if it is ``off``."""


@dataclass(frozen=True)
class RuleNames:
    """The names of rules, which differ in a workflow that uses this one as a module."""

    train: str = "train"
    judge_round: str = "judge_round"
    plan: str = "plan"


class Session:
    """Shows the plan, then the runs, then the answer; keeps finished results from being deleted.

    The plan is the first output of a command that runs something, and the last one of a dry run, of ``plan``,
    and of a command with nothing to do.

    Args:
        study: Checked.
        plan: The study's, for its jobs.
        workflow: Snakemake's, while it is parsed in its main process.
    """

    def __init__(self, study: Study, plan: Plan, workflow: Any) -> None:
        self._study, self._plan, self._workflow = study, plan, workflow
        self._results = Path("results")
        self._earlier = EarlierFiles()
        self._watcher: Watcher | None = None
        self._plan_is_shown = False
        self._silence = silence_opening(workflow)
        atexit.register(self._show_plan_at_exit)

    def begin(self, rules: RuleNames) -> None:
        """Show the plan and start to follow the runs, before Snakemake starts the first job.

        Args:
            rules: Names in this workflow.

        Raises:
            StudyError: Jobs cannot be submitted.
        """
        study, workflow = self._study, self._workflow
        if {job.rule.name for job in workflow.dag.needrun_jobs()} != {rules.plan}:
            self._show_plan()
        os.environ[PLAN] = str(write_plan(self._plan))
        prepare_submission(study.site, workflow.non_local_exec)
        if study.site.slurm is not None:
            PreemptionWatch(Path(workflow.workdir_init)).start()
        self._earlier.look(self._results)
        self._keep_results(rules)
        self._watcher = watch_session(study, workflow, rules)
        if self._watcher is not None:
            self._watcher.start()
        self._silence_snakemake(False)

    def end(self) -> None:
        """Show the answers that this session has made, after all jobs have succeeded."""
        if self._watcher is not None:
            self._watcher.end()
        answers = decisions(self._results, self._earlier)
        print(answers or predicted_plan(self._study, self._results, self._earlier), file=sys.stderr)
        self._silence_snakemake(self._watcher is not None)  # the paths of its logs

    def fail(self) -> None:
        """Show the known answers and why runs failed, after a job has failed."""
        if self._watcher is not None:
            self._watcher.end()
        if message := end_with_errors(self._study, self._results, self._earlier):
            print(message, file=sys.stderr)

    def _keep_results(self, rules: RuleNames) -> None:
        """Set aside results that Snakemake deletes as incomplete, unless the user wants them made again."""
        settings = self._workflow.dag_settings
        folders = [self._results / experiment / "runs" / run for experiment, run in self._study.runs]
        trained_again = any(name == rules.train or "/runs/" in str(name) for name in settings.forcerun)
        if trained_again or settings.forceall or settings.forcetargets:
            forget_all(folders)
        else:
            incomplete = {Path(file).parent for file in self._workflow.dag.forcefiles}
            set_aside(incomplete.intersection(folders), folders)

    def _silence_snakemake(self, on: bool) -> None:
        if self._silence is not None:
            self._silence.on = on

    def _show_plan(self) -> None:
        if not self._plan_is_shown:
            self._plan_is_shown = True
            print(plan_table(self._study), file=sys.stderr)

    def _show_plan_at_exit(self) -> None:
        # after an error before the scheduler was made, that error is the last line
        if self._workflow.scheduler:
            self._show_plan()


def watch_session(
    study: Study, workflow: Any, rules: RuleNames, environ: Mapping[str, str] = os.environ
) -> Watcher | None:
    """A watcher for what Snakemake is about to run; None where that has no trainings, or watching fails.

    The profiles have the study shown by ``show-failed-logs``: beside it the terminal then shows the log of
    what fails, and nothing else. Whoever asks Snakemake for more of its log, for less or for another form
    of it gets that; other processes then still learn how the study stands.

    Args:
        study: Checked.
        workflow: Snakemake's, with all that is to be done known.
        rules: Names in this workflow.
        environ: The environment of Snakemake.
    """
    logger = logging.getLogger("snakemake.logging")
    try:
        return _watcher(study, workflow, rules, environ, logger)
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
    study: Study, workflow: Any, rules: RuleNames, environ: Mapping[str, str], logger: logging.Logger
) -> Watcher | None:
    if workflow.touch:
        return None
    jobs = list(workflow.dag.needrun_jobs())
    if not any(job.rule.name in {rules.train, rules.judge_round} for job in jobs):
        return None
    trainings = [job.wildcards for job in jobs if job.rule.name == rules.train]
    session = {(wildcards.experiment, wildcards.run) for wildcards in trainings}
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
        train=rules.train,
    )


def _device_budget(workflow: Any) -> int:
    """The devices that jobs may ask for together; plenty where nothing limits them."""
    told = workflow.global_resources.get("device_budget")
    value = getattr(told, "value", told)
    return value if isinstance(value, int) else 10**9
