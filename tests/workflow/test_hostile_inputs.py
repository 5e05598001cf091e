"""Strings that a shell, Snakemake or a browser would obey, and secrets around a study: text stays text."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.paths import CLI, ROOT, SNAKEFILE
from tests.stand_ins import stand_ins
from tests.workflow.recording_slurm import recording_slurm, submissions
from tests.workflow.workplace import ACCOUNT, PARTITION, SITE, LoginNode, Outcome, Workplace

from scalewise.config.errors import StudyError
from scalewise.plan.study import load_study

refuses = pytest.mark.refuses

CANARY = "CANARY"
TRAP = (
    f"a; touch {CANARY}; $(touch {CANARY}) `touch {CANARY}` "
    f"'; touch {CANARY}; ' \"; touch {CANARY}; \" $HOME ~ *"
)
"""Leaves a file where a shell reads it bare, in single quotes or in double quotes."""
BARE = f"a; touch {CANARY} | touch {CANARY} && touch {CANARY} & ( ~ *"
"""The same for names that stand in the command lines of jobs, where quotes and $ are refused."""
SHOWN = f"{TRAP} {{run}} {{0}} <results>\n<script>alert(1)</script>"
"""For texts that are shown and are no path."""
OPTION = f"{TRAP} {{run}} {{0}}\nand a second line"
"""For arguments that a container's program gets."""
LONG = " and more" * 20_000
"""Longer than an argument or an environment variable may be."""
SECRET = "hunter2-not-to-be-told"
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "GITHUB_TOKEN": SECRET,
    "HTTPS_PROXY": f"http://me:{SECRET}@127.0.0.1:9",
}
PROGRAM = """\
import json, os, pathlib, sys
import torch
from features import WIDTH

received = {"words": sys.argv[2:], "variable": os.environ["TOLD"], "data": open("data.txt").read()}
(pathlib.Path(sys.argv[1]) / "received.json").write_text(json.dumps(received))
model = torch.nn.Linear(WIDTH, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(16, WIDTH)).sum().backward()
    optimizer.step()
"""
PROJECT = {
    "train.py": PROGRAM,
    "features.py": "WIDTH = 8\n",
    "fetch.py": "import sys\nopen('data.txt', 'w').write(sys.argv[1])\n",
}
"""A program in a folder of its own, and what prepares its data."""
RUNTIME = """\
while case "$1" in *.sif) false ;; esac; do shift; done
shift
exec "$@"
"""
"""Stands in for apptainer: passes its options and the image over, and starts the program."""

WORDS = [TRAP, "${name}", "*.jpg", "<eos>", "~trainer.logger", "^lora.*|head$", "http://x?a=1&b=2"]
"""Arguments of a program that a shell or Snakemake would change."""

quoted = json.dumps
"""A text as YAML spells it."""


@dataclass(frozen=True)
class HostileStudy:
    """A study of hostile strings that has run.

    Args:
        folder: The folder of its results.
        outcome: How its report ended; the text is that of all commands.
    """

    folder: Path
    outcome: Outcome

    def made(self) -> Iterator[Path]:
        """Every file and folder that it left, Snakemake's own among them."""
        for name in (".snakemake", "logs", "resources", "results"):
            yield self.folder / name
            yield from (self.folder / name).rglob("*")


def canaries(folder: Path) -> list[Path]:
    return list(folder.rglob(CANARY))


def write_hostile_study(folder: Path, runs: Path, python: Path) -> None:
    """Every string of both files that may be free text, and the files that they name."""
    (project := runs / "my project").mkdir(parents=True)
    for name, text in PROJECT.items():
        (project / name).write_text(text)
    stand_ins(runs, {f"{TRAP} python": f'exec {python} "$@"', f"{TRAP} runtime": RUNTIME})
    site = f"""\
{SITE}
python: {quoted(f"./{TRAP} python")}
prelude: [export A=1]
container:
  image: {quoted(f"{TRAP} {{run}}.sif")}
  binds: [{quoted(TRAP)}]
  runtime: {quoted(f"./{TRAP} runtime")}
  arguments: [{quoted(OPTION)}]
  prelude: [{quoted(f": {shlex.quote(TRAP)}")}]
"""
    (runs / f"{BARE}.yaml").write_text(site)
    data = "dataset: synthetic-1x8x8-4classes-64samples"
    study = f"""\
site: {quoted(f"{BARE}.yaml")}
defaults:
  title: {quoted(SHOWN + LONG)}
  devices: ["1x1"]
  global_batch_size: 16
  warmup_steps: 1
  repeats: 1
experiments:
  sound: {{{data}, model: linear, epochs: 2}}
  program:
    program: -m train
    working_directory: my project
    arguments: {json.dumps(["{folder}", *WORDS, "{global_batch_size}", "{argument.trap}"])}
    sweep: {{argument.trap: [{quoted(TRAP)}]}}
    environment: {{TOLD: {quoted(TRAP)}}}
    prepare: [my project/fetch.py, {quoted(TRAP)}]
    steps: 10
  broken: {{{data}, model: planted_crashing}}
"""
    (folder / "study.yaml").write_text(study)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> HostileStudy:
    """Two runs that train and one that fails, under a private umask and with secrets around them."""
    folder = tmp_path_factory.mktemp("hostile")
    runs = folder / "runs here"
    write_hostile_study(folder, runs, preloaded_python)
    study = [str(preloaded_python.with_name("snakemake")), "-s", str(SNAKEFILE), "--cores", "2"]
    study += ["--configfile", "study.yaml", "--directory", str(runs)]
    study += ["--printshellcmds", "--keep-going", "--scheduler", "greedy"]
    # as one run fails, Snakemake makes no report
    report = [str(preloaded_python), str(CLI), "report"]
    ended = [
        subprocess.run(
            command,
            cwd=place,
            env=os.environ | ENVIRONMENT,
            umask=0o077,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        for command, place in ((study, folder), (report, runs))
    ]
    printed = "".join(done.stdout for done in ended)
    assert ended[-1].returncode == 0, printed
    assert "crashes at every start" in next(runs.glob("results/broken/runs/*/failure.json")).read_text()
    return HostileStudy(runs, Outcome(ended[-1].returncode, printed))


@refuses("security: shell in the study", "security: shell in the site")
def test_no_string_of_a_study_and_its_site_is_executed_and_a_program_gets_its_words(
    hostile: HostileStudy,
) -> None:
    """Through rules, prelude, a container's command and the launcher, with snakemake in another folder."""
    assert canaries(hostile.folder.parent) == []
    assert list(hostile.folder.glob("results/sound/runs/*/record.json"))
    (received,) = hostile.folder.glob("results/program/runs/*/program/received.json")
    words = {"words": [*WORDS, "16", TRAP], "variable": TRAP, "data": TRAP}
    assert json.loads(received.read_text()) == words
    assert (received.parents[1] / "record.json").exists()
    assert not (hostile.folder.parent / "results").exists()


@refuses("security: shell in the study")
def test_a_title_is_shown_in_the_report_and_not_obeyed_by_the_browser(hostile: HostileStudy) -> None:
    page = (hostile.folder / "results/report.html").read_text()

    assert "<script>alert(1)" not in page
    assert "<script>alert(1)</script>" in html.unescape(page)
    assert LONG in page


@refuses("security: secrets in the environment")
def test_no_secret_around_a_study_is_written_anywhere(hostile: HostileStudy) -> None:
    files = [path for path in hostile.made() if path.is_file()]
    assert {"record.json", "train.log"} <= {path.name for path in files}
    assert any(path.parent.name == "log" for path in files), "snakemake's own log is looked at too"

    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in hostile.outcome.text


@refuses("security: umask")
def test_a_private_umask_keeps_all_of_a_run_private(hostile: HostileStudy) -> None:
    """Snakemake makes the files of its folder readable by all; the folder stays closed."""
    made = [path for path in hostile.made() if not path.is_relative_to(hostile.folder / ".snakemake")]
    assert len(made) > 20

    assert [path for path in [*made, hostile.folder / ".snakemake"] if path.stat().st_mode & 0o077] == []


SMALL = """\
experiments:
  study:
    dataset: digits
    model: linear
    devices: [1]
    global_batch_size: 16
    repeats: 1
"""
FIXED_BATCH = {"scaling": "weak", "batch_size_per_device": 16, "devices": [1], "steps": 10}
"""Keys of a program that takes no batch size."""
REFUSED = {
    f"{quoted(TRAP)}: {{}}": f"experiments.{TRAP} is named ",
    f"key: {{{quoted(TRAP)}: 4}}": f"experiments.key.{TRAP}: Extra inputs are not permitted (is 4)",
    f"dataset: {{model: linear, dataset: {quoted(TRAP)}}}": "experiments.dataset.dataset",
    f"own: {{model: linear, dataset: digits, devices: [{quoted(TRAP)}]}}": "experiments.own.devices[0] is ",
    "files: {program: train.py, files: ['data/{run}.py']}": "experiments.files.files[0] is 'data/{run}.py'",
    'program: {program: "a$b.py"}': "experiments.program.program is 'a$b.py', ",
}
"""Experiments with texts that a shell or Snakemake would obey, and what their refusals begin with."""


@refuses("security: shell in the study")
def test_strings_that_a_shell_would_obey_are_refused_at_the_dry_run(workplace: Workplace) -> None:
    for path in ("train.py", "a$b.py"):
        (workplace.folder / path).write_text(PROGRAM)
    text = "".join(f"  {line}\n" for line in REFUSED)
    outcome = workplace.snakemake("-n", config=f"defaults: {FIXED_BATCH}\nexperiments:\n{text}")

    assert outcome.code == 1
    for number, message in enumerate(REFUSED.values(), start=3):
        assert f"study.yaml:{number}: {message}" in outcome.text
    assert "Traceback" not in outcome.text
    assert canaries(workplace.folder) == []


NO_PATH = r"study\.yaml:3: site(:| is) .*"


@refuses("security: shell in the study")
@pytest.mark.parametrize("site", ["4", '"{run}.yaml"', '"$(touch x)"'])
def test_a_site_that_is_no_path_is_refused_when_the_study_is_read(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = "experiments:\n  study: {dataset: digits, model: linear, devices: [1], global_batch_size: 16}\n"
    Path("study.yaml").write_text(f"{study}site: {site}\n")
    config = yaml.safe_load(Path("study.yaml").read_text())
    with pytest.raises(StudyError) as refused:
        load_study(config, ["study.yaml"], config["site"])

    (line,) = refused.value.lines
    assert re.fullmatch(NO_PATH, line)


@refuses("security: shell in the site")
def test_a_file_whose_name_the_shell_that_sends_jobs_would_obey_is_refused(login_node: LoginNode) -> None:
    login_node.fill_in("profiles/slurm/site.yaml")
    login_node.write(f"$(touch {CANARY}).yaml", SMALL)
    outcome = login_node.snakemake("-n", "--configfile", f"$(touch {CANARY}).yaml")

    assert outcome.code == 1
    assert "the name of a file or folder is '" in outcome.text
    assert "without { } < > $ ` \\, quotes" in outcome.text
    assert canaries(login_node.folder.parent) == []


@refuses("security: shell in the site")
def test_no_string_of_a_clusters_site_is_executed_when_jobs_are_sent(login_node: LoginNode) -> None:
    record = recording_slurm(login_node.programs, ACCOUNT)
    (login_node.programs / "touch").symlink_to("/usr/bin/touch")
    comment = f"--licenses={TRAP}"
    site = f"""\
accelerator: cuda
devices_per_node: 2
cpus_per_node: 8
python: {quoted(TRAP)}
prelude: [{quoted(f": {TRAP}")}]
container:
  image: {quoted(TRAP)}
  binds: [{quoted(TRAP)}]
  runtime: {quoted(TRAP)}
  arguments: [{quoted(OPTION)}]
  prelude: [{quoted(f": {TRAP}")}]
slurm:
  account: {ACCOUNT}
  partition: {PARTITION}
  extra: [{quoted(comment)}, "--constraint=[a|b]&(c*2)"]
"""
    login_node.write(f"{BARE}.yaml", site)
    login_node.write(f"{BARE}.py", PROGRAM)
    own = {"title": SHOWN, "program": f"{BARE}.py", "repeats": 1} | FIXED_BATCH
    own |= {"arguments": WORDS, "environment": {"TOLD": TRAP}}
    login_node.write(f"{BARE}.study.yaml", yaml.safe_dump({"experiments": {"study": own}}))
    outcome = login_node.snakemake(
        *("--configfile", f"{BARE}.study.yaml", "--config", f"site={BARE}.yaml", "--retries", "0"),
        *("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "0", "--printshellcmds"),
        **ENVIRONMENT,
    )

    assert record.exists(), outcome.text
    (words,) = submissions(record)
    assert comment in words
    assert words[words.index("-C") + 1] == "[a|b]&(c*2)"
    # the job's own command line, which the login node's shell and then the job's reads
    (job,) = [word for word in words if word.startswith("--wrap=")]
    there = shlex.split(job)
    assert f"{BARE}.py" in there
    assert f"site={BARE}.yaml" in there
    # it reads the plan: the study may be edited while it waits
    assert "--configfiles" not in there
    named = [word for word in [*there, *words] if CANARY in word and BARE not in word]
    assert named == [comment]
    assert not any("{name}" in word for word in words)
    assert SECRET not in " ".join(words)
    assert SECRET not in outcome.text
    assert canaries(login_node.folder.parent) == []


def test_a_site_file_is_found_from_another_folder_the_one_there_first(workplace: Workplace) -> None:
    command = ["snakemake", "-n", "--snakefile", str(SNAKEFILE), "--profile", str(ROOT / "profiles/local")]
    (workplace.folder / "study.yaml").write_text(SMALL)

    def plan(*arguments: str) -> str:
        return workplace.run([*command, "--configfile", "study.yaml", *arguments]).text

    (workplace.folder / "other").mkdir()
    for place in (".", "other"):
        assert "1 run, at most" in plan("--directory", place)
    assert "profiles/mine.yaml: there is no such file in" in plan("--config", "site=profiles/mine.yaml")
    (workplace.folder / "profiles/local").mkdir(parents=True)
    (workplace.folder / "profiles/local/site.yaml").write_text("accelerator: gpu\n")
    assert f"profiles{os.sep}local{os.sep}site.yaml:1: accelerator: " in plan()
