"""What a cluster's answers say of a site's facts; the commands print what a real Slurm prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import preflight
from tests.stand_ins import stand_ins

from scalewise.plan.config.slurm import Slurm
from scalewise.plan.jobs.preflight import Finding, Preflight
from scalewise.plan.jobs.slurm_checks import check_site

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
SLURM = {"account": "proj123", "partition": "gpu", "qos": "high"}


def ask(
    programs: Path,
    answers: Mapping[str, str | None] | None = None,
    accelerator: str = "cuda",
    longest_minutes: int = 60,
    memory_mb: int = 240000,
    **slurm: Any,
) -> list[Finding]:
    """What is found where some commands answer differently, on a site with these facts.

    An answer of None takes the command away; a fact of None is left out.
    """
    chosen = ANSWERS | dict(answers or {})
    stand_ins(programs, {name: script for name, script in chosen.items() if script is not None})
    facts = {key: value for key, value in (SLURM | slurm).items() if value is not None}
    preflight = Preflight(
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
    )
    return list(check_site(preflight))


def those(state: str, lines: list[Finding]) -> list[str]:
    return [str(line) for line in lines if line.state == state]


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


def test_commands_that_are_missing_are_named_and_nothing_else_is_asked(programs: Path) -> None:
    lines = ask(programs, {"srun": None, "sinfo": None})

    assert list(map(str, lines)) == [
        "NOT OK  srun, sinfo not on PATH. Go to a login node of the cluster, or load its Slurm module."
    ]


@pytest.mark.refuses("slurm: unknown account")
def test_someone_elses_account_is_answered_with_ones_own(
    programs: Path, record_property: Callable[[str, object], None]
) -> None:
    bad = those("bad", ask(programs, account="proj789"))

    assert bad == [
        "NOT OK  account proj789 is not yours. Set slurm.account to one of yours. Known: proj123, proj456."
    ]
    record_property("message", bad[0])


def test_an_account_is_read_as_slurm_keeps_it_in_small_letters(programs: Path) -> None:
    lines = ask(programs, account="Proj123")

    assert those("bad", lines) == []
    assert "ok      account Proj123" in those("ok", lines)


def test_an_account_that_is_left_to_slurm_shows_which_there_are(programs: Path) -> None:
    lines = ask(programs, account=None)

    assert "ok      account left to Slurm; yours are proj123, proj456" in those("ok", lines)
    assert those("bad", lines) == []


@pytest.mark.parametrize(
    ("script", "why"),
    [
        pytest.param("exit 0", "accounting names no account of yours", id="nothing"),
        pytest.param(
            "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1",
            "You are not running a supported accounting_storage plugin",
            id="no accounting",
        ),
        pytest.param(None, "No such file or directory: 'sacctmgr'", id="no command"),
    ],
)
def test_a_cluster_without_accounting_is_no_mistake(programs: Path, script: str | None, why: str) -> None:
    lines = ask(programs, {"sacctmgr": script})

    (line,) = those("unknown", lines)
    assert line.startswith("?       account and QoS could not be looked up (")
    assert why in line
    assert those("bad", lines) == []


@pytest.mark.refuses("slurm: unknown qos")
def test_a_qos_of_another_account_is_answered_with_what_is_open(
    programs: Path, record_property: Callable[[str, object], None]
) -> None:
    bad = those("bad", ask(programs, account="proj456", qos="high"))

    assert bad == [
        "NOT OK  QoS high is not open to your account. Set slurm.qos to one of them. Known: normal."
    ]
    record_property("message", bad[0])


def test_a_qos_that_accounting_does_not_list_is_left_open(programs: Path) -> None:
    lines = ask(programs, {"sacctmgr": "echo 'proj123|'"})

    assert those("unknown", lines) == ["?       QoS high: accounting lists none of yours"]


@pytest.mark.refuses("slurm: unknown partition")
def test_an_unknown_partition_is_answered_with_those_there_are(
    programs: Path, record_property: Callable[[str, object], None]
) -> None:
    bad = those("bad", ask(programs, partition="gpus"))

    assert bad == [
        "NOT OK  partition gpus does not exist. Set slurm.partition to one of them. Known: cpu, gpu."
    ]
    record_property("message", bad[0])


def test_each_of_several_partitions_is_looked_at(programs: Path) -> None:
    lines = ask(programs, partition="gpu,gpus")

    assert "ok      partition gpu, jobs up to 1-00:00:00" in those("ok", lines)
    assert len(those("bad", lines)) == 1


def test_a_partition_that_is_left_to_slurm_is_not_looked_at(programs: Path) -> None:
    lines = ask(programs, partition=None)

    assert "ok      partition left to Slurm" in those("ok", lines)
    assert those("bad", lines) == []


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_a_partition_that_takes_or_starts_no_jobs_is_said(programs: Path, state: str) -> None:
    answer = f"case \"$*\" in *partition*) echo '{PARTITION.format(limit='UNLIMITED', state=state)}';; esac"

    assert f"NOT OK  partition gpu is {state}. Wait, or use another." in those(
        "bad", ask(programs, {"scontrol": answer})
    )


@pytest.mark.parametrize(
    ("limit", "minutes", "fits"),
    [
        pytest.param("00:30:00", 30, True, id="just as long"),
        pytest.param("00:30:00", 31, False, id="a minute more"),
        pytest.param("1-12:00:00", 36 * 60 + 1, False, id="days"),
        pytest.param("UNLIMITED", 10**6, True, id="no limit"),
    ],
)
@pytest.mark.refuses("slurm: walltime over the limit")
def test_the_longest_job_is_compared_with_the_partitions_limit(
    programs: Path, limit: str, minutes: int, fits: bool
) -> None:
    partition = PARTITION.format(limit=limit, state="UP")
    answer = f"case \"$*\" in *config*) echo 'MinJobAge = 300 sec';; *) echo '{partition}';; esac"
    lines = ask(programs, {"scontrol": answer}, longest_minutes=minutes)

    expected = [
        f"NOT OK  partition gpu ends jobs after {limit}, and the longest requests {minutes} minutes. "
        f'Set slurm.longest_walltime to "{limit}": longer runs then take several jobs.'
    ]
    assert those("bad", lines) == ([] if fits else expected)


def test_a_reservation_is_looked_up(programs: Path) -> None:
    assert "ok      reservation course" in those("ok", ask(programs, reservation="course"))
    assert those("bad", ask(programs, reservation="cours")) == [
        "NOT OK  reservation cours does not exist now. Correct or remove slurm.reservation."
    ]


FOUND = "3 with 64 CPUs, 257000 MB, gpu:a100:4(S:0-1),nvme:1; 1 with 64+ CPUs, 257000+ MB, gpu:h100:4(S:0-1)"


@pytest.mark.parametrize(
    ("facts", "fitting", "needs"),
    [
        pytest.param({"gpu_type": "v100"}, 0, "16 CPUs, 240000 MB and gpu:v100:4", id="no such type"),
        pytest.param({"gpu_type": "h100"}, 1, "16 CPUs, 240000 MB and gpu:h100:4", id="too few of it"),
        pytest.param({"memory_mb": 257001}, 0, "16 CPUs, 257001 MB and gpu:4", id="too much memory"),
    ],
)
def test_nodes_that_there_are_not_are_answered_with_those_there_are(
    programs: Path, facts: Mapping[str, Any], fitting: int, needs: str
) -> None:
    assert those("bad", ask(programs, **facts)) == [
        f"NOT OK  {fitting} nodes have {needs}, and the largest run takes 2. There are: {FOUND}. Correct "
        "devices_per_node, cpus_per_node, memory_gb_per_node or gpu_type in the site file."
    ]


def test_a_type_that_there_is_is_ok(programs: Path) -> None:
    assert "ok      3 nodes with 16 CPUs, 240000 MB and gpu:a100:4 or more; the largest run takes 2" in those(
        "ok", ask(programs, gpu_type="a100")
    )


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
    lines = ask(programs, answer, accelerator, gpu_request=request_)

    assert bool(those("bad", lines)) is not fits


def test_nodes_that_cannot_be_looked_up_are_no_mistake(programs: Path) -> None:
    lines = ask(programs, {"sinfo": "echo 'slurm_load_partitions: Unable to contact' >&2; exit 1"})

    assert (
        "?       the partition's nodes could not be looked up (slurm_load_partitions: Unable to contact)"
        in (those("unknown", lines))
    )


def with_config(line: str) -> dict[str, str]:
    partition = PARTITION.format(limit="1-00:00:00", state="UP")
    return {"scontrol": f"case \"$*\" in *config*) echo '{line}';; *) echo '{partition}';; esac"}


def test_a_controller_that_forgets_jobs_too_soon_is_said(programs: Path) -> None:
    (line,) = those("unknown", ask(programs, with_config("MinJobAge               = 10 sec")))

    assert line.startswith(
        "?       Slurm forgets jobs 10 s after their end (MinJobAge), and snakemake may look"
    )


def test_a_controller_that_does_not_say_is_no_mistake(programs: Path) -> None:
    lines = ask(programs, with_config("MaxArraySize = 1001"))

    assert those("unknown", lines) == ["?       MinJobAge could not be looked up"]


def test_what_slurm_refuses_is_shown_in_its_words_with_what_was_asked(programs: Path) -> None:
    refusing = f"case \"$1\" in --version) echo slurm 22.05.8;; *) echo '{REFUSAL}' >&2; exit 1;; esac"

    assert those("bad", ask(programs, {"sbatch": refusing})) == [
        "NOT OK  Slurm refuses the largest job: Requested node configuration is not available sbatch: error: "
        "Batch job submission failed. The request was: sbatch --account=proj123 --partition=gpu --nodes=2 "
        "--gres=gpu:4. Correct the site file."
    ]


def test_slurm_is_asked_for_the_very_job_and_nothing_is_sent(programs: Path) -> None:
    asked = programs / "asked"
    ask(programs, {"sbatch": f"echo \"$*\" >> '{asked}'"})

    assert asked.read_text(encoding="utf-8").splitlines() == [
        "--version",
        "--test-only --account=proj123 --partition=gpu --nodes=2 --gres=gpu:4 --wrap=true",
    ]
