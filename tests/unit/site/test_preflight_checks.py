"""The preflight's questions to Slurm, and its job while that waits, runs, is hidden or cannot start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.small_runs import preflight, site_of
from tests.stand_ins import stand_ins
from tests.unit.plan.conftest import Load

from scalewise.config.slurm import Slurm
from scalewise.plan.planned_study import make_plan
from scalewise.site import hello_job
from scalewise.site.hello_job import HIDDEN_SECONDS, LOOK_SECONDS, NEVER_STARTS, SILENT_SECONDS, follow, send
from scalewise.site.preflight import Finding, Preflight, check_site

LARGEST = {
    "slurm_account": "proj123",
    "slurm_partition": "gpu",
    "nodes": 2,
    "gres": "gpu:4",
    "slurm_extra": "--ntasks-per-node=4",
    "runtime": 62,
}
SMALLEST = {"nodes": 1, "gres": "gpu:2", "slurm_extra": "--ntasks-per-node=2 --exclusive"}
CONFIG = "ClusterName = c\nMinJobAge = 300 sec\nAccountingStorageType = accounting_storage/slurmdbd"
ANSWERS = {
    "sbatch": """case "$1" in --version) echo slurm 22.05.8;;
        *) echo sbatch: Job 4711 to start at 2026-11-21T04:20:00 using 32 processors >&2;; esac""",
    **dict.fromkeys(("srun", "squeue", "scancel"), "exit 0"),
    # of this cluster only
    "sacctmgr": """case "$*" in
        *associations*cluster=c*) echo 'proj123|||'; echo 'big1|big||';; *) echo proj123;; esac""",
    "sinfo": "echo 'gpu: 4 nodes with 64 CPUs, 257000 MB, gpu:a100:4; jobs of 2-4 nodes, at most 12:00'",
    "scontrol": f"echo '{CONFIG}'",
}


def refuses(options: str, error: str) -> dict[str, str]:
    return {"sbatch": f'case "$*" in {options}) echo "{error}" >&2; exit 1;; *) echo slurm 22.05.8;; esac'}


CHECKS: dict[str, tuple[dict[str, str], dict[str, Any], str, list[str]]] = {
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
        refuses("*nodes=2*", "sbatch: error: Users must specify a project"),
        {},
        "bad",
        [
            "Slurm refuses the largest job (2x4): sbatch: error: Users must specify a project",
            "The request was: sbatch --account=proj123 --partition=gpu --nodes=2 --ntasks-per-node=4 "
            "--gres=gpu:4 --time=62.",
            "There are: gpu: 4 nodes with 64 CPUs, 257000 MB, gpu:a100:4; jobs of 2-4 nodes, at most 12:00.",
        ],
    ),
    "a QOS": (
        refuses("*nodes=2*", "need --qos=gpu"),
        {},
        "bad",
        ["need --qos=gpu", 'Add the QOS to slurm.extra, as ["--qos=NAME"]'],
    ),
    "fewest nodes": (
        refuses("*nodes=1*", "Requested node configuration is not available"),
        {},
        "bad",
        ["refuses the smallest job (1x2)", "jobs of 2-4 nodes"],
    ),
    "no whole nodes": (
        refuses("*--exclusive*", "no exclusive"),
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
    answers, changed, state, texts = CHECKS[name]
    stand_ins(programs, ANSWERS | answers)
    slurm = Slurm.model_validate({"account": "proj123", "partition": "gpu"} | changed)

    found = list(
        check_site(preflight("2x4", site=site_of(slurm), requests={"2x4": LARGEST, "1x2": SMALLEST}))
    )

    (finding,) = [each for each in found if texts[0] in str(each)]
    record_property("message", str(finding))
    assert finding.state == state
    assert [text for text in texts if text not in str(finding)] == []
    assert [each for each in found if each.state != "ok" and each != finding] == []


def test_without_a_scheduler_or_its_commands_nothing_else_is_asked(programs: Path) -> None:
    assert list(map(str, check_site(preflight()))) == ["ok      one machine without a scheduler"]
    stand_ins(programs, {name: text for name, text in ANSWERS.items() if name not in ("sbatch", "squeue")})
    (found,) = check_site(preflight(site=site_of(Slurm())))
    assert str(found).startswith("NOT OK  sbatch, squeue not on PATH. ")


# ---- the job

PENDING = [("PENDING", "None"), ("PENDING", "Priority"), ("PENDING", "Resources")]
WAITS = [
    f"ok      job 41 waits in the queue ({reason}), Slurm expects its start at 2026-11-29T12:00:00"
    for _, reason in PENDING[1:]
]
SHORTENED, CANCELLED = "scontrol update JobId=41 TimeLimit=6", "scancel 41"


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
        self.file, self.sent = programs / "state.txt", programs / "sent.txt"
        self.states, self.seconds = iter(states), 0.0
        listed = "other|RUNNING" + ("\n41|PENDING" if shown else "")
        scripts = {name: f'echo {name} "$@" >> {self.sent}' for name in ("scancel", "scontrol")}
        unknown = "{ echo slurm_load_jobs error: Invalid job id specified >&2; exit 1; }"
        state = f"cat {self.file} 2>/dev/null || {unknown}"
        scripts["squeue"] = f"""case "$*" in *--jobs=41*) {state};; *) echo '{listed}';; esac"""
        stand_ins(programs, scripts)
        clock = SimpleNamespace(monotonic=lambda: self.seconds, sleep=self.sleep)
        monkeypatch.setattr(hello_job, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for state in self.states:
            self.file.unlink(missing_ok=True)
            if state is not None:
                self.file.write_text(f"{state[0]}|{state[1]}|2026-11-29T12:00:00\n")
            return

    def follow(self) -> tuple[list[Finding], str, list[str]]:
        """Return the findings after the first, which says that the job was sent, the last state and what
        was sent to Slurm."""
        state = ""

        def followed() -> Iterator[Finding]:
            nonlocal state
            state = yield from follow("41", ["squeue", "--name", "run"])

        found = list(followed())
        assert str(found[0]) == "ok      job 41 sent"
        return found[1:], state, self.sent.read_text().splitlines() if self.sent.exists() else []


@pytest.mark.parametrize(
    ("states", "lines"),
    [
        pytest.param(
            [*PENDING, ("RUNNING", "None"), ("COMPLETED", "None")],
            [*WAITS, "ok      job 41 is running"],
            id="with its own time once Slurm has judged it",
        ),
        pytest.param([("RUNNING", "None"), None], ["ok      job 41 is running"], id="forgotten afterwards"),
    ],
)
def test_a_job_is_followed_to_its_end(
    states: list[tuple[str, str] | None], lines: list[str], programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, state, sent = Queue(programs, monkeypatch, states).follow()

    assert (list(map(str, found)), state, sent) == (lines, "COMPLETED", [SHORTENED])


@pytest.mark.parametrize(
    ("states", "shown", "text", "limit"),
    [
        pytest.param(
            PENDING[:2],
            False,
            "does not show job 41, which was sent: `squeue --name run` prints no line of it",
            HIDDEN_SECONDS,
            id="the plugin's query does not show it",
        ),
        pytest.param([None], True, "the state of job 41 is unknown: `squeue", SILENT_SECONDS, id="unknown"),
        pytest.param(
            [("RUNNING", "")], True, "has not ended after 6 minutes", 60 * 6.5, id="it does not end"
        ),
        pytest.param(
            [("PENDING", "None"), ("PENDING", "QOSMaxGRESPerUser")],
            True,
            "job 41 waits with the reason QOSMaxGRESPerUser, and was cancelled",
            0,
            id="a limit",
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

    found, state, sent = queue.follow()

    assert (found[-1].state, state, sent[-1]) == ("bad", "", CANCELLED)
    # with a shorter time, it could start
    assert (SHORTENED in sent) == ("has not ended" in text)
    assert text in found[-1].text
    assert limit < queue.seconds < limit + 4 * LOOK_SECONDS


LIMITS = [
    *("QOSMaxGRESPerUser", "QOSGrpGRES", "QOSMaxWallDurationPerJobLimit", "QOSMaxNodePerJobLimit"),
    *("AssocGrpGRES", "AssocMaxNodePerJobLimit", "AssocGrpCpuLimit", "AssociationJobLimit"),
    *("PartitionNodeLimit", "PartitionTimeLimit", "PartitionDown", "MaxMemPerLimit", "JobHeldAdmin"),
    *("InvalidAccount", "InvalidQOS", "BadConstraints", "AccountNotAllowed", "JobHeldUser"),
    *("launch failed requeued held", "JobHoldMaxRequeue", "ReservationDeleted"),
]
PASSING = ["Resources", "Priority", "None", "BeginTime", "Licenses", "ReqNodeNotAvail", "Reservation"]


def test_reasons_that_pass_are_told_apart_from_those_that_do_not() -> None:
    assert [each for each in LIMITS if not NEVER_STARTS.fullmatch(each)] == []
    assert list(filter(NEVER_STARTS.fullmatch, PASSING)) == []


@pytest.mark.parametrize(
    ("script", "number", "error"),
    [
        ("echo 'Welcome to the cluster, 2 news'; echo 41", "41", ""),
        ("echo '41;cluster2'", "41", ""),
        ("echo 'you need a project' >&2; exit 1", "", "you need a project"),
        ("echo 'no number'", "", "no number"),
    ],
)
def test_a_job_is_sent_with_the_request_of_a_run_or_refused_in_slurms_words(
    programs: Path, script: str, number: str, error: str
) -> None:
    stand_ins(programs, {"sbatch": f'echo "$@" > {programs}/sent.txt; {script}'})

    found = send(["--nodes=2", "--time=62"], "python cli.py hello", Path("slurm.log"), "run")

    assert "--nodes=2 --time=62" in (programs / "sent.txt").read_text()
    assert (found.ok, found.text, found.error) == (bool(number), number, error)


def test_the_largest_run_with_the_longest_time_and_the_smallest_are_checked(load: Load) -> None:
    experiment = "{dataset: digits, model: linear, global_batch_size: 240, "
    study = load(
        f"experiments:\n  a: {experiment}devices: [1, 4]}}\n"
        f"  b: {experiment}devices: [2], runtime_minutes: 500}}\n",
        "accelerator: cuda\ndevices_per_node: 4\ncpus_per_node: 8\nmemory_gb_per_node: 40\n"
        "slurm: {account: mine, partition: short, queue_minutes: {1: 5}}\n",
    )
    found = Preflight.of(make_plan(study), "")

    assert [*found.requests] == ["1x4", "1x1"]
    assert {"--partition=short", "--gres=gpu:4", "--mem=40000", "--time=502"} <= {*found.options}
    assert found.requests["1x1"]["mem_mb"] == 10000
