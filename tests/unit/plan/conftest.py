"""Studies as a user writes them: text in a file, on a site whose facts are known."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from tests.unit.plan.refusals import StudyFolder

from scalewise.plan.planned_study import Study


class Resources(SimpleNamespace):
    """As Snakemake gives them to an executor: attributes, and ``get``."""

    def get(self, name: str, default: object = None) -> object:
        return getattr(self, name, default)


def sbatch_line(resources: Mapping[str, Any], threads: int = 1, comment: str = "rule_train") -> str:
    """Return the command with which the executor plugin sends a job that requests these resources."""
    job = SimpleNamespace(resources=Resources(**resources), threads=threads)
    validate_slurm_extra(job)
    params = {"run_uuid": "uuid", "slurm_logfile": "log", "comment_str": comment, "workdir": "/work"}
    # as the plugin's get_account_arg and get_partition_arg make them
    for name, option in (("account", "-A"), ("partition", "-p")):
        place = resources.get(f"slurm_{name}")
        params[name] = f"{option} {shlex.quote(str(place))}" if place else ""
    return str(get_submit_command(job, params) + set_gres_string(job))


Load = Callable[..., Study]
"""Takes the text of a study, and of a site if it is not ``MACHINES["cpus"]``."""

Refuse = Callable[..., list[str]]
"""Takes the same, and returns the lines of the error."""


@pytest.fixture
def study_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyFolder:
    monkeypatch.chdir(tmp_path)
    return StudyFolder(tmp_path)


@pytest.fixture
def load(study_folder: StudyFolder) -> Load:
    return study_folder.plan


@pytest.fixture
def refuse(study_folder: StudyFolder) -> Refuse:
    return study_folder.refuse
