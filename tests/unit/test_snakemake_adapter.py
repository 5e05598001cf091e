"""What Scalewise uses of Snakemake's internals, each checked with the oldest and the newest Snakemake."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_executor_plugin_slurm import ExecutorSettings
from tests.paths import SCRIPTS

from scalewise import snakemake_adapter as adapter

OLDEST = "SCALEWISE_OLDEST_SNAKEMAKE"
"""Variable with the interpreter of an environment with the oldest Snakemake; `make test` creates it."""

WORKFLOW = f"""
import atexit, json, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from scalewise import snakemake_adapter as adapter

FACTS = {{}}
OUTPUT = "results/{{experiment}}/runs/{{run}}/record.json"


def refuses(experiment, run, attempt):
    FACTS.setdefault("tries", []).append([run, attempt])
    with open("refuse") as file:
        return f"{{run}} {{attempt}}" in file.read().splitlines()


if "refuse" in config:
    adapter.refuse_tries(refuses)
if "most" in config:
    adapter.limit(workflow, "shared_node", config["most"])


def write_facts():
    requests = adapter.planned_requests(workflow)
    FACTS["shows_plan"] = requests is not None
    if requests is not None:
        FACTS["requests"] = [[*run, dict(asked)] for run, asked in requests.items()]
    with open("facts.json", "w") as file:
        json.dump(FACTS, file, default=str)


for name in ("is_module", "config_files", "command_config", "names_cluster"):
    FACTS[name] = getattr(adapter, name)(workflow)
atexit.register(write_facts)


def inputs(wildcards):
    if workflow.is_main_process:
        for name in ("runs_jobs", "uses_cluster"):
            FACTS[name] = getattr(adapter, name)(workflow)
        FACTS["replaced"] = adapter.replaced_resources(workflow, rules.train, TAKEN)
        if "valid" in config:
            adapter.judge_record(workflow, OUTPUT.format(**wildcards), is_valid=config["valid"])
        if "forget" in config:
            adapter.forget_config_files(workflow)
    return []


rule all:
    default_target: True
    input: "results/a/runs/one/record.json"


TAKEN = adapter.take_resources(workflow, "train")


rule train:
    input: inputs
    output: OUTPUT
    params: lambda wildcards: config.get("definition", "")
    threads: 2
    resources:
        **{{"nodes": 2, "gres": lambda wildcards: None, "mem_mb": lambda wildcards: 10, **TAKEN}}
    shell:
        "echo {{wildcards.run}} >> tried; test ! -e fail; "
        "echo made > {{output}}; sleep $(cat seconds || echo 0)"


rule command:
    input: inputs
    output: "command"
    run:
        with open(output[0], "w") as file:
            file.write(" ".join(sys.argv))


rule turn:
    output: "results/turn{{number}}"
    resources: shared_node=1
    shell: "echo begins >> turns; sleep 2; echo ends >> turns; touch {{output}}"
"""

PARENT = """
module ours:
    snakefile: "ours.smk"

use rule train from ours as ours_train with:
    threads: 5
    resources: mem_mb=8, qos="long"

rule mine:
    default_target: True
    input: "results/a/runs/one/record.json"
"""


@dataclass(frozen=True)
class Place:
    """A folder with a workflow, and the interpreter of an environment with Snakemake."""

    folder: Path
    python: str

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [self.python, "-m", "snakemake", "--cores", "1", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def facts(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run snakemake and return what the adapter has found."""
        process = self.start(*arguments)
        text = process.communicate(timeout=120)[0]
        assert process.returncode == code, text
        found: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return found


@pytest.fixture(params=["newest", "oldest"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    python = sys.executable
    if request.param == "oldest" and not (python := os.environ.get(OLDEST, "")):
        pytest.skip(f"no {OLDEST}: `make test` sets it")
    (tmp_path / "Snakefile").write_text(WORKFLOW)
    return Place(tmp_path, python)


def test_facts_of_a_command(place: Place) -> None:
    (place.folder / "study.yaml").write_text("{}")

    facts = place.facts("-n")
    assert (facts["is_module"], facts["shows_plan"], facts["runs_jobs"]) == (False, True, False)
    assert (facts["config_files"], facts["names_cluster"], facts["uses_cluster"]) == ([], False, False)
    options = ("--configfile", "study.yaml", "--config", "given={b: 1}", "--resources", "device_budget=64")
    facts = place.facts("-n", *options)
    assert facts["command_config"] == {"given": {"b": "1"}}
    assert [Path(file).name for file in facts["config_files"]] == ["study.yaml"]
    assert facts["names_cluster"]
    for mistake in (["made/nothing"], ["--set-resources", "train:mem_mb=much"]):
        assert not place.facts("-n", *mistake, code=1)["shows_plan"]
    facts = place.facts()
    assert (facts["shows_plan"], facts["runs_jobs"]) == (False, True)


@pytest.mark.parametrize("forget", [False, True])
def test_jobs_read_no_configuration_file_that_is_forgotten(forget: bool, place: Place) -> None:
    (place.folder / "study.yaml").write_text("{forget: true}" if forget else "{}")
    place.facts("--configfile", "study.yaml", "--", "command")
    assert ("study.yaml" in (place.folder / "command").read_text()) is not forget


def test_requests_hold_what_profiles_add_and_replace(place: Place) -> None:
    options = ("--default-resources", "slurm_account='mine'", "--set-threads", "train=3")
    facts = place.facts(
        "-n", "--set-resources", "train:mem_mb=7", "train:tasks=3", "train:qos=high", *options
    )
    ((experiment, run, requested),) = facts["requests"]
    assert (experiment, run) == ("a", "one")
    assert (requested["nodes"], requested["mem_mb"], requested["slurm_account"]) == (2, 7, "mine")
    assert facts["replaced"] == {"mem_mb": 7, "tasks": 3, "qos": "high", "threads": 3}
    assert "gres" not in place.facts("-n")["requests"][0][2]


def test_a_module_is_known_and_its_rules_by_their_new_names(place: Place) -> None:
    (place.folder / "ours.smk").write_text(WORKFLOW)
    (place.folder / "Snakefile").write_text(PARENT)
    facts = place.facts("-n", "--set-resources", "ours_train:mem_mb=7")
    assert facts["is_module"]
    # of the workflow that uses it, and of the command; the rule keeps the others
    assert facts["replaced"] == {"mem_mb": 7, "qos": "long", "threads": 5}
    assert [(run, requested["nodes"]) for _, run, requested in facts["requests"]] == [("one", 2)]


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_jobs_are_queried_as_the_executor_plugin_does(command: str) -> None:
    workflow = SimpleNamespace(executor_settings=ExecutorSettings(status_command=command))
    assert adapter.status_command(workflow) == command
    words = adapter.status_query(command, "name-of-jobs")
    assert words[0] == command
    assert any("name-of-jobs" in word for word in words)


def killed_after_writing(place: Place, *options: str) -> None:
    """Kill snakemake while its job, which has written its output, is at work."""
    (place.folder / "seconds").write_text("600")
    made = place.folder / "results/a/runs/one/record.json"
    made.unlink(missing_ok=True)
    process = place.start(*options)
    try:
        marks = place.folder / ".snakemake/incomplete"
        while not (made.exists() and any(path.is_file() for path in marks.rglob("*"))):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    shutil.rmtree(place.folder / ".snakemake/locks")
    (place.folder / "seconds").write_text("0")


def test_a_file_written_after_snakemake_was_killed_is_kept_if_it_is_valid(place: Place) -> None:
    # with parameters that Snakemake remembers
    place.facts("--config", "definition=first")
    killed_after_writing(place, "--config", "definition=second")
    again = ("-n", "--rerun-incomplete", "--config", "definition=second")
    assert len(place.facts(*again)["requests"]) == 1
    assert place.facts(*again, "valid=1")["requests"] == []
    # and once it is known as whole, a change of its definition makes it again
    assert place.facts(*again, "valid=1")["requests"] == []
    changed = ("-n", "--rerun-incomplete", "--config", "definition=third", "valid=")
    assert len(place.facts(*changed)["requests"]) == 1


@pytest.mark.parametrize(
    ("refused", "tries", "asked"),
    [
        pytest.param("", 3, [1, 2, 2, 3, 3, 4], id="none: as many as --retries says"),
        pytest.param("one 1\none 2", 0, [1, 2], id="the first: no job at all"),
        pytest.param("one 2", 1, [1, 2], id="the second"),
        pytest.param("other 1", 3, [1, 2, 2, 3, 3, 4], id="of another run"),
    ],
)
def test_a_try_that_cannot_succeed_is_no_job(
    place: Place, refused: str, tries: int, asked: list[int]
) -> None:
    (place.folder / "refuse").write_text(refused)
    (place.folder / "fail").touch()
    facts = place.facts("--retries", "2", "--config", "refuse=1", code=1)
    tried = place.folder / "tried"
    assert (tried.read_text().split() if tried.exists() else []) == ["one"] * tries
    assert facts["tries"] == [["one", attempt] for attempt in asked]


def test_a_limit_holds_whatever_the_command_says(place: Place) -> None:
    options = ("--cores", "2", "--resources", "shared_node=2", "--config", "most=1")
    place.facts(*options, "--", "results/turn1", "results/turn2")
    assert (place.folder / "turns").read_text().split() == ["begins", "ends"] * 2
