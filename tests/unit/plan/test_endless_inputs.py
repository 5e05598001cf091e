"""Files that YAML cannot make values of, and values beyond all measure: found at once, and named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.unit.plan.conftest import Refuse

from scalewise.plan.config.errors import StudyError, one_line
from scalewise.plan.study import check_spelling, load_study

COMMON = "defaults: {dataset: digits, model: linear, global_batch_size: 240, devices: [1, 2]}\nexperiments:\n"
HERE = "  # the mistake"


def experiment(line: str) -> str:
    """A study whose third line is the mistake."""
    return f"{COMMON}  digits: {{{line}}}{HERE}\n"


UNREADABLE = [
    pytest.param(f"experiments: {'[' * 5000}\n", "is nested hundreds of levels deep", id="deep nesting"),
    pytest.param(experiment("? [a] : 4"), "a list or mapping for a key", id="list for a key"),
    pytest.param(
        experiment("epochs: 2001-99-99"), "is '2001-99-99', which YAML cannot read as timestamp", id="date"
    ),
    pytest.param(
        experiment("epochs: !!int four"), "is 'four', which YAML cannot read as int", id="no number"
    ),
    pytest.param(experiment("epochs: " + "9" * 5000), "YAML cannot read as int", id="number without end"),
    pytest.param(experiment("title: !mine {a: b}"), "a constructor for the tag '!mine'.", id="tag"),
    pytest.param(
        experiment("title: !!python/object/apply:os.mkdir [sprung]"),
        "a constructor for the tag 'tag:yaml.org",
        id="program",
    ),
    pytest.param(experiment("title: ="), "is '=', which YAML cannot read as value", id="equals sign"),
    pytest.param(experiment("<<: 3"), "expected a mapping", id="merge of a number"),
    pytest.param(experiment('title: "\\U00110000"'), "is not valid YAML: chr()", id="no character"),
    pytest.param("experiments: {a: \0}\n", "holds the character U+0000", id="NUL"),
]


@pytest.mark.parametrize(("text", "says"), UNREADABLE)
def test_a_file_that_makes_no_values_is_refused_before_snakemake_reads_it(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError) as refused:
        check_spelling(path)
    line = refused.value.lines[0]
    assert line.startswith(f"{path}:")
    assert says in line
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(("text", "says"), UNREADABLE)
def test_a_site_file_that_makes_no_values_is_refused(text: str, says: str, study_file: Path) -> None:
    site = study_file.with_name("other.yaml")
    site.write_text(text.replace("experiments", "accelerator"), encoding="utf-8")
    with pytest.raises(StudyError) as refused:
        load_study(yaml.safe_load(f"{COMMON}  digits: {{}}\n"), (), site)
    assert any(line.startswith(f"{site}:") and says in line for line in refused.value.lines)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param(
            "epochs: 9223372036854775808",
            "experiments.digits.epochs is 9223372036854775808, a whole number beyond 9223372036854775807. "
            "Write a smaller number.",
            id="beyond 64 bits",
        ),
        pytest.param(
            f"epochs: 0x{'f' * 9000}", "is a number of more than 4,300 digits, a whole", id="without end"
        ),
        pytest.param(r'"a\nb": 4', r"experiments.digits.a\nb is not a known key", id="line break in a key"),
        pytest.param(
            r'epochs: "\u2028\e[2J"', r"epochs is '\u2028\x1b[2J', not a whole number", id="escapes"
        ),
        pytest.param("memory_gb: 1.0e+308", "memory_gb is 1e+308, but must be at most", id="memory"),
        pytest.param(f'devices: ["{"1" * 5000}x4"]', 'Write 4 or "2x2".', id="nodes without end"),
        pytest.param(
            "dataset: synthetic-٣x٣x٣", "which does not contain a shape", id="digits of another script"
        ),
        pytest.param("model: transformer-٣M", "a transformer is named by its number", id="and of a model"),
        pytest.param(
            "dataset: synthetic-1x1x1-2classes-50000000000samples, global_batch_size: 2",
            "makes 25,000,000,000 steps of an epoch of synthetic-1x1x1-2classes-50000000000samples. Use a",
            id="steps without end",
        ),
        pytest.param(
            "global_batch_size: 4000000000000000000, project: {devices: [3]}",
            "digits has 1437 training samples",
            id="batch without end",
        ),
        pytest.param(
            f"sweep: {{seed: {list(range(200))}, epochs: {list(range(1, 101))}}}",
            "experiments.digits.sweep makes 120,000 runs: 20,000 series on 2 device counts, 3 repeats; at "
            "most 100,000 are planned. Sweep fewer values together, or write several experiments.",
            id="runs without end",
        ),
        pytest.param(
            "seed: 2147483647, repeats: 3",
            "experiments.digits.seed (2147483647) makes 2147483649 of the last of 3 repeats, over "
            "2147483647. Use at most 2147483645.",
            id="seed that the last repeat does not have",
        ),
    ],
)
def test_a_value_beyond_all_measure_is_named_with_its_cure(
    line: str, says: str, refuse: Refuse, study_file: Path
) -> None:
    lines = refuse(experiment(line))

    assert len(lines) == 1
    assert lines[0].startswith(f"{study_file}:3: ")
    assert says in lines[0]
    assert one_line(lines[0]) == lines[0]
    assert len(lines[0]) < 4000


def test_a_value_beyond_all_measure_is_named_without_a_file_too(site_file: Path) -> None:
    """As ``--config`` on the command line gives it."""
    config = yaml.safe_load(f"{COMMON}  digits: {{}}\n")
    config["experiments"]["digits"]["epochs"] = 2**63
    with pytest.raises(
        StudyError, match=r"config: experiments\.digits\.epochs is 9223372036854775808, a whole"
    ):
        load_study(config, (), site_file)


def test_a_site_whose_memory_is_beyond_all_measure_is_refused(study_file: Path) -> None:
    site = study_file.with_name("other.yaml")
    site.write_text("accelerator: cpu\nmemory_gb_per_node: 1.0e+308\n", encoding="utf-8")
    with pytest.raises(
        StudyError, match=r"other\.yaml:2: memory_gb_per_node is 1e\+308, but must be at most"
    ):
        load_study(yaml.safe_load(f"{COMMON}  digits: {{}}\n"), (), site)


def test_device_counts_whose_common_batch_is_over_the_data_get_advice_that_helps(refuse: Refuse) -> None:
    data = "dataset: synthetic-1x6x6-2classes-100samples"
    (line,) = refuse(experiment(f'{data}, devices: ["3x3", 16], global_batch_size: 90'))
    assert line.endswith(
        "Use fewer device counts: the smallest batch that all of these divide exceeds the dataset."
    )
    (line,) = refuse(experiment(f"{data}, devices: [3, 4], global_batch_size: 90"))
    assert line.endswith("Use 84 or 96.")
