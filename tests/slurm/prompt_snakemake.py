"""Snakemake, whose executor plugin for Slurm looks at its jobs every two seconds: prompt_snakemake.py ...

The plugin itself looks 10 s later each time that it has found nothing ended. That is kind to a cluster and
would make the tests wait more than they do anything. It has no option for the most that it waits.
"""

import sys

from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

SECONDS = 2


def _next(executor: RemoteExecutor) -> float:
    return SECONDS


def _ignored(executor: RemoteExecutor, seconds: float) -> None:
    """What the plugin would wait."""


if __name__ == "__main__":
    assert isinstance(RemoteExecutor.next_seconds_between_status_checks, property), "snakemake has changed"
    RemoteExecutor.next_seconds_between_status_checks = property(_next, _ignored)
    sys.exit(main())
