"""What clusters really use is taken, by Scalewise and by the executor plugin."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake_executor_plugin_slurm.validation import (
    get_forbidden_slurm_options,
    validate_slurm_extra,
)
from tests.unit.plan.refusals import built_in, site_of
from tests.workflow.login_node import filled_in

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.slurm import MANAGED_BY_SBATCH
from scalewise.plan.study import Study, load_study

ROOT = Path(__file__).parents[3]

LoadSite = Callable[..., Study]


@pytest.fixture
def load_site(tmp_path: Path) -> LoadSite:
    """The study on a site of this text, with an experiment that has these lines."""

    def load(text: str, *lines: str) -> Study:
        path = tmp_path / "site.yaml"
        path.write_text(text, encoding="utf-8")
        return load_study(yaml.safe_load(built_in(*lines)), (), path)

    return load


def slurm(*lines: str) -> str:
    """A cluster with these lines below ``slurm:``."""
    return site_of("cluster", slurm=lines)


def top(line: str) -> str:
    """A cluster with this line at its top."""
    return site_of("cluster", line)


SOUND = [
    pytest.param(slurm("account: nn9999k", "partition: accel,a100", "qos: devel"), id="names"),
    pytest.param(slurm("account: maxxim"), id="a name with xx"),
    pytest.param(slurm("constraint: a100&hbm80g"), id="features"),
    pytest.param(slurm('constraint: "[rack1|rack2]&gpu*2"'), id="more features"),
    pytest.param(slurm("gpu_type: nvidia_h100_80gb_hbm3_3g.40gb"), id="part of a GPU"),
    pytest.param(slurm('longest_walltime: "7-00:00:00"'), id="days"),
    pytest.param(slurm("mail_user: jean-pierre.o+gpu@uni.example.no"), id="mail"),
    pytest.param(slurm("extra: ['--nodelist=n[1-2],n4', '--hint=nomultithread']"), id="extra"),
    pytest.param(slurm("srun_extra: ['--cpu-bind=mask_cpu:0x00fe,0xfe00']"), id="srun_extra"),
    pytest.param(top("python: /opt/a b/bin/python3"), id="a path with a space"),
    pytest.param(top("container: {image: /data/exchange/my_image.sif, arguments: [--nv]}"), id="image"),
    pytest.param(
        top("container: {image: a.sif, arguments: [--nv, --overlay, '/scratch/a b.ext3:ro']}"), id="overlay"
    ),
    pytest.param(
        top('container: {image: a.sif, prelude: ["source /ext3/env.sh && cd <(echo) # why"]}'),
        id="prelude of a container",
    ),
    pytest.param(top("prelude: ['module load cuda; export A=\"$(hostname)\"  # why']"), id="prelude"),
    pytest.param(top("network_interface: enp65s0f0np0"), id="interface"),
    pytest.param(top("proxies: {http: 'http://user:word@proxy.example.org:3128'}"), id="proxy"),
]


@pytest.mark.parametrize("text", SOUND)
def test_what_clusters_really_use_is_taken(text: str, load_site: LoadSite) -> None:
    assert load_site(text).site.slurm is not None


@pytest.mark.parametrize(
    ("site", "line"),
    [
        pytest.param(slurm('longest_walltime: "01:00:00"'), "runtime_minutes: 60", id="runtime"),
        pytest.param(slurm('longest_walltime: "01:00:00"'), "runtime_minutes: 600", id="several jobs"),
        pytest.param(
            slurm('longest_walltime: "00:03:00"', "signal_seconds: 30"),
            "runtime_minutes: 4",
            id="several short jobs",
        ),
        pytest.param(
            slurm('longest_walltime: "01:00:00"', "signal_seconds: 0"),
            "runtime_minutes: 60",
            id="no signal",
        ),
        pytest.param(top("memory_gb_per_node: 240"), "memory_gb: 240", id="memory"),
        pytest.param(slurm("partial_nodes: refused"), "devices: [4, 8]", id="whole nodes"),
        pytest.param(top("max_cpus_per_device: 16"), "cpus_per_device: 16", id="CPUs"),
        pytest.param(slurm("account: a"), "launcher: srun", id="srun"),
    ],
)
def test_what_just_fits_is_taken(site: str, line: str, load_site: LoadSite) -> None:
    assert load_site(site, line).runs


FORBIDDEN = sorted(
    {
        option
        for pattern in get_forbidden_slurm_options()
        for option in re.findall("--([a-z][a-z-]*)", pattern)
    }
)


def test_everything_that_the_executor_plugin_forbids_is_refused_beforehand() -> None:
    assert len(FORBIDDEN) > 15
    assert set(FORBIDDEN) <= MANAGED_BY_SBATCH


@pytest.mark.parametrize("option", [f"--{name}" for name in sorted(MANAGED_BY_SBATCH)])
@pytest.mark.refuses("slurm: managed flag")
def test_no_option_that_follows_from_the_run_can_be_given_twice(option: str, load_site: LoadSite) -> None:
    for written in (option, f"{option}=1"):
        with pytest.raises(StudyError, match=rf"site\.yaml:6: slurm\.extra\[0\] is '{written}'"):
            load_site(slurm(f"extra: ['{written}']"))


EVERYTHING = slurm(
    "exclusive: true",
    "reservation: ML-training",
    "mail_user: anna@example.org",
    "mail_type: [END, TIME_LIMIT_80]",
    "gpu_type: a100-sxm4-80gb",
    "extra: ['--wait-all-nodes=1', '--licenses=a b']",
)


def check_by_plugin(study: Study) -> None:
    for allocation in study.allocations.values():
        validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(**allocation.resources())))


@pytest.mark.parametrize("text", [*SOUND, pytest.param(EVERYTHING, id="everything")])
def test_what_the_plan_takes_the_executor_plugin_takes_too(text: str, load_site: LoadSite) -> None:
    check_by_plugin(load_site(text, "devices: [1, 2, 4, 8]"))


def test_options_with_spaces_reach_sbatch_as_they_were_written(load_site: LoadSite) -> None:
    study = load_site(slurm("extra: ['--comment-of-ours=a b; $(x)']"))

    for allocation in study.allocations.values():
        assert "--comment-of-ours=a b; $(x)" in shlex.split(str(allocation.resources()["slurm_extra"]))


@pytest.mark.parametrize(
    "shipped", sorted((ROOT / "profiles" / "sites").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_shipped_site_is_sound_once_its_placeholders_are_filled_in(
    shipped: Path, load_site: LoadSite
) -> None:
    study = load_site(filled_in(shipped), "devices: [1, 2]")

    assert study.site.slurm is not None
    check_by_plugin(study)
