"""Planning ends in a plan that fits or in messages with file and line, for any study and site."""

import copy
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from tests.paths import ROOT
from tests.reliability.thoroughness import times
from tests.unit.plan.conftest import sbatch_line
from tests.unit.plan.refusals import StudyFolder
from tests.workflow.workplace import filled_in

from scalewise.config.errors import StudyError
from scalewise.config.slurm import MANAGED_BY_SBATCH
from scalewise.plan.allocation import sbatch_options
from scalewise.plan.launch import build_launch
from scalewise.plan.plan_table import plan_lines
from scalewise.plan.planned_study import Study, make_plan
from scalewise.plan.run_definition import RunDefinition

pytestmark = pytest.mark.slow

SHIPPED = (ROOT / "config" / "experiments.yaml", *sorted((ROOT / "config" / "examples").glob("*.yaml")))
STUDIES = [path.read_text(encoding="utf-8") for path in SHIPPED]
SITES = [
    filled_in(path) for path in sorted((ROOT / "profiles").rglob("*.yaml")) if path.name != "config.yaml"
]

HOSTILE = [
    *("$(touch sprung)", "`touch sprung`", "; touch sprung", "a | tee sprung", "'", '"', "\\", "a\nb", "\t"),
    *("\0", "\x1b[31m", "\x85", "\u2028", "\u202e", "é", "", " ", "-rf", "--wrap=id", "../x", "{run}", "*"),
    *("~", "#", "a" * 300, "yes", "1e-3"),
]
"""Text that a shell, a terminal, a file system or a template would take for more than text."""

EXTREME: list[Any] = [
    *(None, True, 0, -1, 1, 2, 1.5, 1e308, math.nan, math.inf, 2**63, 10**400, 16**5000, -(16**5000)),
    *([], {}, [[]], [None], [{}], {"a": {"b": 1}}, {"": 1}, [1, 1], [2, 2.0, "2"], {None: 1}, b"\xff"),
]
"""Values of every other type, and numbers beyond all that is meant."""

PIECES = [
    *(b"\t", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b" ", b": ", b"- ", b"? ", b"? [a]\n: b\n", b"---\n"),
    *b"""# ' " [ { , ! ~ @ | 2001-99-99""".split(),
    *(
        b"&a [*a]",
        b"<<: *a",
        b"<<: 3",
        b"!!int abc",
        b"%YAML 9.9\n",
        b"!!python/object/apply:os.mkdir [sprung]",
        b"\xed\xa0\x80",
    ),
    *(b"[" * 3000, b"{a: " * 3000, b"0x" + b"f" * 9000, b"9" * 9000, b"x" * 300),
]
"""What YAML gives a meaning to, or trips over."""

anything: SearchStrategy[Any] = st.sampled_from([*EXTREME, *HOSTILE]) | st.integers() | st.text(max_size=12)


@st.composite
def damaged(draw: DrawFn, sound: dict[Any, Any]) -> dict[Any, Any]:
    """A sound mapping with up to three of its keys or values dropped, renamed, added or replaced."""
    content = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        if not (holders := _holders(content)):
            break
        holder = draw(st.sampled_from(holders))
        key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        how = draw(st.sampled_from(["replace", "replace", "drop", "rename", "add"]))
        if how == "drop":
            del holder[key]
        elif how == "replace" or isinstance(holder, list):
            holder[key] = copy.deepcopy(draw(anything))
        else:
            name = draw(st.sampled_from([*HOSTILE, 3, None, True, f"{key}s", "sweep"]))
            holder[name] = holder.pop(key) if how == "rename" else copy.deepcopy(draw(anything))
    return content


def _holders(content: Any) -> list[Any]:
    """Return every mapping and list that holds something."""
    if not isinstance(content, (dict, list)) or not content:
        return []
    inner = content.values() if isinstance(content, dict) else content
    return [content, *(holder for each in inner for holder in _holders(each))]


@st.composite
def damaged_text(draw: DrawFn, sound: bytes) -> bytes:
    """A file with up to three pieces put in, or parts taken out."""
    text = sound
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        end = begin + draw(st.sampled_from([0, 0, 1, 40, len(text)]))
        text = text[:begin] + draw(st.sampled_from([b"", *PIECES])) + text[end:]
    return text


class _Speller(yaml.SafeDumper):
    """Writes numbers too long for decimal digits in hexadecimal ones, which YAML reads."""

    def represent_int(self, data: int) -> yaml.ScalarNode:
        text = str(data) if abs(data) < 10**4000 else hex(data)
        return self.represent_scalar("tag:yaml.org,2002:int", text)


_Speller.add_representer(int, _Speller.represent_int)


def spelled(content: object) -> str:
    """Write content as a user could have written it."""
    return str(yaml.dump(content, Dumper=_Speller, sort_keys=False, allow_unicode=True))


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


def sound_or(damage: Callable[..., SearchStrategy[object]], texts: list[Any]) -> SearchStrategy[object]:
    """Draw one of these, as it is or with a damage."""
    return st.sampled_from(texts).flatmap(lambda sound: st.just(sound) | damage(sound))


DAMAGED = {
    "shipped configurations with other keys and values": tuple(
        sound_or(damaged, [yaml.safe_load(text) for text in texts]) for texts in (STUDIES, SITES)
    ),
    "shipped files with damaged text": tuple(
        sound_or(damaged_text, [text.encode() for text in texts]) for texts in (STUDIES, SITES)
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
