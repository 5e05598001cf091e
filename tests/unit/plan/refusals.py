"""Configurations that refusals.yaml lists, and a folder in which each of them is tried.

A case has a name, the mistake, and `names`: the key and the value, in the order of the message. The mistake
is in the last line of the study if it has lines, else of the site; `# the mistake` marks another line, and
`at` names one. With `ends: warned` it is planned with one warning, with `ends: planned` without any. What is
given:

- experiment: the lines of one experiment of the built-in training, below DEFAULTS
- program: the lines of one experiment of a program; they replace those of PROGRAM, and `without` removes some
- experiments: all below `experiments:` and the same defaults; study: a whole file
- machine: of MACHINES, one or more; site: lines that replace its lines or follow them; slurm: lines below
  `slurm:`

`each` makes a case of every value that it lists, as it is typed, in place of VALUE; `<9 x 5000>` is 9 written
5,000 times. `planned` has what is changed for a configuration that is planned. `refuses` is a key of
tests/reliability/catalogue.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from scalewise.config.errors import StudyError
from scalewise.plan.planned_study import Study
from scalewise.plan.study import check_spelling, load_study

FILE = Path(__file__).with_name("refusals.yaml")
HERE = "# the mistake"
KEYS = {
    *("name", "each", "experiment", "program", "without", "experiments", "study", "machine", "site", "slurm"),
    *("at", "names", "refuses", "planned", "ends"),
}

DEFAULTS = """\
defaults:
  dataset: digits
  model: digits_cnn
  global_batch_size: 240
  devices: [1, 2]
"""
PROGRAM = """\
program: train.py
arguments: ["--batch-size", "{batch_size_per_device}", "--out", "{folder}"]
scaling: weak
batch_size_per_device: 16
devices: [1, 2]
steps: 200
"""
CPUS = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\nmax_nodes: 4\n"
MACHINES = {
    "cpus": CPUS,
    "gpus": CPUS.replace("cpu\n", "cuda\n", 1),
    "cluster": "accelerator: cuda\ndevices_per_node: 4\ncpus_per_node: 64\nmax_nodes: 2\nslurm: {}\n",
    "partitions": "accelerator: cuda\ndevices_per_node: 4\ncpus_per_node: 64\nslurm: {}\n"
    "partitions: {a100: {max_nodes: 2, memory_gb_per_node: 250}, h200: {max_nodes: 4, cpus_per_node: 96}}\n"
    "default_partition: a100\n",
    "slices": "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\n"
    "partitions: {one: {}, other: {max_nodes: 2}}\ndefault_partition: one\n",
    "blank": "",
}
FILES = {
    "train.py": "import helper\n",
    "writes.py": "import torch\ntorch.save({}, 'x.pt')\n",
    "imports_writes.py": "import writes\n",
    "helper.py": "",
    "broken.py": "import torch\n\ndef main(:\n    pass\n",
    "run.sh": "#!/bin/bash\necho hello\n",
    "nul": "\0",
    "package/__init__.py": "",
    "package/train.py": "",
    "config/model.yaml": "",
    "folder.md.j2/note": "",
    "ours.md.j2": "{{ title }}\n",
    "broken.md.j2": "\n{{ title }\n",
}
"""What lies in the folder that Snakemake runs in: a script, a module, and much that is neither."""


@dataclass(frozen=True)
class Refusal:
    """A configuration and what becomes of it.

    Attributes:
        group: The part of refusals.yaml.
        name: Unique with the site.
        study: Text of the study's file.
        site: Text of the site's file.
        place: File and line of the mistake.
        names: Key and value of the mistake.
        refuses: The input of the catalogue of reliability that it is.
        planned: Study and site that differ in the mistake only.
        ends: "refused", "warned" or "planned".
    """

    group: str
    name: str
    study: str
    site: str
    place: str
    names: tuple[str, ...]
    refuses: str | None
    planned: tuple[str, str] | None
    ends: str

    @property
    def text(self) -> str:
        texts = {**FILES, "study.yaml": self.study, "site.yaml": self.site}
        return texts[self.place.partition(":")[0]]

    @property
    def mistake(self) -> str:
        """The line that is named."""
        lines, number = self.text.splitlines(), self.place.rpartition(":")[2]
        return "".join(lines[int(number) - 1 : int(number)]).replace(HERE, "").strip()


def refusals() -> Iterator[Refusal]:
    for group, entries in yaml.safe_load(FILE.read_text(encoding="utf-8")).items():
        for entry in entries:
            assert entry.keys() <= KEYS, f"{entry.keys() - KEYS} of {entry['name']} are no keys of a case"
            for value in entry.pop("each", [""]):
                filled = {key: _filled(given, str(value)) for key, given in entry.items()}
                filled["name"] = str(entry["name"]).replace("VALUE", str(value))
                names = _filled(entry["names"], _shown(str(value))) if "names" in entry else []
                for machine in _lines(entry.get("machine")) or [""]:
                    yield _refusal(group, {**filled, "names": names, "machine": machine})


def _filled(given: Any, value: str) -> Any:
    """Put the value in place of VALUE, and write out what is repeated."""
    if isinstance(given, list):
        return [_filled(each, value) for each in given]
    if not isinstance(given, str):
        return given
    return re.sub(r"<([^<>]+) x (\d+)>", lambda it: it[1] * int(it[2]), given.replace("VALUE", value))


def _shown(typed: str) -> str:
    """Return a value as messages have it, without quotes."""
    value = yaml.safe_load(typed)
    return repr(value)[1:-1] or repr(value) if isinstance(value, str) else typed


def _refusal(group: str, entry: dict[str, Any]) -> Refusal:
    study, site = _study(entry), _site(entry)
    planned = {**entry, **entry["planned"]} if "planned" in entry else None
    name = f"{entry['name']}, on {entry['machine']}" if entry["machine"] else entry["name"]
    return Refusal(
        group,
        name,
        study,
        site,
        entry.get("at")
        or _place(study, site, in_site=not entry.keys() & {"experiment", "program", "experiments", "study"}),
        tuple(map(str, entry["names"])),
        entry.get("refuses"),
        (_study(planned), _site(planned)) if planned else None,
        entry.get("ends", "refused"),
    )


def built_in(*lines: str) -> str:
    """Write a study of the built-in training whose one experiment has these lines."""
    return f"{DEFAULTS}experiments:\n" + _experiment("digits", lines)


def of_program(*lines: str, without: str = "") -> str:
    """Write a study of a program whose one experiment has these lines in place of those of PROGRAM."""
    replaced = _keys(lines) | set(without.split())
    kept = [line for line in PROGRAM.splitlines() if not _keys([line]) & replaced]
    return "experiments:\n" + _experiment("own", [*kept, *lines])


def site_of(machine: str, *lines: str, slurm: Sequence[str] = ()) -> str:
    """Write a site: a machine with other or more lines, and with these lines below ``slurm:``."""
    lines = (*lines, "slurm:", *(f"  {line}" for line in slurm)) if slurm else lines
    kept = [line for line in MACHINES[machine].splitlines() if not _keys([line]) & _keys(lines)]
    return "".join(f"{line}\n" for line in [*kept, *lines])


def _experiment(name: str, lines: Sequence[str]) -> str:
    return f"  {name}:\n" + "".join(f"    {line}\n" for line in lines or ["{}"])


def _keys(lines: Sequence[str]) -> set[str]:
    return {line.partition(":")[0] for line in lines}


def _lines(given: Any) -> list[str]:
    """Return a list as it is, and of a text its lines."""
    if isinstance(given, list):
        return given
    return [] if given is None else str(given).split("\n")


def _study(entry: dict[str, Any]) -> str:
    if "study" in entry:
        return f"{entry['study']}\n"
    if "experiments" in entry:
        return f"{DEFAULTS}experiments:\n" + "".join(f"  {line}\n" for line in _lines(entry["experiments"]))
    if "program" in entry:
        return of_program(*_lines(entry["program"]), without=entry.get("without", ""))
    return built_in(*_lines(entry.get("experiment")))


def _site(entry: dict[str, Any]) -> str:
    usual = "cluster" if entry.keys() & {"site", "slurm"} else "cpus"
    return site_of(entry["machine"] or usual, *_lines(entry.get("site")), slurm=_lines(entry.get("slurm")))


def _place(study: str, site: str, in_site: bool) -> str:
    for file, text in (("study.yaml", study), ("site.yaml", site)):
        for number, line in enumerate(text.splitlines(), 1):
            if HERE in line:
                return f"{file}:{number}"
    return f"site.yaml:{len(site.splitlines())}" if in_site else f"study.yaml:{len(study.splitlines())}"


class StudyFolder:
    """The folder in which studies are planned.

    Args:
        folder: Gets FILES; tests make it the working directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: dict[Refusal, list[str]] = {}
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        os.mkfifo(folder / "pipe")
        for link, target in (("loop.py", "loop.py"), ("gone.py", "moved.py")):
            (folder / link).symlink_to(target)
        self.study_file, self.site_file = folder / "study.yaml", folder / "site.yaml"
        self.study_file.touch()
        self.site_file.touch()

    def plan(self, study: str, site: str = CPUS) -> Study:
        """Do what the Snakefile does with a configuration."""
        self.study_file.write_text(study, encoding="utf-8")
        self.site_file.write_text(site, encoding="utf-8")
        return self.load()

    def load(self) -> Study:
        """Do what the Snakefile does with the two files that are there."""
        check_spelling(self.study_file)
        # what Snakemake reads it with
        config = yaml.load(self.study_file.read_text(encoding="utf-8"), Loader=yaml.FullLoader)
        return load_study(config, [self.study_file], self.site_file)

    def refuse(self, study: str, site: str = CPUS) -> list[str]:
        """Return the lines of the error that a configuration ends in."""
        with pytest.raises(StudyError) as refused:
            self.plan(study, site)
        return refused.value.lines

    def messages_of(self, refusal: Refusal) -> list[str]:
        """Return what a user sees, without the path of the folder."""
        if refusal not in self.messages:
            lines: Sequence[str]
            if refusal.ends == "refused":
                lines = self.refuse(refusal.study, refusal.site)
            else:
                lines = self.plan(refusal.study, refusal.site).warnings
            plain = [line.replace(f"{self.folder}/", "") for line in lines]
            self.messages[refusal] = [line.replace(str(self.folder), "FOLDER") for line in plain]
        return self.messages[refusal]
