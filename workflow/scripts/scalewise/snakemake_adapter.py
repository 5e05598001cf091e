"""Scalewise's uses of Snakemake beyond its documented interface.

tests/unit/test_snakemake_adapter.py checks each of them with the oldest and the newest Snakemake that
pyproject.toml allows. ``workflow`` is Snakemake's object of that name, which rules files see.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

DEVICE_BUDGET = "device_budget"
"""The resource by which the profile of a cluster limits the devices of all jobs together."""


# ---- known while the rules are read


def config_files(workflow: Any) -> list[str]:
    """Return the configuration files of the command and of the rules so far."""
    return [str(path) for path in workflow.configfiles]


def command_config(workflow: Any) -> Mapping[str, Any]:
    """Return the configuration that the command and its profile give, without that of files."""
    return dict(workflow.config_settings.config)


def is_module(workflow: Any) -> bool:
    """Return whether another workflow uses this one as a module."""
    return workflow.modifier.base_snakefile is not None


def take_resources(workflow: Any, name: str) -> dict[str, object]:
    """Take the resources, and ``threads``, that another workflow gives a rule of its module.

    ``use rule ... with: resources:`` would drop all those that it does not name.

    Args:
        workflow: Snakemake's.
        name: The rule, which is defined next.
    """
    modifier = workflow.modifier
    if modifier.ruleinfo_overwrite is None or name not in modifier.rule_whitelist:
        return {}
    given = modifier.ruleinfo_overwrite
    taken = {} if given.threads is None else {"threads": given.threads}
    taken |= dict(given.resources[1]) if given.resources else {}
    given.resources = given.threads = None
    return taken


def names_cluster(workflow: Any) -> bool:
    """Return whether the command or its profile is one for a cluster."""
    return DEVICE_BUDGET in workflow.global_resources


def replaced_resources(workflow: Any, rule: Any, taken: Mapping[str, object]) -> dict[str, object]:
    """Return the resources, and ``threads``, that others than the rule itself give its jobs.

    A text of a profile is an expression, of which this is the value at a job's first try; one that needs more
    of the job is returned as it is.

    Args:
        workflow: Snakemake's.
        rule: Proxy of the rule, whose name differs if another workflow uses this one.
        taken: Those of another workflow; a profile and the command replace them.
    """
    settings, name = workflow.resource_settings, rule.rule.name
    given = {**taken, **settings.overwrite_resources.get(name, {})}
    if name in settings.overwrite_threads:
        given["threads"] = settings.overwrite_threads[name]
    facts = {"input": None, "attempt": 1, "threads": 1, "rulename": name, "async_run": None}
    for resource, value in given.items():
        with suppress(Exception):  # AttributeError of a plain number, and whatever an expression raises
            given[resource] = value.evaluate(None, **facts).value
    return given


def limit(workflow: Any, resource: str, most: int) -> None:
    """Limit the jobs that run at the same time, whatever the command and its profile say.

    Args:
        workflow: Snakemake's.
        resource: Name of the resource that the jobs take.
        most: Most of it that jobs may take together.
    """
    workflow.global_resources[resource] = most


def forget_config_files(workflow: Any) -> None:
    """Have jobs read no configuration file, which a user may edit or delete while they wait."""
    workflow.config_settings.configfiles = ()


def refuse_tries(is_refused: Callable[[str, str, int], bool]) -> None:
    """Have tries at runs that cannot succeed fail before any executor gets them.

    Snakemake has no setting for it: ``retries`` is one number for all jobs of a rule, and an error in a
    function of ``resources`` ends the whole study.

    Args:
        is_refused: Whether a try is not made; receives experiment, run, and the number of the try, from 1.
    """
    from snakemake.jobs import Job  # noqa: PLC0415 - loaded by Snakemake itself
    from snakemake.scheduling.job_scheduler import JobScheduler  # noqa: PLC0415

    run, retries = JobScheduler.run, Job.restart_times.fget

    def refuses(job: Any, attempt: int) -> bool:
        return not job.is_group() and _is_run(job) and is_refused(*_run_of(job), attempt)

    def run_others(self: Any, jobs: Sequence[Any], executor: Any = None) -> None:
        refused = [job for job in jobs if refuses(job, job.attempt)]
        if others := [job for job in jobs if job not in refused]:
            run(self, others, executor)
        for job in refused:
            self.error_callback(job)

    JobScheduler.run = run_others
    Job.restart_times = property(lambda job: 0 if refuses(job, job.attempt + 1) else retries(job))


def status_query(command: str, name: str) -> list[str]:
    """Return the query of the executor plugin for the states of its jobs.

    Args:
        command: ``squeue`` or ``sacct``.
        name: The name of the jobs.
    """
    from snakemake_executor_plugin_slurm import job_status_query as plugin  # noqa: PLC0415 - loads Snakemake

    query = plugin.query_job_status_sacct if command == "sacct" else plugin.query_job_status_squeue
    return shlex.split(query(name))


# ---- known once jobs are planned


def status_command(workflow: Any) -> str:
    """Return the command by which the executor plugin for Slurm queries its jobs."""
    return getattr(workflow.executor_settings, "status_command", None) or "squeue"


def uses_cluster(workflow: Any) -> bool:
    """Return whether jobs go to a cluster; of a dry run this is unknown, and False."""
    return bool(workflow.non_local_exec)


def judge_record(workflow: Any, path: str, *, is_valid: bool) -> None:
    """Correct what Snakemake knows of a file that a job wrote while no Snakemake was there to see its end.

    Snakemake takes the file for incomplete, and has no parameters of it, or those of an earlier one.

    Args:
        workflow: Snakemake's.
        path: The file, which is always written whole.
        is_valid: Whether the file is of the job as it is planned now.
    """
    persistence = workflow.persistence
    if is_valid and persistence._filter_incomplete_keys([path]):
        persistence._unmark_incomplete(path)
        persistence._delete_record(path)
    elif not is_valid and Path(path).exists() and persistence._read_record(path) is None:
        # without parameters to compare, Snakemake would keep it
        persistence._mark_incomplete(path, None)
    persistence._clear_cache()


def runs_jobs(workflow: Any) -> bool:
    """Return whether the command runs jobs; known once it plans them."""
    return workflow.executor_plugin is not None and not workflow.dryrun and not workflow.touch


def planned_requests(workflow: Any) -> dict[tuple[str, str], Mapping[str, Any]] | None:
    """Return what each run of a dry run requests, with all that profiles add and replace.

    Returns:
        Resources by name, by experiment and run; None if this is no dry run that has planned its jobs.
    """
    if not (workflow.scheduler and workflow.dryrun):
        return None
    with suppress(Exception):  # of an expression for resources, which Snakemake has reported
        return {
            _run_of(job): {name: value for name, value in job.resources.items() if value is not None}
            for job in workflow.dag.needrun_jobs(exclude_finished=False)
            if _is_run(job)
        }
    return None


def _is_run(job: Any) -> bool:
    """Return whether a job is a run of the study; another workflow may have the same wildcards."""
    return set(job.wildcards.keys()) == {"experiment", "run"} and [str(path) for path in job.output] == [
        "results/{experiment}/runs/{run}/record.json".format(**dict(job.wildcards.items()))
    ]


def _run_of(job: Any) -> tuple[str, str]:
    return job.wildcards["experiment"], job.wildcards["run"]
