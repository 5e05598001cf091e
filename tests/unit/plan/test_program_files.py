"""Which files a program consists of is read from its text, and nothing of it is run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from scalewise.plan.catalog.program_files import program_files
from scalewise.plan.config.program import ProgramSettings


def lay_out(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def files_of(program: str) -> list[Path]:
    return program_files(ProgramSettings(program=program))


def found(folder: Path) -> list[str]:
    files = files_of(f"{folder}/mine.py")
    assert files[0] == folder / "mine.py"
    return sorted(str(path.relative_to(folder)) for path in files[1:])


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("import layers", ["layers.py"]),
        ("import layers as l, torch", ["layers.py"]),
        ("from layers import Block", ["layers.py"]),
        ("from layers import *", ["layers.py"]),
        ("def main():\n    from layers import Block", ["layers.py"]),
        ("import parts.head", ["parts/__init__.py", "parts/deep.py", "parts/head.py"]),
        ("from parts import head", ["parts/__init__.py", "parts/deep.py", "parts/head.py"]),
        ("from parts.head import Head", ["parts/__init__.py", "parts/deep.py", "parts/head.py"]),
        ("import parts", ["parts/__init__.py"]),
        ("from bare import one", ["bare/one.py"]),
        ("import around", ["around.py", "layers.py"]),
        ("import unused.elsewhere, torch.nn", []),
        ("from . import layers", ["layers.py"]),
        ("from ... import layers", ["layers.py"]),
    ],
)
def test_what_a_program_imports_from_its_folder_belongs_to_it(
    tmp_path: Path, text: str, imported: list[str]
) -> None:
    lay_out(
        tmp_path,
        {
            "mine.py": text,
            "layers.py": "import around",
            "around.py": "import layers",
            "parts/__init__.py": "",
            "parts/head.py": "from .deep import Deep",
            "parts/deep.py": "from ..beyond import nothing",
            "bare/one.py": "raise SystemExit",
            "other.py": "",
        },
    )
    expected = [*imported, "around.py"] if imported == ["layers.py"] else imported
    assert found(tmp_path) == sorted(expected)


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    lay_out(tmp_path, {"mine.py": "import one", "one.py": "", "second.py": ""})
    assert found(tmp_path) == ["one.py"]
    lay_out(tmp_path, {"mine.py": "import second"})
    assert found(tmp_path) == ["second.py"]


def test_a_neighbour_that_is_not_python_counts_all_the_same(tmp_path: Path) -> None:
    lay_out(tmp_path, {"mine.py": "try:\n    import torn\nexcept SyntaxError:\n    pass", "torn.py": "def ("})
    assert found(tmp_path) == ["torn.py"]


def test_a_link_imports_from_where_the_file_lies(tmp_path: Path) -> None:
    lay_out(tmp_path / "real", {"mine.py": "import layers", "layers.py": ""})
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "mine.py")
    lay_out(tmp_path, {"layers.py": ""})
    files = files_of(f"{tmp_path}/link.py")
    assert files == [tmp_path / "link.py", tmp_path / "real" / "layers.py"]


def test_paths_stay_as_the_user_wrote_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path / "models", {"mine.py": "import layers", "layers.py": ""})
    monkeypatch.chdir(tmp_path)
    files = [os.fspath(path) for path in files_of("models/mine.py")]
    assert files == ["models/mine.py", "models/layers.py"]


def test_a_file_that_is_missing_is_named_for_whoever_looks_for_it(tmp_path: Path) -> None:
    assert files_of(f"{tmp_path}/missing.py") == [tmp_path / "missing.py"]
