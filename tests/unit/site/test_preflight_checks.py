"""The preflight's questions to Slurm, and its job while that waits, runs, is hidden or cannot start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.small_runs import preflight
from tests.stand_ins import stand_ins
from tests.unit.plan.conftest import Load

from scalewise.config.slurm import Slurm
from scalewise.site import hello_job
from scalewise.site.hello_job import HIDDEN_SECONDS, LOOK_SECONDS, NEVER_STARTS, SILENT_SECONDS, follow, send
from scalewise.site.preflight import Finding, Preflight, Request, check_site

OPTIONS = ["--account=proj123", "--partition=gpu", "--nodes=2", "--gres=gpu:4", "--time=62"]
CONFIG = "ClusterName = c\nMinJobAge = 300 sec\nAccountingStorageType = accounting_storage/slurmdbd"
TAKEN = "sbatch: Job 4711 to start at 2026-11-21T04:20:00 using 32 processors on nodes n[1-2]"


def findings(
    programs: Path, scripts: Mapping[str, str | None], slurm: Mapping[str, Any], smallest: Request | None
) -> list[Finding]:
    written = {
        "sbatch": f'case "$1" in --version) echo slurm 22.05.8;; *) echo "{TAKEN}" >&2;; esac',
        **dict.fromkeys(("srun", "squeue", "scancel"), "exit 0"),
        # of this cluster only
        "sacctmgr": """case "$*" in
            *associations*cluster=c*) echo 'proj123|||'; echo 'big1|big||';; *) echo proj123;; esac""",
        "sinfo": "echo 'gpu: 4 nodes with 64 CPUs, 257000 MB, gpu:a100:4'",
        "scontrol": f"""case "$*" in
            *config*) echo '{CONFIG}';; *partition*) echo 'PartitionName=gpu MinNodes=2 MaxNodes=4';; esac""",
    }
    written |= dict(scripts)  # type: ignore[arg-type]
    stand_ins(programs, {name: script for name, script in written.items() if script is not None})
    facts = Slurm.model_validate({"account": "proj123", "partition": "gpu"} | dict(slurm))
    return list(check_site(preflight(slurm=facts, shape="2x4", options=OPTIONS, smallest=smallest)))


SMALLEST = Request(shape="1x2", options=["--nodes=1", "--exclusive", "--gres=gpu:2"])
REFUSES = 'case "$*" in {}) echo "{}" >&2; exit 1;; *) echo slurm 22.05.8;; esac'
CHECKS: dict[str, tuple[dict[str, str | None], dict[str, Any], str, list[str]]] = {
    "an account in capitals": ({}, {"account": "Proj123"}, "ok", ["account Proj123 in partition gpu"]),
    "no account": ({}, {"account": None}, "ok", ["account left to Slurm: proj123", "are proj123"]),
    "an account of one partition": ({}, {"account": "big1", "partition": "big"}, "ok", ["account big1"]),
    "an account of another partition": ({}, {"account": "big1"}, "bad", ["big1 is not yours in", "proj123"]),
    "an unknown account": ({}, {"account": "x"}, "bad", ["account x is not yours", "yours: proj123"]),
    "accounting that does not answer": (
        {"sacctmgr": "echo no >&2; exit 1"},
        {},
        "unknown",
        ["the account could not be looked up", "failed: no"],
    ),
    "jobs that are forgotten": (
        {"scontrol": f"echo '{CONFIG.replace('300', '60')}'"},
        {},
        "unknown",
        ["60 s after their end", "sacct"],
    ),
    "the largest job": ({}, {}, "ok", ["takes the largest job (2x4); it would start at 2026-11-21T04:20:00"]),
    "the smallest job": ({}, {}, "ok", ["takes the smallest job (1x2, whole nodes)"]),
    "words of a site's own checks": (
        {"sbatch": REFUSES.format("*nodes=2*", "sbatch: error: Users must specify a project")},
        {},
        "bad",
        [
            "Slurm refuses the largest job (2x4): sbatch: error: Users must specify a project",
            "The request was: sbatch --account=proj123 --partition=gpu --nodes=2 --gres=gpu:4 --time=62.",
            "There are: gpu: 4 nodes with 64 CPUs, 257000 MB, gpu:a100:4.",
        ],
    ),
    "a QOS": (
        {"sbatch": REFUSES.format("*nodes=2*", "need --qos=gpu")},
        {},
        "bad",
        ["need --qos=gpu", 'Add the QOS to slurm.extra, as ["--qos=NAME"]'],
    ),
    "fewest nodes": (
        {"sbatch": REFUSES.format("*nodes=1*", "Requested node configuration is not available")},
        {},
        "bad",
        ["refuses the smallest job (1x2)", "takes jobs of 2 nodes or more (MinNodes)"],
    ),
    "no whole nodes": (
        {"sbatch": REFUSES.format("*--exclusive*", "no exclusive")},
        {},
        "bad",
        ["Slurm refuses whole nodes for the smallest job (1x2)", "`exclusive: false`"],
    ),
}


MARKS = {
    "an unknown account": pytest.mark.refuses("slurm: unknown account"),
    "a QOS": pytest.mark.refuses("slurm: unknown qos"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CHECKS])
def test_a_request_is_judged_by_slurm(
    name: str, programs: Path, record_property: Callable[[str, object], None]
) -> None:
    scripts, slurm, state, texts = CHECKS[name]
    found = findings(programs, scripts, slurm, SMALLEST)

    (finding,) = [each for each in found if texts[0] in str(each)]
    record_property("message", str(finding))
    assert finding.state == state
    for text in texts:
        assert text in str(finding)
    others = [each for each in found if each.state != "ok" and each != finding]
    assert others == []


def test_one_machine_has_no_scheduler_to_ask() -> None:
    assert list(map(str, check_site(preflight()))) == ["ok      one machine without a scheduler"]


def test_commands_that_are_missing_are_named_and_nothing_else_is_asked(programs: Path) -> None:
    (found,) = findings(programs, {"sbatch": None, "squeue": None}, {}, None)
    assert str(found).startswith("NOT OK  sbatch, squeue not on PATH. ")


# ---- the job


class Queue:
    """A queue in which one job goes through some states, one a look.

    Args:
        states: State and reason of each look; None for a controller that has forgotten the job.
        shown: Whether the plugin's query shows the job.
    """

    def __init__(
        self,
        programs: Path,
        monkeypatch: pytest.MonkeyPatch,
        states: Sequence[tuple[str, str] | None],
        shown: bool = True,
    ) -> None:
        self.programs, self.states, self.seconds = programs, list(states), 0.0
        self.sent = programs / "sent.txt"
        listed = "other|RUNNING" + ("\n41|PENDING" if shown else "")
        scripts = {name: f'echo {name} "$@" >> {self.sent}' for name in ("scancel", "scontrol")}
        unknown = "{ echo slurm_load_jobs error: Invalid job id specified >&2; exit 1; }"
        state = f"cat {programs}/state.txt 2>/dev/null || {unknown}"
        scripts["squeue"] = f"""case "$*" in *--jobs=41*) {state};; *) echo '{listed}';; esac"""
        stand_ins(programs, scripts)
        clock = SimpleNamespace(monotonic=lambda: self.seconds, sleep=self.sleep)
        monkeypatch.setattr(hello_job, "time", clock)
        self.sleep(0)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        file = self.programs / "state.txt"
        file.unlink(missing_ok=True)
        if state is not None:
            file.write_text(f"{state[0]}|{state[1]}|2026-11-29T12:00:00\n")

    def follow(self) -> tuple[list[Finding], str]:
        """Return the findings after the first, which says that the job was sent, and the last state."""
        found, state = [], ""

        def followed() -> Iterator[Finding]:
            nonlocal state
            state = yield from follow("41", ["squeue", "--name", "run"])

        found = list(followed())
        assert str(found[0]) == "ok      job 41 sent"
        return found[1:], state

    @property
    def commands(self) -> list[str]:
        return self.sent.read_text().splitlines() if self.sent.exists() else []


def test_a_job_is_followed_to_its_end_and_asks_for_its_own_time_once_slurm_has_judged_it(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = [("PENDING", "None"), ("PENDING", "Priority"), ("PENDING", "Resources")]
    queue = Queue(programs, monkeypatch, [*pending, ("RUNNING", "None"), ("COMPLETED", "None")])

    found, state = queue.follow()

    assert list(map(str, found)) == [
        "ok      job 41 waits in the queue (Priority), Slurm expects its start at 2026-11-29T12:00:00",
        "ok      job 41 waits in the queue (Resources), Slurm expects its start at 2026-11-29T12:00:00",
        "ok      job 41 is running",
    ]
    assert queue.commands == ["scontrol update JobId=41 TimeLimit=6"]
    assert state == "COMPLETED"


@pytest.mark.parametrize(
    "reason",
    [
        *("QOSMaxGRESPerUser", "QOSGrpGRES", "QOSMaxWallDurationPerJobLimit", "QOSMaxNodePerJobLimit"),
        *("AssocGrpGRES", "AssocMaxNodePerJobLimit", "AssocGrpCpuLimit", "AssociationJobLimit"),
        *("PartitionNodeLimit", "PartitionTimeLimit", "PartitionDown", "MaxMemPerLimit", "JobHeldAdmin"),
        *("InvalidAccount", "InvalidQOS", "BadConstraints", "AccountNotAllowed", "JobHeldUser"),
        *("launch failed requeued held", "JobHoldMaxRequeue", "ReservationDeleted"),
    ],
)
def test_a_job_that_cannot_start_is_not_ok_with_the_limits_name_and_is_cancelled(
    reason: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(programs, monkeypatch, [("PENDING", "None"), ("PENDING", reason)])

    (finding,), state = queue.follow()

    assert (finding.state, state) == ("bad", "")
    assert f"the reason {reason}," in finding.text
    assert queue.commands[-1] == "scancel 41"


@pytest.mark.parametrize(
    "reason", ["Resources", "Priority", "None", "BeginTime", "Licenses", "ReqNodeNotAvail", "Reservation"]
)
def test_a_reason_that_passes_is_waited_for(reason: str) -> None:
    assert not NEVER_STARTS.fullmatch(reason)


@pytest.mark.parametrize(
    ("states", "shown", "text", "limit"),
    [
        pytest.param(
            [("PENDING", "Resources")],
            False,
            "does not show job 41, which was sent: `squeue --name run` prints no line of it",
            HIDDEN_SECONDS,
            id="the plugin's query does not show it",
        ),
        pytest.param([None], True, "the state of job 41 is unknown: `squeue", SILENT_SECONDS, id="unknown"),
        pytest.param(
            [("RUNNING", "None")], True, "has not ended after 6 minutes", 60 * 6.5, id="it does not end"
        ),
    ],
)
def test_a_job_that_is_waited_for_in_vain_is_cancelled_after_a_limit(
    states: list[tuple[str, str] | None],
    shown: bool,
    text: str,
    limit: float,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(programs, monkeypatch, states, shown)

    found, _ = queue.follow()

    assert found[-1].state == "bad"
    assert text in found[-1].text
    assert limit < queue.seconds < limit + 4 * LOOK_SECONDS
    assert queue.commands[-1] == "scancel 41"


def test_a_job_that_the_controller_has_forgotten_has_ended(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, state = Queue(programs, monkeypatch, [("RUNNING", "None"), None]).follow()

    assert (list(map(str, found)), state) == (["ok      job 41 is running"], "COMPLETED")


@pytest.mark.parametrize(
    ("script", "number", "error"),
    [
        ("echo 41", "41", ""),
        ("echo '41;cluster2'", "41", ""),
        ("echo 'Welcome to the cluster, 2 news'; echo 41", "41", ""),
        ("echo 'you need a project' >&2; exit 1", "", "you need a project"),
        ("echo 'no number'", "", "no number"),
    ],
)
def test_a_job_is_sent_with_the_request_of_a_run_or_refused_in_slurms_words(
    programs: Path, script: str, number: str, error: str
) -> None:
    stand_ins(programs, {"sbatch": f'echo "$@" > {programs}/sent.txt; {script}'})

    found = send(OPTIONS, "python cli.py hello", Path("slurm.log"), "run")

    assert " ".join(OPTIONS) in (programs / "sent.txt").read_text()
    assert (found.ok, found.text, found.error) == (bool(number), number, error)


def test_resources_of_a_profile_replace_those_of_the_site_in_the_requests(load: Load) -> None:
    study = load(
        "experiments:\n  a: {dataset: digits, model: linear, global_batch_size: 240, devices: [1, 4]}\n",
        "accelerator: cuda\ndevices_per_node: 4\ncpus_per_node: 8\nmemory_gb_per_node: 40\n"
        "slurm: {account: mine, partition: short}\n",
    )
    before = Preflight.of(study, "")
    after = before.on_profile({"slurm_partition": "long", "mem_mb": 7, "tries": 3})
    assert before.smallest is not None
    assert after.smallest is not None
    for old, new in ((before.options, after.options), (before.smallest.options, after.smallest.options)):
        assert {"--partition=short", "--account=mine"} <= set(old)
        assert set(new) - set(old) == {"--partition=long", "--mem=7"}
        assert {word.partition("=")[0] for word in new} == {word.partition("=")[0] for word in old}
