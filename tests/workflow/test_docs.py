"""What all documents say is true: links, commands, configurations, names of files and keys."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.paths import ROOT, SCRIPTS
from tests.workflow.workplace import Workplace, copy_checkout

from scalewise.config.errors import StudyError
from scalewise.plan.study import load_study
from scalewise.report.figures import FIGURES
from scalewise.report.tables import TABLES

DOCUMENTS = sorted(path for path in ROOT.glob("**/*.md") if ".venv" not in path.parts)
MADE_BY_TESTS = ROOT / "docs" / "reliability.md"
GUIDES = [
    *(ROOT / "README.md", ROOT / "config" / "README.md"),
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path != MADE_BY_TESTS),
]
OWN_PROGRAM = ROOT / "config" / "examples" / "own" / "ddp.py"

NOT_RUN = {
    r"git clone <address of this repository> scalewise": "needs the network",
    r"cd scalewise": "changes the shell alone",
    r"\. \.venv/bin/activate": "changes the shell alone",
    r"tmux new -s study": "a login node's own program",
    r"sbatch results/my-training/proposal/job\.sh": "test_programs_on_cluster.py submits one",
    r"snakemake --profile profiles/local --report report\.zip": "test_public_commands.py runs it",
}
"""Commands of the documents that no test here runs, with the reason."""

SITE = """\
accelerator: cpu
devices_per_node: 4
cpus_per_node: 64
max_nodes: 16
slurm: {account: mine, partition: gpu, gpu_type: none}
"""

PROGRAM = "/path/to/train.py"
"""A script of the reader's, wherever it is."""

KEYS_OF_THE_USER = {"environment", "argument", "queue_minutes", "experiments"}
"""Mappings whose keys are the user's own, or the names of experiments."""


def relative_name(path: Path) -> str:
    """A document's name as the tests show it."""
    return str(path.relative_to(ROOT))


def blocks(document: Path, language: str) -> list[str]:
    """The code blocks of a language, without the indentation that a list gives them."""
    fenced = re.compile(rf"^( *)```{language}\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(body) for _, body in fenced.findall(document.read_text(encoding="utf-8"))]


def commands(document: Path) -> list[str]:
    """Every command in the shell blocks of a document, without its comment."""
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    return [command for line in lines if (command := re.sub(r"(^|\s)#.*", "", line).strip())]


def spans(document: Path) -> list[str]:
    """What stands in backquotes within the text of a document."""
    text = re.sub(
        r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def not_run(command: str) -> bool:
    """Whether a command is one that no test runs, for a reason."""
    return any(re.fullmatch(pattern, command) for pattern in NOT_RUN)


def dry_runs() -> list[str]:
    """Every snakemake command of the documents, once, as a dry run."""
    found: dict[str, None] = {}
    for command in (c for document in GUIDES for c in commands(document) if not not_run(c)):
        if command.startswith("snakemake "):
            words = [word for word in shlex.split(command) if word != "-n"]
            found[shlex.join([*words, "-n"])] = None
    return list(found)


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    text = re.sub(
        r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@pytest.fixture
def checkout(workplace: Workplace, tmp_path: Path) -> Workplace:
    """A checkout with a filled-in site file, and a study of an own program as the documents name it."""
    copy_checkout(workplace.folder)
    for site in (workplace.folder / "profiles").glob("*/*.yaml"):
        site.write_text(re.sub(r"<(account|partition)>", "mine", site.read_text(encoding="utf-8")))
    # the documents' word for Scalewise's folder, as seen from a project
    (workplace.folder / "SW").symlink_to(workplace.folder)
    (study, *_) = blocks(ROOT / "docs" / "own-training.md", "yaml")
    script = shutil.copy(OWN_PROGRAM, tmp_path / "train.py")
    (workplace.folder / "study.yaml").write_text(study.replace(PROGRAM, str(script)))
    return workplace


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative_name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    broken = []
    for link in (each for each in links if not each.startswith(("http:", "https:"))):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("command", dry_runs())
def test_a_snakemake_command_of_the_documents_is_accepted(checkout: Workplace, command: str) -> None:
    outcome = checkout.run(shlex.split(command))
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize("document", GUIDES, ids=relative_name)
def test_every_other_command_is_known(document: Path) -> None:
    rest = [c for c in commands(document) if not c.startswith("snakemake ") and not not_run(c)]
    inline = [s for s in spans(document) if s.startswith(("make ", "python benchmarks/", "python workflow/"))]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in [*rest, *inline]:
        program, first, *others = shlex.split(command)
        if program == "make":
            assert first in targets, command
            assert all(re.fullmatch("PYTHON=.*", word) for word in others), command
            continue
        assert program == "python", f"{command!r} is neither run by a test nor in NOT_RUN"
        source = (ROOT / first).read_text(encoding="utf-8")
        assert [w for w in others if w.startswith("--") and f'"{w}"' not in source] == [], command
        if first == "benchmarks/run.py":
            assert {word for word in others if re.fullmatch("[a-z]+(-[a-z]+)*", word)} <= benchmarks()


@cache
def benchmarks() -> set[str]:
    """Names of the benchmarks, as their command lists them."""
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--help"]
    # a narrow terminal breaks names at their hyphens
    wide = os.environ | {"COLUMNS": "1000"}
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=wide).stdout
    names = re.search(r"benchmark +of (.*?); all but", " ".join(listed.split()))
    assert names is not None, listed
    return set(names[1].split(", "))


@pytest.mark.parametrize("document", GUIDES, ids=relative_name)
def test_every_example_of_a_study_is_valid(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(OWN_PROGRAM, tmp_path / "train.py")
    (tmp_path / "site.yaml").write_text(SITE)
    # the README has a script of the examples
    (tmp_path / "config").symlink_to(ROOT / "config")
    # the example of a site file is read below
    for example in (block for block in blocks(document, "yaml") if "experiments:" in block):
        mine = example.replace(PROGRAM, str(tmp_path / "train.py"))
        assert load_study(yaml.safe_load(mine), [], "site.yaml").runs


def known_keys() -> set[str]:
    """Every key of the tables in config/README.md, and the last part of those that lie in others."""
    text = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^\| `([a-z_.]+)` \|", text, re.MULTILINE))
    return names | {name.rpartition(".")[2] for name in names} | KEYS_OF_THE_USER


def keys_within(value: Any) -> Iterator[str]:
    """The keys of nested mappings, but those that are the user's own."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            if key not in KEYS_OF_THE_USER:
                yield from keys_within(inner)
    elif isinstance(value, list):
        for each in value:
            yield from keys_within(each)


@pytest.mark.parametrize("document", GUIDES, ids=relative_name)
def test_every_key_that_a_text_names_is_a_key(document: Path) -> None:
    known = known_keys()
    sections = {name.split(".")[0] for name in known if "." in name}
    unknown = []
    for span in spans(document):
        # proposal.md is a file
        if re.fullmatch(rf"({'|'.join(sections)})\.(?!(?:md|tex|json)$)[a-z_]+", span):
            unknown += [span] if span not in known else []
        elif re.match(r"[a-z_.]+: \S", span) and "..." not in span:
            read = yaml.safe_load(span)
            found = keys_within(read) if isinstance(read, dict) else ()
            unknown += [key for key in found if key not in known and not key.startswith("argument.")]
    assert unknown == []


@pytest.mark.parametrize("document", GUIDES, ids=relative_name)
def test_every_path_of_the_repository_that_a_text_names_is_there(document: Path) -> None:
    folders = "config|docs|profiles|workflow|tests|benchmarks"
    named = [span for span in spans(document) if re.fullmatch(rf"({folders})/[\w./*-]*", span)]
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


def test_the_guide_to_the_report_has_every_figure_every_table_and_every_row_of_the_answer() -> None:
    guide = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert [name for name, each in FIGURES.items() if f"| {each.title} (`{name}`) |" not in guide] == []
    assert [each.title for each in TABLES.values() if f'| "{each.title}" |' not in guide] == []
    template = (SCRIPTS / "scalewise" / "report" / "report.html.j2").read_text(encoding="utf-8")
    rows = re.findall(r'row\("([^"]+)"', template)
    assert len(rows) >= 8
    assert [row for row in dict.fromkeys(rows) if f'"{row}"' not in guide] == []


# --- the README, and what it leads to --------------------------------------------------------------------


def test_the_messages_it_shows_are_those_a_user_gets(tmp_path: Path) -> None:
    shown = re.findall(
        r"^config/experiments\.yaml(:\d+: .*)$", (ROOT / "docs" / "first-study.md").read_text(), re.MULTILINE
    )
    text = (ROOT / "config" / "experiments.yaml").read_text()
    broken = text.replace("    epochs: 10\n", "    epoch: 10\n")
    messages = []
    for variant in (broken, text.replace("global_batch_size: 256", "global_batch_size: 255")):
        file = tmp_path / "experiments.yaml"
        file.write_text(variant)
        (tmp_path / "site.yaml").write_text("accelerator: cpu\ncpus_per_node: 2\n")
        with pytest.raises(StudyError) as caught:
            load_study(yaml.safe_load(variant), [file], tmp_path / "site.yaml")
        messages += [line.removeprefix(str(file)) for line in caught.value.lines]
    assert len(shown) == 2
    assert set(shown) <= set(messages)


def test_the_examples_of_the_configuration_guide_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, own, with_partitions, further = blocks(ROOT / "config" / "README.md", "yaml")
    (tmp_path / "site.yaml").write_text("accelerator: cpu\ncpus_per_node: 2\n")
    study = load_study(yaml.safe_load(block), [], tmp_path / "site.yaml")
    assert ("digits-strong", "d2.bucket-view-on.r1") not in study.runs
    assert ("digits-strong", "d2.bucket-view-off.r1") in study.runs

    monkeypatch.chdir(tmp_path)
    shutil.copy(OWN_PROGRAM, tmp_path / "train.py")
    (tmp_path / "site.yaml").write_text("accelerator: cpu\ndevices_per_node: 8\ncpus_per_node: 8\n")
    assert ("my-training", "d2.lr-0.1.r1") in load_study(yaml.safe_load(own), [], "site.yaml").runs

    (tmp_path / "site.yaml").write_text(with_partitions)
    experiment = {"dataset": "digits", "model": "linear", "global_batch_size": 256, "devices": [1, 8]}
    experiment |= {"partitions": "all", "decision": {"by": "cost"}}
    compared = load_study({"experiments": {"digits": experiment}}, [], "site.yaml")
    assert compared.comparisons == {"digits": ["digits@a100", "digits@h200"]}

    (tmp_path / "site.yaml").write_text(further)
    del experiment["partitions"], experiment["decision"]
    study = load_study({"experiments": {"digits": experiment | {"devices": [1]}}}, [], "site.yaml")
    (allocation, *_) = study.allocations.values()
    assert allocation.resources["constraint"] == "a100&hbm80g"
    assert "--reservation=course" in str(allocation.resources["slurm_extra"])
