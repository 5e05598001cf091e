"""Programs of a user are planned as they are written, with the files that they consist of."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import of_program

from scalewise.config.program import ProgramSettings, program_files
from scalewise.config.templates import fill_in, names_in


def test_a_module_in_a_folder_that_a_shell_would_obey_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "$(touch x)").mkdir()
    (tmp_path / "$(touch x)" / "mine.py").touch()
    (line,) = refuse(of_program('environment: {PYTHONPATH: "$(touch x)"}', "program: -m mine"))
    assert " experiments.own.program is '$(touch x)/mine.py'" in line


def test_paths_may_begin_with_the_home_folder(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    study = load(
        of_program(
            "program: ~/train.py",
            "python: ~/python",
            "files: [~/train.py, ~/config]",
            "prepare: [~/train.py, ~/out]",
        )
    )
    values = next(iter(study.runs.values())).settings.model_dump()
    named = [values["program"], values["python"], *values["files"], values["prepare"][0]]
    assert named == [
        f"{tmp_path}/{name}" for name in ("train.py", "python", "train.py", "config", "train.py")
    ]
    assert values["prepare"][1] == "~/out"


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("seed: 1", False),
        ("samples_per_step: seen", False),
        ("samples_per_step: planned", True),
        ("samples_per_step: 32", True),
    ],
)
def test_samples_are_given_only_where_the_study_states_them(line: str, given: bool, load: Load) -> None:
    study = load(of_program("devices: [2]", line))
    assert {run.settings.samples_given for run in study.runs.values()} == {given}  # type: ignore[union-attr]


def test_a_global_batch_of_the_programs_own_is_one_number_and_is_still_counted(load: Load) -> None:
    """What runs are planned from is the number, as if the study had given it itself."""
    batch = ("global_batch_size: 512", "samples_per_step: 512")
    study = load(of_program("scaling: strong", "arguments: [a]", *batch, without="batch_size_per_device"))
    runs = study.runs.values()
    assert {run.settings.global_batch_size for run in runs} == {512}
    assert {run.batch_size_per_device for run in runs} == {512, 256}
    for run in runs:
        again = ProgramSettings.model_validate(json.loads(run.as_json())["settings"])
        assert (again.global_batch_size, again.batch_is_own, again.samples_given) == (512, True, False)


@pytest.mark.parametrize(
    "line",
    [
        *("samples_per_step: seen", "same_batches: true", "no_grad_passes: training"),
        "working_directory: config",
    ],
)
def test_how_a_script_runs_and_is_measured_is_part_of_what_defines_its_runs(line: str, load: Load) -> None:
    plain, changed = (
        {run.as_json() for run in load(of_program(*lines)).runs.values()} for lines in ((), (line,))
    )
    assert not plain & changed


@pytest.mark.parametrize(
    ("program", "keys", "file"),
    [
        ("models/mine.py", {}, "models/mine.py"),
        ("missing.py", {}, "missing.py"),
        ("-m models.mine", {}, "models/mine.py"),
        ("-m models", {}, "models/__main__.py"),
        ("-m models.gone", {}, None),
        ("-m mine", {"working_directory": "models"}, "models/mine.py"),
        ("-m mine", {"environment": {"PYTHONPATH": "models"}}, "models/mine.py"),
    ],
)
def test_the_file_of_a_program_is_the_one_that_python_runs(
    program: str, keys: dict[str, Any], file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for name in ("mine", "__main__"):
        Path(f"models/{name}.py").touch()
    assert program_files(ProgramSettings(program=program, **keys)) == ([Path(file)] if file else [])


VALUES = {"devices": 4, "global_batch_size": 512, "folder": "/runs/{x} $HOME", "argument.n": 3}


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("--n={devices}", "--n=4"),
        ("{folder}", "/runs/{x} $HOME"),
        ("{ devices }", "4"),
        ("{{devices}}", "{devices}"),
        ("{{{devices}}}", "{4}"),
        ("${{devices}}", "${devices}"),
        ("${a.b:${c},{devices}}{devices}", "${a.b:${c},{devices}}4"),
    ],
)
def test_braces_hold_names(template: str, filled: str) -> None:
    assert fill_in(template, VALUES) == filled


@pytest.mark.parametrize("template", ["{", "}", "{}", "a{b{c}}", "${a", "{devices * 2}", "{1}", "{f(1)}"])
def test_anything_else_in_braces_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"[{}]"):
        names_in(template)
