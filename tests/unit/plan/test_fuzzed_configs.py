"""Planning ends in a plan that fits or in messages with a fix, for any study and site."""

from __future__ import annotations

import json
import os
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.reliability.thoroughness import times
from tests.unit.plan.conftest import sbatch_line
from tests.unit.plan.fuzzed_studies import (
    SITES,
    STUDIES,
    Config,
    damaged,
    damaged_text,
    spelled,
)
from tests.unit.plan.refusals import StudyFolder
from tests.workflow.workplace import filled_in

from scalewise.config.errors import StudyError
from scalewise.config.shape import Shape
from scalewise.config.site import Site
from scalewise.config.slurm import MANAGED_BY_SBATCH
from scalewise.plan.launch import RankLaunch, SiteLaunch, build_launch
from scalewise.plan.make_plan import make_plan
from scalewise.plan.plan_table import plan_lines
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import Allocation, sbatch_options
from scalewise.plan.runs.run_definition import RunDefinition

pytestmark = pytest.mark.slow

RecordProperty = Callable[[str, object], None]

SEED = int(os.environ.get("SCALEWISE_SEED", random.SystemRandom().getrandbits(32)))
"""Of what is drawn at night."""

QUOTED = re.compile(r"'[^']*'(?:\"'\"'[^']*')*")
SAFE = re.compile(r"[A-Za-z0-9@%+=:,./_ -]*")
"""What ``shlex.quote`` leaves as it is, and the spaces between words."""


def explored(quick: int, thorough: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As many examples as are asked for: a few, the same each time, or many others each night."""
    bounds = settings(
        max_examples=times(quick, thorough),
        derandomize=times(1, 0) == 1,
        deadline=None,
        database=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.function_scoped_fixture,
        ],
    )

    def bounded(test: Callable[..., None]) -> Callable[..., None]:
        if bounds.derandomize:
            return bounds(test)
        print(f"SCALEWISE_SEED={SEED} draws these configurations again")  # shown where a test fails
        return seed(SEED)(bounds(test))

    return bounded


class DrawnStudies(StudyFolder):
    """The folder in which drawn studies are planned, and how many of them were."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ends: Counter[str] = Counter()

    def plan_or_refuse(self, study: object, site: object) -> Study | None:
        """Plan a study, or check its refusal and return None."""
        for path, content in ((self.study_file, study), (self.site_file, site)):
            path.write_bytes(content if isinstance(content, bytes) else spelled(content).encode())
        try:
            planned = self.load()
            show(planned)
        except StudyError as error:
            self.ends["refused"] += 1
            self.check_refusal(error)
            return None
        self.ends["planned"] += 1
        return planned

    def check_refusal(self, error: StudyError) -> None:
        """Every line is one line: file and line, and what is wrong."""
        assert error.lines
        for line in error.lines:
            assert line.startswith((f"{self.study_file}:", f"{self.site_file}:")), line
            origin, _, said = line.partition(": ")
            assert origin.rpartition(":")[2].isdigit(), line
            assert said, line
            assert len(line) < 4000, f"{len(line)} characters: {line[:200]}"
            odd = [char for char in line if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}]
            assert not odd, line
        str(error).encode()

    def record(self, what: str, record_property: RecordProperty) -> None:
        """What became of them, for the table of what is survived."""
        planned, refused = self.ends["planned"], self.ends["refused"]
        assert planned, "there must be plans to look at"
        assert refused, "there must be refusals to look at"
        record_property("figure", f"{planned + refused:,} {what}: {planned:,} planned, {refused:,} refused")


def show(study: Study) -> None:
    """Write everything that a plan shows and hands on before anything runs."""
    "".join(plan_lines(study, Path("results"), {})).encode()
    for part in study.parts:
        json.loads(part.definition)
    json.dumps(make_plan(study))


@pytest.fixture
def drawn_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DrawnStudies:
    monkeypatch.chdir(tmp_path)
    return DrawnStudies(tmp_path)


def check_plan(study: Study) -> None:
    """Every run asks for as many tasks as it has devices, and for no more than the site has."""
    for name in study.experiments:
        names = [run for experiment, run in study.runs if experiment == name]
        assert len({run.lower() for run in names}) == len(names), (
            "two runs share a folder where case is ignored"
        )
        check_name(name)
    sites = {(part.name, run.run): part.site for part in study.parts for run in part.runs}
    for key, run in study.runs.items():
        site = sites[key]
        check_name(run.run)
        check_shape(run, study.allocations[key], site)
        check_command(run, study.allocations[key], site)
        check_definition(run)


def check_name(name: str) -> None:
    """A folder of that name can be made anywhere, and no command takes it for an option."""
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", name)
    assert len(name) <= 255


def check_shape(run: RunDefinition, allocation: Allocation, site: Site) -> None:
    """The allocation has a task for each device, srun starts as many, and the site has what they take."""
    devices, nodes = run.shape.world_size, run.shape.nodes
    asked_for = run.run.split(".")[0].removeprefix("d")
    assert devices == (Shape.parse(asked_for).world_size if "x" in asked_for else int(asked_for))
    per_node, cpus = run.shape.devices_per_node, run.settings.cpus_per_device
    assert nodes <= site.max_nodes
    assert per_node <= site.devices_per_node
    assert per_node * cpus <= site.cpus_per_node
    assert nodes == 1 or site.slurm is None or per_node > 1 or site.devices_per_node == 1
    if site.slurm is None:
        return
    asked = options_of(sbatch_options(allocation.resources))
    assert (asked["--nodes"], asked["--ntasks-per-node"], asked["--cpus-per-task"]) == (
        *(str(nodes), str(per_node), str(cpus)),
    )
    gpus = asked.get("--gres", asked.get("--gpus-per-node", f"none:{per_node}"))
    assert gpus.rpartition(":")[2] == str(per_node), "as many GPUs on each node as tasks"
    started = launched(run, site)
    step = options_of(started[: started.index("PROGRAM")])
    tasks = int(step["--ntasks"])
    assert int(step["--nodes"]) == nodes
    assert tasks == nodes * int(step["--ntasks-per-node"])
    assert int(step["--ntasks-per-node"]) * int(step["--cpus-per-task"]) == per_node * cpus
    # torchrun and spawn start one process a node, which starts the others
    assert tasks == (devices if run.launcher == "srun" else nodes)


def options_of(words: Sequence[str]) -> dict[str, str]:
    """``--name=value`` by name; of those that follow from the run, none is written twice."""
    named = [word.partition("=")[::2] for word in words if word.startswith("--")]
    names = Counter(name for name, _ in named)
    assert not [name for name in names if names[name] > 1 and name[2:] in MANAGED_BY_SBATCH]
    return dict(named)


def launched(run: RunDefinition, site: Site) -> list[str]:
    """The command that starts the ranks, without the site's shell lines and container."""
    start = SiteLaunch.of(site).model_copy(update={"prelude": (), "container": None, "python": "PROGRAM"})
    words = ("scripts/rank.py", "attempt")
    return list(build_launch(RankLaunch.for_run(run), start, words, "PROGRAM", ()).argv)


def check_command(run: RunDefinition, allocation: Allocation, site: Site) -> None:
    """No shell sees more in the line that submits the job than words."""
    if site.slurm is None:
        return
    line = sbatch_line(allocation.resources, comment=f"rule_train_{run.experiment}_{run.run}")
    assert SAFE.fullmatch(QUOTED.sub("", line)), line


def check_definition(run: RunDefinition) -> None:
    """The values that reach the job mean what was planned."""
    definition = RunDefinition.model_validate_json(run.as_json())
    assert json.dumps(json.loads(run.as_json()), sort_keys=True, separators=(",", ":")) == run.as_json()
    assert definition == run


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
def test_sound_configurations_with_damage_are_planned_or_refused_with_place_and_fix(
    what: str, drawn_studies: DrawnStudies, record_property: RecordProperty
) -> None:
    @explored(quick=50, thorough=2000)
    @given(*DAMAGED[what])
    def look(study: object, site: object) -> None:
        if planned := drawn_studies.plan_or_refuse(study, site):
            check_plan(planned)

    look()
    drawn_studies.record(what, record_property)


ONE_NODE: Config = {"accelerator": "cpu", "devices_per_node": 4, "cpus_per_node": 8}
IN_ORDER: Config = {
    "defaults": {
        "dataset": "digits",
        "model": "linear",
        "global_batch_size": 84,
        "devices": [1, 2],
        "warmup_steps": 1,
    },
    "experiments": {
        "excluding": {
            "sweep": {"epochs": [1, 2], "seed": [1, 2]},
            "exclude": [{"devices": 1, "epochs": 2, "seed": 2}],
            "repeats": {"min": 2, "max": 3},
        }
    },
}


@pytest.mark.refuses("topology: cpus over the node", "topology: more than the partition has")
def test_a_file_that_was_sorted_trains_nothing_again(drawn_studies: DrawnStudies) -> None:
    first = drawn_studies.plan_or_refuse(IN_ORDER, ONE_NODE)
    again = drawn_studies.plan_or_refuse(reordered(IN_ORDER, random.Random(0)), ONE_NODE)
    assert first is not None
    assert again is not None
    assert defined(again) == defined(first)


def reordered(content: Any, order: random.Random) -> Any:
    """The same with the keys of every mapping in another order."""
    if isinstance(content, list):
        return [reordered(item, order) for item in content]
    if not isinstance(content, dict):
        return content
    keys = list(content)
    order.shuffle(keys)
    return {key: reordered(content[key], order) for key in keys}


def defined(study: Study) -> dict[str, object]:
    """All that decides what is made again, by name."""
    runs = {f"{run.experiment}/{run.run}": run.as_json() for run in study.runs.values()}
    allocations = {f"{key[0]}/{key[1]}": asked for key, asked in study.allocations.items()}
    experiments = {f"{part.name} on {part.partition}": part.definition for part in study.parts}
    return {"runs": runs, "allocations": allocations, "experiments": experiments}
