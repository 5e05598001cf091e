"""Configurations and sites at random: plausible ones, and sound ones with damaged content or damaged text."""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from scalewise.plan.config.schema import site_schema, study_schema

ROOT = Path(__file__).parents[3]
STUDIES = [ROOT / "config" / "experiments.yaml", *sorted((ROOT / "config" / "examples").glob("*.yaml"))]
SITES = sorted((ROOT / "profiles").glob("*/site.yaml")) + sorted((ROOT / "profiles" / "sites").glob("*.yaml"))

SCRIPT = str(Path(__file__).resolve())
"""A file of Python, to pass for a user's."""

Config = dict[Any, Any]

NAMES = ["digits", "a", "A", "b-1", "x" * 100, "z_9"]
DATASETS = ["digits", "mnist", "cifar100", "synthetic-1x6x7-3classes-6000samples", "synthetic-3x64x64"]
MODELS = ["linear", "digits_cnn", "mnist_cnn", "resnet18", "wrn-10-1", "transformer-1M"]
WORDS: dict[str, list[str]] = {
    "qos": ["normal", "a b"],
    "name": ["gputest", "a b"],
    "dataset": DATASETS,
    "model": MODELS,
    "longest_walltime": ["24:00:00", "0:30:00", "2-00:00:00", "1:30", "0", "99:99:99:99"],
    "constraint": ["a100&hbm80g", "a|b", "[rack1*2&rack2*4]"],
    "gpu_type": ["h100", "nvidia-a100-80gb", "a100_3g.20gb"],
    "account": ["proj1", "nnXXXXk", "<account>"],
    "partition": ["gpu", "p1,p2"],
    "partitions": ["a100", "h200"],
    "partitions names": ["a100", "h200"],
    "default_partition": ["a100", "h200", "other"],
    "mail_user": ["you@example.org"],
    "extra": ["--licenses=$(touch sprung)", "--nice", "--begin=now+1hour; touch sprung", "--exclude=n[1-3]"],
    "srun_extra": ["--cpu-bind=cores", "--label"],
    "data_mirror": ["data/near", "https://mirror.example.org/x"],
    "network_interface": ["ib0", "hsn0"],
    "devices": ["2x2", "1x4", "2x4", "0x1", "x", "4"],
    "program": [SCRIPT, SCRIPT, "-m timeit", "-m nowhere.train", "nowhere.py", "train.py --lr 3", "-m"],
    "arguments": [
        *("{batch_size_per_device}", "{global_batch_size}", "{folder}", "{seed}", "{argument.lr}"),
        *("{argument.rl}", "{rank}", "{", "{{}}", "--lr 0.1", "a b"),
        *("{global_batch_size * 1024}", "{8 // (devices - 1)}", "${x}", "$HOME/*"),
    ],
    "environment": ["{folder}", "{rank}", "{master_port}", "{batch_size_per_device}", "a:b"],
    "python": [sys.executable, "nowhere/python", "python3"],
    "pattern": ["loss=([0-9.]+)", "loss=", "(", "(a)(b)"],
    "prepare": [SCRIPT, "true", "nowhere.py", "{folder}"],
    "files": [SCRIPT, "nowhere.yaml"],
    "inputs": [SCRIPT, "nowhere/"],
    "working_directory": [".", ".", "nowhere"],
    "argument names": ["lr", "x_1", "learning-rate"],
    "environment names": ["OUT", "RANK", "PYTHONPATH", "A B", "SCALEWISE_PROBE"],
}
"""What a key of text takes, or nearly; what no type says."""

HOSTILE = [
    *("$(touch sprung)", "`touch sprung`", "; touch sprung", "a && touch sprung", "a | tee sprung"),
    *("> sprung", "'", '"', "\\", "a\nb", "\r", "\t", "\0", "\x1b[31m", "\x85", "\u2028", "\ufeff", "\u202e"),
    *("é", "日本", "", " ", "-rf", "--wrap=id", "../x", "/", "{run}", "{x:q}", "%s", "*", "~", "#", "!"),
    *("a" * 300, "yes", "1e-3"),
]
"""Text that a shell, a terminal, a file system or a template would take for more than text."""

EXTREME: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 1.5, 1e-3, 1e308, -0.0, math.nan, math.inf, -math.inf),
    *(2**31, 2**63, 2**64, 10**30, 10**400, 16**5000, -(16**5000)),
    *([], {}, [[]], [None], [{}], {"a": {"b": {"c": 1}}}, {"": 1}),
    *([1, 2], [1, 1], [2, 2.0, "2"], {1: 2}, {None: 1}, {True: 1}, b"\xff", [[[[[]]]]]),
]
"""Values of every other type, and numbers beyond all that is meant."""

CHOICES: list[Config] = [{"up_to": 4}, {"up_to": 8}, {"among": [1, 2, 4]}, {"among": [1, "2x2"]}]
"""Choices of device counts that most sites have."""

anything: SearchStrategy[Any] = st.one_of(
    st.sampled_from(EXTREME),
    st.sampled_from(HOSTILE),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 100) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
)


_WAITS: SearchStrategy[Config] = st.dictionaries(
    st.sampled_from([1, 2, 4, 8]), st.floats(0, 90), min_size=1, max_size=2
)


class Schema:
    """Values as a JSON Schema describes them."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})

    def value(self, draw: DrawFn, node: Mapping[str, Any], key: str = "") -> Any:
        """Of a node of the schema."""
        while "$ref" in node:
            node = self._definitions[node["$ref"].rpartition("/")[2]]
        if branches := node.get("anyOf", node.get("oneOf")):
            return self.value(draw, draw(st.sampled_from(branches)), key)
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return draw(st.sampled_from(node["enum"]))
        kind = node.get("type")
        if kind == "boolean":
            return draw(st.booleans())
        if kind in {"integer", "number"}:
            return self._number(draw, node, whole=kind == "integer")
        if kind == "string":
            return draw(st.sampled_from(WORDS.get(key, ["words", "a b"])))
        if kind == "array":
            count = draw(st.integers(node.get("minItems", 0), 3))
            return [self.value(draw, node["items"], key) for _ in range(count)]
        if (named := WORDS.get(f"{key} names")) and "properties" not in node:
            own = draw(st.lists(st.sampled_from(named), unique=True, max_size=2))
            return {name: self.value(draw, node["additionalProperties"], key) for name in own}
        return self.mapping(draw, node)

    def mapping(self, draw: DrawFn, node: Mapping[str, Any], most: int = 4) -> Config:
        """Some of the keys of an object, and all that it must have."""
        while "$ref" in node:
            node = self._definitions[node["$ref"].rpartition("/")[2]]
        known: Mapping[str, Any] = node.get("properties", {})
        for values in node.get("patternProperties", {}).values():
            known = {**known, "argument.lr": values}
        if not known:
            return draw(_WAITS)
        keys = draw(st.lists(st.sampled_from(sorted(known)), unique=True, max_size=most))
        return {
            key: self.value(draw, known[key], key)
            for key in dict.fromkeys([*keys, *node.get("required", ())])
        }

    @staticmethod
    def _number(draw: DrawFn, node: Mapping[str, Any], whole: bool) -> int | float:
        least = node.get("minimum", node.get("exclusiveMinimum", -5))
        most = node.get("maximum", node.get("exclusiveMaximum", least + 20))
        most = min(most, least + 20)
        if whole:
            return draw(st.integers(int(least) + ("exclusiveMinimum" in node), int(most)))
        open_end = "exclusiveMaximum" in node
        return draw(st.floats(least, most, exclude_min="exclusiveMinimum" in node, exclude_max=open_end))


STUDY_SCHEMA, SITE_SCHEMA = study_schema(), site_schema()


@st.composite
def plausible_studies(draw: DrawFn, site: Config) -> Config:
    """A study of one or two experiments of the built-in training, and perhaps of one of a program."""
    words, experiment = Schema(STUDY_SCHEMA), {"$ref": "#/$defs/Experiment"}
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    counts = st.sampled_from([1, 2, 4, 8, 3, 5, 7, 12, "2x2"])
    defaults: Config = {
        "dataset": draw(st.sampled_from(DATASETS)),
        "model": draw(st.sampled_from(MODELS)),
        "devices": draw(st.lists(counts, min_size=1, max_size=3, unique=True)),
    }
    weak = draw(st.booleans())
    scaling = {"scaling": "weak", "batch_size_per_device": 32} if weak else {"global_batch_size": 840}
    defaults |= scaling | words.mapping(draw, experiment, 3)
    experiments: Config = {name: words.mapping(draw, experiment) for name in names}
    if draw(st.booleans()):
        experiments["own"] = {"program": SCRIPT, "arguments": ["{global_batch_size}", "{folder}"]}
        experiments["own"] |= words.mapping(draw, {"$ref": "#/$defs/ProgramExperiment"})
    if "partitions" in site:
        experiments[names[0]]["partitions"] = "all"
    for keys in (defaults, *experiments.values()):
        _make_plausible(keys)
        if "budget" in keys or isinstance(keys.get("devices"), dict):
            # at random, hardly any choice is one
            keys["devices"] = draw(st.sampled_from(CHOICES))
    return {"defaults": defaults, "experiments": experiments}


def _make_plausible(keys: Config) -> None:
    """Remove or complete keys that need others, which are there by chance only."""
    decision = keys.get("decision")
    if isinstance(decision, dict):
        if "accept" in decision:
            decision["accept"] = list(keys.get("sweep", {}))
        if keys.get("partitions") != "all":
            decision.pop("by", None)
    if keys.get("partitions") != "all":
        keys.pop("partitions", None)
    # how long a training is must be known, and entries to exclude must be among the others
    for key in ("trainings", "exclude"):
        keys.pop(key, None)


@st.composite
def plausible_sites(draw: DrawFn) -> Config:
    """A site of up to two partitions, with or without Slurm."""
    words = Schema(SITE_SCHEMA)
    facts: Config = {"accelerator": "cuda", "devices_per_node": 4, "cpus_per_node": 64, "max_nodes": 4}
    facts |= words.mapping(draw, SITE_SCHEMA)
    if draw(st.booleans()):
        facts["slurm"] = words.mapping(draw, {"$ref": "#/$defs/Slurm"}, 6)
    least = draw(st.sampled_from([0, 0, 1, 2]))
    names = draw(st.lists(st.sampled_from(WORDS["partitions"]), unique=True, min_size=least, max_size=2))
    partitions = {
        name: words.mapping(draw, {"$ref": "#/$defs/PartitionFacts"}, 3) or {"max_nodes": 2} for name in names
    }
    for keys in partitions.values():
        if "devices_per_node" in keys:
            # most of the counts fill nodes of so many
            keys["devices_per_node"] = draw(st.sampled_from([2, 4, 8]))
        keys.pop("cpus_per_node", None)
    for keys in (facts, *partitions.values()):
        # the costs of all partitions have one unit, and a job's GPUs are Slurm's choice
        for key in ("price_per_device_hour", "billing_per_device_hour", "visible_devices"):
            keys.pop(key, None)
    for key in ("partitions", "default_partition"):
        facts.pop(key, None)
    if partitions:
        facts |= {"partitions": partitions, "default_partition": names[0]}
    return facts


plausible_configurations = plausible_sites().flatmap(
    lambda site: st.tuples(plausible_studies(site), st.just(site))
)


@st.composite
def damaged(draw: DrawFn, sound: Config) -> Config:
    """A sound mapping with up to three of its keys or values dropped, renamed or replaced by others."""
    content = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        holders = _holders(content)
        if not holders:
            break
        holder = holders[draw(st.integers(0, len(holders) - 1))]
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        match draw(st.sampled_from(["replace", "replace", "drop", "rename", "add"])):
            case "replace":
                holder[key] = copy.deepcopy(draw(anything))
            case "drop":
                del holder[key]
            case "rename" if isinstance(holder, dict):
                renamed = draw(st.sampled_from([*HOSTILE, 3, None, True, f"{key}s", str(key)[1:], "sweep"]))
                holder[renamed] = holder.pop(key)
            case _ if isinstance(holder, dict):
                holder[draw(st.sampled_from(HOSTILE))] = copy.deepcopy(draw(anything))
            case _:
                holder.append(copy.deepcopy(draw(anything)))
    return content


def _holders(content: Any) -> list[Any]:
    """Every mapping and list that holds something."""
    if not isinstance(content, (dict, list)) or not content:
        return []
    inner = content.values() if isinstance(content, dict) else content
    return [content, *(holder for value in inner for holder in _holders(value))]


PIECES = [
    *(b"\t", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc2\x85", b"\n", b"\r", b" ", b"#", b"'", b'"', b"\\"),
    *(b": ", b"- ", b"? ", b"[", b"]", b"{", b"}", b",", b"&a ", b"*a", b"&a [*a]", b"<<: *a", b"<<: 3"),
    *(b"!", b"!!", b"!!int abc", b"|", b">", b"%", b"---\n", b"...\n", b"%YAML 9.9\n"),
    *(b"!!python/object/apply:os.mkdir [sprung]", b"!!binary x", b"!!set {a}", b"2001-99-99"),
    *(b"[" * 3000, b"{a: " * 3000, b"0x" + b"f" * 9000, b"9" * 9000, b"1:2:3", b"0o8", b"08", b".nan"),
    *(b"? [a]\n: b\n", b"? {a: b}\n: c\n", b"=", b"~", b"\xed\xa0\x80", b"\xf0\x9f\x92\xa5", b"@", b"`"),
    b"x" * 300,
]
"""What YAML gives a meaning to, or trips over."""


@st.composite
def damaged_text(draw: DrawFn, sound: bytes) -> bytes:
    """A file with up to three damages: pieces put in, parts taken out, moved or doubled."""
    text = sound
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        if draw(st.booleans()):
            # where a key or a value begins
            begin = next((found.end() for found in re.finditer(rb"[\[{,:] +|\n *", text[begin:])), 0) + begin
        end = min(begin + draw(st.integers(0, 40)), len(text))
        match draw(st.sampled_from(["put", "put", "bytes", "cut", "double", "move", "truncate"])):
            case "put":
                text = text[:begin] + draw(st.sampled_from(PIECES)) + text[begin:]
            case "bytes":
                text = text[:begin] + draw(st.binary(max_size=4)) + text[end:]
            case "cut":
                text = text[:begin] + text[end:]
            case "double":
                text = text[:end] + text[begin:]
            case "move":
                there = draw(st.integers(0, len(text)))
                text = text[:there] + text[begin:end] + text[there:]
            case _:
                text = text[:begin]
    return text


class _Speller(yaml.SafeDumper):
    """Writes numbers too long for decimal digits in hexadecimal ones, which YAML reads."""

    def represent_int(self, data: int) -> yaml.ScalarNode:
        text = str(data) if abs(data) < 10**4000 else hex(data)
        return self.represent_scalar("tag:yaml.org,2002:int", text)


_Speller.add_representer(int, _Speller.represent_int)


def spelled(content: object) -> str:
    """As a user could have written it."""
    return str(yaml.dump(content, Dumper=_Speller, sort_keys=False, allow_unicode=True))
