"""Studies and sites as a user writes them, and a folder in which they are planned."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from scalewise.config.errors import StudyError
from scalewise.config.yaml_source import read_source
from scalewise.plan.planned_study import Study
from scalewise.plan.study import load_study

HERE = "# the mistake"

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
    "partitions: {a100: {max_nodes: 2, memory_gb_per_node: 250}, h200: {max_nodes: 4, cpus_per_node: 96}}\n",
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
    "ours.md.j2": "{{ title }}\n",
}
"""What lies in the folder that Snakemake runs in: a script, a module, and much that is neither."""


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


class StudyFolder:
    """The folder in which studies are planned.

    Args:
        folder: Gets FILES; tests make it the working directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
        read_source(self.study_file)
        # what Snakemake reads it with
        config = yaml.load(self.study_file.read_text(encoding="utf-8"), Loader=yaml.FullLoader)
        return load_study(config, [self.study_file], self.site_file)

    def refuse(self, study: str, site: str = CPUS) -> list[str]:
        """Return the lines of the error that a configuration ends in."""
        with pytest.raises(StudyError) as refused:
            self.plan(study, site)
        return refused.value.lines
