"""The preflight's questions to Slurm, and its job while that waits, runs, is hidden or cannot start."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.small_runs import definition, site_of
from tests.stand_ins import stand_ins
from tests.unit.plan.conftest import Load

from scalewise.config.slurm import Slurm
from scalewise.plan.allocation import sbatch_options
from scalewise.plan.plan_file import Value
from scalewise.plan.planned_study import make_plan
from scalewise.site import hello_job
from scalewise.site.hello_job import (
    HIDDEN_SECONDS,
    LOOK_SECONDS,
    NEVER_STARTS,
    SILENT_SECONDS,
    follow,
    run_job,
)
from scalewise.site.preflight import Finding, Preflight, check_site

LARGEST: dict[str, Value] = {
    "slurm_account": "proj123",
    "slurm_partition": "gpu",
    "nodes": 2,
    "gres": "gpu:4",
    "slurm_extra": "--ntasks-per-node=4",
    "runtime": 62,
}
SMALLEST: dict[str, Value] = {"nodes": 1, "gres": "gpu:2", "slurm_extra": "--ntasks-per-node=2 --exclusive"}
CONFIG = "ClusterName = c\nMinJobAge = 300 sec\nAccountingStorageType = accounting_storage/slurmdbd"
ANSWERS = {
    "sbatch": """case "$1" in --version) echo slurm 22.05.8;;
        *) echo sbatch: Job 4711 to start at 21 Nov 04:20 using 32 processors >&2;; esac""",
    **dict.fromkeys(("srun", "squeue", "scancel"), "exit 0"),
    # of this cluster only
    "sacctmgr": """case "$*" in
        *associations*cluster=c*) echo 'proj123|||'; echo 'big1|big||';; *) echo proj123;; esac""",
    "sinfo": "echo 'gpu: 4 nodes with 64 CPUs, 257000 MB, gpu:a100:4; jobs of 2-4 nodes, at most 12:00'",
    "scontrol": f"echo '{CONFIG}'",
}


def refuses(options: str, error: str) -> dict[str, str]:
    return {"sbatch": f'case "$*" in {options}) echo "{error}" >&2; exit 1;; *) echo slurm 22.05.8;; esac'}


CHECKS: dict[str, tuple[dict[str, str], dict[str, Value], str, list[str]]] = {
    "an account in capitals": ({}, {"account": "Proj123"}, "ok", ["account Proj123 in partition gpu"]),
    "no account": ({}, {"account": ""}, "ok", ["account left to Slurm: proj123", "are proj123"]),
    "an account of one partition": ({}, {"account": "big1", "partition": "big"}, "ok", ["account big1"]),
    "an account of another partition": ({}, {"account": "big1"}, "NOT OK", ["big1 is not yours", "proj123"]),
    "an unknown account": ({}, {"account": "x"}, "NOT OK", ["account x is not yours", "yours: proj123"]),
    "accounting that does not answer": (
        {"sacctmgr": "echo no >&2; exit 1"},
        {},
        "?",
        ["the account could not be looked up", "failed: no"],
    ),
    "jobs that are forgotten": (
        {"scontrol": f"echo '{CONFIG.replace('300', '60')}'"},
        {},
        "?",
        ["60 s after their end", "sacct"],
    ),
    "the largest job": ({}, {}, "ok", ["takes the largest job (2x4); it would start at 21 Nov 04:20"]),
    "the smallest job": ({}, {}, "ok", ["takes the smallest job (1x2)"]),
    "words of a site's own checks": (
        refuses("*nodes=2*", "sbatch: error: Users must specify a project"),
        {},
        "NOT OK",
        [
            "Slurm refuses the largest job (2x4): sbatch: error: Users must specify a project",
            "The request was: sbatch --account=proj123 --partition=gpu --nodes=2 --ntasks-per-node=4 "
            "--gres=gpu:4 --time=62.",
            "Slurm has: gpu: 4 nodes with 64 CPUs, 257000 MB, gpu:a100:4; jobs of 2-4 nodes, at most 12:00.",
        ],
    ),
    "a QOS": (refuses("*nodes=2*", "need --qos=gpu"), {}, "NOT OK", ["need --qos=gpu", '"--qos=NAME"']),
    "no whole nodes": (
        refuses("*--exclusive*", "no exclusive"),
        {},
        "NOT OK",
        ["Slurm refuses the smallest job (1x2): no exclusive", "`exclusive: false`"],
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
    answers, changed, state, texts = CHECKS[name]
    stand_ins(programs, ANSWERS | answers)
    largest = LARGEST | {f"slurm_{key}": value for key, value in changed.items()}
    requests = {"the largest job (2x4)": largest, "the smallest job (1x2)": SMALLEST}

    found = list(check_site(Preflight(site_of(Slurm()), definition(), requests, [])))

    (finding,) = [each for each in found if texts[0] in str(each)]
    record_property("message", str(finding))
    assert finding.state == state
    assert [text for text in texts if text not in str(finding)] == []
    assert [each for each in found if each.state != "ok" and each != finding] == []


def test_without_a_scheduler_or_its_commands_nothing_else_is_asked(programs: Path) -> None:
    stand_ins(programs, {name: text for name, text in ANSWERS.items() if name not in ("sbatch", "squeue")})
    (found,) = check_site(Preflight(site_of(), definition(), {"it": LARGEST}, []))
    assert str(found) == "ok      one machine without a scheduler"
    (found,) = check_site(Preflight(site_of(Slurm()), definition(), {"it": LARGEST}, []))
    assert str(found).startswith("NOT OK  sbatch, squeue not on PATH. ")


def test_the_largest_run_with_the_longest_time_and_the_smallest_are_checked(load: Load) -> None:
    experiment = "{dataset: digits, model: linear, global_batch_size: 240, "
    study = load(
        f"experiments:\n  a: {experiment}devices: [1, 4]}}\n"
        f"  b: {experiment}devices: [2], runtime_minutes: 500}}\n",
        "accelerator: cuda\ndevices_per_node: 4\ncpus_per_node: 8\nmemory_gb_per_node: 40\n"
        "slurm: {account: mine, partition: short}\n",
    )
    found = Preflight.of(make_plan(study), "")

    assert [*found.requests] == ["the largest job (1x4)", "the smallest job (1x1)"]
    largest, smallest = found.requests.values()
    assert {"--partition=short", "--gres=gpu:4", "--mem=40000", "--time=502"} <= {*sbatch_options(largest)}
    assert smallest["mem_mb"] == 10000


# ---- the job

SHORTENED, CANCELLED = "scontrol update JobId=41 TimeLimit=6", "scancel 41"


class Queue:
    """A queue in which one job goes through some states, one a look.

    Args:
        states: State and reason of each look; the last one stays. None if the queue does not show the job.
    """

    def __init__(
        self, programs: Path, monkeypatch: pytest.MonkeyPatch, states: Sequence[tuple[str, str] | None]
    ) -> None:
        self.programs, self.states, self.seconds = programs, iter(states), 0.0
        scripts = {name: f'echo {name} "$@" >> {programs}/sent.txt' for name in ("scancel", "scontrol")}
        scripts["squeue"] = f"""case "$*" in *--jobs=41*) cat {programs}/reason.txt;;
            *) echo 'other|RUNNING'; cat {programs}/state.txt;; esac"""
        scripts["sbatch"] = f'echo sbatch "$@" >> {programs}/sent.txt; echo Welcome; echo "41;cluster2"'
        stand_ins(programs, scripts)
        monkeypatch.setattr(
            hello_job, "time", SimpleNamespace(monotonic=lambda: self.seconds, sleep=self.sleep)
        )

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for state in self.states:
            for name, text in zip(("state", "reason"), state or ("", ""), strict=True):
                (self.programs / f"{name}.txt").write_text(f"41|{text}" if text and name == "state" else text)
            return

    def follow(self) -> tuple[list[Finding], str, list[str]]:
        """Return the findings, the end, and what was sent to Slurm."""
        end = ""

        def followed() -> Iterator[Finding]:
            nonlocal end
            end = yield from run_job(
                ["--nodes=2", "--time=62"], "hello", Path("slurm.log"), "run", ["squeue", "--name", "run"]
            )

        return list(followed()), end, (self.programs / "sent.txt").read_text().splitlines()


def test_a_job_is_sent_as_a_run_and_followed_to_its_end_with_a_short_time_once_slurm_has_judged_it(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [("PENDING", "None"), ("PENDING", "Priority"), ("PENDING", "Priority"), ("PENDING", "Resources")]

    found, end, (sent, *others) = Queue(programs, monkeypatch, [*waits, ("RUNNING", "None"), None]).follow()

    lines = ["sent", "waits in the queue (Priority)", "waits in the queue (Resources)", "is running"]
    assert list(map(str, found)) == [f"ok      job 41 {line}" for line in lines]
    # the controller has forgotten it
    assert (end, others) == ("job 41 is no longer shown", [SHORTENED, CANCELLED])
    assert "--nodes=2 --time=62 --wrap=hello" in sent


@pytest.mark.parametrize(
    ("states", "text", "limit"),
    [
        pytest.param(
            [None], "job 41, which was sent: `squeue --name run` prints no line", HIDDEN_SECONDS, id="hidden"
        ),
        pytest.param(
            [("PENDING", "None"), ("PENDING", "QOSMaxGRESPerUser")],
            "job 41 waits with the reason QOSMaxGRESPerUser, and was cancelled",
            0,
            id="a limit",
        ),
        pytest.param(
            [("PENDING", "Resources"), ("REQUEUE_HOLD", "launch failed requeued held")],
            "job 41 waits with the reason launch failed requeued held, and was cancelled",
            0,
            id="held after a failed start",
        ),
    ],
)
def test_a_job_that_is_waited_for_in_vain_is_cancelled_after_a_limit(
    states: list[tuple[str, str] | None],
    text: str,
    limit: float,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(programs, monkeypatch, states)

    found, end, sent = queue.follow()

    # not with a shorter time, with which it could start
    assert (found[-1].state, end, sent[-1]) == ("NOT OK", "", CANCELLED)
    assert states[0] == ("PENDING", "Resources") or SHORTENED not in sent
    assert text in found[-1].text
    assert limit < queue.seconds < limit + 4 * LOOK_SECONDS


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Interrupts are heeded, also by tests in the background of a shell, which starts these without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(("during", "cancelled"), [("sbatch", "scancel --name=run"), ("squeue", CANCELLED)])
def test_a_preflight_that_is_interrupted_twice_leaves_no_job(
    during: str, cancelled: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(programs, monkeypatch, [("PENDING", "Priority")])
    interrupted = {during: "kill -INT $PPID"}
    second = {"scancel": f'kill -INT $PPID $$; echo scancel "$@" >> {programs}/sent.txt'}
    stand_ins(programs, interrupted | second)

    with pytest.raises(KeyboardInterrupt):
        queue.follow()

    assert (programs / "sent.txt").read_text().splitlines()[-1] == cancelled


def test_a_controller_that_does_not_answer_for_long_ends_the_wait(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(programs, monkeypatch, [("PENDING", "Priority")])
    findings = follow("41", ["squeue", "--name", "run"])
    assert [next(findings).state, next(findings).state] == ["ok", "ok"]
    stand_ins(programs, {"squeue": "echo down >&2; exit 1"})

    (finding,) = findings

    assert "`squeue --name run` failed: down" in finding.text
    assert SILENT_SECONDS < queue.seconds < SILENT_SECONDS + 4 * LOOK_SECONDS


LIMITS = [
    *("QOSMaxGRESPerUser", "QOSGrpGRES", "QOSMaxWallDurationPerJobLimit", "QOSMaxNodePerJobLimit"),
    *("AssocGrpGRES", "AssocMaxNodePerJobLimit", "AssocGrpCpuLimit", "AssociationJobLimit"),
    *("PartitionNodeLimit", "PartitionTimeLimit", "PartitionDown", "MaxMemPerLimit", "JobHeldAdmin"),
    *("InvalidAccount", "InvalidQOS", "BadConstraints", "AccountNotAllowed", "JobHeldUser"),
    *("launch failed requeued held", "JobHoldMaxRequeue", "ReservationDeleted", "ReservationInvalid"),
    *("Constraints", "DependencyNeverSatisfied"),
]
PASSING = ["Resources", "Priority", "None", "BeginTime", "Licenses", "ReqNodeNotAvail", "Reservation", ""]


def test_reasons_that_pass_are_told_apart_from_those_that_do_not() -> None:
    assert [each for each in LIMITS if not NEVER_STARTS.fullmatch(each)] == []
    assert list(filter(NEVER_STARTS.fullmatch, PASSING)) == []


@pytest.mark.parametrize(
    ("script", "error"), [("echo 'you need a project' >&2; exit 1", "you need a project"), ("echo no", "no")]
)
def test_a_job_that_slurm_refuses_is_named_in_slurms_words(programs: Path, script: str, error: str) -> None:
    stand_ins(programs, {"sbatch": script})
    (finding,) = run_job([], "hello", Path("slurm.log"), "run", ["squeue"])
    assert (finding.state, finding.text) == ("NOT OK", f"Slurm refuses the hello job: {error}")
