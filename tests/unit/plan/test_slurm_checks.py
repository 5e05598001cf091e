"""What a cluster's answers say of a site's facts; the commands print what a real Slurm prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import preflight
from tests.stand_ins import stand_ins

from scalewise.plan.config.site import NotFound
from scalewise.plan.config.slurm import Slurm
from scalewise.plan.jobs.preflight import Finding, Preflight
from scalewise.plan.jobs.slurm_checks import check_site, check_sites

PARTITION = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A MaxNodes=UNLIMITED "
    "MaxTime={limit} MinNodes=0 Nodes=n[1-4] State={state} TotalCPUs=256 TotalNodes=4"
)
TEST_ONLY = (
    "sbatch: Job 4711 to start at 2026-11-21T04:20:00 using 32 processors on nodes n[1-2] in partition gpu"
)
REFUSAL = (
    "allocation failure: Requested node configuration is not available\n"
    "sbatch: error: Batch job submission failed"
)
REFUSES = f"case \"$1\" in --version) echo slurm 22.05.8;; *) echo '{REFUSAL}' >&2; exit 1;; esac"
ANSWERS = {
    "sbatch": f'case "$1" in --version) echo slurm 22.05.8;; *) echo "{TEST_ONLY}" >&2;; esac',
    "srun": "exit 0",
    "squeue": "exit 0",
    "scancel": "exit 0",
    # of one user with two accounts
    "sacctmgr": "echo 'proj123|normal,high'; echo 'proj456|normal'",
    "sinfo": """case "$*" in
        *%R*) echo cpu; echo gpu;;
        *) echo '3|64|257000|gpu:a100:4(S:0-1),nvme:1|a100,ib'; echo '1|64+|257000+|gpu:h100:4(S:0-1)|h100';;
    esac""",
    "scontrol": f"""case "$*" in
        *"partition gpu"*) echo '{PARTITION.format(limit="1-00:00:00", state="UP")}';;
        *partition*) echo "Partition $4 not found" >&2; exit 1;;
        *"reservation course"*) echo 'ReservationName=course Nodes=n1 State=ACTIVE';;
        *reservation*) echo "Reservation $4 not found" >&2; exit 1;;
        *config*) echo 'Configuration data as of 2026-11-21'; echo 'MinJobAge               = 300 sec';;
    esac""",
}
SHORT = {"longest_walltime": "00:15:00", "max_nodes": 2}
SLURM = {"account": "proj123", "partition": "gpu", "qos": "high"}


def ask(programs: Path, answers: Mapping[str, str | None] | None = None, **facts: Any) -> list[Finding]:
    """What is found where some commands answer differently, on a site with these facts.

    An answer of None takes the command away.
    """
    chosen = ANSWERS | dict(answers or {})
    stand_ins(programs, {name: script for name, script in chosen.items() if script is not None})
    return list(check_site(largest_of(**facts)))


def largest_of(
    accelerator: str = "cuda",
    longest_minutes: int = 60,
    memory_mb: int = 240000,
    not_found: Sequence[NotFound] = (),
    **slurm: Any,
) -> Preflight:
    """Describe the largest run of a site with these facts; a fact of None is left out."""
    facts = {key: value for key, value in (SLURM | slurm).items() if value is not None}
    return Preflight(
        slurm=Slurm.model_validate(facts),
        shape="2x4",
        accelerator=accelerator,
        cpus_per_device=4,
        launcher="srun",
        rendezvous="tcp",
        options=["--account=proj123", "--partition=gpu", "--nodes=2", "--gres=gpu:4"],
        cpus_per_node=16,
        memory_mb_per_node=memory_mb,
        longest_minutes=longest_minutes,
        datasets=[],
        not_found=list(not_found),
    )


def lines_of(findings: list[Finding]) -> dict[str, list[str]]:
    """The lines without their state, by state."""
    lines: dict[str, list[str]] = {"ok": [], "bad": [], "unknown": []}
    for finding in findings:
        lines[finding.state].append(str(finding)[8:])
    return lines


@pytest.fixture
def programs(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOGNAME", "someone")
    return programs


def test_a_site_that_is_right_is_ok_in_every_line(programs: Path) -> None:
    assert list(map(str, ask(programs))) == [
        "ok      commands of slurm 22.05.8",
        "ok      account proj123",
        "ok      QoS high",
        "ok      partition gpu, jobs up to 1-00:00:00",
        "ok      4 nodes with 16 CPUs, 240000 MB and gpu:4 or more; the largest run takes 2",
        "ok      Slurm takes the largest job (2x4); it would start at 2026-11-21T04:20:00",
    ]


def test_one_machine_has_no_scheduler_to_ask(programs: Path) -> None:
    assert list(map(str, check_site(preflight()))) == ["ok      one machine without a scheduler"]


def test_partitions_are_checked_by_name_and_what_they_share_is_reported_once(programs: Path) -> None:
    of_one = list(map(str, ask(programs)))
    lines = list(map(str, check_sites({"a100": largest_of(), "h200": largest_of(partition="gpus")})))

    second = lines.index("ok      partition h200 of the site file:")
    assert lines[:second] == ["ok      partition a100 of the site file:", *of_one]
    assert not set(lines[second:]) & set(of_one)
    assert lines[second + 1].startswith("NOT OK  partition gpus does not exist.")


def test_a_site_without_partitions_has_no_line_on_them(programs: Path) -> None:
    of_one = ask(programs)

    assert list(check_sites({"": largest_of()})) == of_one


def test_commands_that_are_missing_are_named_and_nothing_else_is_asked(programs: Path) -> None:
    assert list(map(str, ask(programs, {"srun": None, "sinfo": None}))) == [
        "NOT OK  srun, sinfo not on PATH. Go to a login node of the cluster, or load its Slurm module."
    ]


def of_partition(limit: str = "1-00:00:00", state: str = "UP", config: str = "MinJobAge = 300 sec") -> str:
    """A scontrol that knows this partition and this configuration."""
    partition = PARTITION.format(limit=limit, state=state)
    return f"case \"$*\" in *config*) echo '{config}';; *) echo '{partition}';; esac"


@pytest.mark.parametrize(
    ("facts", "answers", "line"),
    [
        # accounting keeps names in small letters
        ({"account": "Proj123"}, {}, "account Proj123"),
        ({"account": None}, {}, "account left to Slurm; yours are proj123, proj456"),
        ({"partition": None}, {}, "partition left to Slurm"),
        ({"reservation": "course"}, {}, "reservation course"),
        (
            {"partition": None, "test_partition": {"name": "gpu", **SHORT}},
            {},
            "partition gpu, jobs up to 1-00:00:00",
        ),
        (
            {"gpu_type": "a100"},
            {},
            "3 nodes with 16 CPUs, 240000 MB and gpu:a100:4 or more; the largest run takes 2",
        ),
        (
            {"longest_minutes": 30},
            {"scontrol": of_partition("00:30:00")},
            "partition gpu, jobs up to 00:30:00",
        ),
        (
            {"longest_minutes": 10**6},
            {"scontrol": of_partition("UNLIMITED")},
            "partition gpu, jobs up to UNLIMITED",
        ),
    ],
    ids=str,
)
def test_what_the_cluster_has_is_ok(
    programs: Path, facts: dict[str, Any], answers: dict[str, str], line: str
) -> None:
    lines = lines_of(ask(programs, answers, **facts))

    assert line in lines["ok"]
    assert lines["bad"] == []


FOUND = "3 with 64 CPUs, 257000 MB, gpu:a100:4(S:0-1),nvme:1; 1 with 64+ CPUs, 257000+ MB, gpu:h100:4(S:0-1)"
NODES = (
    f"nodes have {{}}, and the largest run takes 2. There are: {FOUND}. Correct devices_per_node, "
    "cpus_per_node, memory_gb_per_node or gpu_type in the site file."
)
refuses = pytest.mark.refuses


def too_long(limit: str, minutes: int) -> str:
    return (
        f"partition gpu ends jobs after {limit}, and the longest requests {minutes} minutes. "
        f'Set slurm.longest_walltime to "{limit}": longer runs then take several jobs.'
    )


@pytest.mark.parametrize(
    ("facts", "answers", "line"),
    [
        pytest.param(
            {"account": "proj789"},
            {},
            "account proj789 is not yours. Set slurm.account to one of yours. Known: proj123, proj456.",
            marks=refuses("slurm: unknown account"),
        ),
        pytest.param(
            {"account": "proj456"},
            {},
            "QoS high is not open to your account. Set slurm.qos to one of them. Known: normal.",
            marks=refuses("slurm: unknown qos"),
        ),
        pytest.param(
            # each of several is looked at
            {"partition": "gpu,gpus"},
            {},
            "partition gpus does not exist. Set slurm.partition to one of them. Known: cpu, gpu.",
            marks=refuses("slurm: unknown partition"),
        ),
        *(
            ({}, {"scontrol": of_partition(state=state)}, f"partition gpu is {state}. Wait, or use another.")
            for state in ("DOWN", "DRAIN", "INACTIVE")
        ),
        *(
            pytest.param(
                {"longest_minutes": minutes},
                {"scontrol": of_partition(limit)},
                too_long(limit, minutes),
                marks=refuses("slurm: walltime over the limit"),
            )
            for limit, minutes in (("00:30:00", 31), ("1-12:00:00", 36 * 60 + 1))
        ),
        (
            {"test_partition": {"name": "gputest", **SHORT}},
            {},
            "partition gputest does not exist. Set slurm.test_partition.name to one of them. "
            "Known: cpu, gpu.",
        ),
        (
            {"test_partition": {"name": "gpu", **SHORT, "longest_walltime": "48:00:00"}},
            {},
            "partition gpu ends jobs after 1-00:00:00, and the site file states 2880 minutes. Set "
            'slurm.test_partition.longest_walltime to "1-00:00:00".',
        ),
        (
            {"reservation": "cours"},
            {},
            "reservation cours does not exist now. Correct or remove slurm.reservation.",
        ),
        ({"gpu_type": "v100"}, {}, f"0 {NODES.format('16 CPUs, 240000 MB and gpu:v100:4')}"),
        ({"gpu_type": "h100"}, {}, f"1 {NODES.format('16 CPUs, 240000 MB and gpu:h100:4')}"),
        ({"memory_mb": 257001}, {}, f"0 {NODES.format('16 CPUs, 257001 MB and gpu:4')}"),
        (
            {},
            {"sbatch": REFUSES},
            "Slurm refuses the largest job: Requested node configuration is not available sbatch: error: "
            "Batch job submission failed. The request was: sbatch --account=proj123 --partition=gpu "
            "--nodes=2 --gres=gpu:4. Correct the site file.",
        ),
    ],
    ids=str,
)
def test_what_the_cluster_does_not_have_is_answered_with_what_there_is(
    programs: Path,
    facts: dict[str, Any],
    answers: dict[str, str],
    line: str,
    record_property: Callable[[str, object], None],
) -> None:
    assert lines_of(ask(programs, answers, **facts))["bad"] == [line]
    record_property("message", f"NOT OK  {line}")


@pytest.mark.parametrize(
    ("answers", "begin", "reason"),
    [
        (
            {"sacctmgr": "exit 0"},
            "account and QoS could not be looked up (",
            "accounting names no account of yours",
        ),
        (
            {"sacctmgr": "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1"},
            "account and QoS could not be looked up (",
            "You are not running a supported accounting_storage plugin",
        ),
        (
            {"sacctmgr": None},
            "account and QoS could not be looked up (",
            "No such file or directory: 'sacctmgr'",
        ),
        ({"sacctmgr": "echo 'proj123|'"}, "QoS high: accounting lists none of yours", ""),
        (
            {"sinfo": "echo 'slurm_load_partitions: Unable to contact' >&2; exit 1"},
            "the partition's nodes could not be looked up (",
            "slurm_load_partitions: Unable to contact",
        ),
        (
            {"scontrol": of_partition(config="MinJobAge               = 10 sec")},
            "Slurm forgets jobs 10 s after their end (MinJobAge)",
            "snakemake may look",
        ),
        ({"scontrol": of_partition(config="MaxArraySize = 1001")}, "MinJobAge could not be looked up", ""),
    ],
    ids=str,
)
def test_what_cannot_be_looked_up_is_no_mistake(
    programs: Path, answers: dict[str, str | None], begin: str, reason: str
) -> None:
    lines = lines_of(ask(programs, answers))

    (line,) = lines["unknown"]
    assert line.startswith(begin)
    assert reason in line
    assert lines["bad"] == []


def test_facts_that_the_site_command_did_not_find_are_named(programs: Path) -> None:
    lines = lines_of(ask(programs, not_found=["network_interface", "internet"]))["unknown"]

    assert [line.split(". ")[0] for line in lines] == [
        "network_interface: the site command did not find it",
        "internet: the site command did not find it",
    ]


@pytest.mark.parametrize(
    ("gres", "accelerator", "request_", "fits"),
    [
        pytest.param("(null)", "cpu", None, True, id="CPUs need no GPU"),
        pytest.param("(null)", "cuda", "none", True, id="GPUs that are not asked for"),
        pytest.param("(null)", "cuda", None, False, id="no GPU"),
        pytest.param("gpu:4", "cuda", None, True, id="without a type"),
        pytest.param("gpu:a100:2,gpu:h100:2", "cuda", None, True, id="of two types"),
        pytest.param("gpu:a100:3(S:0-1)", "cuda", None, False, id="too few"),
        pytest.param("nvme:4", "cuda", None, False, id="something else"),
    ],
)
def test_gpus_are_counted_as_sinfo_spells_them(
    programs: Path, gres: str, accelerator: str, request_: str | None, fits: bool
) -> None:
    answer = {"sinfo": f"echo '4|64|257000|{gres}|(null)'"}

    assert (
        lines_of(ask(programs, answer, accelerator=accelerator, gpu_request=request_))["bad"] == []
    ) is fits


def test_slurm_is_asked_for_the_very_job_and_nothing_is_sent(programs: Path) -> None:
    asked = programs / "asked"
    ask(programs, {"sbatch": f"echo \"$*\" >> '{asked}'"})

    assert asked.read_text(encoding="utf-8").splitlines() == [
        "--version",
        "--test-only --account=proj123 --partition=gpu --nodes=2 --gres=gpu:4 --wrap=true",
    ]
