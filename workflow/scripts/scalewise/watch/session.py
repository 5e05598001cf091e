"""Show the plan, the runs and the answer of one Snakemake command."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scalewise.execution.next_try import failure_to_repeat
from scalewise.execution.slurm import PreemptionWatch
from scalewise.plan.jobs.make_plan import write_plan
from scalewise.plan.jobs.open_study import prepare_submission
from scalewise.plan.plan_file import PLAN, Plan, TrainJob
from scalewise.plan.planned_study import Study
from scalewise.plan.terminal.final_message import EarlierFiles, decisions, end_with_errors
from scalewise.plan.terminal.plan_table import plan_table
from scalewise.records import HISTORY, RECORD, SUMMARY, Start
from scalewise.snakemake_adapter import (
    STATUS_COMMAND,
    PlannedJob,
    Snakemake,
    snakemake_logger,
    terminal_handlers,
)
from scalewise.watch.hidden_jobs import PluginQueue
from scalewise.watch.jobs import SlurmQueue
from scalewise.watch.study import RunKey, WatchedStudy
from scalewise.watch.terminal import display_for
from scalewise.watch.watcher import Silence, Watcher

PROGRESS = "SCALEWISE_PROGRESS"
"""Variable that keeps Snakemake's log on the terminal, if it is ``off``."""


@dataclass(frozen=True)
class RuleNames:
    """The names of rules, which differ in a workflow that uses this one as a module."""

    train: str = "train"
    judge_round: str = "judge_round"
    plan: str = "plan"


class Session:
    """Shows the plan, then the runs, then the answer; has forced runs trained again.

    The plan is the first output of a command that runs something, and the last one of a dry run, of ``plan``,
    and of a command with nothing to do.

    Args:
        study: Checked.
        plan: The study's, for its jobs.
        snakemake: The main process.
    """

    def __init__(self, study: Study, plan: Plan, snakemake: Snakemake) -> None:
        self._study, self._plan, self._snakemake = study, plan, snakemake
        self._results = Path("results")
        self._earlier = EarlierFiles()
        self._watcher: Watcher | None = None
        self._plan_is_shown = False
        self._refused: Mapping[RunKey, Start] | None = None
        self._silence = silence_opening(snakemake)
        atexit.register(self._show_plan_at_exit)

    def begin(self, rules: RuleNames) -> None:
        """Show the plan and start to follow the runs, before Snakemake starts the first job.

        Args:
            rules: Names in this workflow.

        Raises:
            StudyError: Jobs cannot be submitted.
        """
        study, snakemake = self._study, self._snakemake
        forced = forced_runs(snakemake, rules.train, study.runs)
        self._refused = refused_runs(self._plan, self._results, forced)
        if {job.rule for job in snakemake.jobs} != {rules.plan}:
            self._show_plan()
        os.environ[PLAN] = str(write_plan(self._plan))
        prepare_submission(study.site, snakemake.sends_jobs)
        if study.site.slurm is not None and snakemake.slurm_run_id:
            PreemptionWatch(snakemake.slurm_run_id).start()
            os.environ[STATUS_COMMAND] = snakemake.slurm_query[0]
        self._earlier.look(self._results)
        for experiment, run in forced:
            (self._results / experiment / "runs" / run / RECORD).unlink(missing_ok=True)
        if not snakemake.only_touches:
            snakemake.refuse_jobs(lambda job, attempt: self._is_refused(job, attempt, rules.train))
        self._watcher = watch_session(study, snakemake, rules, refused=self._refused)
        if self._watcher is not None:
            self._watcher.start()
        self._silence_snakemake(False)

    def end(self) -> None:
        """Show the answers that this session has made, after all jobs have succeeded."""
        if self._watcher is not None:
            self._watcher.end()
        print(decisions(self._results, self._earlier), file=sys.stderr)
        self._silence_snakemake(self._watcher is not None)  # the paths of its logs

    def fail(self) -> None:
        """Show the known answers and why runs failed, after a job has failed."""
        if self._watcher is not None:
            self._watcher.end()
        if message := end_with_errors(self._study, self._results, self._earlier, self._refused or {}):
            print(message, file=sys.stderr)

    def _is_refused(self, job: PlannedJob, attempt: int, train: str) -> bool:
        """Return whether a try at a run is not made; the run's failure has been shown."""
        if job.rule != train:
            return False
        run = job.wildcards["experiment"], job.wildcards["run"]
        if attempt == 1:
            return run in (self._refused or {})
        try:
            return failure_to_repeat(*_job_of(self._plan, self._results, run), attempt) is not None
        except ValueError as error:
            snakemake_logger().warning(f"{'/'.join(run)} is {error}")
            return True

    def _silence_snakemake(self, on: bool) -> None:
        if self._silence is not None:
            self._silence.on = on

    def _show_plan(self) -> None:
        if not self._plan_is_shown:
            self._plan_is_shown = True
            if self._refused is None:  # a dry run
                forced = forced_runs(self._snakemake, RuleNames.train, self._study.runs)
                self._refused = refused_runs(self._plan, self._results, forced)
            print(plan_table(self._study, self._results, self._refused), file=sys.stderr)

    def _show_plan_at_exit(self) -> None:
        # after an error before the scheduler was made, that error is the last line
        if self._snakemake.has_planned:
            self._show_plan()


def forced_runs(snakemake: Snakemake, train: str, runs: Iterable[RunKey]) -> list[RunKey]:
    """Return the runs that the user forces to be trained, by --forcerun, --force or --forceall.

    Args:
        snakemake: The main process.
        train: Name of the rule that trains.
        runs: All runs of the study.
    """
    forced = {os.path.relpath(name) for name in snakemake.forced}
    all_are = snakemake.forces_all or train in forced
    return [
        (experiment, run)
        for experiment, run in runs
        if all_are or f"results/{experiment}/runs/{run}/{SUMMARY}" in forced
    ]


def refused_runs(plan: Plan, results: Path, forced: Iterable[RunKey] = ()) -> dict[RunKey, Start]:
    """Return the runs that are not started, as they would fail as before, each with that failure.

    Args:
        plan: The study's.
        results: Folder of all experiments.
        forced: Runs that the user forces to be trained.
    """
    found: dict[RunKey, Start] = {}
    for run in [(experiment, name) for experiment, runs in plan["runs"].items() for name in runs]:
        job, folder = _job_of(plan, results, run)
        # a run with a result is not read again, which takes long for thousands
        if run not in forced and not (folder / SUMMARY).exists() and (folder / HISTORY).exists():
            with suppress(ValueError):  # no try at it has failed
                if failure := failure_to_repeat(job, folder, attempt=1):
                    found[run] = failure
    return found


def _job_of(plan: Plan, results: Path, run: RunKey) -> tuple[TrainJob, Path]:
    """Return the job of a run, and the folder of its records."""
    experiment, name = run
    return plan["runs"][experiment][name], results / experiment / "runs" / name


def watch_session(
    study: Study,
    snakemake: Snakemake,
    rules: RuleNames,
    environ: Mapping[str, str] = os.environ,
    refused: Iterable[RunKey] = (),
) -> Watcher | None:
    """Return a watcher for what Snakemake is about to run; None if that has no trainings, or watching fails.

    The profiles set ``show-failed-logs``, which also shows the study: the terminal then has the study and the
    logs of failed jobs. If the user changes Snakemake's log by options, the terminal shows that log; other
    processes can still read the status of the study.

    Args:
        study: Checked.
        snakemake: The main process, with all that is to be done known.
        rules: Names in this workflow.
        environ: The environment of Snakemake.
        refused: Runs that are not started, as they would fail as before.
    """
    try:
        return _watcher(study, snakemake, rules, environ, refused)
    except Exception as error:  # noqa: BLE001 - no error of the display may end the study
        snakemake_logger().warning(
            f"The study is not shown ({type(error).__name__}: {error}); Snakemake's log follows."
        )
        return None


def shows_study(snakemake: Snakemake, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal shows the study instead of Snakemake's log.

    Args:
        snakemake: The main process.
        environ: The environment of Snakemake.
    """
    return snakemake.shows_failed_logs and not snakemake.log_is_changed and environ.get(PROGRESS) != "off"


def silence_opening(snakemake: Snakemake) -> Silence | None:
    """Keep Snakemake's banner and job statistics from the terminal, until the silence is switched off.

    A dry run prints its whole log.

    Args:
        snakemake: The main process, while it reads the rules.

    Returns:
        The silence; None if the user gets Snakemake's log.
    """
    if not shows_study(snakemake):
        return None
    silence = Silence(lambda: not snakemake.is_dry_run)
    for handler in terminal_handlers(snakemake_logger()):
        handler.addFilter(silence)
    return silence


def _watcher(
    study: Study,
    snakemake: Snakemake,
    rules: RuleNames,
    environ: Mapping[str, str],
    refused: Iterable[RunKey],
) -> Watcher | None:
    if snakemake.only_touches:
        return None
    jobs = snakemake.jobs
    if not any(job.rule in {rules.train, rules.judge_round} for job in jobs):
        return None
    runs = {(job.wildcards["experiment"], job.wildcards["run"]) for job in jobs if job.rule == rules.train}
    budget = None
    if study.site.slurm is not None and snakemake.sends_jobs:
        # more than any cluster has, if nothing limits them
        budget = snakemake.device_budget or 10**9
    return Watcher(
        WatchedStudy.of(study, budget),
        {name: planned.experiment for name, planned in study.experiments.items()},
        Path.cwd(),
        runs,
        snakemake_logger(),
        display_for(sys.stderr, environ) if shows_study(snakemake, environ) else None,
        slurm=None if budget is None else SlurmQueue(),
        plugin=None if budget is None else PluginQueue(lambda: snakemake.slurm_query),
        train=rules.train,
        refused=refused,
    )
