"""What a cluster's answers say of a site's facts; the commands print what a real Slurm prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.golden import compare
from tests.small_runs import preflight
from tests.stand_ins import stand_ins

from scalewise.config.site import NotFound
from scalewise.config.slurm import Slurm
from scalewise.site.preflight import Finding, PartOfNode, Preflight
from scalewise.site.slurm_checks import check_site, check_sites

PARTITION = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A MaxNodes=UNLIMITED "
    "MaxTime={limit} MinNodes=0 Nodes=n[1-4] State={state} TotalCPUs=256 TotalNodes=4"
)
TEST_ONLY = (
    "sbatch: Job 4711 to start at 2026-11-21T04:20:00 using 32 processors on nodes n[1-2] in partition gpu"
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
    part: bool = False,
    **slurm: Any,
) -> Preflight:
    """Describe the largest run of a site with these facts; a fact of None is left out.

    Args:
        part: Whether another run leaves a part of a node free.
    """
    facts = {key: value for key, value in (SLURM | slurm).items() if value is not None}
    return Preflight(
        slurm=Slurm.model_validate(facts),
        shape="2x4",
        accelerator=accelerator,
        cpus_per_device=4,
        launcher="srun",
        rendezvous="tcp",
        options=["--account=proj123", "--partition=gpu", "--nodes=2", "--gres=gpu:4"],
        part=PartOfNode(shape="1x2", options=["--nodes=1", "--exclusive", "--gres=gpu:2"]) if part else None,
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
    lines = lines_of(ask(programs))

    assert (len(lines["ok"]), lines["bad"], lines["unknown"]) == (6, [], [])


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


CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("preflight_cases.yaml").read_text(encoding="utf-8")
)


def findings_of(case: Mapping[str, Any], programs: Path) -> list[Finding]:
    answers = dict(case.get("answers", {}))
    if "partition" in case or "configuration" in case:
        facts = {"config": case["configuration"]} if "configuration" in case else {}
        answers["scontrol"] = of_partition(**case.get("partition", {}), **facts)
    return ask(programs, answers, **case.get("facts", {}))


WORDS = Path(__file__).with_name("preflight_lines.txt")


@pytest.mark.parametrize(
    ("state", "case"),
    [
        pytest.param(
            *(state, case),
            id=case["name"],
            marks=[pytest.mark.refuses(case["refuses"])] if "refuses" in case else [],
        )
        for state, cases in CASES.items()
        for case in cases
    ],
)
def test_what_the_cluster_has_is_ok_what_it_lacks_is_bad_and_what_cannot_be_looked_up_is_unknown(
    state: str, case: Mapping[str, Any], programs: Path, record_property: Callable[[str, object], None]
) -> None:
    lines = lines_of(findings_of(case, programs))

    named = re.compile(".*".join(map(re.escape, case["names"])), re.DOTALL)
    assert named.search("\n".join(lines[state]))
    assert len(lines["bad"]) == (state == "bad")
    for line in lines["bad"]:
        record_property("message", f"NOT OK  {line}")


def test_each_line_has_the_words_that_are_kept(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each case those that a sound site has not."""
    sound = list(map(str, ask(programs)))
    parts = ["# a site that is right", *sound]
    for case in (case for cases in CASES.values() for case in cases):
        for command in ANSWERS:
            (programs / command).unlink(missing_ok=True)
        lines = [str(finding) for finding in findings_of(case, programs)]
        parts += [f"\n# {case['name']}", *(line for line in lines if line not in sound)]
    compare(WORDS, "\n".join(parts) + "\n", __file__, capsys)


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


def test_slurm_checks_the_same_jobs_and_nothing_is_submitted(programs: Path) -> None:
    asked = programs / "asked"
    ask(programs, {"sbatch": f"echo \"$*\" >> '{asked}'"}, part=True)

    assert asked.read_text(encoding="utf-8").splitlines() == [
        "--version",
        "--test-only --account=proj123 --partition=gpu --nodes=2 --gres=gpu:4 --wrap=true",
        "--test-only --nodes=1 --exclusive --gres=gpu:2 --wrap=true",
    ]
