"""Planning ends in a plan that fits or in messages with file and line, for any study and site."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.reliability.thoroughness import times
from tests.unit.plan.conftest import sbatch_line
from tests.unit.plan.fuzzed_studies import SITES, STUDIES, damaged, damaged_text, spelled
from tests.unit.plan.refusals import StudyFolder
from tests.workflow.workplace import filled_in

from scalewise.config.errors import StudyError
from scalewise.config.slurm import MANAGED_BY_SBATCH
from scalewise.plan.launch import build_launch
from scalewise.plan.plan_table import plan_lines
from scalewise.plan.planned_study import Study, make_plan
from scalewise.plan.runs.allocation import sbatch_options
from scalewise.plan.runs.run_definition import RunDefinition

pytestmark = pytest.mark.slow

QUOTED = re.compile(r"'[^']*'(?:\"'\"'[^']*')*")
SAFE = re.compile(r"[A-Za-z0-9@%+=:,./_ -]*")
"""What ``shlex.quote`` leaves as it is, and the spaces between words."""


def check_refusal(error: StudyError, folder: StudyFolder) -> None:
    """Every line is one line: file and line, and what is wrong."""
    assert error.lines
    for line in error.lines:
        assert re.match(rf"({folder.study_file}|{folder.site_file}):\d+: .", line), line
        assert len(line) < 4000, f"{len(line)} characters: {line[:200]}"
        assert not [char for char in line if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}], line


def check_plan(study: Study) -> None:
    """Names are folders, and every run requests tasks equal to its devices, and no more than the site has."""
    "".join(plan_lines(study, Path("results"), {})).encode()
    plan = make_plan(study)
    json.dumps(plan)
    names = [f"{run.experiment}/{run.run}" for run in study.runs.values()]
    assert len({name.lower() for name in names}) == len(names), "two runs share a folder"
    sites = {(part.name, run.run): part.site for part in study.parts for run in part.runs}
    for key, run in study.runs.items():
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{,254}", run.run)
        assert RunDefinition.model_validate_json(run.as_json()) == run
        site, shape = sites[key], run.shape
        cpus = run.settings.cpus_per_device
        assert shape.nodes <= site.max_nodes
        assert shape.devices_per_node <= site.devices_per_node
        assert shape.devices_per_node * cpus <= site.cpus_per_node
        if site.slurm is None:
            continue
        resources = plan["runs"][key[0]][key[1]]["resources"]
        requested = options_of(sbatch_options(resources))
        tasks = (requested["--nodes"], requested["--ntasks-per-node"], requested["--cpus-per-task"])
        assert tasks == (str(shape.nodes), str(shape.devices_per_node), str(cpus))
        gpus = requested.get("--gres", requested.get("--gpus-per-node", f"none:{shape.devices_per_node}"))
        assert gpus.rpartition(":")[2] == str(shape.devices_per_node)
        facts = site.facts.model_copy(update={"prelude": [], "container": None, "python": "PROGRAM"})
        argv = build_launch(run, site.model_copy(update={"facts": facts}), ("rank.py",), ()).argv
        step = options_of(argv[: argv.index("PROGRAM")])
        # torchrun and spawn start one process a node, which starts the others
        ranks = shape.world_size if run.launcher == "srun" else shape.nodes
        assert (step["--nodes"], step["--ntasks"]) == (str(shape.nodes), str(ranks))
        line = sbatch_line(resources, comment=f"rule_train_{run.experiment}_{run.run}")
        assert SAFE.fullmatch(QUOTED.sub("", line)), line


def options_of(words: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Return ``--name=value`` by name; of those that follow from the run, none is written twice."""
    named = [word.partition("=")[::2] for word in words if word.startswith("--")]
    names = Counter(name for name, _ in named)
    assert not [name for name in names if names[name] > 1 and name[2:] in MANAGED_BY_SBATCH]
    return dict(named)


SOUND_STUDIES = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in STUDIES]
SOUND_SITES = [yaml.safe_load(filled_in(path)) for path in SITES]
STUDY_TEXTS = [path.read_bytes() for path in STUDIES]
SITE_TEXTS = [filled_in(path).encode() for path in SITES]
DAMAGED: dict[str, tuple[SearchStrategy[object], SearchStrategy[object]]] = {
    "shipped configurations with other keys and values": (
        st.sampled_from(SOUND_STUDIES).flatmap(lambda study: st.just(study) | damaged(study)),
        st.sampled_from(SOUND_SITES).flatmap(lambda site: st.just(site) | damaged(site)),
    ),
    "shipped files with damaged text": (
        st.sampled_from(STUDY_TEXTS).flatmap(lambda study: st.just(study) | damaged_text(study)),
        st.sampled_from(SITE_TEXTS).flatmap(lambda site: st.just(site) | damaged_text(site)),
    ),
}


@pytest.mark.refuses("security: shell in the study", "security: shell in the site")
@pytest.mark.parametrize("what", DAMAGED)
def test_sound_configurations_with_damage_are_planned_or_refused_with_their_place(
    what: str, study_folder: StudyFolder, record_property: Callable[[str, object], None]
) -> None:
    ends: Counter[str] = Counter()

    @settings(
        max_examples=times(50, 2000),
        derandomize=times(True, False),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(*DAMAGED[what])
    def look(study: object, site: object) -> None:
        for path, content in ((study_folder.study_file, study), (study_folder.site_file, site)):
            path.write_bytes(content if isinstance(content, bytes) else spelled(content).encode())
        try:
            planned = study_folder.load()
        except StudyError as error:
            ends["refused"] += 1
            check_refusal(error, study_folder)
        else:
            ends["planned"] += 1
            check_plan(planned)

    look()
    assert ends.keys() == {"planned", "refused"}
    record_property(
        "figure", f"{ends.total():,} {what}: {ends['planned']:,} planned, {ends['refused']:,} refused"
    )
