"""Scalewise's uses of Snakemake beyond its documented interface.

tests/unit/test_snakemake_adapter.py checks each of them against the installed Snakemake, and the workflow's
continuous integration against the oldest and the newest that pyproject.toml allows.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Literal

HANDLERS = ("onstart", "onsuccess", "onerror")
BUDGET = "device_budget"
"""The resource by which the profile of a cluster limits the devices of all jobs together."""


@dataclass(frozen=True)
class PlannedJob:
    """A job that Snakemake is about to run.

    Args:
        rule: The rule's name, which differs in a workflow that uses this one as a module.
        wildcards: The wildcards of its output files.
    """

    rule: str
    wildcards: Mapping[str, str]


class Snakemake:
    """Snakemake's main process, while it reads a workflow and runs it.

    Args:
        workflow: Snakemake's object of that name, which rules files see.
        is_module: Whether another workflow uses this one as a module; known only while the rules are read.
    """

    def __init__(self, workflow: Any, is_module: bool = False) -> None:
        self._workflow, self.is_module = workflow, is_module

    @classmethod
    def reading(cls, workflow: Any) -> Snakemake:
        """Create it while Snakemake reads the rules."""
        return cls(workflow, workflow.modifier.base_snakefile is not None)

    # ---- known while the rules are read

    @property
    def snakefile(self) -> Path:
        """The Snakefile of the command."""
        return Path(self._workflow.main_snakefile)

    @property
    def config_files(self) -> list[str]:
        """The configuration files of the command and of the rules so far."""
        return list(self._workflow.configfiles)

    @property
    def has_named_config_files(self) -> bool:
        """Whether the command names a configuration file."""
        return bool(self._workflow.overwrite_configfiles)

    @property
    def device_budget(self) -> int | None:
        """The devices that jobs may take together; None without the profile of a cluster."""
        found = self._workflow.global_resources.get(BUDGET)
        value = getattr(found, "value", found)
        return value if isinstance(value, int) else None

    @property
    def makes_environments(self) -> bool:
        """Whether Snakemake makes conda environments for the rules."""
        from snakemake.settings.types import DeploymentMethod  # noqa: PLC0415 - loaded by Snakemake itself

        return DeploymentMethod.CONDA in self._workflow.deployment_settings.deployment_method

    def limit(self, resource: str, most: int) -> None:
        """Limit the jobs that run at the same time, whatever the command and its profile say.

        Args:
            resource: Name of the resource that the jobs take.
            most: Most of it that jobs may take together.
        """
        self._workflow.global_resources[resource] = most

    # ---- known once it is clear what runs

    @property
    def jobs(self) -> list[PlannedJob]:
        """The jobs that are about to run."""
        return [
            PlannedJob(job.rule.name, dict(job.wildcards.items()))
            for job in self._workflow.dag.needrun_jobs()
        ]

    @property
    def forces_all(self) -> bool:
        """Whether the command has all that its targets need made again (``--forceall``)."""
        return bool(self._workflow.dag_settings.forceall)

    @property
    def forced(self) -> list[str]:
        """The rules and files that the command has made again (``--forcerun``, ``--force``)."""
        settings = self._workflow.dag_settings
        return [
            str(name) for name in (*settings.forcerun, *(settings.targets if settings.forcetargets else ()))
        ]

    @property
    def folder(self) -> Path:
        """The folder in which the command was given."""
        return Path(self._workflow.workdir_init)

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing runs."""
        return bool(self._workflow.dryrun)

    @property
    def only_touches(self) -> bool:
        """Whether jobs only renew the times of their files."""
        return bool(self._workflow.touch)

    @property
    def sends_jobs(self) -> bool:
        """Whether jobs run outside of this machine's processes."""
        return bool(self._workflow.non_local_exec)

    @property
    def has_planned(self) -> bool:
        """Whether Snakemake has come as far as to plan its jobs, without an error."""
        return bool(self._workflow.scheduler)

    @property
    def slurm_run_id(self) -> str:
        """The name of all jobs that the executor plugin for Slurm submits; empty with another executor."""
        return str(getattr(self._workflow.scheduler._executor, "run_uuid", ""))

    @property
    def slurm_query(self) -> list[str]:
        """The command by which the executor plugin for Slurm queries its jobs, chosen as the plugin does."""
        from snakemake_executor_plugin_slurm import job_status_query as plugin  # noqa: PLC0415 - as above

        executor = self._workflow.scheduler._executor
        interval = self._workflow.executor_settings.init_seconds_before_status_checks
        has_sacct, age = plugin.is_query_tool_available("sacct"), plugin.get_min_job_age()
        forgets_early = age is None or age < 3 * interval
        uses_sacct = has_sacct and (forgets_early or executor.get_status_command() == "sacct")
        query = plugin.query_job_status_sacct if uses_sacct else plugin.query_job_status_squeue
        return shlex.split(query(self.slurm_run_id))

    # ---- jobs that cannot succeed

    def refuse_jobs(self, is_refused: Callable[[PlannedJob, int], bool]) -> None:
        """Have jobs that cannot succeed fail before any executor gets them; the scheduler exists by now.

        Snakemake has no setting for it: ``retries`` is one number for all jobs of a rule, and an error in a
        function of ``resources`` ends the whole study.

        Args:
            is_refused: Whether a try at a job is not made; receives the number of the try, from 1.
        """
        scheduler = self._workflow.scheduler
        run, handle_error = scheduler.run, scheduler._handle_error

        def refuses(job: Any, attempt: int) -> bool:
            if job.is_group() or not is_refused(
                PlannedJob(job.rule.name, dict(job.wildcards.items())), attempt
            ):
                return False
            # not by the property, which forgets the resources that the job holds
            job._attempt = max(job.restart_times, 0) + 1
            return True

        def run_others(jobs: Sequence[Any], executor: Any = None) -> None:
            refused = [job for job in jobs if refuses(job, job.attempt)]
            if others := [job for job in jobs if job not in refused]:
                run(others, executor)
            for job in refused:
                scheduler.error_callback(job)

        def handle(job: Any, postprocess_job: bool = True) -> None:
            if job.restart_times >= job.attempt:
                refuses(job, job.attempt + 1)
            handle_error(job, postprocess_job)

        scheduler.run, scheduler._handle_error = run_others, handle

    # ---- settings for the terminal

    @property
    def shows_failed_logs(self) -> bool:
        """Whether the command or its profile has the logs of failed jobs shown."""
        return bool(self._workflow.output_settings.show_failed_logs)

    @property
    def log_is_changed(self) -> bool:
        """Whether the user wants more of Snakemake's log than usual, less, or another form of it."""
        settings = self._workflow.output_settings
        names = ("verbose", "quiet", "debug_dag", "printshellcmds", "log_handler_settings")
        return any(getattr(settings, name) for name in names)

    # ---- handlers

    def join_handlers(self, handlers: Mapping[str, Any]) -> None:
        """Add a module's handlers to those of the top-level Snakefile, the only ones that Snakemake runs.

        Args:
            handlers: The module's handlers by name.
        """
        for name in HANDLERS:
            top_level = getattr(self._workflow, f"_{name}")
            # `use rule ... with:` reads the module again
            if isinstance(top_level, JoinedHandler):
                top_level = top_level.top_level
            setattr(self._workflow, f"_{name}", JoinedHandler(handlers[name], top_level))

    @property
    def replaced_handlers(self) -> list[str]:
        """The handlers that the top-level Snakefile has set again after ``join_handlers``."""
        return [
            name for name in HANDLERS if not isinstance(getattr(self._workflow, f"_{name}"), JoinedHandler)
        ]


@dataclass(frozen=True)
class JoinedHandler:
    """Run a module's handler, then that of the top-level Snakefile."""

    module: Callable[[], object]
    top_level: Callable[[object], object]

    def __call__(self, log: object) -> None:
        """Run both.

        Args:
            log: The name of Snakemake's log file.
        """
        self.module()
        self.top_level(log)


STATUS_COMMAND = "SCALEWISE_STATUS_COMMAND"
"""Variable with the command by which the executor plugin queries its jobs, for the preflight."""


def status_query(command: str, name: str) -> list[str]:
    """Return the query of the executor plugin for the states of its jobs.

    Args:
        command: ``squeue`` or ``sacct``.
        name: The name of the jobs.
    """
    from snakemake_executor_plugin_slurm import job_status_query as plugin  # noqa: PLC0415 - loads Snakemake

    query = plugin.query_job_status_sacct if command == "sacct" else plugin.query_job_status_squeue
    return shlex.split(query(name))


# ---- Snakemake's log


def snakemake_logger() -> logging.Logger:
    """Return the logger of all that Snakemake reports."""
    return logging.getLogger("snakemake.logging")


_SUBMITTED = re.compile(r"Job (\d+) has been submitted with SLURM jobid (\d+)")
"""The message of the executor plugin for Slurm, which has no event for it."""

_AWAITED = ("Will exit", "Terminating", "Shutting down", "Nothing to be done")
"""Beginnings of messages that Snakemake logs as information, and that a user waits for."""


def terminal_handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Yield the handlers of a log that write to the terminal; a file's handler is a stream's, too."""
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            yield handler


@dataclass(frozen=True)
class JobEvent:
    """A job's change of state, as the log reports it.

    Args:
        job: Snakemake's number of the job.
        state: ``handed over`` to an executor, ``submitted`` to Slurm, ``finished`` or ``failed``.
        rule: The job's rule; empty for a job that was submitted or has finished.
        wildcards: The job's wildcards when it is handed over.
        log: The job's log, when it has failed; None if it has none.
        slurm_id: Slurm's number of a job that was submitted.
    """

    job: int
    state: Literal["handed over", "submitted", "finished", "failed"]
    rule: str = ""
    wildcards: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    slurm_id: str = ""


def job_event(record: logging.LogRecord) -> JobEvent | None:
    """Return what a record reports of a job; None if it reports nothing of one."""
    fields: dict[str, Any] = record.__dict__
    event = getattr(fields.get("event"), "value", fields.get("event"))
    rule = str(fields.get("rule_name") or "")
    if event == "job_info":
        return JobEvent(int(fields["jobid"]), "handed over", rule, dict(fields["wildcards"]))
    if event == "job_finished":
        return JobEvent(int(fields["job_id"] if "job_id" in fields else fields["jobid"]), "finished")
    if event == "job_error":
        log = fields.get("log")
        return JobEvent(int(fields["jobid"]), "failed", rule, log=Path(log[0]) if log else None)
    if event is None and (submitted := _SUBMITTED.search(str(record.msg))):
        return JobEvent(int(submitted[1]), "submitted", slurm_id=submitted[2])
    return None


def is_for_user(record: logging.LogRecord) -> bool:
    """Return whether a record is a warning, an error, or a message that a user waits for."""
    return record.levelno >= logging.WARNING or str(record.msg).startswith(_AWAITED)


def is_command_error(record: logging.LogRecord) -> bool:
    """Return whether a record has only the command of a failed job: ``job_error`` follows, with its log."""
    return record.__dict__.get("exception") == "RuleException" and "Command '" in str(record.msg)


# ---- Snakemake's command line


@dataclass(frozen=True)
class ArrayJobs:
    """A request for job arrays of the executor plugin.

    Args:
        rules: The rules that the user names.
        source: The profile that has it; ``the command line`` otherwise.
    """

    rules: str
    source: str


@dataclass(frozen=True)
class OwnSettings:
    """Settings of the executor from a file that is not Scalewise's, or from a variable.

    Args:
        source: The profile's file, or the variable.
        values: The settings as written, by key.
    """

    source: str
    values: Mapping[str, str]


_EXECUTOR_KEYS = re.compile(
    r"(executor|jobs|cores|max-threads|local-cores|retries|latency-wait|resources|scheduler|keep-going|jobname"
    r"|rerun-incomplete|rerun-triggers|default-resources|set-(resources|threads|resource-scopes)|envvars"
    r"|groups|group-components|shared-fs-usage|software-deployment-method|use-(conda|apptainer|singularity)"
    r"|max-(jobs-per-timespan|jobs-per-second|status-checks-per-second)|seconds-between-status-checks"
    r"|show-failed-logs|slurm-.*|cluster-.*|cluster)"
)
"""Options of Snakemake by which a profile decides how jobs run."""


def own_settings(arguments: Sequence[str], profiles: Path) -> Iterator[OwnSettings]:
    """Yield the settings of the executor that come from a user's profiles and environment.

    Args:
        arguments: The command line of Snakemake, without the program.
        profiles: The folder of Scalewise's profiles.
    """
    parsed = _parsed(arguments)
    for source, settings in parsed[0].get_source_to_settings_dict().items() if parsed else ():
        kind, _, name = source.partition("|")
        if kind == "config_file":
            if not Path(name).resolve().is_relative_to(profiles.resolve()):
                yield OwnSettings(name, _values(settings))
        elif kind == "environment_variables" and (values := _values(settings)):
            yield OwnSettings("the environment", values)


def profile_values(profile: Path) -> Mapping[str, str]:
    """Return the settings of the executor in a profile, as Snakemake reads its folder."""
    parsed = _parsed(["--profile", str(profile), "--workflow-profile", "none"])
    sources = parsed[0].get_source_to_settings_dict() if parsed else {}
    found: dict[str, str] = {}
    for source, settings in sources.items():
        if source.startswith("config_file|"):
            found |= _values(settings)
    return found


def _values(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what is written for each setting of the executor."""
    keys = {name.removeprefix("SNAKEMAKE_").lower().replace("_", "-"): name for name in settings}
    return {
        key: ", ".join(map(str, value)) if isinstance(value := settings[name][1], list) else str(value)
        for key, name in keys.items()
        if _EXECUTOR_KEYS.fullmatch(key)
    }


def _parsed(arguments: Sequence[str]) -> tuple[Any, Any] | None:
    """Return Snakemake's parser and the options that it read; None if the arguments are not Snakemake's."""
    from snakemake.cli import parse_args  # noqa: PLC0415 - loaded by Snakemake itself

    try:
        with redirect_stderr(StringIO()):  # the name of the profile, already printed
            parser, options = parse_args(list(arguments))
    except SystemExit:  # a program that uses Snakemake as a library
        return None
    return parser, options


def array_jobs(arguments: Sequence[str]) -> ArrayJobs | None:
    """Return the request for job arrays of Slurm; None if there is none.

    Snakemake gives an executor its settings after the workflow is read, so its own parser reads them here.

    Args:
        arguments: The command line of Snakemake, without the program.
    """
    parsed = _parsed(arguments)
    if parsed is None:
        return None
    parser, options = parsed
    rules = getattr(options, "slurm_array_jobs", None)
    # the default of an executor's option is an object that stands for a missing value
    if not isinstance(rules, str) or not rules or options.executor != "slurm":
        return None
    sources = [
        source.partition("|")[2]
        for source, settings in parser.get_source_to_settings_dict().items()
        if "slurm-array-jobs" in settings
    ]
    return ArrayJobs(rules, sources[0] if sources else "the command line")
