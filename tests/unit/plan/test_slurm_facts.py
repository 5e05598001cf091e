"""Every fact of a site that must be refused before a job is sent: with its file, line, value and fix."""

from __future__ import annotations

import json
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
from tests.unit.plan.refusals import HERE, assert_refused
from tests.workflow.login_node import filled_in

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.slurm import MANAGED_BY_SBATCH
from scalewise.plan.study import Study, load_study

ROOT = Path(__file__).parents[3]
refuses = pytest.mark.refuses
NODE = """\
accelerator: cuda
devices_per_node: 4
cpus_per_node: 64
max_nodes: 2
"""
EXPERIMENT = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1]}

LoadSite = Callable[..., Study]


@pytest.fixture
def load_site(tmp_path: Path) -> LoadSite:
    """The study on a site of this text, with an experiment that has these keys besides."""

    def load(text: str, **own: object) -> Study:
        path = tmp_path / "site.yaml"
        path.write_text(text, encoding="utf-8")
        return load_study({"experiments": {"digits": EXPERIMENT | own}}, (), path)

    return load


def slurm(*lines: str) -> str:
    """A cluster with these lines below ``slurm:``, of which the last is the mistake."""
    body = "".join(f"  {line}\n" for line in lines[:-1])
    return f"{NODE}slurm:\n{body}  {lines[-1]}  {HERE}\n"


def top(*lines: str, node: str = NODE) -> str:
    """A cluster with these lines at its top, of which the last is the mistake."""
    body = "".join(f"{line}\n" for line in lines[:-1])
    return f"{node}slurm: {{}}\n{body}{lines[-1]}  {HERE}\n"


def instead_of(key: str, line: str) -> str:
    """A cluster on which one line is another."""
    kept = "".join(f"{old}\n" for old in NODE.splitlines() if not old.startswith(key))
    return top(line, node=kept)


TEMPLATE = "a placeholder. Write your own, or leave the key out."
PLACEHOLDERS = [
    pytest.param(
        slurm("account: <account>"),
        ("slurm.account is '<account>'", TEMPLATE),
        id="account",
        marks=refuses("slurm: placeholder left in"),
    ),
    pytest.param(
        slurm("account: <project_number>"),
        ("slurm.account is '<project_number>'", TEMPLATE),
        id="project",
        marks=refuses("slurm: placeholder left in"),
    ),
    pytest.param(
        slurm("account: nnXXXXk"),
        ("slurm.account is 'nnXXXXk'", TEMPLATE),
        id="number",
        marks=refuses("slurm: placeholder left in"),
    ),
    pytest.param(
        slurm("account: project_XXX"),
        ("slurm.account is 'project_XXX'", TEMPLATE),
        id="end",
        marks=refuses("slurm: placeholder left in"),
    ),
    pytest.param(
        slurm("partition: <partition>"),
        ("slurm.partition is '<partition>'", TEMPLATE),
        id="where",
        marks=refuses("slurm: placeholder left in"),
    ),
    pytest.param(slurm("reservation: your_own"), ("slurm.reservation is 'your_own'", TEMPLATE), id="your"),
    pytest.param(slurm("mail_user: <you>@x.org"), ("slurm.mail_user is '<you>@x.org'", TEMPLATE), id="mail"),
    pytest.param(
        slurm('extra: ["--licenses=<name>"]'), ("slurm.extra[0] is '--licenses=<name>'", TEMPLATE), id="extra"
    ),
    pytest.param(top("python: <path>/python"), ("python is '<path>/python'", TEMPLATE), id="python"),
    pytest.param(
        top("container: {image: <image>.sif}"), ("container.image is '<image>.sif'", TEMPLATE), id="image"
    ),
    pytest.param(
        top('container: {image: a.sif, arguments: ["--nv", "--overlay=/scratch/<netid>/torch.ext3:ro"]}'),
        ("container.arguments[1] is '--overlay=/scratch/<netid>/torch.ext3:ro'", TEMPLATE),
        id="overlay",
    ),
]

ODD = "and Slurm reads that as another time. Write hours, minutes and seconds"
WALLTIMES = [
    pytest.param(
        slurm("longest_walltime: 1:30"),
        ("slurm.longest_walltime is 1:30", "a number in base 60", 'Write "1:30" in quotes.'),
        id="1:30 without quotes",
        marks=refuses("slurm: walltime 1:30"),
    ),
    pytest.param(
        slurm("longest_walltime: 24:00:00"),
        ("slurm.longest_walltime is 24:00:00", "a number in base 60", 'Write "24:00:00" in quotes.'),
        id="24:00:00 without quotes",
    ),
    pytest.param(
        slurm('longest_walltime: "1:30"'),
        ("is '1:30'", ODD),
        id="minutes or hours",
        marks=refuses("slurm: walltime 1:30"),
    ),
    pytest.param(
        slurm('longest_walltime: "0"'), ("is '0'", ODD), id="zero", marks=refuses("slurm: walltime 0")
    ),
    pytest.param(
        slurm('longest_walltime: "99:99:99:99"'),
        ("is '99:99:99:99'", ODD),
        id="four parts",
        marks=refuses("slurm: walltime 99:99:99:99"),
    ),
    pytest.param(slurm('longest_walltime: "1 day"'), ("is '1 day'", ODD), id="words"),
    pytest.param(slurm('longest_walltime: "-1:00:00"'), ("is '-1:00:00'", ODD), id="negative"),
    pytest.param(slurm('longest_walltime: "01:75:00"'), ("is '01:75:00'", ODD), id="75 minutes"),
    pytest.param(slurm('longest_walltime: "1-24:00:00"'), ("is '1-24:00:00'", ODD), id="24 hours and days"),
    pytest.param(
        slurm('longest_walltime: "00:00:30"'),
        ("is '00:00:30'", "under a minute", 'Write the longest job, such as "24:00:00".'),
        id="half a minute",
    ),
    pytest.param(
        slurm("longest_walltime: 1440"), ("is 1440", "not text", 'Write "1440" in quotes.'), id="minutes"
    ),
]

MANAGED = [
    pytest.param(
        slurm(f"{key}: [--wait-all-nodes=1, {option}]" if key == "extra" else f"{key}: [--wait=0, {option}]"),
        (f"slurm.{key}[1] is '{option}'", f"{option.partition('=')[0]} follows from the run", fix),
        id=f"{option} in {key}",
        marks=refuses("slurm: managed flag"),
    )
    for key, option, fix in [
        ("extra", "--mem=1", "Remove it, and use the key memory."),
        ("extra", "--nodes=2", "Remove it."),
        ("extra", "--gres=gpu:1", "Remove it, and use the key gpu_request."),
        ("extra", "--account=x", "Remove it, and use the key account."),
        ("extra", "--exclusive", "Remove it, and use the key exclusive."),
        ("extra", "--time=10", "Remove it."),
        ("extra", "--signal=B:TERM@60", "Remove it, and use the key signal_seconds."),
        ("extra", "--requeue", "Remove it."),
        ("srun_extra", "--nodes=2", "Remove it."),
        ("srun_extra", "--ntasks=2", "Remove it."),
        ("srun_extra", "--cpus-per-task=2", "Remove it."),
        ("srun_extra", "--mpi=pmix", "Remove it."),
        ("srun_extra", "--kill-on-bad-exit=0", "Remove it."),
    ]
]
FORMS = [
    pytest.param(
        slurm(f"{key}: [{value!r}]"),
        (f"slurm.{key}[0] is {value!r}", "not one long option", f"Write each option of {command} as"),
        id=f"{value} in {key}",
    )
    for key, command in (("extra", "sbatch"), ("srun_extra", "srun"))
    for value in ("-N2", "-n", "nodelist=a", "--", "-w a", "--a_b=c", "")
]

UNFIT = ("a;b", "$(x)", "`x`", 'a"b', "a'b", "a b", "a\nb", "a\n", "-x", "", "a|b", "a>b", "a\\b", "ä")
"""What a shell, or a command's own reading of options, would take for something else than a name."""


def unfit(key: str, write: Callable[[str], str], values: tuple[str, ...] = UNFIT) -> list[object]:
    """The values for one key, each spelled as YAML."""
    name = key.rpartition(".")[2]
    return [
        pytest.param(
            write(f"{name}: {json.dumps(value)}"),
            (f"{key} is {value!r}",),
            id=f"{value!r} for {key}",
            marks=refuses("security: shell in the site"),
        )
        for value in values
    ]


NAMES = [
    *(
        case
        for key in ("account", "partition", "qos", "reservation")
        for case in unfit(f"slurm.{key}", slurm)
    ),
    *unfit("slurm.gpu_type", slurm),
    *unfit("slurm.mail_user", slurm),
    *unfit("slurm.constraint", slurm, tuple(value for value in UNFIT if value not in {"-x", "a|b"})),
    *unfit("network_interface", top),
    *unfit("python", top, ("", "-x", "a\nb", "a\n")),
    *[
        pytest.param(
            top(f"container: {{image: {json.dumps(value)}}}"),
            (f"container.image is {value!r}",),
            id=repr(value),
        )
        for value in ("", "-x", "a\nb")
    ],
    pytest.param(
        top('container: {image: a.sif, binds: [/scratch, "-x"]}'), ("container.binds[1] is '-x'",), id="bind"
    ),
    pytest.param(
        top('container: {image: a.sif, runtime: "--x"}'),
        ("container.runtime is '--x'",),
        id="runtime",
    ),
    pytest.param(
        top('prelude: ["module load cuda", "a\\nb"]'),
        ("prelude[1] is 'a\\nb', not one line of shell",),
        id="line",
    ),
    pytest.param(top('prelude: [" "]'), ("prelude[0] is ' ', not one line of shell",), id="no line"),
    pytest.param(
        top('container: {image: a.sif, prelude: ["a\\nb"]}'),
        ("container.prelude[0] is 'a\\nb', not one line of shell",),
        id="line inside a container",
    ),
    *[
        pytest.param(
            top(f"container: {{image: a.sif, arguments: [--nv, {json.dumps(value)}]}}"),
            (f"container.arguments[1] is {value!r}", "no argument of a command"),
            id=f"{value!r} for container.arguments",
        )
        for value in ("", "a\0b")
    ],
]

TOGETHER = [
    *[
        pytest.param(
            instead_of(key, f"{key}: auto"),
            (
                f"{key} is auto, which looks at this machine",
                f"Write what a compute node has, such as `{key}: ",
            ),
            id=f"auto for {key}",
        )
        for key in ("accelerator", "devices_per_node", "cpus_per_node")
    ],
    pytest.param(
        slurm("gpu_request: none", "gpu_type: h100"),
        ("slurm.gpu_type is 'h100', but gpu_request is none", "Remove one of the two."),
        id="a type of GPUs that are not asked for",
    ),
    pytest.param(
        slurm("mail_type: [END]"),
        ("slurm.mail_type is given without mail_user", "Add `mail_user:`"),
        id="mail",
    ),
    pytest.param(
        f"{NODE}memory_gb_per_node: 240  {HERE}\nslurm:\n  memory: none\n",
        ("memory_gb_per_node is 240, but slurm.memory is none", "Remove one of the two."),
        id="memory that no job asks for",
        marks=refuses("slurm: memory where forbidden"),
    ),
]

KEYS = [
    pytest.param(slurm("acount: a"), ("slurm.acount is not a known key", "'account'?"), id="account"),
    pytest.param(slurm("gpu-type: a"), ("slurm.gpu-type is not a known key", "'gpu_type'?"), id="gpu_type"),
    pytest.param(slurm("walltime: a"), ("slurm.walltime", "Did you mean 'longest_walltime'?"), id="walltime"),
    pytest.param(
        top("container: {image: a.sif, bind: [/a]}"),
        ("container.bind is not a known key", "Did you mean 'binds'?"),
        id="binds",
    ),
    pytest.param(
        top("proxies: {htps: a}"), ("proxies.htps is not a known key", "Did you mean 'https'?"), id="https"
    ),
    pytest.param(top("max_node: 2"), ("max_node is not a known key", "'max_nodes'?"), id="max_nodes"),
    pytest.param(top("container: {}"), ("container.image is missing", "Add `image:`."), id="no image"),
    pytest.param(
        slurm("memory: per-gpu"),
        ("slurm.memory is 'per-gpu'", "not known here", "Did you mean 'per-cpu'?"),
        id="memory",
    ),
    pytest.param(
        top("launcher: mpirun"),
        ("launcher is 'mpirun'", "Known: popen, spawn, srun, torchrun."),
        id="launcher",
    ),
    pytest.param(
        slurm("exclusive: yes"), ("slurm.exclusive is yes", "Write true, or"), id="yes for exclusive"
    ),
]


@pytest.mark.parametrize(
    ("text", "says"), [*PLACEHOLDERS, *WALLTIMES, *MANAGED, *FORMS, *NAMES, *TOGETHER, *KEYS]
)
def test_a_refused_fact_names_its_line_its_value_and_its_cure(
    text: str,
    says: tuple[str, ...],
    load_site: LoadSite,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    with pytest.raises(StudyError) as refused:
        load_site(text)

    (line,) = refused.value.lines
    record_property("message", line.replace(f"{tmp_path}/", ""))
    assert_refused(text, says, refused.value.lines, tmp_path / "site.yaml")
    assert re.search(r"\. [A-Z].*[.?]$", line), "there is no fix"


def test_what_is_left_to_auto_by_silence_is_asked_for_on_a_cluster(load_site: LoadSite) -> None:
    with pytest.raises(StudyError) as refused:
        load_site("slurm: {}\n")

    assert len(refused.value.lines) == 3
    assert all("is auto, which looks at this machine" in line for line in refused.value.lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(slurm("account: <account>"), id="placeholder"),
        pytest.param(slurm("longest_walltime: 24:00:00"), id="spelling"),
        pytest.param(slurm("acount: a"), id="unknown key"),
        pytest.param(instead_of("devices_per_node", "devices_per_node: auto"), id="left to this machine"),
        pytest.param(instead_of("devices_per_node", "devices_per_node: four"), id="number of devices"),
        pytest.param(instead_of("cpus_per_node", "cpus_per_node: '64'"), id="number of CPUs"),
        pytest.param(f"- {NODE.splitlines()[0]}\n", id="no mapping"),
        pytest.param(f"{NODE}slurm: [\n", id="no YAML"),
        pytest.param("", id="empty"),
    ],
)
def test_a_mistake_in_the_site_does_not_have_its_study_judged_by_this_machine(
    text: str, load_site: LoadSite, tmp_path: Path
) -> None:
    with pytest.raises(StudyError) as refused:
        load_site(text, devices=[1, 4, 8], cpus_per_device=16)

    (line,) = refused.value.lines
    assert line.startswith(f"{tmp_path}/site.yaml:")


def test_the_mistakes_of_the_site_come_before_those_of_the_study(load_site: LoadSite) -> None:
    with pytest.raises(StudyError) as refused:
        load_site(slurm("account: <account>"), devices=[1, 16])
    (account,) = refused.value.lines
    assert "slurm.account" in account

    with pytest.raises(StudyError) as refused:
        load_site(slurm("account: nn9999k"), devices=[1, 16])
    (devices,) = refused.value.lines
    assert "experiments.digits.devices[1] is 16, but a run may take 2 nodes of 4 devices" in devices


@pytest.mark.refuses("security: secrets in the environment")
def test_a_proxy_that_is_no_address_is_refused_without_its_password(load_site: LoadSite) -> None:
    with pytest.raises(StudyError) as refused:
        load_site(top('proxies: {http: "http://me:secret@proxy:3128; true"}'))

    (line,) = refused.value.lines
    assert "proxies.http is not an address" in line
    assert "secret" not in line


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


REQUESTS: list[object] = [
    pytest.param(
        slurm('longest_walltime: "01:00:00"', "signal_seconds: 0"),
        {"runtime_minutes": 61},
        (
            "experiments.digits.runtime_minutes (61) is over the 60 minutes that a job may take here",
            "(01:00:00)",
            "slurm.signal_seconds: 0",
            "Use at most 60, or set signal_seconds to 60 in the site file.",
        ),
        id="several jobs without a signal",
        marks=refuses("slurm: walltime over the limit"),
    ),
    pytest.param(
        slurm('longest_walltime: "00:02:00"', "signal_seconds: 30"),
        {"runtime_minutes": 3},
        (
            "experiments.digits.runtime_minutes (3) is over the 2 minutes that a job may take here",
            "(00:02:00)",
            "start and signal (slurm.signal_seconds: 30) leave 0 of a job's 120 seconds to train in",
            "Use at most 2, or lower signal_seconds or correct longest_walltime",
        ),
        id="several jobs that are too short",
        marks=refuses("slurm: walltime over the limit"),
    ),
    pytest.param(
        slurm('longest_walltime: "00:10:00"', "signal_seconds: 600"),
        {"runtime_minutes": 30},
        ("leave 0 of a job's 600 seconds to train in", "Use at most 10"),
        id="a signal as early as the job",
        marks=refuses("slurm: walltime over the limit"),
    ),
    pytest.param(
        slurm("memory: none"),
        {"memory_gb": 4},
        ("experiments.digits.memory_gb is 4", "slurm.memory: none", "Remove it."),
        id="memory where none may be asked for",
        marks=refuses("slurm: memory where forbidden"),
    ),
    pytest.param(
        f"{NODE}memory_gb_per_node: 240\nslurm: {{}}\n",
        {"memory_gb": 240.5},
        ("experiments.digits.memory_gb (240.5) is over the 240 GB of a node", "Use at most 240."),
        id="memory over the node",
    ),
    pytest.param(
        slurm("account: a"),
        {"memory_gb": 0.0001},
        ("experiments.digits.memory_gb is 0.0001, but must be at least 0.001", "Use 0.001 or more."),
        id="no memory",
    ),
    pytest.param(
        slurm("partial_nodes: refused"),
        {"devices": [4, 2, 8]},
        ("experiments.digits.devices[1] is 2, part of a node of 4 devices", "Use multiples of 4."),
        id="part of a node",
    ),
    pytest.param(
        slurm("partial_nodes: refused"),
        {"devices": ["2x2"]},
        ("experiments.digits.devices[0] is '2x2', part of a node of 4 devices", "Use multiples of 4."),
        id="parts of nodes",
    ),
    pytest.param(
        f"{NODE}max_cpus_per_device: 16\nslurm: {{}}\n",
        {"devices": [1], "cpus_per_device": 17},
        ("experiments.digits.cpus_per_device (17) is over the 16", "Use at most 16."),
        id="CPUs beyond a device's share",
    ),
    pytest.param(
        f"{NODE}max_cpus_per_device: 8\nslurm: {{}}\n",
        {"sweep": {"cpus_per_device": [8, 9]}},
        ("experiments.digits.sweep.cpus_per_device (9) is over the 8", "Use at most 8."),
        id="CPUs of one value of a sweep",
    ),
    pytest.param(
        NODE,
        {"launcher": "srun"},
        ("experiments.digits.launcher is srun, which needs Slurm", "Use popen, torchrun or spawn."),
        id="srun without Slurm",
    ),
    pytest.param(
        NODE,
        {"sweep": {"launcher": ["torchrun", "srun"]}},
        ("experiments.digits.sweep.launcher is srun, which needs Slurm", "Use popen, torchrun or spawn."),
        id="srun in a sweep without Slurm",
    ),
    pytest.param(
        f"{NODE}slurm: {{}}\n",
        {"launcher": "popen"},
        ("experiments.digits.launcher is popen", "Use srun, torchrun or spawn."),
        id="popen on Slurm",
    ),
]


@pytest.mark.parametrize(("site", "own", "says"), REQUESTS)
def test_what_an_experiment_could_not_have_there_is_refused_before_it_waits_for_ever(
    site: str,
    own: dict[str, object],
    says: tuple[str, ...],
    load_site: LoadSite,
    record_property: Callable[[str, object], None],
) -> None:
    with pytest.raises(StudyError) as refused:
        load_site(site, **own)

    (line,) = refused.value.lines
    record_property("message", line)
    for words in says:
        assert words in line


@pytest.mark.parametrize(
    ("site", "own"),
    [
        pytest.param(slurm('longest_walltime: "01:00:00"'), {"runtime_minutes": 60}, id="runtime"),
        pytest.param(slurm('longest_walltime: "01:00:00"'), {"runtime_minutes": 600}, id="several jobs"),
        pytest.param(
            slurm('longest_walltime: "00:03:00"', "signal_seconds: 30"),
            {"runtime_minutes": 4},
            id="several short jobs",
        ),
        pytest.param(
            slurm('longest_walltime: "01:00:00"', "signal_seconds: 0"),
            {"runtime_minutes": 60},
            id="no signal",
        ),
        pytest.param(f"{NODE}memory_gb_per_node: 240\nslurm: {{}}\n", {"memory_gb": 240}, id="memory"),
        pytest.param(slurm("partial_nodes: refused"), {"devices": [4, 8]}, id="whole nodes"),
        pytest.param(f"{NODE}max_cpus_per_device: 16\n", {"cpus_per_device": 16}, id="CPUs"),
        pytest.param(slurm("account: a"), {"launcher": "srun"}, id="srun"),
    ],
)
def test_what_just_fits_is_taken(site: str, own: dict[str, object], load_site: LoadSite) -> None:
    assert load_site(site, **own).runs


def test_srun_for_a_site_without_slurm_is_refused_where_it_stands(
    load_site: LoadSite, tmp_path: Path
) -> None:
    with pytest.raises(StudyError) as refused:
        load_site(f"{NODE}launcher: srun\n")

    (line,) = refused.value.lines
    assert line.startswith(f"{tmp_path}/site.yaml:5: launcher is srun, which needs Slurm")
    assert line.endswith("Use popen, torchrun or spawn.")


def test_popen_for_a_site_with_slurm_is_refused_where_it_stands(load_site: LoadSite, tmp_path: Path) -> None:
    with pytest.raises(StudyError) as refused:
        load_site(f"{NODE}launcher: popen\nslurm: {{}}\n")

    (line,) = refused.value.lines
    assert line.startswith(
        f"{tmp_path}/site.yaml:5: launcher is popen, which starts ranks on one machine only"
    )


def test_the_line_of_a_request_is_that_of_the_study(tmp_path: Path) -> None:
    site, study = tmp_path / "site.yaml", tmp_path / "study.yaml"
    site.write_text(slurm('longest_walltime: "01:00:00"', "signal_seconds: 0"), encoding="utf-8")
    config = {"experiments": {"digits": EXPERIMENT | {"runtime_minutes": 61}}}
    study.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    with pytest.raises(StudyError) as refused:
        load_study(config, [study], site)

    lines = study.read_text(encoding="utf-8").splitlines()
    marked = next(number for number, line in enumerate(lines, 1) if "runtime_minutes" in line)
    assert refused.value.lines[0].startswith(f"{study}:{marked}: experiments.digits.runtime_minutes (61)")


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
        with pytest.raises(StudyError, match=f"but {option} follows from the run"):
            load_site(slurm(f"extra: ['{written}']"))


@pytest.mark.refuses("slurm: managed flag")
@pytest.mark.parametrize("option", ["--ntasks-per-nod=3", "--ti=5", "--nod=2"])
def test_no_option_passes_by_the_beginning_of_its_name_which_slurm_would_take(
    option: str, load_site: LoadSite
) -> None:
    with pytest.raises(StudyError, match="follows from the run"):
        load_site(slurm(f"extra: ['{option}']"))


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
    check_by_plugin(load_site(text, devices=[1, 2, 4, 8]))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("reservation: ML-JOBS",), id="-J in a reservation"),
        pytest.param(("mail_user: anna@example.org", "reservation: team-n"), id="-n at its end"),
        pytest.param(
            ("extra: ['--nodelist=node-n', '--hint=nomultithread']",), id="-n at the end of an option"
        ),
        pytest.param(("extra: ['--hint=nomultithread', '--nodelist=a-J1']",), id="-J in an option"),
        pytest.param(("mail_user: anna-J@example.org",), id="-J in an address"),
    ],
)
def test_what_the_executor_plugin_would_mistake_for_an_option_is_refused_beforehand(
    lines: tuple[str, ...], load_site: LoadSite
) -> None:
    """It looks for short options anywhere in a text, and would refuse every job of the study."""
    with pytest.raises(StudyError, match="which the executor plugin takes for one of its options"):
        load_site(slurm(*lines))


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
    study = load_site(filled_in(shipped), devices=[1, 2])

    assert study.site.slurm is not None
    check_by_plugin(study)
