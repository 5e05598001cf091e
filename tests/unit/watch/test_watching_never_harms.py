"""Watching ends with the study or before it, and the study is none the wiser."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.planted_records import leave_failure
from tests.small_runs import definition
from tests.stand_ins import stand_ins
from tests.unit.watch.planted_status import Drawn, Follower, Window, point
from tests.waiting import wait_until

from scalewise.records import later, utc_now
from scalewise.watch.follow import print_status
from scalewise.watch.jobs import SlurmQueue, parse_queue, query_slurm
from scalewise.watch.status import StudyStatus
from scalewise.watch.study import SESSION, QueuedJob, WatchedStudy
from scalewise.watch.terminal import Lines
from scalewise.watch.watcher import STILL_SECONDS, Silence, Watcher

STUDY = WatchedStudy(points=(point(1), point(2)), min_efficiency={"digits": None})
RUNS = [("digits", "d1.r1"), ("digits", "d2.r1")]


class Session:
    """A Snakemake whose log goes to a terminal, and a watcher of it."""

    def __init__(self, folder: Path, show: Callable[[StudyStatus], None] | None = None) -> None:
        self.folder = folder
        self.terminal, self.shown = io.StringIO(), threading.Event()
        self.logger = logging.Logger("snakemake", logging.INFO)
        self.logger.addHandler(logging.StreamHandler(self.terminal))
        display = Lines(self.terminal)
        self._show = show or display.show
        display.show = self.show  # type: ignore[method-assign]
        self.watcher = Watcher(STUDY, {}, folder, RUNS, self.logger, display)

    def show(self, status: StudyStatus) -> None:
        self.shown.set()
        self._show(status)

    def start(self) -> None:
        self.watcher.start()
        assert self.shown.wait(60)

    def await_log(self) -> None:
        """Until Snakemake has its log on the terminal again."""
        wait_until(
            lambda: "log follows" in self.terminal.getvalue(),
            lambda: f"Snakemake has not its log back:\n{self.terminal.getvalue()}",
        )


def fail(_status: StudyStatus) -> None:
    raise RuntimeError("no such luck")


def test_the_log_is_silent_while_it_watches_and_back_at_its_end(tmp_path: Path) -> None:
    session = Session(tmp_path)
    kept = logging.FileHandler(tmp_path / "snakemake.log")
    session.logger.addHandler(kept)
    session.start()
    session.logger.info("Select jobs to execute...")
    session.logger.warning("A warning")
    session.logger.error("Error in rule train")
    session.watcher.end()
    session.watcher.end()
    session.logger.info("Complete log(s): x")

    said = session.terminal.getvalue().splitlines()
    shown = ["A warning", "Error in rule train", "Complete log(s): x"]
    assert [line for line in said if " of 2 " not in line] == shown
    kept.close()
    assert (tmp_path / "snakemake.log").read_text().splitlines() == ["Select jobs to execute...", *shown]
    assert session.logger.handlers[1:] == [kept]
    assert session.logger.handlers[0].filters == []


def test_the_log_is_silent_only_on_its_condition_and_while_it_is_on() -> None:
    information = logging.LogRecord("snakemake", logging.INFO, "", 0, "Select jobs", None, None)
    silence = Silence()
    assert not silence.filter(information)
    silence.on = False
    assert silence.filter(information)
    assert Silence(lambda: False).filter(information)


def failed_job(session: Session, run: str) -> None:
    """Snakemake's two records of a training that failed."""
    command = "Command 'python \"$SCALEWISE_SCRIPTS/cli.py\" train {}' returned non-zero exit status 1."
    session.logger.error(command, extra={"event": "error", "exception": "RuleException"})
    log = session.folder / "results" / "digits" / "runs" / run / "train.log"
    error = {"event": "job_error", "rule_name": "train", "jobid": int(run[1]), "log": [str(log)]}
    session.logger.error(f"Error in rule train, log: {log}", extra=error)


def test_a_failed_run_is_shown_by_its_reason_and_output_once_and_by_snakemake_without_them(
    tmp_path: Path,
) -> None:
    session = Session(tmp_path)
    folder = tmp_path / "results" / "digits" / "runs" / "d1.r1"
    folder.mkdir(parents=True)
    session.start()
    for number, (experiment, run) in enumerate(RUNS, start=1):
        job = {"event": "job_info", "rule_name": "train", "jobid": number}
        wildcards = {"experiment": experiment, "run": run}
        session.logger.info("rule train", extra=job | {"wildcards": wildcards})
    tail = ["step 1", "OSError: out of disk"]
    leave_failure(
        folder,
        definition(),
        "failed",
        "rank 0 on a: Out of disk.",
        log_tail=tail,
        started_at=later(utc_now(), 1),
    )
    failed_job(session, "d1.r1")
    failed_job(session, "d2.r1")
    session.watcher.end()

    said = [line for line in session.terminal.getvalue().splitlines() if "runs done" not in line]
    other = tmp_path / "results" / "digits" / "runs" / "d2.r1" / "train.log"
    assert [line for line in said if not line.startswith(("0", "1", "2"))] == [
        "digits/d1.r1 failed: rank 0 on a: Out of disk.",
        "    step 1",
        "    OSError: out of disk",
        f"    Whole output: {folder / 'train.log'}",
        f"Error in rule train, log: {other}",
    ]


def test_any_error_restores_the_log_and_is_reported(tmp_path: Path) -> None:
    session = Session(tmp_path, fail)
    session.start()
    session.await_log()
    session.logger.info("Select jobs to execute...")
    session.watcher.end()

    assert session.terminal.getvalue().splitlines() == [
        "The study is no longer shown (RuntimeError: no such luck); Snakemake's log follows.",
        "Select jobs to execute...",
    ]


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session whose display hangs until the end of the test."""
    monkeypatch.setattr("scalewise.watch.watcher.END_SECONDS", 0.1)
    back = threading.Event()

    def hang(_status: StudyStatus) -> None:
        back.wait(60)

    session = Session(tmp_path, hang)
    session.start()
    yield session
    back.set()
    session.watcher._thread.join(60)


def test_a_file_system_that_hangs_does_not_keep_snakemake_from_its_end(hanging: Session) -> None:
    hanging.watcher.end()
    hanging.logger.info("Complete log(s): x")
    assert hanging.terminal.getvalue() == "Complete log(s): x\n"


def test_a_terminal_that_is_gone_is_no_error_at_the_end(
    hanging: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging.terminal.close()
    monkeypatch.setattr(hanging.watcher._display, "end", hanging.terminal.write)
    hanging.watcher.end()


def test_a_study_that_is_no_longer_shown_is_recorded_for_others_until_its_end(tmp_path: Path) -> None:
    session = Session(tmp_path, fail)
    session.start()
    session.await_log()
    run = Follower(tmp_path / "results", snakemake=session.logger)
    run.hand_over()
    run.summary()
    run.report("job_finished", job_id=7)
    session.watcher.end()

    output = io.StringIO()
    assert print_status(tmp_path, output) == 0
    *_, second, last = output.getvalue().splitlines()
    assert second.split() == ["2", "1", "of", "1", "200", "done"]
    assert last.startswith("1 of 2 runs done")


def test_a_last_look_that_fails_gives_the_terminal_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, shown = Window(columns=100), threading.Event()
    watcher = Watcher(STUDY, {}, tmp_path, RUNS, logging.Logger("snakemake", logging.INFO), Drawn(terminal))
    look = watcher._look

    def fail_at_the_end(over: bool = False) -> StudyStatus:
        if over:
            raise RuntimeError("no such luck")
        shown.set()
        return look()

    monkeypatch.setattr(watcher, "_look", fail_at_the_end)
    watcher.start()
    assert shown.wait(60)
    wait_until(terminal.getvalue, "nothing is shown")
    watcher.end()
    _, last = terminal.getvalue().rsplit("\x1b[r", 1)
    assert "no longer shown (RuntimeError: no such luck)" in last


def test_a_job_that_was_requeued_by_force_is_queried(tmp_path: Path) -> None:
    study = STUDY.model_copy(update={"device_budget": 4})
    asked, still = list[frozenset[str]](), [10.0]

    class Queue(SlurmQueue):
        def jobs(self, wanted: frozenset[str]) -> dict[str, QueuedJob]:
            asked.append(wanted)
            return {job: QueuedJob(state="PENDING", restarts=1) for job in wanted}

    logger = logging.Logger("snakemake", logging.INFO)
    run = Follower(tmp_path / "results", snakemake=logger)
    watcher = Watcher(study, {}, tmp_path, RUNS, logger, None, Queue(), now=lambda: run.clock + still[0])
    logger.addHandler(watcher._log)
    run.clock -= 100
    run.hand_over(slurm="41")
    run.clock += 100
    run.starts()
    run.progress(1)
    at_work = watcher._look().runs[RUNS[1]]
    # its node was lost: the last report of its ranks stays
    still[0] = STILL_SECONDS + 10.0
    watcher._look()
    put_back = watcher._look().runs[RUNS[1]]
    assert asked == [frozenset(), frozenset(), frozenset({"41"})]
    assert (at_work.state, put_back.state) == ("running", "queued")


def test_a_folder_that_takes_no_record_is_watched_all_the_same(tmp_path: Path) -> None:
    (tmp_path / SESSION.parts[0]).write_text("in the way")
    session = Session(tmp_path)
    session.start()
    session.watcher.end()
    assert "no longer shown" not in session.terminal.getvalue()


def test_slurm_is_queried_only_about_jobs_in_the_queue_and_less_and_less_often() -> None:
    clock, asked = [0.0], list[float]()

    def ask() -> dict[str, QueuedJob]:
        asked.append(clock[0])
        return {"41": QueuedJob(state="PENDING"), "99": QueuedJob(state="PENDING")}

    queue = SlurmQueue(ask, lambda: clock[0])
    for second in range(200):
        clock[0] = float(second)
        found = queue.jobs(frozenset({"41"}) if second else frozenset())
    assert found == {"41": QueuedJob(state="PENDING")}
    assert asked == [20.0, 40.0, 70.0, 110.0, 160.0]

    for second in range(200, 400):
        clock[0] = float(second)
        queue.jobs(frozenset())
    assert len(asked) == 5


def test_slurms_answer_is_read_and_what_is_no_answer_left_out() -> None:
    jobs = [
        "41                  PENDING             0           1795789628              Priority    ",
        "42                  PENDING             2           N/A                     launch failed held",
        "43                  RUNNING             0           N/A                     None",
    ]
    found = parse_queue("\n".join([*jobs, "slurm_load_jobs error: Unable to contact", "|||", ""]))
    assert list(found) == ["41", "42", "43"]
    assert found["41"].reason == "Priority"
    assert found["41"].starts == 1795789628
    assert found["42"].starts is None
    assert (found["42"].reason, found["43"].reason) == ("launch failed held", "")
    assert (found["41"].restarts, found["42"].restarts) == (0, 2)


QUEUED = "41                  PENDING             0           1795789628              Priority            "


@pytest.mark.parametrize(
    ("script", "is_answer"),
    [
        pytest.param(f'[ "$SLURM_TIME_FORMAT" = %s ] && echo "{QUEUED}"', True, id="any format of times"),
        pytest.param(f'echo "{QUEUED}"; exit 1', False, id="fails"),
        pytest.param(f'echo "{QUEUED}"; exec sleep 600', False, id="hangs"),
        pytest.param(f"exec yes '{QUEUED}'", True, id="whole lines of an endless answer"),
        pytest.param(None, False, id="missing"),
    ],
)
def test_an_answer_of_squeue_is_read_and_a_failure_is_none(
    script: str | None, is_answer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setattr("scalewise.watch.jobs.COMMAND_SECONDS", 60 if is_answer else 0.5)
    monkeypatch.setattr("scalewise.watch.jobs.MOST_BYTES", len(QUEUED) + 1 + QUEUED.index("ity"))
    stand_ins(tmp_path, {} if script is None else {"squeue": script})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))

    queued = {"41": QueuedJob(state="PENDING", starts=1795789628, reason="Priority")}
    assert query_slurm() == (queued if is_answer else None)
