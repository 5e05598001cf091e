"""The contract of results/: files, columns and keys that users rely on, listed in results_contract.yaml."""

import csv
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.paths import CLI
from tests.workflow.workplace import Outcome, Workplace

HERE = Path(__file__).parent
PROGRAMS = HERE / "contract_study"
"""A study of a user's program, and of one that fails."""
LISTING = HERE / "results_contract.yaml"

RECORDS = {
    r"[\w@-]+/runs/[^/]+/(record|failure)\.json": "{experiment}/runs/{run}/",
    r"[\w@-]+/runs/[^/]+/(epochs|ranks|utilization)\.csv": "{experiment}/runs/{run}/",
}
FILES = RECORDS | {
    r"[\w-]+/(runs|epochs|scaling|options)\.csv": "{experiment}/",
    r"[\w-]+/(answer|provenance)\.json": "{experiment}/",
    r"[\w-]+/proposal/table\.csv": "{experiment}/proposal/",
}
"""Paths below results/ that the contract covers, and the folder by which it lists them.

decision.json is the list of all answer.json.
"""

NAMED_BY_OTHERS = {
    "excluded_steps",
    "imported_files",
    "inputs",
    "options",
    "parameters",
    "settings",
    "step_flops",
    "versions",
}
"""Objects whose keys are numbers, or names of settings, packages, files or reasons."""

Types = dict[str, str]
"""Types by the name of a column or key: words joined by " or "; "sometimes" where it may be absent."""


def listing(results: Path) -> dict[str, Types]:
    """Return the columns and keys of a folder of results, for each kind of file."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    types: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted(results.rglob("*")):
        if (kind := _kind(path.relative_to(results))) is None:
            continue
        if path.suffix == ".csv":
            _add_columns(path, types[kind], counts[kind])
        else:
            _add(json.loads(path.read_text(encoding="utf-8")), "", types[kind], counts[kind])
    return {
        kind: {
            name: _words(found, sometimes=counts[kind][name] < counts[kind][_objects(_parent(name))])
            for name, found in by_name.items()
            if name
        }
        for kind, by_name in sorted(types.items())
    }


def broken_promises(found: Mapping[str, Types], promised: Mapping[str, Types]) -> list[str]:
    """Return the listed columns and keys that are gone or of another type; a new one breaks nothing."""
    broken = []
    for kind, names in found.items():
        for name, text in promised[kind].items():
            parent = _parent(name)
            if parent and "object" not in names.get(parent, "") and "list" not in names.get(parent, ""):
                continue  # null or an empty list here
            if name not in names:
                broken += [] if "sometimes" in text or name.endswith("[]") else [f"{kind}: {name} is gone"]
                continue
            if "sometimes" in names[name] and "sometimes" not in text:
                broken.append(f"{kind}: {name} may be absent")
            allowed = set(text.split(" or ")) | {"empty", "sometimes"}
            if kind.endswith(".csv") and "text" in allowed:
                # a text may look like a number
                allowed.add("number")
            if allowed != {"empty", "sometimes"}:
                wrong = set(names[name].split(" or ")) - allowed
                broken += [f"{kind}: {name} has a {each}, not a {text}" for each in sorted(wrong)]
    return broken


def promised() -> dict[str, Types]:
    """Return what results_contract.yaml lists: the names of each type, for each kind of file."""
    read: dict[str, dict[str, list[str]]] = yaml.safe_load(LISTING.read_text(encoding="utf-8"))
    return {
        kind: {name: words for words, names in by_words.items() for name in names}
        for kind, by_words in read.items()
    }


def run_programs(workplace: Workplace) -> Outcome:
    """Run the study of programs in a folder; return the report of all that has finished."""
    shutil.copytree(PROGRAMS, workplace.folder, dirs_exist_ok=True)
    text = (PROGRAMS / "study.yaml").read_text(encoding="utf-8")
    # the report on all experiments needs an answer of each
    finished = workplace.snakemake(config=text[: text.index("  failing:")])
    assert finished.code == 0, finished.text
    failed = workplace.snakemake(config=text)
    assert failed.code == 1, failed.text
    report = workplace.run(["python", str(CLI), "report"])
    assert report.code == 0, report.text
    return report


def _kind(path: Path) -> str | None:
    """Name of the kind of file that the contract lists; None for others."""
    for pattern, folder in FILES.items():
        if re.fullmatch(pattern, str(path)):
            return folder + path.name
    return None


def _parent(name: str) -> str:
    return name[:-2] if name.endswith("[]") else name.rpartition(".")[0]


def _words(found: set[str], *, sometimes: bool) -> str:
    # numbers in a column of texts are texts
    found = found - {"number"} if "text" in found else found
    return " or ".join([*sorted(found - {"empty"}), *sorted(found & {"empty"}), *["sometimes"] * sometimes])


def _objects(name: str) -> str:
    """Key of the counter for how often a value is an object, which has keys."""
    return f"{name}{{}}"


def _add_columns(path: Path, types: dict[str, set[str]], counts: Counter[str]) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    counts[_objects("")] += bool(header)
    for number, name in enumerate(header):
        counts[name] += 1
        types[name] |= {_cell(row[number]) for row in rows} or {"empty"}


def _cell(text: str) -> str:
    if text in {"", "True", "False"}:
        return "truth value" if text else "empty"
    try:
        float(text)
    except ValueError:
        return "text"
    return "number"


def _add(value: Any, name: str, types: dict[str, set[str]], counts: Counter[str]) -> None:
    counts[name] += 1
    match value:
        case None:
            types[name].add("empty")
        case bool():
            types[name].add("truth value")
        case int() | float():
            types[name].add("number")
        case str():
            types[name].add("text")
        case list():
            types[name].add("list")
            for each in value:
                _add(each, f"{name}[]", types, counts)
        case dict():
            types[name].add("object")
            counts[_objects(name)] += 1
            for key, each in value.items() if name.rpartition(".")[2] not in NAMED_BY_OTHERS else ():
                _add(each, f"{name}.{key}".removeprefix("."), types, counts)
