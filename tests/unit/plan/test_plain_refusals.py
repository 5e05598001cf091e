"""Mistakes whose first fix was wrong or empty: each message names the value as typed and a fix that works."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import COMMON, HERE, assert_refused, mistaken

from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import check_spelling, load_study

PROGRAM = "experiments:\n  own:\n    program: train.py\n    devices: [1, 2]\n    global_batch_size: 240\n"
SIZE = 'arguments: ["--batch-size", "{batch_size_per_device}"]'


def digits(line: str) -> str:
    return mistaken("digits", line)


def own(*lines: str) -> str:
    """A study of a program with these lines, of which the last is the mistake."""
    body = "".join(f"    {line}\n" for line in lines[:-1])
    return f"{PROGRAM}    steps: 100\n{body}    {lines[-1]}  {HERE}\n"


VALUES = [
    (
        digits("title: 2026-11-24"),
        'digits.title is 2026-11-24, not text. Write "2026-11-24" in quotes.',
    ),
    (digits("model: 2026-11-24"), 'model is 2026-11-24, not text. Write "2026-11-24" in quotes.'),
    (digits("title: true"), 'digits.title is true, not text. Write "true" in quotes.'),
    (digits("title: [a, b]"), "digits.title is ['a', 'b'], not text. Write one text, in quotes."),
    (digits("warmup_steps: 10.0"), "is 10.0, not a whole number. Write 10."),
    (digits("warmup_steps: 10.5"), "is 10.5, not a whole number. Write 10 or 11."),
    (
        digits("target: {accuracy: 97}"),
        "accuracy is 97, but must be at most 1. It is a fraction: 0.97 is 97 %.",
    ),
    (digits("target: {accuracy: 97%}"), "accuracy is '97%', not a number. Write a number, such as 0.1."),
    (digits("target: {accuracy: 9700}"), "accuracy is 9700, but must be at most 1. Use at most 1."),
    (
        digits("decision: {min_efficiency: 70}"),
        "is 70, but must be at most 1. It is a fraction: 0.97 is 97 %.",
    ),
    (
        digits("steps: {most: 500, until_interval: 1}"),
        "until_interval is 1, but must be at most 0.2. Use at most 0.2.",
    ),
    (digits("momentum: 1"), "is 1, but must be less than 1. Use less than 1."),
    (digits("repeats: 0"), "is 0, but must be more than 0. Use 1 or more."),
    (
        own("arguments: --bs {batch_size_per_device}"),
        'Write ["--bs", "{batch_size_per_device}"].',
    ),
    (own(SIZE, "prepare: python download.py"), 'Write ["python", "download.py"].'),
    (own('arguments: ["{batchsize}"]'), "Did you mean {batch_size_per_device} or {global_batch_size}?"),
    (
        own(SIZE, 'environment: {N: "{world_size}"}'),
        "names {world_size}, which is not known. Did you mean {devices}?",
    ),
]


@pytest.mark.parametrize(("text", "message"), VALUES, ids=[message for _, message in VALUES])
def test_the_message_names_the_value_as_typed_and_a_fix_that_works(
    text: str, message: str, refuse: Refuse, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(study_file.parent)
    Path("train.py").touch()
    assert_refused(text, (message,), refuse(text), study_file)


def test_a_link_that_leads_nowhere_is_not_recommended_for_itself(
    refuse: Refuse, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study_file.parent)
    for name, target, message in (
        ("loop.py", "loop.py", "a link that leads to itself"),
        ("gone.py", "moved.py", "a link to 'moved.py', where there is nothing"),
    ):
        Path(name).symlink_to(target)
        (line,) = refuse(f"{PROGRAM.replace('train.py', name)}    {SIZE}\n")
        assert f"program is '{name}', {message}. Give the path" in line


SYNTAX = [
    (
        digits("title: Digits: strong"),
        'has ": " in a text without quotes, or is indented deeper than the line above. Put the text in',
    ),
    (digits("title: @home"), "has a text that begins with @. Put the text in quotes."),
    (digits("title: *star"), "has the text *star, which YAML takes for an alias. Put the text in quotes."),
    (f"{COMMON}  a: {{}}\n---  {HERE}\nb: 1\n", "begins a second document with ---."),
    (f"{COMMON}  a:\n    epochs: 4\n   seed: 1  {HERE}\n", "Indent keys of one level equally."),
    (f"{COMMON}  a:\n\u00a0   epochs: 4  {HERE}\n", "has a no-break space in its indentation."),
    (
        f"{COMMON}  a:\n    devices: [1, 2\n    epochs: 4  {HERE}\n",
        "a list or mapping in line 8 without a comma or ]",
    ),
]


@pytest.mark.parametrize(("text", "message"), SYNTAX, ids=[message for _, message in SYNTAX])
def test_a_mistake_of_yaml_is_named_in_plain_words(
    text: str, message: str, refuse: Refuse, study_file: Path
) -> None:
    assert_refused(text, (message,), refuse(text), study_file)


@pytest.mark.parametrize(
    ("byte", "message"),
    [(b"\xe9", "holds a byte that is not UTF-8 (0xe9)"), (b"\x00", "holds the character U+0000")],
)
def test_a_byte_that_is_no_text_is_named_with_its_own_line(byte: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(COMMON.encode() + b"  a:\n    title: caf" + byte + b"\n    epochs: 3\n")
    with pytest.raises(StudyError) as refused:
        check_spelling(path)
    (line,) = refused.value.lines
    assert line.startswith(f"{path}:8: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "experiments:\n  - dataset: digits\n",
            "is a list. Give each experiment a name, such as `my-training:`.",
        ),
        ("experiments:\n", "is empty. Add an experiment below it."),
        ("experiments: {}\n", "is empty. Add an experiment below it."),
        ("experiments: digits\n", "is 'digits', not a mapping."),
        ("defaults: {epochs: 3}\n", "is missing. Write `experiments:` with one experiment below it;"),
        ("experiments:\n  a:\n", ".a is empty. Indent its keys below it, or write `a: {}`"),
    ],
)
def test_a_file_without_experiments_says_what_is_there_instead(
    text: str, message: str, refuse: Refuse
) -> None:
    (line,) = refuse(text)
    assert f" experiments{'' if message.startswith('.') else ' '}{message}" in line


@pytest.mark.parametrize("name", ["1", "yes", "2026-11-24", "1.5", "~"])
def test_an_experiment_whose_name_is_no_text_is_one_mistake(name: str, refuse: Refuse) -> None:
    (line,) = refuse(f"{COMMON}  {name}: {{}}\n")
    assert f"experiments.{name} is a key that YAML reads as " in line


def test_a_misspelt_experiments_is_one_mistake(refuse: Refuse) -> None:
    (line,) = refuse("Experiments:\n  a: {}\n")
    assert "Did you mean 'experiments'?" in line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model: digit_cnn", ":2: defaults.model is 'digit_cnn', which is not known"),
        ("precision: tf32", ":2: defaults.precision is 'tf32', a format of GPUs"),
    ],
)
def test_a_mistake_in_the_defaults_is_reported_once(line: str, message: str, refuse: Refuse) -> None:
    key = line.partition(":")[0]
    others = [each for each in COMMON.splitlines()[1:] if key not in each]
    (found,) = refuse("\n".join(["defaults:", f"  {line}", *others, "  a: {}", "  b: {}", "  c: {}", ""]))
    assert message in found


def test_a_mistake_in_the_defaults_names_the_experiments_that_it_concerns(refuse: Refuse) -> None:
    (line,) = refuse(f"{COMMON}  a: {{}}\n  b: {{accumulation_steps: 7}}\n  c: {{accumulation_steps: 7}}\n")
    assert ":4: defaults.global_batch_size (for b, c) (240) is not divisible by 7" in line


def test_a_mistake_in_the_defaults_of_one_experiment_stays_with_it(refuse: Refuse) -> None:
    (line,) = refuse(f"{COMMON}  a: {{}}\n  b: {{accumulation_steps: 7}}\n")
    assert ":4: experiments.b.global_batch_size (240) is not divisible by 7" in line


def test_of_very_many_mistakes_the_first_are_shown_and_the_others_counted(load: Load) -> None:
    with pytest.raises(StudyError) as refused:
        load(COMMON + "".join(f"  e{number}: {{epochs: x}}\n" for number in range(60)))
    shown = str(refused.value).splitlines()
    assert shown[0] == "60 mistakes in the configuration. Nothing was started."
    assert len(shown) == 42
    assert shown[-1] == "  - ... and 20 more"


def test_a_site_file_that_is_not_there_is_named_with_the_folder() -> None:
    with pytest.raises(StudyError, match="--config site=PATH") as refused:
        load_study({"experiments": {}}, [], "profiles/none.yaml")
    assert f"profiles/none.yaml: there is no such file in {Path.cwd()}. Give" in str(refused.value)
