"""Who may import whom."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from tests.paths import SCRIPTS

PACKAGE = SCRIPTS / "scalewise"
PROBE = PACKAGE / "measure"
TRAINING = ("scalewise.measure", "scalewise.ranks", "scalewise.training")
HEAVY = (
    *("torch", "torchvision", "pandas", "numpy", "scipy", "seaborn", "matplotlib", "sklearn"),
    "safetensors",
)


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module
            if node.level:
                # the probe is imported under another name, in a process that may not have the package
                assert path.parent == PROBE, f"{path.name} imports by dots, as only the probe needs to"
                assert node.level == 1, f"{path.name} imports from above the probe"
                package = ".".join(PROBE.relative_to(SCRIPTS).parts)
                module = f"{package}.{module}" if module else package
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def crossings(paths: list[Path], forbidden: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    """Imports that a room must not make."""
    return [
        f"{path.relative_to(SCRIPTS)} imports {name}"
        for path in paths
        for name in sorted(imported(path))
        if within(name, forbidden) and not within(name, allowed)
    ]


IN_PLAN = ("scalewise.config", "scalewise.plan", "scalewise.records", "scalewise.site.preflight")
OF_A_RUN = (
    "scalewise.plan.runs.run_definition",
    "scalewise.config.shape",
    "scalewise.config.errors.UserError",
)


@pytest.mark.parametrize(
    ("room", "forbidden", "allowed"),
    [
        ("config", ("scalewise", *HEAVY), ("scalewise.config",)),
        ("plan", ("scalewise", *HEAVY), IN_PLAN),
        (
            "site",
            ("scalewise", *HEAVY),
            ("scalewise.config", "scalewise.plan", "scalewise.site", "scalewise.records"),
        ),
        ("records.py", ("scalewise", *HEAVY), OF_A_RUN),
        ("execution", (*TRAINING, "scalewise.analysis", *HEAVY), ()),
        ("ranks", ("scalewise.analysis", "scalewise.training"), ()),
        (
            "analysis",
            ("scalewise.execution", "scalewise.report", *TRAINING, "torch", "torchvision"),
            (),
        ),
        ("report", ("scalewise.execution", *TRAINING, "torch", "torchvision"), ()),
    ],
)
def test_a_room_imports_no_other_than_it_may(
    room: str, forbidden: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    paths = [PACKAGE / room] if room.endswith(".py") else modules(room)
    assert len(paths) > 5 or room.endswith(".py")
    assert crossings(paths, forbidden, allowed) == []


ON_THE_LOGIN_NODE = {"prepare.py", "prepared.py", "published.py", "synthetic_images.py"}
"""Modules that prepare data: they know the plan, which a user who copies train.py does not have."""


def test_a_training_needs_nothing_but_itself_and_pytorch() -> None:
    paths = [path for path in modules("training") if path.name not in ON_THE_LOGIN_NODE]
    names = {name for path in [SCRIPTS / "train.py", *paths] for name in imported(path)}
    assert len(paths) > 4
    others = tuple(f"scalewise.training.{name.removesuffix('.py')}" for name in sorted(ON_THE_LOGIN_NODE))
    own = {name for name in names if within(name, ("scalewise.training",)) and not within(name, others)}
    assert {name for name in names if within(name, ("scalewise",))} == own
    roots = {name.partition(".")[0] for name in names}
    assert roots - set(sys.stdlib_module_names) == {"scalewise", "torch", "torchvision", "safetensors"}
    direct = {name.partition(".")[0] for name in imported(SCRIPTS / "train.py")}
    assert direct - set(sys.stdlib_module_names) == {"scalewise", "torch"}


@pytest.mark.parametrize("room", ["config", "plan", "execution", "ranks", "training", "analysis", "report"])
def test_no_folder_of_a_room_imports_one_above_it(room: str) -> None:
    """A folder, or a module next to the folders, imports only what is below it."""
    below: dict[str, set[str]] = {}
    for path in modules(room):
        place = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        found = {name for name in imported(path) if within(name, (f"scalewise.{room}",))}
        below.setdefault(place, set()).update(name.split(".")[2] for name in found)

    assert len(below) > 3
    for place, neighbours in below.items():
        neighbours.discard(place)
    # raises CycleError, which names the way around
    order = list(TopologicalSorter(below).static_order())
    assert order


def test_the_probe_needs_nothing_but_itself_torch_and_the_standard_library() -> None:
    """The interpreter of a user's program has torch, and may have nothing else of what Scalewise needs."""
    own = "scalewise.measure"
    roots = {
        name.partition(".")[0]
        for path in PROBE.glob("*.py")
        for name in imported(path)
        if not within(name, (own,))
    }

    assert len(list(PROBE.glob("*.py"))) > 5
    assert "torch" in roots
    assert roots - {"torch"} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        pytest.param(
            ("scalewise.plan.study", "cli", "scalewise.ranks.program.rank"),
            HEAVY,
            id="the plan, the command line, and what watches a program",
        ),
        pytest.param(
            ("scalewise.execution.job",), ("torch", "pandas"), id="the process that watches the ranks"
        ),
        pytest.param(
            ("scalewise.training.data", "train"),
            ("torchvision", "PIL", "sklearn"),
            id="a rank, which neither downloads nor decodes",
        ),
        pytest.param(("scalewise.report.finished",), ("torch",), id="the analysis and the report"),
        pytest.param(("scalewise.analysis.study",), ("seaborn",), id="the tables"),
    ],
)
@pytest.mark.slow
def test_what_need_not_be_loaded_is_not(modules: tuple[str, ...], unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert set(modules) <= set(loaded)
    assert set(unwanted) & set(loaded) == set()
