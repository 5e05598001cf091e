"""Programs of a user are planned as they are written, and warned of if they would write to one place."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import Desk, of_program, site_of

from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.runs.runs import input_files
from scalewise.plan.study import load_study


@pytest.fixture(autouse=True)
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that snakemake runs in, with a script, a module, and much that is neither."""
    monkeypatch.chdir(tmp_path)
    Desk(tmp_path)


@pytest.mark.parametrize("program", ["train.py", "./train.py", "-m package.train", "-m timeit"])
def test_a_script_and_a_module_are_programs(program: str, load: Load) -> None:
    assert load(of_program(f"program: {program}")).runs


def test_a_module_on_the_python_path_that_the_study_gives_is_a_program(load: Load, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").touch()
    assert load(of_program("environment: {PYTHONPATH: lib}", "program: -m mine")).runs


def test_a_module_is_looked_for_in_the_folder_that_it_runs_in(load: Load, tmp_path: Path) -> None:
    (tmp_path / "config" / "mine.py").write_text("import beside\n", encoding="utf-8")
    (tmp_path / "config" / "beside.py").touch()
    study = load(of_program("working_directory: config", "program: -m mine"))
    assert input_files(next(iter(study.runs.values())))["program"] == ["config/mine.py", "config/beside.py"]


def test_a_module_in_a_folder_that_a_shell_would_obey_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "$(touch x)").mkdir()
    (tmp_path / "$(touch x)" / "helper.py").touch()
    (tmp_path / "helper.py").unlink()
    (line,) = refuse(of_program('environment: {PYTHONPATH: "$(touch x)"}'))
    assert " experiments.own.program is 'train.py'" in line
    assert "'$(touch x)/helper.py'" in line


def test_the_folder_that_it_runs_in_is_part_of_what_defines_a_run(load: Load) -> None:
    plain, changed = (
        {run.as_json() for run in load(of_program(*lines)).runs.values()}
        for lines in ((), ("working_directory: config",))
    )
    assert not plain & changed


def test_the_syntax_of_another_python_is_left_to_it(load: Load) -> None:
    """A newer one may have a syntax that this one does not know."""
    assert load(of_program(f"python: {sys.executable}", "program: broken.py")).runs


def test_modules_of_another_python_are_not_looked_for_in_this_one(load: Load) -> None:
    assert load(of_program(f"python: {sys.executable}", "program: -m mine.train")).runs


def test_nothing_is_looked_for_here_that_is_in_a_container(load: Load, site_file: Path) -> None:
    site_file.write_text(site_of("cpus", "container: {image: torch.sif}"), encoding="utf-8")
    assert load(of_program("python: /opt/conda/bin/python", "program: -m mine.train")).runs
    assert load(of_program("program: broken.py")).runs


def test_another_launcher_than_the_sites_can_run_a_file(load: Load, site_file: Path) -> None:
    site_file.write_text(site_of("cpus", "launcher: spawn"), encoding="utf-8")
    assert load(of_program("launcher: torchrun")).runs
    assert load(of_program("starts: itself")).runs


TAKEN = [
    *("{folder}", "{{}}", "a b", "--name=a b", "+x=[1,2]", "", "it's", "#1", "`x`", "a;b", "a|b", "a && b"),
    *("> log", "*.pt", "<eos>", "^lora.*|head$", "~trainer.logger", "model.dim=${other}", "${a.b:${c}}"),
    *("http://x/y?a=1&b=2", "--input_bin", "dev/data/fineweb10B/fineweb_train_*.bin", "${{other}}", "$1"),
]


def test_words_that_only_look_like_more_are_taken_as_they_are(load: Load) -> None:
    study = load(of_program(f"arguments: [{', '.join(map(json.dumps, TAKEN))}, 0.1]"))
    assert study.runs
    assert not study.warnings


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('arguments: ["~/data", "{folder}"]', "experiments.own.arguments[0] has ~/, which no shell replaces"),
        (
            'arguments: ["{folder}", "--out=$HOME/x"]',
            "experiments.own.arguments[1] has $HOME, which",
        ),
        (
            'environment: {PATH: "$PATH:/x", OUT: "{folder}"}',
            "experiments.own.environment.PATH has $PATH, which no shell",
        ),
        (
            'arguments: ["{folder}", "${devices}"]',
            "experiments.own.arguments[1] has ${devices}, which no shell replaces: the program gets it as it "
            "is. Write {devices} for the value.",
        ),
        ('prepare: ["true", $TMPDIR/x]', "experiments.own.prepare[1] has $TMPDIR, which no shell"),
    ],
)
def test_a_word_that_a_shell_would_replace_is_taken_with_a_caution(line: str, says: str, load: Load) -> None:
    (warning,) = load(of_program(line)).warnings
    assert warning.startswith(says)


def test_paths_may_begin_with_the_home_folder(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    study = load(
        of_program(
            "program: ~/train.py",
            "python: ~/python",
            "files: [~/train.py]",
            "inputs: [~/config]",
            "prepare: [~/train.py, ~/out]",
        )
    )
    values = next(iter(study.runs.values())).settings.model_dump()
    named = [values["program"], values["python"], *values["files"], *values["inputs"], values["prepare"][0]]
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
    batch = ("global_batch_size: own", "samples_per_step: 512")
    study = load(of_program("scaling: strong", "arguments: [a]", *batch, without="batch_size_per_device"))
    runs = study.runs.values()
    assert {run.settings.global_batch_size for run in runs} == {512}
    assert {run.batch_size_per_device for run in runs} == {512, 256}
    for run in runs:
        again = ProgramSettings.model_validate(json.loads(run.as_json())["settings"])
        assert (again.global_batch_size, again.batch_is_own, again.samples_given) == (512, True, False)


@pytest.mark.parametrize("line", ["samples_per_step: seen", "same_batches: true", "no_grad_passes: training"])
def test_how_a_script_is_measured_is_part_of_what_defines_its_runs(line: str, load: Load) -> None:
    plain, changed = (
        {run.as_json() for run in load(of_program(*lines)).runs.values()} for lines in ((), (line,))
    )
    assert not plain & changed


BOTH = """\
defaults: {learning_rate: 0.2, epochs: 3, target: {accuracy: 0.9}, checkpoint_minutes: 5, devices: [1, 2]}
experiments:
  loop: {dataset: digits, model: linear, global_batch_size: 64}
  own: {program: train.py, arguments: ["{folder}"], scaling: weak, batch_size_per_device: 4, MORE}
"""


def test_defaults_of_the_loop_concern_the_other_experiments(load: Load) -> None:
    study = load(BOTH.replace("MORE", "steps: 50"))
    loop, own = (study.experiments[name].experiment.model_dump() for name in ("loop", "own"))
    assert (loop["learning_rate"], loop["target"]) == (0.2, {"accuracy": 0.9})
    assert not {"learning_rate", "epochs", "target"} & own.keys()
    assert (loop["devices"], own["devices"]) == ([1, 2], [1, 2])


def test_defaults_may_sweep_a_value_of_the_users_own(load: Load) -> None:
    study = load(
        "defaults: {sweep: {argument.lr: [1, 2]}}\n" + of_program('arguments: ["{argument.lr}", "{folder}"]')
    )
    assert {name for _, name in study.runs} >= {"d1.lr-1.r1", "d2.lr-2.r3"}


def test_defaults_may_name_the_program_of_every_experiment(load: Load) -> None:
    keys = "program: train.py, scaling: weak, batch_size_per_device: 4, devices: [1], steps: 50"
    study = load(f'defaults: {{{keys}, arguments: ["{{folder}}"], epochs: 3}}\nexperiments:\n  own: {{}}\n')
    assert {run.settings.model_dump()["program"] for run in study.runs.values()} == {"train.py"}


def test_runs_have_short_names_of_their_own_values(load: Load) -> None:
    study = load(
        of_program('arguments: ["{argument.lr}", "{folder}"]', "sweep: {argument.lr: [0.1, 2.0e-5]}")
    )
    names = {name for _, name in study.runs}
    assert {"d2.lr-0.1.r1", "d1.lr-2e-05.r3"} <= names
    run = study.runs["own", "d2.lr-0.1.r1"]
    assert (run.point, dict(run.options)) == ("d2.lr-0.1", {"argument.lr": 0.1})
    assert run.settings.model_dump()["argument"] == {"lr": 0.1}


def test_an_excluded_value_of_the_users_own_makes_no_run(load: Load) -> None:
    study = load(
        of_program(
            'arguments: ["{argument.lr}", "{folder}"]',
            "sweep: {argument.lr: [0.1, 0.2]}",
            "exclude: [{argument.lr: 0.2, devices: 2}]",
        )
    )
    assert {name for _, name in study.runs if name.endswith("r1")} == {
        "d1.lr-0.1.r1",
        "d1.lr-0.2.r1",
        "d2.lr-0.1.r1",
    }


WRITES = "import torch\ntorch.save({}, 'x.pt')\n"


@pytest.mark.parametrize(
    ("text", "lines", "warned"),
    [
        pytest.param(WRITES, ["arguments: [a]"], True, id="nobody tells it where"),
        pytest.param("import helper\n", ["arguments: [a]"], True, id="a module of it writes"),
        pytest.param(WRITES, [], False, id="told in its arguments"),
        pytest.param(
            WRITES, ["arguments: [a]", 'environment: {OUT: "{folder}"}'], False, id="told in its environment"
        ),
        pytest.param("print('hello')\n", ["arguments: [a]"], False, id="writes nothing"),
    ],
)
def test_a_program_that_writes_to_a_fixed_place_is_warned_of(
    text: str, lines: list[str], warned: bool, load: Load, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    (tmp_path / "helper.py").write_text(WRITES, encoding="utf-8")
    warnings = [warning for warning in load(of_program(*lines)).warnings if "{folder}" in warning]
    assert len(warnings) == warned
    for warning in warnings:
        assert warning.startswith("experiments.own: train.py writes files (torch.save), without {folder}")


@pytest.mark.parametrize(
    "call",
    [
        *("save_image(x, 'results/x.png')", "plt.savefig('x.png')", "model.fit(train)", "np.savez('x', a)"),
        *("model.save_pretrained('out')", "SummaryWriter()", "Seq2SeqTrainer(model)", "os.makedirs('out')"),
    ],
)
def test_calls_that_write_are_known(call: str, load: Load, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{call}\n", encoding="utf-8")
    (warning,) = load(of_program("arguments: [a]")).warnings
    assert "train.py writes files (" in warning


@pytest.mark.parametrize("calls", ["", "plt.savefig('x.png')"])
def test_a_program_that_runs_in_scalewises_folder_is_warned_of(calls: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{calls}\n", encoding="utf-8")

    def warnings(*lines: str) -> Sequence[str]:
        return load_study(yaml.safe_load(of_program(*lines)), checkout=tmp_path).warnings

    (warning,) = warnings("arguments: [a]")
    known = " (savefig)" if calls else ""
    assert f"runs in Scalewise's folder, and writes its relative paths there{known}." in warning
    assert not warnings()
    elsewhere = warnings("arguments: [a]", "working_directory: config")
    assert ["Scalewise's folder" in warning for warning in elsewhere] == [False] * bool(calls)


def test_a_program_that_runs_to_its_own_end_is_told_of_steps(load: Load) -> None:
    (warning,) = load(of_program("runtime_minutes: 20", without="steps")).warnings
    assert "train.py runs to its own end, at most 20 minutes (runtime_minutes). `steps: 200`" in warning
    assert not load(of_program("runtime_minutes: 600", without="steps")).warnings
