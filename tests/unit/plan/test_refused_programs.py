"""Programs of a user's own that could not be run, or not be measured, are refused before anything starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import HERE, assert_refused

from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.runs.runs import input_files
from scalewise.plan.study import load_study

SOUND = {
    "program": "train.py",
    "arguments": '["--batch-size", "{batch_size_per_device}", "--out", "{folder}"]',
    "scaling": "weak",
    "batch_size_per_device": "16",
    "devices": "[1, 2]",
    "steps": "200",
}


def own(*lines: str, without: str = "") -> str:
    """A study of a program with these lines, of which the last is the mistake; they replace sound ones."""
    given = {line.partition(":")[0] for line in lines} | set(without.split())
    body = [f"{key}: {value}" for key, value in SOUND.items() if key not in given]
    text = "".join(f"    {line}\n" for line in [*body, *lines]).rstrip()
    return f"experiments:\n  own:\n{text}  {HERE}\n"


def words(*of_arguments: str) -> str:
    """A study whose arguments are the mistake, one line of YAML."""
    return own(f"arguments: [{', '.join(of_arguments)}]")


@pytest.fixture(autouse=True)
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that snakemake runs in, with a script, a module, and much that is neither."""
    monkeypatch.chdir(tmp_path)
    files = {
        "train.py": "import helper\n",
        "helper.py": "",
        "broken.py": "import torch\n\ndef main(:\n    pass\n",
        "run.sh": "#!/bin/bash\necho hello\n",
        "nul": "\0",
        "package/__init__.py": "",
        "package/train.py": "",
        "config/model.yaml": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")


PROGRAMS = [
    pytest.param("trian.py", ("is 'trian.py'", "no such file. Did you mean 'train.py'?"), id="no such file"),
    pytest.param("package/trian.py", ("Did you mean 'package/train.py'?",), id="no such file in a folder"),
    pytest.param("x/y.py", ("no such file. Give the path of a Python file",), id="no such folder"),
    pytest.param("package", ("is a folder", "or `-m package.train`"), id="a folder"),
    pytest.param("pipe", ("is no file",), id="a pipe, which nobody writes to"),
    pytest.param("/dev/zero", ("is no file",), id="a file without an end"),
    pytest.param('""', ("names nothing",), id="an empty name"),
    pytest.param("run.sh", ("'run.sh' is not Python (line 2: invalid syntax)",), id="a shell script"),
    pytest.param("nul", ("'nul' is not Python (source code string",), id="no text"),
    pytest.param(
        "broken.py", ("'broken.py' is not Python (line 3: ", "Correct the file"), id="a syntax error"
    ),
    pytest.param("train.py --lr 3", ("Write `program: train.py` only",), id="with its arguments"),
    pytest.param("torchrun train.py", ("Write `program: train.py` only",), id="with its launcher"),
    pytest.param('"{run}.py"', ("Snakemake reads { in a path",), id="braces"),
    pytest.param("-m package.trian", ("no module package.trian that can be run",), id="no such module"),
    pytest.param("-m package", ("no module package that can be run",), id="a package without __main__"),
    pytest.param("-m json.trian", ("no module json.trian", "or installed"), id="no such installed module"),
    pytest.param("-m package.train --lr 3", ("the name of one module and nothing else",), id="-m and words"),
    pytest.param("-m", ("the name of one module and nothing else",), id="-m alone"),
    pytest.param("-m package-train", ("the name of one module and nothing else",), id="-m and no name"),
    pytest.param(
        "-m torch.distributed.run",
        ("is '-m torch.distributed.run', which starts ranks", "or use `starts: itself`"),
        id="a launcher",
    ),
]


@pytest.mark.parametrize(("program", "says"), PROGRAMS)
def test_what_is_no_program_is_refused_without_running_it(
    program: str, says: tuple[str, ...], refuse: Refuse, study_file: Path
) -> None:
    text = own(f"program: {program}")
    assert_refused(text, ("experiments.own.program ", *says), refuse(text), study_file)


@pytest.mark.parametrize("program", ["train.py", "./train.py", "-m package.train", "-m timeit"])
def test_a_script_and_a_module_are_programs(program: str, load: Load) -> None:
    assert load(own(f"program: {program}")).runs


def test_a_module_on_the_python_path_that_the_study_gives_is_a_program(load: Load, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").touch()
    assert load(own("environment: {PYTHONPATH: lib}", "program: -m mine")).runs


def test_a_module_is_looked_for_in_the_folder_that_it_runs_in(
    load: Load, refuse: Refuse, tmp_path: Path
) -> None:
    (tmp_path / "config" / "mine.py").write_text("import beside\n", encoding="utf-8")
    (tmp_path / "config" / "beside.py").touch()
    study = load(own("working_directory: config", "program: -m mine"))
    assert input_files(next(iter(study.runs.values())))["program"] == ["config/mine.py", "config/beside.py"]
    (line,) = refuse(own("working_directory: package", "program: -m mine"))
    assert f"no module mine that can be run is in {tmp_path}/package or installed" in line


def test_a_module_in_a_folder_that_a_shell_would_obey_is_refused(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "$(touch x)").mkdir()
    (tmp_path / "$(touch x)" / "helper.py").touch()
    (tmp_path / "helper.py").unlink()
    (line,) = refuse(own('environment: {PYTHONPATH: "$(touch x)"}'))
    assert "own.program is 'train.py', of which a file is '$(touch x)/helper.py', and the shell" in line


def test_the_folder_that_it_runs_in_is_part_of_what_defines_a_run(load: Load) -> None:
    plain, changed = (
        {run.as_json() for run in load(own(*lines)).runs.values()}
        for lines in ((), ("working_directory: config",))
    )
    assert not plain & changed


def test_the_syntax_of_another_python_is_left_to_it(load: Load) -> None:
    """A newer one may have a syntax that this one does not know."""
    assert load(own(f"python: {sys.executable}", "program: broken.py")).runs


def test_modules_of_another_python_are_not_looked_for_in_this_one(load: Load) -> None:
    assert load(own(f"python: {sys.executable}", "program: -m mine.train")).runs


CPU = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\n"


def test_nothing_is_looked_for_here_that_is_in_a_container(load: Load, site_file: Path) -> None:
    site_file.write_text(f"{CPU}container: {{image: torch.sif}}\n", encoding="utf-8")
    assert load(own("python: /opt/conda/bin/python", "program: -m mine.train")).runs
    assert load(own("program: broken.py")).runs


def test_a_site_whose_launcher_cannot_run_a_file_is_named(
    load: Load, refuse: Refuse, study_file: Path, site_file: Path
) -> None:
    site_file.write_text(f"{CPU}launcher: spawn\n", encoding="utf-8")
    text = own("program: train.py")
    says = ("own.program is to be started by torch.multiprocessing.spawn (launcher: spawn, of the site)",)
    assert_refused(text, says, refuse(text), study_file)
    assert load(own("launcher: torchrun")).runs
    assert load(own("starts: itself")).runs


ARGUMENTS = [
    pytest.param(
        words('"{batch_size}"'),
        ("names {batch_size}", "Did you mean {batch_size_per_device} or {global_batch_size}?"),
    ),
    pytest.param(
        own(
            "scaling: strong",
            "global_batch_size: 8",
            'arguments: ["{batch_size}"]',
            without="batch_size_per_device",
        ),
        ("names {batch_size}", "Did you mean {batch_size_per_device} or {global_batch_size}?"),
    ),
    pytest.param(words('"{device}"'), ("names {device}", "Did you mean {devices}?")),
    pytest.param(
        words('"{zzz}"'),
        ("names {zzz}", "Known: accumulation_steps, batch", "write `argument: {zzz: ...}`", "{argument.zzz}"),
    ),
    pytest.param(
        own("argument: {lr: 1}", 'arguments: ["{lr}"]'), ("names {lr}", "Did you mean {argument.lr}?")
    ),
    pytest.param(
        own("argument: {lr: 1}", 'arguments: ["{argument.rl}"]'), ("names {argument.rl}", "{argument.lr}?")
    ),
    pytest.param(
        words('"{rank}"'), ("names {rank}, but arguments are the same on all ranks", "variable RANK")
    ),
    pytest.param(words('"{}"'), ("is '{}', in which {} is neither a name nor arithmetic", "Write {{ and }}")),
    pytest.param(words('"{devices:03d}"'), ("is '{devices:03d}'", "Write {{ and }}")),
    pytest.param(words('"{devices[0]}"'), ("is '{devices[0]}'", "Write {{ and }}")),
    pytest.param(words('"{devices"'), ("is '{devices'", "Write {{ and }}")),
    pytest.param(words("'{\"a\": 1}'"), ("is neither a name nor arithmetic", "Write {{ and }}")),
    pytest.param(words(r'"a\nb"'), ("with a line break in it", "Write it on one line")),
    pytest.param(words(r'"a\0b"'), ("with a NUL in it",)),
    pytest.param(words("'\"a b\"'"), ("with quotes that a shell would remove", "Write 'a b'")),
    pytest.param(words('"--lr 0.1"'), ("is '--lr 0.1', two words in one", 'Write "--lr", "0.1".')),
    pytest.param(words("true"), ("arguments[0] is true", 'such as "true"')),
    pytest.param(words(".nan"), ("arguments[0] is nan, not a finite number", 'such as "nan"')),
    pytest.param(words("[a]"), ("arguments[0] is ['a'], not text", "Write one text, in quotes.")),
    pytest.param(own("arguments: --lr"), ("arguments is '--lr', not a list", 'Write ["--lr"].')),
    pytest.param(
        own("arguments: --batch-size {batch_size_per_device} --name 'a b'"),
        (
            "not a list",
            'Write ["--batch-size", "{batch_size_per_device}", "--name", "a b"].',
        ),
    ),
    pytest.param(own("arguments: it's --lr 3"), ("not a list", 'Write ["it\'s", "--lr", "3"].')),
    *(
        pytest.param(words(f'"{word}"'), (f"is {word!r}", f"in which {word} is neither", "Use names, whole"))
        for word in (
            *("{devices / 2}", "{devices ** 9}", "{devices % 2}", "{-devices}", "{1.5 * devices}"),
            *("{devices.bit_length()}", "{True + devices}", "{'a' * devices}", "{devices if 1 else 2}"),
            *("{(devices}", "{devices 2}", "{" + "1 + " * 60 + "devices}", "{" + "9" * 200 + " + 1}"),
        )
    ),
    pytest.param(words('"{device * 2}"'), ("names {device}", "Did you mean {devices}?")),
    pytest.param(
        words('"{batch-size}"'),
        ("names {batch-size}", "Did you mean {batch_size_per_device} or {global_batch_size}?"),
    ),
    pytest.param(
        words('"{folder + 1}"'),
        ("computes {folder + 1}, but folder is no whole number", "{folder} in separate braces"),
    ),
    pytest.param(
        own("argument: {lr: 0.1}", 'arguments: ["{2 * argument.lr}"]'),
        ("computes {2 * argument.lr}, but argument.lr (0.1) is no whole number",),
    ),
    pytest.param(
        words('"{512 // (devices - 2)}"'),
        ("divides by zero on 2 devices", "Correct the divisor, or measure other device counts."),
    ),
]


@pytest.mark.parametrize(("text", "says"), ARGUMENTS)
def test_a_command_line_that_says_something_else_than_it_seems_to_is_refused(
    text: str, says: tuple[str, ...], refuse: Refuse, study_file: Path
) -> None:
    assert_refused(text, ("experiments.own.arguments", *says), refuse(text), study_file)


TAKEN = [
    *("{folder}", "{{}}", "a b", "--name=a b", "+x=[1,2]", "", "it's", "#1", "`x`", "a;b", "a|b", "a && b"),
    *("> log", "*.pt", "<eos>", "^lora.*|head$", "~trainer.logger", "model.dim=${other}", "${a.b:${c}}"),
    *("http://x/y?a=1&b=2", "--input_bin", "dev/data/fineweb10B/fineweb_train_*.bin", "${{other}}", "$1"),
]


def test_words_that_only_look_like_more_are_taken_as_they_are(load: Load) -> None:
    study = load(words(*map(json.dumps, TAKEN), "0.1"))
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
    (warning,) = load(own(line)).warnings
    assert warning.startswith(says)


def test_paths_may_begin_with_the_home_folder(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    study = load(
        own(
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


BATCHES = [
    pytest.param(
        own("global_batch_size: 32", "arguments: [a]", "scaling: strong", without="batch_size_per_device"),
        (
            "own.scaling is strong, but train.py does not get the batch size",
            "write `global_batch_size: own` and `samples_per_step: 32`",
            "use `scaling: weak`",
        ),
        id="strong without a batch",
    ),
    pytest.param(
        own("scaling: strong", "arguments: [a]", "global_batch_size: own", without="batch_size_per_device"),
        ("own.global_batch_size is own, but samples_per_step does not", "Add `samples_per_step: 512`"),
        id="a batch of its own without its number",
    ),
    pytest.param(
        own("samples_per_step: 512", "arguments: [a]", "global_batch_size: own"),
        ("own.global_batch_size is 'own', but weak scaling", "Remove global_batch_size, or choose the other"),
        id="a batch of its own that grows",
    ),
    pytest.param(
        own(
            *("scaling: strong", "arguments: [a]", "samples_per_step: 513", "global_batch_size: own"),
            without="batch_size_per_device",
        ),
        ("own.global_batch_size (513) is not divisible by the world size (2)",),
        id="a batch of its own that is not divisible",
    ),
    pytest.param(
        own("scaling: strong", "global_batch_size: 33", without="batch_size_per_device"),
        ("own.global_batch_size (33) is not divisible by the world size (2)", "Use 32 or 34."),
        id="not divisible",
    ),
    pytest.param(
        own(
            "scaling: strong",
            "global_batch_size: 32",
            "samples_per_step: 32",
            "project: {devices: [12]}",
            without="batch_size_per_device",
        ),
        ("own.project.devices[0] is 12, but global_batch_size (32) is not divisible", "Use 8 or 16,"),
        id="not divisible where it is predicted",
    ),
    pytest.param(
        own("samples_per_step: 16"),
        (
            "own.samples_per_step is 16",
            "make 32 samples of a step on 2 devices",
            "samples_per_step: planned`",
        ),
        id="samples that contradict",
    ),
    pytest.param(
        own("devices: [2]", "samples_per_step: 16"),
        ("Write 32 or `samples_per_step: planned`",),
        id="one count",
    ),
    pytest.param(
        own("samples_per_step: plan"),
        ("is 'plan', not a whole number, planned or seen", "Known: planned, seen."),
        id="no samples",
    ),
    pytest.param(
        own("samples_per_step: sene"),
        ("is 'sene', not a whole number, planned or seen", "Known: planned, seen."),
        id="counted samples",
    ),
    pytest.param(own("samples_per_step: 0"), ("is 0, but must be more than 0",), id="0 samples"),
]

RULES = [
    pytest.param(
        own("metric: {pattern: 'a=([0-9]+)', at_most: 1}"),
        ("own.metric is a=([0-9]+) at most 1", "but steps (200) ends it before", "Remove steps"),
        id="metric and steps",
    ),
    pytest.param(
        own("steps: 9", without="steps"),
        ("own.steps (9) is below warmup_steps (10)", "Use 10 or more."),
        id="fewer steps than warm up",
    ),
    pytest.param(
        own("steps: {most: 99, until_interval: 0.01}", without="steps"),
        ("own.steps.most (99) is below the 100 steps that an interval needs", "or `steps: 99`"),
        id="too few steps for an interval",
    ),
    pytest.param(
        own("metric: {pattern: 'a=([0-9', at_most: 1}", without="steps"),
        ("the pattern 'a=([0-9', which is no regular expression (", "Correct it"),
        id="no pattern",
    ),
    pytest.param(
        own("metric: {pattern: 'a=[0-9]+', at_most: 1}", without="steps"),
        ("the pattern 'a=[0-9]+' with 0 groups, not one", "Put only the number into parentheses"),
        id="no group",
    ),
    pytest.param(
        own("metric: {pattern: 'a=([0-9]+)', at_most: 1, at_least: 1}", without="steps"),
        ("has both at_most and at_least", "Keep one of the two."),
        id="two limits",
    ),
    pytest.param(
        own("metric: {pattern: 'a=([0-9]+)'}", without="steps"),
        ("has neither at_most nor at_least", "Add `at_most: 2.9`"),
        id="no limit",
    ),
    pytest.param(
        own("metric: {pattern: 'a=([0-9]+)', at_most: .nan}", without="steps"),
        ("own.metric.at_most is nan, not a finite number",),
        id="a limit that nothing reaches",
    ),
    pytest.param(
        own("decision: {deadline_minutes: 5}"),
        ("own.decision.deadline_minutes is 5", "but steps (200) ends every run before", "Remove steps, or"),
        id="a deadline of what is not measured",
    ),
    pytest.param(
        own("decision: {max_device_hours: 5}"),
        ("own.decision.max_device_hours is 5", "but steps (200) ends every run before", "Remove steps, or"),
        id="a cost of what is not measured",
    ),
    pytest.param(
        own("launcher: spawn"),
        ("own.launcher is to be started by torch.multiprocessing.spawn", "Use launcher popen or torchrun."),
        id="spawn",
    ),
    pytest.param(
        own("arguments: [a]", "resumes: true"),
        ("own.resumes is true", "train.py does not get the folder", '["--out", "{folder}"]'),
        id="resumes from nowhere",
    ),
    pytest.param(own("python: pyhton3.99"), ("is 'pyhton3.99'", "no such program here"), id="no command"),
    pytest.param(own('python: ""'), ("own.python is '', which names nothing",), id="an empty python"),
    pytest.param(
        own("python: $HOME/bin/python"),
        ("is '$HOME/bin/python', and $ is not expanded here",),
        id="a variable for python",
    ),
    pytest.param(own("seed: 2147483647"), ("own.seed (2147483647)", "Use at most 2147483645."), id="seed"),
    pytest.param(
        own("python: no/python"), ("own.python is 'no/python'", "no such file here"), id="no python"
    ),
    pytest.param(
        own("files: [model.yaml]"), ("own.files[0] is 'model.yaml', which is not there",), id="no such file"
    ),
    pytest.param(
        own("files: [config]"),
        ("own.files[0] is 'config', which is a folder", "`inputs`"),
        id="a folder of files",
    ),
    pytest.param(
        own("inputs: [data/]"),
        ("own.inputs[0] is 'data/', which is not there",),
        id="no data",
        marks=pytest.mark.refuses("names: data path missing"),
    ),
    pytest.param(
        own(
            'arguments: ["{batch_size_per_device}", "{argument.a}", "{argument.b}"]',
            'sweep: {argument.a: ["q", "q.b-z"], argument.b: ["z.b-m", "m"]}',
        ),
        ("own.sweep makes two series of the same name", "Rename a file, or write an experiment for each."),
        id="two series of one name",
    ),
    pytest.param(
        own("files: [a$b]"),
        ("own.files[0] is 'a$b', and the shell that sends jobs to Slurm may act on the $",),
        id="a shell's",
    ),
    pytest.param(
        own("working_directory: nowhere"),
        ("own.working_directory is 'nowhere', which is not there", "Give the folder that the program is"),
        id="no folder to run in",
    ),
    pytest.param(
        own("working_directory: train.py"),
        ("own.working_directory is 'train.py', which is no folder",),
        id="a file to run in",
    ),
    pytest.param(
        own("working_directory: $HOME"),
        ("own.working_directory is '$HOME', and $ is not expanded here",),
        id="a variable",
    ),
    pytest.param(
        own("sweep: {working_directory: [config]}"),
        ("own.sweep.working_directory is not a key",),
        id="a swept folder",
    ),
    pytest.param(own("inputs: [.]"), ("own.inputs[0] is '.', which holds results/",), id="results as data"),
    pytest.param(
        own('prepare: [train.py, "{folder}"]'),
        ("own.prepare[1] names {folder}", "prepare is done once for all", "Write a path"),
        id="a preparation of one run",
    ),
    pytest.param(
        own("prepare: fetch --out 'a b'"),
        ("own.prepare is", 'Write ["fetch", "--out", "a b"].'),
        id="a preparation in one text",
    ),
    pytest.param(
        own("environment: {RANK: 3}"),
        ("own.environment.RANK is 3", "gives each rank this", "Remove it"),
        id="RANK",
    ),
    pytest.param(own("environment: {A=B: 3}"), ("environment.A=B is no name of a variable",), id="no name"),
    pytest.param(
        own('environment: {A: "{8 // rank}"}'),
        ("own.environment.A is '{8 // rank}', which divides by zero on 1 device",),
        id="a division by the first rank",
    ),
    pytest.param(
        own("starts: itself", 'environment: {MINE: "{rank}"}'),
        ("own.environment.MINE names {rank}", "`starts: itself`", "Remove it, or use `starts: ranks`."),
        id="ranks that nobody knows",
    ),
    pytest.param(own("same_batches: yes please"), ("is 'yes please', not true or false",), id="batches"),
    pytest.param(
        own("no_grad_passes: rollouts"),
        ("own.no_grad_passes is 'rollouts'", "Known: evaluation, training."),
        id="passes without gradients",
    ),
    pytest.param(own("starts: nodes"), ("own.starts is 'nodes'", "Known: itself, ranks."), id="starts"),
    pytest.param(
        own("argumnets: [a]"), ("own.argumnets is not a known key", "'arguments'?"), id="unknown key"
    ),
]

SWEEPS = [
    pytest.param(
        own("sweep: {argument.lr: [0.1, 0.2]}"),
        (
            "own.sweep.argument.lr is [0.1, 0.2], but neither",
            "has {argument.lr}",
            '["--lr", "{argument.lr}"]',
        ),
        id="not used",
    ),
    pytest.param(
        own("argument: {lr: 0.1}"),
        ("own.argument.lr is 0.1, but neither", "{argument.lr}"),
        id="given, not used",
    ),
    pytest.param(
        own('arguments: ["{argument.lr}"]', "sweep: {argument.lr: [1, 2]}", "argument: {lr: 3}"),
        ("own.argument.lr is 3, but sweep.argument.lr gives it the values [1, 2]", "Keep one of the two."),
        id="given and swept",
    ),
    pytest.param(
        own("argument: {learning-rate: 0.1}"), ("own.argument.learning-rate is not a name",), id="no name"
    ),
    pytest.param(
        own("sweep: {argument.learning-rate: [1]}"),
        ("own.sweep.argument.learning-rate is not a name",),
        id="nor swept",
    ),
    pytest.param(
        own("sweep: {batch_size_per_devise: [1]}"),
        (
            "own.sweep.batch_size_per_devise is not a key",
            "Did you mean 'batch_size_per_device'?",
            "`argument.NAME`",
        ),
        id="unknown",
    ),
    pytest.param(own("sweep: {precision: [bf16]}"), ("own.sweep.precision is not a key",), id="of the loop"),
    pytest.param(
        own('sweep: {same_batches: ["true"]}'), ("own.sweep.same_batches is not a key",), id="batches swept"
    ),
    pytest.param(
        own("sweep: {no_grad_passes: [training]}"),
        ("own.sweep.no_grad_passes is not a key",),
        id="passes swept",
    ),
    pytest.param(own("sweep: {steps: [1]}"), ("own.sweep.steps is not a key",), id="steps"),
    pytest.param(own("sweep: {argument.lr: 0.1}"), ("sweep.argument.lr is 0.1, not a list",), id="no list"),
    pytest.param(own("sweep: {argument.lr: []}"), ("sweep.argument.lr is an empty list",), id="empty"),
    pytest.param(
        own('arguments: ["{argument.x}"]', "sweep: {argument.x: [a b, A-b]}"),
        ("own.sweep.argument.x is ['a b', 'A-b'], in which two values have the same name in a run",),
        id="equal names",
    ),
    pytest.param(
        own("arguments: [a]", "sweep: {batch_size_per_device: [4, 8]}", without="batch_size_per_device"),
        ("own.sweep.batch_size_per_device is [4, 8], but train.py does not get it",),
        id="a batch that is not used",
    ),
    pytest.param(
        own("sweep: {seed: [4, 8]}"),
        ("own.sweep.seed is [4, 8], but train.py does not get it",),
        id="a seed",
    ),
]


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
    study = load(own("devices: [2]", line))
    assert {run.settings.samples_given for run in study.runs.values()} == {given}  # type: ignore[union-attr]


def test_a_global_batch_of_the_programs_own_is_one_number_and_is_still_counted(load: Load) -> None:
    """What runs are planned from is the number, as if the study had given it itself."""
    batch = ("global_batch_size: own", "samples_per_step: 512")
    study = load(own("scaling: strong", "arguments: [a]", *batch, without="batch_size_per_device"))
    runs = study.runs.values()
    assert {run.settings.global_batch_size for run in runs} == {512}
    assert {run.batch_size_per_device for run in runs} == {512, 256}
    for run in runs:
        again = ProgramSettings.model_validate(json.loads(run.as_json())["settings"])
        assert (again.global_batch_size, again.batch_is_own, again.samples_given) == (512, True, False)


@pytest.mark.parametrize("line", ["samples_per_step: seen", "same_batches: true", "no_grad_passes: training"])
def test_how_a_script_is_measured_is_part_of_what_defines_its_runs(line: str, load: Load) -> None:
    plain, changed = ({run.as_json() for run in load(own(*lines)).runs.values()} for lines in ((), (line,)))
    assert not plain & changed


@pytest.mark.parametrize(("text", "says"), [*BATCHES, *RULES, *SWEEPS])
def test_what_a_program_cannot_be_measured_with_is_refused(
    text: str, says: tuple[str, ...], refuse: Refuse, study_file: Path
) -> None:
    assert_refused(text, says, refuse(text), study_file)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("target: {accuracy: 0.9}", ("is {'accuracy': 0.9}", "Use `metric: {pattern:")),
        ("precision: bf16", ("is bf16", "or give it to the program in `arguments`.")),
        ("model: linear", ("is linear",)),
        ("save_model: true", ("is true",)),
        ("epochs: 3", ("is 3", "`steps` ends the measurement.")),
        ("rendezvous: file", ("is file", "MASTER_ADDR and MASTER_PORT")),
        ("checkpoint_minutes: 5", ("is 5", "a program writes its own checkpoints")),
    ],
)
def test_an_option_of_the_built_in_loop_beside_a_program_is_refused(
    line: str, says: tuple[str, ...], refuse: Refuse, study_file: Path
) -> None:
    text = own(line)
    key = line.partition(":")[0]
    common = (f"experiments.own.{key} ", "an option of the built-in training, but 'train.py' trains here")
    assert_refused(text, (*common, *says), refuse(text), study_file)


BOTH = f"""\
defaults: {{learning_rate: 0.2, epochs: 3, target: {{accuracy: 0.9}}, checkpoint_minutes: 5, devices: [1, 2]}}
experiments:
  loop: {{dataset: digits, model: linear, global_batch_size: 64}}
  own: {{program: train.py, arguments: ["{{folder}}"], scaling: weak, batch_size_per_device: 4, MORE}}  {HERE}
"""


def test_defaults_of_the_loop_concern_the_other_experiments(load: Load) -> None:
    study = load(BOTH.replace("MORE", "steps: 50"))
    loop, own = (study.experiments[name].experiment.model_dump() for name in ("loop", "own"))
    assert (loop["learning_rate"], loop["target"]) == (0.2, {"accuracy": 0.9})
    assert not {"learning_rate", "epochs", "target"} & own.keys()
    assert (loop["devices"], own["devices"]) == ([1, 2], [1, 2])


def test_defaults_may_sweep_a_value_of_the_users_own(load: Load) -> None:
    study = load(
        "defaults: {sweep: {argument.lr: [1, 2]}}\n" + own('arguments: ["{argument.lr}", "{folder}"]')
    )
    assert {name for _, name in study.runs} >= {"d1.lr-1.r1", "d2.lr-2.r3"}


def test_defaults_may_name_the_program_of_every_experiment(load: Load) -> None:
    keys = "program: train.py, scaling: weak, batch_size_per_device: 4, devices: [1], steps: 50"
    study = load(f'defaults: {{{keys}, arguments: ["{{folder}}"], epochs: 3}}\nexperiments:\n  own: {{}}\n')
    assert {run.settings.model_dump()["program"] for run in study.runs.values()} == {"train.py"}


def test_a_mistake_in_the_defaults_is_told_once_whichever_training_it_is_for(
    refuse: Refuse, study_file: Path
) -> None:
    text = BOTH.replace("MORE", "steps: 50").replace(HERE, "").replace("epochs: 3", "epochs: x")
    for given, says in (
        ("", "experiments.loop.epochs is 'x', not a whole number"),
        ("arguments: --lr, ", "experiments.own.arguments is '--lr', not a list"),
    ):
        wrong = text
        if given:
            wrong = text.replace("epochs: x, ", given).replace('arguments: ["{folder}"], ', "")
        (line,) = (each for each in refuse(wrong) if says in each)
        assert line.startswith(f"{study_file}:1: "), "the line of the defaults"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("programm: train.py", ("own.programm is not a known key", "Did you mean 'program'?")),
        (
            "arguments: [a]",
            ("own.arguments is ['a'], a key of a program, but none is named", "Add `program:"),
        ),
    ],
)
def test_keys_of_a_program_without_one_are_told_in_one_line(
    line: str, says: tuple[str, ...], refuse: Refuse, study_file: Path
) -> None:
    text = f"experiments:\n  own:\n    devices: [1]\n    {line}  {HERE}\n"
    assert_refused(text, says, refuse(text), study_file)


def test_runs_have_short_names_of_their_own_values(load: Load) -> None:
    study = load(own('arguments: ["{argument.lr}", "{folder}"]', "sweep: {argument.lr: [0.1, 2.0e-5]}"))
    names = {name for _, name in study.runs}
    assert {"d2.lr-0.1.r1", "d1.lr-2e-05.r3"} <= names
    run = study.runs["own", "d2.lr-0.1.r1"]
    assert (run.point, dict(run.options)) == ("d2.lr-0.1", {"argument.lr": 0.1})
    assert run.settings.model_dump()["argument"] == {"lr": 0.1}


def test_an_excluded_value_of_the_users_own_makes_no_run(load: Load) -> None:
    study = load(
        own(
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
    warnings = [warning for warning in load(own(*lines)).warnings if "{folder}" in warning]
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
    (warning,) = load(own("arguments: [a]")).warnings
    assert "train.py writes files (" in warning


@pytest.mark.parametrize("calls", ["", "plt.savefig('x.png')"])
def test_a_program_that_runs_in_scalewises_folder_is_warned_of(calls: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{calls}\n", encoding="utf-8")

    def warnings(*lines: str) -> Sequence[str]:
        return load_study(yaml.safe_load(own(*lines)), checkout=tmp_path).warnings

    (warning,) = warnings("arguments: [a]")
    known = " (savefig)" if calls else ""
    assert f"runs in Scalewise's folder, and writes its relative paths there{known}." in warning
    assert not warnings()
    elsewhere = warnings("arguments: [a]", "working_directory: config")
    assert ["Scalewise's folder" in warning for warning in elsewhere] == [False] * bool(calls)


def test_a_program_that_runs_to_its_own_end_is_told_of_steps(load: Load) -> None:
    (warning,) = load(own("runtime_minutes: 20", without="steps")).warnings
    assert "train.py runs to its own end, at most 20 minutes (runtime_minutes). `steps: 200`" in warning
    assert not load(own("runtime_minutes: 600", without="steps")).warnings
