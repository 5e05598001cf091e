"""What all documents say is true: links, commands, configurations, names of files and keys."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path

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
    r"snakemake --profile profiles/local --report report\.zip": "test_study.py makes one",
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

KEYS_OF_THE_USER = {"environment", "argument", "experiments"}
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


def prose(document: Path) -> str:
    """The text of a document without its code blocks."""
    return re.sub(
        r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def spans(document: Path) -> list[str]:
    """What stands in backquotes within the text of a document."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(document))


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
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE):
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
            unknown += [key for key in yaml.safe_load(span) if key not in known]
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


def test_the_site_files_of_the_configuration_guide_are_valid(tmp_path: Path) -> None:
    sites = [text for text in blocks(ROOT / "config" / "README.md", "yaml") if "experiments:" not in text]
    assert len(sites) == 2
    experiment = {"dataset": "digits", "model": "linear", "global_batch_size": 256, "devices": [1]}
    for number, text in enumerate(sites):
        (site := tmp_path / f"{number}.yaml").write_text(text)
        assert load_study({"experiments": {"digits": experiment}}, [], site).runs


# --- the page of messages --------------------------------------------------------------------------------


@cache
def code() -> str:
    """The workflow's Python code and its templates of YAML, each text of several lines on one."""
    files = [*SCRIPTS.rglob("*.py"), *SCRIPTS.rglob("*.yaml.j2")]
    return "\n".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text(encoding="utf-8")) for file in files)


def quoted() -> list[str]:
    """The messages of the troubleshooting page, `...` for what differs."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


@pytest.mark.parametrize("message", quoted())
def test_a_message_of_the_troubleshooting_page_is_in_the_code(message: str) -> None:
    longest = max(message.split("..."), key=len)
    assert len(longest) >= 12, "it says too little to be found"
    assert longest in code()


# --- the benchmarks that a page names ------------------------------------------------------------------


OFFLINE = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "url./nothing/.insteadOf",
    "GIT_CONFIG_VALUE_0": "https://github.com/",
}
"""GitHub is not asked."""
MINUTES = {"gpu", "gpu-wide-resnet", "gpu-resnet18", "gpu-transformer"}
"""Benchmarks that take minutes on a CPU."""
NOT_MEASURED = {
    "allocation": "needs sbatch, and SBATCH_ACCOUNT and SBATCH_PARTITION",
    "own-scripts": "not run: ",
}
"""What a benchmark says that lacks something here."""


def named() -> set[str]:
    """Benchmarks in the commands of all documents."""
    texts = (path.read_text(encoding="utf-8") for path in DOCUMENTS)
    return {name for text in texts for name in re.findall(r"benchmarks/run\.py ([a-z0-9-]+)", text)}


@pytest.mark.parametrize("name", sorted(named() - MINUTES))
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), name, "--small"]
    outside = {key: value for key, value in os.environ.items() if not key.startswith("SBATCH_")} | OFFLINE
    done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # without the headings and the line below them
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert rows, done.stdout
    if name in NOT_MEASURED:
        assert all(NOT_MEASURED[name] in row for row in rows)
    else:
        # n is the last column but one
        assert all(int(row.split("|")[-3].replace(",", "")) >= 1 for row in rows), done.stdout


def test_without_a_gpu_everything_for_one_says_so() -> None:
    command = [sys.executable, "-m", "benchmarks.on_gpu"]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 tests run" in done.stdout
