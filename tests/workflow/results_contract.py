"""The contract of results/: files, columns and keys that users rely on, and the kept records of a study.

    python -m tests.workflow.results_contract

renews both after a deliberate change: it runs kept_study/study.yaml (two minutes on two cores), keeps its
records, and writes the columns and keys of its files with their types into results_contract.yaml. What is
always empty there, such as the energy of a CPU, keeps the type that is listed. Read the changes of that file
before you commit.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.paths import CLI, ROOT

HERE = Path(__file__).parent
KEPT = HERE / "kept_study"
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

ROUNDS = r"[\w@-]+/repeats/round\d+\.json"
"""Kept to be read back: which runs an experiment asked for. Only Scalewise relies on their keys."""

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
    """Return what results_contract.yaml lists."""
    read: dict[str, Types] = yaml.safe_load(LISTING.read_text(encoding="utf-8"))
    return read


def with_types_of(found: Mapping[str, Types], before: Mapping[str, Types]) -> dict[str, Types]:
    """Return columns and keys with the types that were listed before for those that are always empty now."""
    renewed = {}
    for kind, names in found.items():
        listed = before.get(kind, {})
        renewed[kind] = {
            name: listed.get(name, text) if text in {"empty", "empty or sometimes"} else text
            for name, text in names.items()
        }
    return renewed


def place_kept_study(folder: Path) -> None:
    """Copy configuration, program and records of the kept study into a folder."""
    shutil.copytree(KEPT, folder, dirs_exist_ok=True)


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


def _renew() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "study"
        folder.mkdir()
        for name in ("study.yaml", "site.yaml", "train.py"):
            shutil.copy(KEPT / name, folder)
        _run_study(folder)
        shutil.rmtree(KEPT / "results", ignore_errors=True)
        results = folder / "results"
        # of the experiment that fails, only a report on finished runs has tables
        found = with_types_of(listing(results) | listing(results / "partial"), promised())
        for path in sorted(results.rglob("*")):
            relative = path.relative_to(results)
            if any(re.fullmatch(pattern, str(relative)) for pattern in (*RECORDS, ROUNDS)):
                (kept := KEPT / "results" / relative).parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(
                    _without_this_machine(path.read_text(encoding="utf-8"), folder), encoding="utf-8"
                )
    LISTING.write_text(yaml.safe_dump(found, sort_keys=False, width=110), encoding="utf-8")


def _run_study(folder: Path) -> None:
    finished = yaml.safe_load((folder / "study.yaml").read_text(encoding="utf-8"))
    # the report on all experiments needs an answer of each
    del finished["experiments"]["failing"]
    (folder / "finished.yaml").write_text(yaml.safe_dump(finished, sort_keys=False), encoding="utf-8")
    for config, code in (("finished.yaml", 0), ("study.yaml", 1)):
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile")]
        command += ["--cores", "2", "--configfile", config, "--config", "site=site.yaml"]
        ended = subprocess.run(command, cwd=folder, check=False).returncode
        if ended != code:
            sys.exit(f"snakemake ended with {ended} instead of {code}.")
    subprocess.run([sys.executable, str(CLI), "report"], cwd=folder, check=True)


def _without_this_machine(text: str, folder: Path) -> str:
    for own, neutral in (
        (str(folder), "/home/user/study"),
        (sys.prefix, "/home/user/venv"),
        (str(ROOT), "/home/user/scalewise"),
        (str(Path.home()), "/home/user"),
    ):
        text = text.replace(own, neutral)
    text = re.sub(r'"commit": "[0-9a-f]{40}', f'"commit": "{"deadbeef" * 5}', text)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node1", text)


if __name__ == "__main__":
    _renew()
