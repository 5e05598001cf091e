"""What must hold before jobs are sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.site import Site, SiteFile
from scalewise.plan.jobs.open_study import (
    check_environment,
    check_operating_system,
    prepare_submission,
)

MACHINE = Site("cpu", 2, 2, 1)
CLUSTER = Site("cuda", 4, 64, 4, SiteFile.model_validate({"slurm": {}}))
SENDING = ("sbatch", "squeue", "scancel")


@pytest.mark.parametrize(("site", "cluster_profile"), [(MACHINE, False), (CLUSTER, True), (CLUSTER, False)])
def test_a_site_that_fits_its_profile_is_planned(site: Site, cluster_profile: bool) -> None:
    check_environment(site, cluster_profile, {"SLURM_CONF": "/etc/slurm.conf"})


def test_a_clusters_profile_without_its_site_says_how_to_add_it() -> None:
    with pytest.raises(StudyError, match=r"Add site=profiles/slurm/site\.yaml"):
        check_environment(MACHINE, True, {})


@pytest.mark.refuses("slurm: started inside a job")
def test_a_plan_for_a_cluster_is_not_made_inside_one_of_its_jobs(
    record_property: Callable[[str, object], None],
) -> None:
    with pytest.raises(StudyError, match=r"inside Slurm job 4711.*env -u SLURM_JOB_ID snakemake") as refused:
        check_environment(CLUSTER, True, {"SLURM_JOB_ID": "4711"})
    record_property("message", "; ".join(refused.value.lines))


def test_one_machine_may_be_a_node_of_a_job() -> None:
    check_environment(MACHINE, False, {"SLURM_JOB_ID": "4711"})


@pytest.mark.usefixtures("programs")
def test_runs_of_one_machine_need_no_slurm() -> None:
    prepare_submission(MACHINE, False)


@pytest.mark.parametrize(
    ("site", "elsewhere", "fix"),
    [
        pytest.param(MACHINE, True, r"Add site=profiles/slurm/site\.yaml", id="no site for the cluster"),
        pytest.param(
            CLUSTER, False, "on the login node. Use --profile profiles/slurm", id="cluster's runs here"
        ),
        pytest.param(CLUSTER, True, "sbatch, squeue, scancel not on PATH", id="no Slurm"),
    ],
)
@pytest.mark.usefixtures("programs")
def test_what_cannot_be_sent_stops_with_the_cure(site: Site, elsewhere: bool, fix: str) -> None:
    with pytest.raises(StudyError, match=fix):
        prepare_submission(site, elsewhere)


@pytest.mark.parametrize("absent", SENDING)
@pytest.mark.refuses("slurm: sbatch missing")
def test_the_command_that_is_missing_is_named(
    programs: Path, absent: str, record_property: Callable[[str, object], None]
) -> None:
    stand_ins(programs, {name: "exit 0" for name in SENDING if name != absent})

    with pytest.raises(StudyError, match=f"- {absent} not on PATH") as refused:
        prepare_submission(CLUSTER, True)
    record_property("message", "; ".join(refused.value.lines))


def test_a_system_that_is_not_linux_is_refused_before_anything_else() -> None:
    check_operating_system("Linux")
    with pytest.raises(StudyError, match="this machine runs Darwin, and Scalewise needs Linux"):
        check_operating_system("Darwin")
