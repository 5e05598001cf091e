"""Who may import whom."""

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from tests.paths import SCRIPTS

PACKAGE = SCRIPTS / "scalewise"
TRAINING = "scalewise.measure scalewise.ranks scalewise.training"
HEAVY = "torch torchvision pandas numpy scipy seaborn matplotlib sklearn safetensors"


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # the probe is imported under another name, in a process that may not have the package
            assert node.level <= int(path.parent == PACKAGE / "measure"), path
            module = ".".join(filter(None, ["scalewise.measure" if node.level else "", node.module]))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages.split())


def modules(room: str) -> list[Path]:
    return [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))


ANY = f"scalewise {HEAVY}"
A_RUN = "scalewise.plan.run_definition scalewise.config.shape scalewise.config.errors.UserError"
BEHIND_RECORDS = f"scalewise.execution {TRAINING} torch torchvision"


@pytest.mark.parametrize(
    ("room", "forbidden", "allowed"),
    [
        ("config", ANY, "scalewise.config"),
        ("plan", ANY, "scalewise.config scalewise.plan scalewise.records scalewise.site.preflight"),
        ("site", ANY, "scalewise.config scalewise.plan scalewise.site scalewise.records"),
        ("records.py", ANY, A_RUN),
        ("execution", f"{TRAINING} scalewise.analysis {HEAVY}", ""),
        ("ranks", "scalewise.analysis scalewise.training", ""),
        ("analysis", f"{BEHIND_RECORDS} scalewise.report", ""),
        ("report", BEHIND_RECORDS, ""),
    ],
)
def test_a_room_imports_no_other_than_it_may(room: str, forbidden: str, allowed: str) -> None:
    names = {(path.name, name) for path in modules(room) for name in imported(path)}
    assert names
    assert {each for each in names if within(each[1], forbidden) and not within(each[1], allowed)} == set()


def test_the_probe_needs_nothing_but_itself_torch_and_the_standard_library() -> None:
    """The interpreter of a user's program has torch, and may have nothing else of what Scalewise needs."""
    names = {name for path in modules("measure") for name in imported(path)}
    others = {name.partition(".")[0] for name in names if not within(name, "scalewise.measure")}
    assert others - sys.stdlib_module_names == {"torch"}


ON_THE_LOGIN_NODE = "prepare prepared published synthetic_images"
"""Modules that prepare data: they know the plan, which a user who copies train.py does not have."""


def test_a_training_needs_nothing_but_itself_and_pytorch() -> None:
    paths = [path for path in modules("training") if path.stem not in ON_THE_LOGIN_NODE.split()]
    names = {name for path in [SCRIPTS / "train.py", *paths] for name in imported(path)}
    others = " ".join(f"scalewise.training.{name}" for name in ON_THE_LOGIN_NODE.split())
    assert not any(within(name, others) for name in names)
    assert all(within(name, "scalewise.training") for name in names if within(name, "scalewise"))
    roots = {name.partition(".")[0] for name in names}
    assert roots - sys.stdlib_module_names == {"scalewise", "torch", "torchvision", "safetensors"}
    direct = {name.partition(".")[0] for name in imported(SCRIPTS / "train.py")}
    assert direct - sys.stdlib_module_names == {"scalewise", "torch"}


@pytest.mark.parametrize("room", ["config", "plan", "execution", "ranks", "training", "analysis", "report"])
def test_no_folder_of_a_room_imports_one_above_it(room: str) -> None:
    """A folder, or a module next to the folders, imports only what is below it."""
    below: dict[str, set[str]] = {}
    for path in modules(room):
        place = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        found = {name.split(".")[2] for name in imported(path) if within(name, f"scalewise.{room}")}
        below.setdefault(place, set()).update(found - {place})
    # raises CycleError, which names the way around
    assert len(list(TopologicalSorter(below).static_order())) > 3


@pytest.mark.parametrize(
    ("loading", "unwanted"),
    [
        # the plan, the command line, and what watches a program
        ("scalewise.plan.study cli scalewise.ranks.program.rank", HEAVY),
        ("scalewise.execution.job", "torch pandas"),
        # a rank neither downloads nor decodes
        ("scalewise.training.data train", "torchvision PIL sklearn"),
        ("scalewise.report.finished", "torch"),
        ("scalewise.analysis.study", "seaborn"),
    ],
)
@pytest.mark.slow
def test_what_need_not_be_loaded_is_not(loading: str, unwanted: str) -> None:
    code = f"import sys, {', '.join(loading.split())}; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    loaded = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()
    assert set(loading.split()) <= set(loaded)
    assert set(unwanted.split()) & set(loaded) == set()
