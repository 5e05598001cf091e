"""What Scalewise uses of Snakemake's internals, each checked with a Snakemake that runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.paths import SCRIPTS

from scalewise.snakemake_adapter import array_jobs, own_settings, profile_values, status_query

OLDEST = "SCALEWISE_OLDEST_SNAKEMAKE"
"""Variable with the interpreter of an environment with the oldest Snakemake; `make test` creates it."""

ALL = """
import atexit, json, logging, os, sys
sys.path.insert(0, SCRIPTS)
from scalewise.snakemake_adapter import Snakemake, is_command_error, is_for_user, job_event
from scalewise.snakemake_adapter import snakemake_logger, terminal_handlers

SNAKEMAKE = Snakemake.reading(workflow)
FACTS = {"handlers": [], "events": [], "for user": [], "command errors": 0, "asked": []}


class Events(logging.Handler):
    def emit(self, record):
        if (event := job_event(record)) is not None:
            FACTS["events"].append(vars(event))
        if is_for_user(record):
            FACTS["for user"].append([record.levelname, str(record.msg)])
        FACTS["command errors"] += is_command_error(record)


if not SNAKEMAKE.is_module:
    snakemake_logger().addHandler(Events())


def take(*names):
    for name in names:
        value = getattr(SNAKEMAKE, name)
        FACTS[name] = [vars(each) for each in value] if name == "jobs" else value


def write_facts():
    take("is_dry_run", "only_touches", "sends_jobs", "has_planned")
    with open("facts.json", "w") as file:
        json.dump(FACTS, file, default=str)


def refuses(job, attempt):
    FACTS["asked"].append([job.wildcards.get("name"), attempt])
    with open("refuse") as file:
        return f"{job.wildcards.get('name')} {attempt}" in file.read().splitlines()


take("is_module", "snakefile", "config_files", "has_named_config_files", "device_budget")
take("makes_environments", "shows_failed_logs", "log_is_changed")
FACTS["terminals"] = len(list(terminal_handlers(snakemake_logger())))
atexit.register(write_facts)


rule all:
    default_target: True
    input: "made/one.txt"


rule make:
    output: "made/{name}.txt"
    log: "made/{name}.log"
    shell: "test ! -e fail && echo > {output}"


onstart:
    take("jobs", "folder", "forces_all", "forced")
    FACTS["handlers"].append("start")
    if os.path.exists("refuse"):
        SNAKEMAKE.refuse_jobs(refuses)


onsuccess:
    FACTS["handlers"].append("success")


onerror:
    FACTS["handlers"].append("error")


if SNAKEMAKE.is_module:
    SNAKEMAKE.join_handlers(globals())
"""

PARENT = """
onstart:
    print("above the module", file=open("parent.txt", "w"))

module ours:
    snakefile: "ours.smk"

use rule * from ours as ours_*

rule mine:
    default_target: True
    input: "made/one.txt"
"""


@pytest.fixture(params=["installed", "oldest"])
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of an environment with Snakemake."""
    if request.param == "installed":
        return sys.executable
    if not (oldest := os.environ.get(OLDEST)):
        pytest.skip(f"no {OLDEST}: `make test` sets it")
    return oldest


class Folder:
    """A folder with a workflow that writes what the adapter knows of the Snakemake that runs it."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.python = folder, python
        self.write("Snakefile", ALL.replace("SCRIPTS)", f"{str(SCRIPTS)!r})"))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run Snakemake; return what was known when it ended."""
        command = [self.python, "-m", "snakemake", "--cores", "1", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stderr
        facts: dict[str, Any] = json.loads((self.folder / "facts.json").read_text(encoding="utf-8"))
        return facts


@pytest.fixture
def workflow(tmp_path: Path, python: str) -> Folder:
    return Folder(tmp_path, python)


@pytest.mark.slow
def test_a_run_is_known_from_its_rules_to_its_end_and_so_are_wishes_to_make_files_again(
    workflow: Folder,
) -> None:
    facts = workflow.run()

    assert Path(facts["snakefile"]) == workflow.folder / "Snakefile"
    assert sorted(facts["jobs"], key=str) == [
        {"rule": "all", "wildcards": {}},
        {"rule": "make", "wildcards": {"name": "one"}},
    ]
    assert Path(facts["folder"]) == workflow.folder
    assert facts["handlers"] == ["start", "success"]
    assert facts["device_budget"] is None
    assert facts["has_planned"]
    assert facts["terminals"] > 0
    for name in (
        *("is_module", "has_named_config_files", "makes_environments", "shows_failed_logs"),
        *("log_is_changed", "is_dry_run", "only_touches", "sends_jobs", "forces_all"),
    ):
        assert facts[name] is False, name
    # the log reports each job with its rule and wildcards
    (begun,) = (event for event in facts["events"] if event["rule"] == "make")
    assert (begun["state"], begun["wildcards"]) == ("handed over", {"name": "one"})
    later = [event for event in facts["events"] if event["job"] == begun["job"] and event != begun]
    assert [event["state"] for event in later] == ["finished"]
    assert facts["for user"] == []

    for arguments, forced in (
        (["--forcerun", "make", "made/one.txt"], ["make", "made/one.txt"]),
        (["--force", "made/one.txt"], ["made/one.txt"]),
    ):
        facts = workflow.run(*arguments)
        assert (sorted(facts["forced"]), facts["forces_all"]) == (sorted(forced), False), arguments
    facts = workflow.run("--touch")
    assert facts["only_touches"], "renewing times is no run"
    ((level, text),) = facts["for user"]
    assert level == "INFO"
    assert text.startswith("Nothing to be done")


@pytest.mark.slow
def test_the_log_reports_a_failed_job_with_its_log(workflow: Folder) -> None:
    workflow.write("fail", "")

    facts = workflow.run("--forceall", code=1)

    assert (facts["forced"], facts["forces_all"]) == ([], True)
    failed, *_ = (event for event in facts["events"] if event["state"] == "failed")
    assert (failed["rule"], failed["log"]) == ("make", "made/one.log")
    assert facts["command errors"] >= 1
    assert any(level == "ERROR" for level, _ in facts["for user"])
    assert any(text.startswith("Shutting down") for level, text in facts["for user"] if level == "INFO")
    assert facts["handlers"] == ["start", "error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "tries"),
    [
        pytest.param("", 3, id="none"),
        pytest.param("one 2", 1, id="second try"),
        pytest.param("one 3", 2, id="third try"),
        pytest.param("one 1", 0, id="first try"),
    ],
)
def test_a_try_that_is_refused_reaches_no_executor_and_the_others_go_on(
    workflow: Folder, refused: str, tries: int
) -> None:
    workflow.write("fail", "")
    workflow.write("refuse", refused)
    text = (workflow.folder / "Snakefile").read_text(encoding="utf-8")
    text = text.replace(
        "test ! -e fail && echo >", "echo >> {wildcards.name}.tries && test {wildcards.name} != one && echo >"
    )
    workflow.write("Snakefile", text)

    # it holds the budget while it runs, and gives back as much
    limits = ("--resources", "device_budget=1", "--set-resources", "make:device_budget=1")
    facts = workflow.run(
        "--keep-going", *("--retries", "2"), *limits, "--", "made/one.txt", "made/two.txt", code=1
    )

    made = workflow.folder / "one.tries"
    assert (len(made.read_text(encoding="utf-8").splitlines()) if made.exists() else 0) == tries
    states = [(each["state"], each["wildcards"].get("name")) for each in facts["events"]]
    assert states.count(("handed over", "one")) == tries
    assert (workflow.folder / "made" / "two.txt").exists(), "the other job"
    assert facts["handlers"] == ["start", "error"]
    asked = [attempt for name, attempt in facts["asked"] if name == "one"]
    assert asked == [1, 2, 2, 3, 3][: len(asked)], "before each try, and before it is made ready"


@pytest.mark.slow
def test_the_command_line_is_known_while_the_rules_are_read(workflow: Folder) -> None:
    workflow.write("study.yaml", "a: 1\n")

    facts = workflow.run(
        *("--configfile", "study.yaml", "--resources", "device_budget=8", "--sdm", "conda"),
        *("--show-failed-logs", "--verbose", "--dry-run"),
    )

    assert [Path(file).name for file in facts["config_files"]] == ["study.yaml"]
    assert facts["has_named_config_files"]
    assert facts["device_budget"] == 8
    assert facts["makes_environments"]
    assert facts["shows_failed_logs"]
    assert facts["log_is_changed"]
    assert facts["is_dry_run"]


@pytest.mark.slow
def test_the_handlers_of_a_module_run_before_those_of_the_top_level(workflow: Folder) -> None:
    (workflow.folder / "Snakefile").rename(workflow.folder / "ours.smk")
    workflow.write("Snakefile", PARENT)

    facts = workflow.run()

    assert facts["is_module"]
    assert facts["handlers"] == ["start", "success"]
    assert (workflow.folder / "parent.txt").exists()


LIMITED = """
import sys, time
sys.path.insert(0, SCRIPTS)
from scalewise.snakemake_adapter import Snakemake

Snakemake.reading(workflow).limit("turns", 1)


rule all:
    default_target: True
    input: expand("{name}.txt", name=["a", "b", "c", "free"])


rule take_turns:
    output: "{name}.txt"
    resources: turns=lambda wc: None if wc.name == "free" else 1
    shell: "echo begin {output} >> turns; sleep 0.3; echo end {output} >> turns; echo > {output}"
"""


@pytest.mark.slow
def test_a_limit_holds_whatever_the_command_says(workflow: Folder) -> None:
    workflow.write("Snakefile", LIMITED.replace("SCRIPTS)", f"{str(SCRIPTS)!r})"))
    command = [workflow.python, "-m", "snakemake", "--cores", "4", "--resources", "turns=4"]
    subprocess.run(command, cwd=workflow.folder, check=True, capture_output=True)

    turns = [line for line in (workflow.folder / "turns").read_text().splitlines() if "free" not in line]
    for begin, end in zip(turns[::2], turns[1::2], strict=True):
        assert (begin.split()[0], end) == ("begin", begin.replace("begin", "end"))


SLURM = ("--jobs", "1", "--executor", "slurm")


@pytest.mark.parametrize(
    ("arguments", "rules"),
    [
        pytest.param([*SLURM, "--slurm-array-jobs", "all"], "all", id="all rules"),
        pytest.param(SLURM, None, id="none"),
        pytest.param([*SLURM, "--slurm-array-jobs="], None, id="taken back"),
        pytest.param(["--cores", "1", "--slurm-array-jobs", "all"], None, id="on this machine"),
        pytest.param(["--unknown"], None, id="no command of Snakemake"),
    ],
)
def test_job_arrays_are_known_from_the_command_line(arguments: list[str], rules: str | None) -> None:
    wish = array_jobs(arguments)

    assert (wish.rules if wish else None) == rules


OWN = (
    "executor: slurm\njobs: 3\nlatency-wait: 60\nset-resources: {train: {mem_mb: 5}}\nprintshellcmds: true\n"
)
PROFILES = SCRIPTS.parents[1] / "profiles"
CHANGED = {"executor": "slurm", "jobs": "3", "latency-wait": "60", "set-resources": "train:mem_mb=5"}


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        pytest.param(["--profile", "OWN"], None, id="profile"),
        pytest.param([], "OWN", id="variable"),
        pytest.param(["--profile", str(PROFILES / "slurm"), "--profile", "OWN"], None, id="second profile"),
        pytest.param(
            ["--profile", str(PROFILES / "slurm"), "--workflow-profile", "OWN"], None, id="workflow"
        ),
        pytest.param(["--profile", "mine"], None, id="name"),
    ],
)
def test_settings_of_a_users_profile_are_known(
    arguments: list[str], variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / ".config" / "snakemake" / "mine"
    own.mkdir(parents=True)
    (own / "config.yaml").write_text(OWN, encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    if variable:
        monkeypatch.setenv("SNAKEMAKE_PROFILE", str(own))

    words = [str(own) if word == "OWN" else word for word in arguments]
    (found,) = own_settings(["-n", *words], PROFILES)

    assert Path(found.source) == own / "config.yaml"
    assert found.values == CHANGED


def test_profiles_of_scalewise_and_the_command_are_no_users_settings() -> None:
    arguments = ["-n", "--profile", str(PROFILES / "slurm"), "--jobs", "7"]

    assert list(own_settings(arguments, PROFILES)) == []
    assert profile_values(PROFILES / "slurm")["jobs"] == "100"


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_the_plugins_query_of_its_jobs_is_known(command: str) -> None:
    words = status_query(command, "a-name")

    assert words[0] == command
    assert words[words.index("--name") + 1] == "a-name"
    # number and state of each job, without a heading
    assert "--noheader" in words
    assert any(word in ("--format=%i|%T", "--format=JobIdRaw,State") for word in words)


def test_the_workflow_and_the_package_need_the_same_oldest_snakemake() -> None:
    root = SCRIPTS.parents[1]
    (required,) = re.findall(r'"snakemake>=([0-9.]+),', (root / "pyproject.toml").read_text(encoding="utf-8"))

    assert f'min_version("{required}")' in (root / "workflow" / "Snakefile").read_text(encoding="utf-8")
