"""Every input that must be refused before anything is started: with its file, line, place, value and fix."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import COMMON, HERE, assert_refused, mistaken

from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import check_results_folder, check_spelling

refuses = pytest.mark.refuses
MANY_OPTIONS = (
    "sweep: {dataset: [digits], model: [digits_cnn], epochs: [10], optimizer: [adadelta], "
    "learning_rate: [0.1234567890123], momentum: [0.1234567890123], weight_decay: [0.1234567890123], "
    "schedule: [onecycle], schedule_gamma: [0.1234567890123], schedule_step_epochs: [1], "
    "gradient_as_bucket_view: [true], cpus_per_device: [1], warmup_steps: [1], seed: [1]}"
)


def digits(*lines: str) -> str:
    """A study whose one experiment has these lines, of which the last is the mistake."""
    return mistaken("digits", *lines)


def named(key: str) -> str:
    """A study with an experiment of this name, spelled as YAML."""
    return f"{COMMON}  Sound: {{}}\n  {key}: {{epochs: 5}}  {HERE}\n"


def plain_name(suggestion: str) -> str:
    return f"Use letters, digits, - and _, and begin with a letter or digit: {suggestion!r}."


TOPOLOGY = [
    pytest.param(
        digits("devices: [0]"),
        ("experiments.digits.devices[0] is 0", "at least 1 device", "Use 1 or more."),
        id="0 devices",
        marks=refuses("topology: 0 devices"),
    ),
    pytest.param(
        digits("devices: [1, 6]"),
        ("experiments.digits.devices[1] is 6", "4 devices per node", "Use 4 or 8"),
        id="6 at 4 per node",
        marks=refuses("topology: 6 at 4 per node"),
    ),
    pytest.param(
        digits('devices: ["2x1", 1]'),
        ("experiments.digits.devices[0] is '2x1'", "2 nodes that have 4 each", "Use 2;"),
        id="2 nodes x 1",
        marks=refuses("topology: 2 nodes x 1"),
    ),
    pytest.param(
        digits("devices: [1, 20]"),
        ("experiments.digits.devices[1] is 20", "4 nodes of 4 devices", "Use at most 16."),
        id="more devices than the site has",
        marks=refuses("topology: more than the partition has"),
    ),
    pytest.param(
        digits('devices: [1, "5x4"]'),
        ("experiments.digits.devices[1] is '5x4'", "4 nodes", "Use at most 4 before the x."),
        id="more nodes than the site has",
        marks=refuses("topology: more than the partition has"),
    ),
    pytest.param(
        digits('devices: [1, "1x8"]'),
        ("experiments.digits.devices[1] is '1x8'", "has 4 devices", "Use at most 4 after the x."),
        id="more devices than a node has",
    ),
    pytest.param(
        digits("devices: [1, 4]", "cpus_per_device: 3"),
        ("experiments.digits.cpus_per_device (3)", "takes 12 CPUs", "a node has 8", "Use at most 2,"),
        id="CPUs over the node",
        marks=refuses("topology: cpus over the node"),
    ),
    pytest.param(
        digits("devices: [1, 2, 2]"),
        ("experiments.digits.devices[2] is 2", "the same 1x2 as 2", "Keep one of the two."),
        id="repeated device count",
        marks=refuses("topology: repeated devices"),
    ),
    pytest.param(
        digits('devices: [1, 4, "1x4"]'),
        ("experiments.digits.devices[2] is '1x4'", "the same 1x4 as 4", "Keep one of the two."),
        id="repeated shape",
        marks=refuses("topology: repeated devices"),
    ),
    pytest.param(
        digits("devices: []"),
        ("experiments.digits.devices is an empty list", "Give at least one value."),
        id="empty device list",
        marks=refuses("topology: empty devices"),
    ),
    pytest.param(
        digits('devices: ["00x2"]'),
        ("experiments.digits.devices[0] is '00x2'", 'Write 4 or "2x2".'),
        id="0 nodes",
    ),
]

TYPES_AND_KEYS = [
    pytest.param(
        digits('epochs: "4"'),
        ("experiments.digits.epochs is '4'", "not a whole number", "Write 4 without quotes."),
        id="text for a number",
        marks=refuses("types: quoted number"),
    ),
    pytest.param(
        digits('devices: [1, "4"]'),
        ("experiments.digits.devices[1] is '4'", "Write 4 without quotes."),
        id="text for a device count",
        marks=refuses("types: quoted number"),
    ),
    pytest.param(
        digits("devices: [1, [2, '2|4']]"),
        ("experiments.digits.devices[1] is [2, '2|4']", "not a number of devices", "Write 4,"),
        id="a list for a device count",
    ),
    pytest.param(
        digits("epochs: 1.5"),
        ("experiments.digits.epochs is 1.5", "not a whole number", "Write 1 or 2."),
        id="1.5 epochs",
        marks=refuses("types: 1.5 epochs"),
    ),
    pytest.param(
        digits("learning_rate: 1e-3"),
        ("experiments.digits.learning_rate is 1e-3", "takes for text", "Write 1.0e-3."),
        id="1e-3 read as text",
        marks=refuses("types: 1e-3 as a string"),
    ),
    pytest.param(
        digits("gradient_as_bucket_view: yes"),
        ("experiments.digits.gradient_as_bucket_view is yes", "Write true, or"),
        id="yes for true",
        marks=refuses("types: yes for true"),
    ),
    pytest.param(
        digits("gradient_as_bucket_view: on"),
        ("experiments.digits.gradient_as_bucket_view is on", "Write true, or"),
        id="on for true",
        marks=refuses("types: yes for true"),
    ),
    pytest.param(
        digits("gradient_as_bucket_view: Off"),
        ("experiments.digits.gradient_as_bucket_view is Off", "Write false, or"),
        id="Off for false",
        marks=refuses("types: yes for true"),
    ),
    pytest.param(
        digits("epochs: null"),
        ("experiments.digits.epochs has no value", "Give it one, or leave the key out"),
        id="null",
        marks=refuses("types: null"),
    ),
    pytest.param(
        digits("epochs:"),
        ("experiments.digits.epochs has no value", "Give it one, or leave the key out"),
        id="no value",
        marks=refuses("types: null"),
    ),
    pytest.param(
        digits("sweep: {bucket_cap_mb: [null, 50]}"),
        (
            "sweep.bucket_cap_mb[0] has no value",
            "Write default for what bucket_cap_mb is when it is left out",
        ),
        id="null in a sweep",
        marks=refuses("types: null"),
    ),
    pytest.param(
        digits("epoch: 4"),
        ("experiments.digits.epoch is not a known key", "Did you mean 'epochs'?"),
        id="misspelt key",
        marks=refuses("types: unknown key"),
    ),
    pytest.param(
        digits("epochs: 4", "epochs: 5"),
        ("experiments.digits.epochs is written twice, in lines 8 and 9", "Keep one of the two"),
        id="duplicate key",
        marks=refuses("types: duplicate keys"),
    ),
    pytest.param(
        f"experiments:\n  digits:\n\tepochs: 4  {HERE}\n",
        ("tab in its indentation", "Indent with spaces."),
        id="tab",
        marks=refuses("types: tabs"),
    ),
    pytest.param(
        f"- digits  {HERE}\n- mnist\n",
        ("is not a mapping of keys to values at its top", "Begin with `experiments:`"),
        id="a list for the file",
        marks=refuses("types: not a mapping"),
    ),
    pytest.param(
        f"experiments: [digits]  {HERE}\n",
        ("experiments is a list", "Give each experiment a name, such as `my-training:`"),
        id="a list for the experiments",
        marks=refuses("types: not a mapping"),
    ),
    pytest.param(
        f"{COMMON}  digits: 4  {HERE}\n",
        ("experiments.digits is 4", "not a mapping of keys to values", "Indent its keys on the lines below"),
        id="a number for an experiment",
        marks=refuses("types: not a mapping"),
    ),
    pytest.param(
        digits("model: vgg16"),
        ("experiments.digits.model is 'vgg16'", "not known", "Known: digits_cnn, ", "transformer-25M"),
        id="unknown model",
        marks=refuses("types: unknown model"),
    ),
    pytest.param(
        digits("model: digit_cnn"),
        ("experiments.digits.model is 'digit_cnn'", "not known", "Did you mean 'digits_cnn'?"),
        id="misspelt model",
        marks=refuses("types: unknown model"),
    ),
    pytest.param(
        digits("model: wrn-27-10"),
        ("experiments.digits.model is 'wrn-27-10'", "6n + 4", "Use wrn-22-10 or wrn-28-10."),
        id="a depth that no wide ResNet has",
    ),
    pytest.param(
        digits("model: my_model.py:build"),
        (
            "experiments.digits.model is 'my_model.py:build', a path",
            "Train your own model with a program (`program:`)",
        ),
        id="a model of one's own",
    ),
    pytest.param(
        digits("sweep: {model: [linear, digit_cnn]}"),
        ("experiments.digits.sweep.model is 'digit_cnn'", "not known", "Did you mean 'digits_cnn'?"),
        id="misspelt model in a sweep",
        marks=refuses("types: unknown model"),
    ),
    pytest.param(
        digits("dataset: imagenet"),
        (
            "experiments.digits.dataset is 'imagenet'",
            "not known",
            "Known: cifar10, cifar100, digits, mnist, synthetic-3x32x32.",
        ),
        id="unknown dataset",
        marks=refuses("types: unknown dataset"),
    ),
    pytest.param(
        digits("dataset: digit"),
        ("experiments.digits.dataset is 'digit'", "not known", "Did you mean 'digits'?"),
        id="misspelt dataset",
        marks=refuses("types: unknown dataset"),
    ),
    pytest.param(
        digits("learning_rate: .nan"),
        ("experiments.digits.learning_rate is nan", "not a finite number", "Write a number."),
        id="NaN learning rate",
        marks=refuses("types: nan learning rate"),
    ),
    pytest.param(
        digits("learning_rate: .inf"),
        ("experiments.digits.learning_rate is inf", "not a finite number", "Write a number."),
        id="infinite learning rate",
        marks=refuses("types: infinite learning rate"),
    ),
    pytest.param(
        digits("learning_rate: -0.1"),
        ("experiments.digits.learning_rate is -0.1", "must be more than 0", "Use more than 0."),
        id="negative learning rate",
        marks=refuses("types: negative learning rate"),
    ),
]

BATCH = [
    pytest.param(
        digits("devices: [1, 4]", "global_batch_size: 250"),
        ("experiments.digits.global_batch_size (250)", "the world size (4)", "Use 248 or 252."),
        id="not divisible",
        marks=refuses("batch: not divisible"),
    ),
    pytest.param(
        digits("devices: [1]", "global_batch_size: 2000"),
        ("experiments.digits.global_batch_size (2000)", "1437 training samples", "Use a smaller batch"),
        id="global batch over the dataset",
        marks=refuses("batch: over the dataset"),
    ),
    pytest.param(
        digits("scaling: weak", "batch_size_per_device: 800"),
        ("batch_size_per_device (800)", "1600 on 2 devices", "1437 training samples", "Use a smaller batch"),
        id="batches per device over the dataset",
        marks=refuses("batch: over the dataset"),
    ),
    pytest.param(
        digits("devices: [1, 4]", "global_batch_size: 4"),
        ("experiments.digits.global_batch_size (4)", "1 sample per device", "Use at least 2 per device."),
        id="strong scaling down to 1 sample with batch norm",
        marks=refuses("batch: 1 with batch norm"),
    ),
    pytest.param(
        digits("devices: [1]", "scaling: weak", "batch_size_per_device: 1"),
        ("experiments.digits.batch_size_per_device (1)", "digits_cnn normalises", "Use at least 2"),
        id="1 sample per device with batch norm",
        marks=refuses("batch: 1 with batch norm"),
    ),
    pytest.param(
        digits("devices: [1, 4]", "accumulation_steps: 3", "global_batch_size: 250"),
        (
            "experiments.digits.global_batch_size (250) is not divisible by 3",
            "the world size (1) times accumulation_steps (3)",
            "Use 240 or 252.",
        ),
        id="not divisible by the passes of all devices",
        marks=refuses("batch: not divisible"),
    ),
    pytest.param(
        digits("devices: [4]", "accumulation_steps: 3", "global_batch_size: 6"),
        ("(6) is not divisible by 12: the world size (4) times accumulation_steps (3)", "Use 12."),
        id="under one sample a pass",
    ),
    pytest.param(
        digits("devices: [4]", "accumulation_steps: 3", "scaling: weak", "batch_size_per_device: 120"),
        (
            "batch_size_per_device (120) makes a global batch of 1440 on 4 devices over 3 micro-batches",
            "1437 training samples",
        ),
        id="accumulated batches over the dataset",
        marks=refuses("batch: over the dataset"),
    ),
    pytest.param(
        digits("devices: [1, 4]", "accumulation_steps: 4", "global_batch_size: 16"),
        (
            "(16) leaves 1 sample per device and micro-batch on 4 devices, and digits_cnn normalises",
            "Use at least 2 per device and micro-batch.",
        ),
        id="passes of 1 sample with batch norm",
        marks=refuses("batch: 1 with batch norm"),
    ),
    pytest.param(
        digits("devices: [1]", "epochs: 1", "warmup_steps: 6"),
        ("experiments.digits.warmup_steps (6)", "the 6 steps of the whole run", "Use fewer warm-up steps"),
        id="warm-up as long as the run",
        marks=refuses("batch: warm-up not shorter"),
    ),
    pytest.param(
        # 3 steps of 476 leave 9 samples, under 2 for each of the 7 passes
        digits(
            "devices: [1]", "global_batch_size: 476", "accumulation_steps: 7", "epochs: 1", "warmup_steps: 3"
        ),
        ("experiments.digits.warmup_steps (3)", "the 3 steps of the whole run", "Use fewer warm-up steps"),
        id="warm-up as long as a run of accumulated steps",
        marks=refuses("batch: warm-up not shorter"),
    ),
]

NAMES_AND_PATHS = [
    pytest.param(
        f"{COMMON}  Sound: {{}}\n  Sound: {{epochs: 5}}  {HERE}\n",
        ("experiments.Sound is written twice, in lines 7 and 8", "Keep one of the two"),
        id="duplicate",
        marks=refuses("names: duplicates"),
    ),
    pytest.param(
        named("SOUND"),
        ("experiments.SOUND differs from Sound only by case", "Rename one of the two."),
        id="duplicate by case",
        marks=refuses("names: duplicates by case"),
    ),
    pytest.param(
        named("partial"),
        (
            "experiments.partial has the name of the folder results/partial",
            "Rename it, such as partial-study.",
        ),
        id="folder of the partial report",
    ),
    pytest.param(
        named("PreFlight"),
        ("experiments.PreFlight has the name of the folder results/preflight", "such as PreFlight-study."),
        id="folder of the preflight",
    ),
    pytest.param(
        named('"../x"'), ("'../x'", plain_name("x")), id="folder above", marks=refuses("names: ../x")
    ),
    pytest.param(named('"a b"'), ("'a b'", plain_name("a-b")), id="space", marks=refuses("names: spaces")),
    pytest.param(
        named('"a;b"'), ("'a;b'", plain_name("a-b")), id="semicolon", marks=refuses("names: semicolon")
    ),
    pytest.param(
        named('"$(x)"'), ("'$(x)'", plain_name("x")), id="command substitution", marks=refuses("names: $()")
    ),
    pytest.param(
        named('"a\\nb"'), (r"'a\nb'", plain_name("a-b")), id="newline", marks=refuses("names: newline")
    ),
    pytest.param(
        named('"a\\n"'), (r"'a\n'", plain_name("a")), id="newline at the end", marks=refuses("names: newline")
    ),
    pytest.param(
        named('"a\'b"'), ('"a\'b"', plain_name("a-b")), id="single quote", marks=refuses("names: quotes")
    ),
    pytest.param(
        named("'a\"b'"), ("'a\"b'", plain_name("a-b")), id="double quote", marks=refuses("names: quotes")
    ),
    pytest.param(named('""'), ("an empty name", "Name it."), id="empty", marks=refuses("names: empty")),
    pytest.param(
        named('"-a"'), ("'-a'", plain_name("a")), id="leading hyphen", marks=refuses("names: leading dash")
    ),
    pytest.param(named('"a/b"'), ("'a/b'", plain_name("a-b")), id="slash", marks=refuses("names: slash")),
    pytest.param(
        named('"{run}"'), ("'{run}'", plain_name("run")), id="braces", marks=refuses("names: braces")
    ),
    pytest.param(
        named("a" * 256),
        ("a name of 256 characters", "at most 100", "Shorten it, and put the words into title."),
        id="experiment name over 255 bytes",
        marks=refuses("names: over 255 bytes"),
    ),
    pytest.param(
        digits(MANY_OPTIONS),
        ("experiments.digits.sweep makes run names of", "take 255", "Sweep fewer keys, or shorter values."),
        id="run name over 255 bytes",
        marks=refuses("names: over 255 bytes"),
    ),
    pytest.param(
        digits("dataset: data/mine.safetensors"),
        (
            "experiments.digits.dataset is 'data/mine.safetensors', a path",
            "Train on your own data with a program (`program:`), as docs/own-training.md shows.",
        ),
        id="data of the user's",
    ),
]


@pytest.mark.parametrize(("text", "says"), [*TOPOLOGY, *TYPES_AND_KEYS, *BATCH, *NAMES_AND_PATHS])
def test_a_refused_input_names_its_line_its_value_and_its_cure(
    text: str,
    says: tuple[str, ...],
    refuse: Refuse,
    study_file: Path,
    record_property: Callable[[str, object], None],
) -> None:
    lines = refuse(text)
    record_property("message", lines[0].replace(f"{study_file.parent}/", ""))

    assert_refused(text, says, lines, study_file)


@pytest.mark.refuses("topology: no 1-device run")
def test_without_one_device_the_user_is_warned_and_not_stopped(load: Load) -> None:
    study = load(digits("devices: [2, 4]"))

    assert [run.shape.world_size for run in study.runs.values()] == [2, 2, 2, 4, 4, 4]
    assert study.warnings == [
        "experiments.digits.devices has no 1-device run: speedups will be relative to 2 devices. "
        "Add 1 for a baseline."
    ]


@pytest.mark.refuses("topology: no 1-device run")
def test_a_series_that_loses_its_baseline_by_exclude_is_warned_of(load: Load) -> None:
    study = load(
        digits(
            "sweep: {gradient_as_bucket_view: [false, true]}",
            "exclude: [{devices: 1, gradient_as_bucket_view: true}]",
        )
    )

    assert len(study.warnings) == 1
    assert "no 1-device run" in study.warnings[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("experiments: [digits\n", "the missing comma or ]"),
        ("a: b: c\n", "Put the text in quotes"),
        ("a: b\n c\nd\n", "is not valid YAML"),
    ],
)
def test_a_file_that_holds_no_yaml_is_refused_with_its_line(
    text: str, says: str, refuse: Refuse, study_file: Path
) -> None:
    (line,) = refuse(text)

    assert line.startswith(f"{study_file}:")
    assert says in line


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as refused:
        check_spelling(tmp_path / "none.yaml")

    assert refused.value.lines == [
        f"{tmp_path}/none.yaml:1: cannot be read (No such file or directory). Name a readable file."
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param(f"{COMMON}  digits: {{}}\n3: 4  {HERE}\n", "3", id="at the top"),
        pytest.param(f"{COMMON}  Sound: {{}}\n  no: {{}}  {HERE}\n", "no", id="for an experiment"),
        pytest.param(digits("yes: 4"), "yes", id="inside an experiment"),
    ],
)
def test_a_key_that_yaml_does_not_read_as_text_is_refused_as_it_was_typed(
    text: str, key: str, refuse: Refuse, study_file: Path
) -> None:
    (line,) = refuse(text)

    marked = next(number for number, source in enumerate(text.splitlines(), 1) if HERE in source)
    assert line.startswith(f"{study_file}:{marked}: ")
    assert key in line.removeprefix(f"{study_file}:{marked}: ").replace("'", " ").replace(".", " ").split()


# Imports first, then gives up root where there is one: permissions do not bind it.
CHECK_AS_ANOTHER_USER = """\
import os, sys
from pathlib import Path
from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import check_results_folder
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    check_results_folder(Path("results"))
except StudyError as error:
    sys.exit(error.lines[0])
"""


def check_results_as_another_user(folder: Path) -> str:
    """What stops a user who does not own the folder; empty where nothing does."""
    scripts = Path(__file__).parents[3] / "workflow" / "scripts"
    ended = subprocess.run(
        [sys.executable, "-c", CHECK_AS_ANOTHER_USER],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(scripts)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == bool(ended.stderr), ended.stderr
    return ended.stderr.strip()


@pytest.mark.parametrize("existing", ["results", "."])
@pytest.mark.refuses("names: output folder unwritable")
def test_an_unwritable_results_folder_is_refused(
    existing: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = tmp_path / existing
    folder.mkdir(exist_ok=True)
    tmp_path.chmod(0o755)
    folder.chmod(0o555)
    try:
        refusal = check_results_as_another_user(tmp_path)
    finally:
        folder.chmod(0o755)

    assert refusal == f"{folder}: cannot be written to. Change its permissions, or run elsewhere."
    record_property("message", refusal.replace(f"{folder}", existing))


def test_a_writable_results_folder_passes(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    assert check_results_as_another_user(tmp_path) == ""


def test_a_file_in_place_of_the_results_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")

    with pytest.raises(StudyError, match=r"is a file, but results go there\. Rename it\."):
        check_results_folder(tmp_path / "results" / "digits")
