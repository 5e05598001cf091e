"""What is generated from the models: JSON Schemas for editors, and the tables of keys in config/README.md."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from scalewise.config.experiment import (
    EXPERIMENT_NAME,
    MAX_EXPERIMENT_NAME,
    Experiment,
    ProgramExperiment,
)
from scalewise.config.program import CUSTOM_NAME, SWEEPABLE_PROGRAM_KEYS, ProgramSweep
from scalewise.config.settings import SWEEPABLE, StrictModel
from scalewise.config.site import NodeFacts, PartitionFacts, SiteFile
from scalewise.config.slurm import Slurm


class StudyFile(StrictModel):
    """Scalewise experiments: what to train, on how many devices, with which options."""

    model_config = ConfigDict(title="Scalewise experiments")

    experiments: dict[str, Experiment | ProgramExperiment]
    """One entry for each experiment."""


def study_schema() -> dict[str, Any]:
    """Make the JSON Schema of the YAML. No key is required, because ``defaults`` may give any."""
    schema = _schema_of(StudyFile)
    definitions = schema["$defs"]
    for name in (Experiment.__name__, ProgramExperiment.__name__):
        definitions[name].pop("required", None)
    sweep = definitions[ProgramSweep.__name__]
    sweep["patternProperties"] = {rf"^argument\.{CUSTOM_NAME}$": sweep["additionalProperties"]}
    sweep["additionalProperties"] = False
    programs, builtin = (definitions[kind.__name__]["properties"] for kind in (ProgramExperiment, Experiment))
    programs["argument"]["propertyNames"] = {"pattern": f"^{CUSTOM_NAME}$"}
    # defaults may give keys that only some of the experiments take
    both = {
        key: _either(builtin[key], programs[key]) if key in builtin and key in programs else value
        for key, value in (programs | builtin).items()
    }
    schema["properties"] = {
        "defaults": {
            "type": "object",
            "description": "Values for every experiment that has the key and gives no other value.",
            "properties": both,
            "additionalProperties": False,
        },
        "experiments": schema["properties"]["experiments"]
        | {"propertyNames": {"pattern": EXPERIMENT_NAME, "maxLength": MAX_EXPERIMENT_NAME}},
        # further keys are possible: --config and other tools may add some
        "site": {"type": "string", "description": "Path of the site file; the profile sets it."},
    }
    return schema


def site_schema() -> dict[str, Any]:
    """Make the JSON Schema of a site file."""
    return _schema_of(SiteFile)


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Make the schema of a key that has another type in each of two kinds of experiments."""
    kinds = [{key: value for key, value in each.items() if key != "description"} for each in (one, other)]
    return one if kinds[0] == kinds[1] else {"description": one["description"], "anyOf": kinds}


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Make the JSON Schema of a model."""
    schema = model.model_json_schema(schema_generator=_Described)
    _drop_nulls(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


class _Described(GenerateJsonSchema):
    """Describe each key by the docstring below it.

    pydantic would do so in every process that imports the models, which takes longer than all else there.
    """

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Make the schema of a model."""
        made = super().model_schema(schema)
        for key, text in _descriptions(schema["cls"]):
            made["properties"].get(key, {}).setdefault("description", text)
        return made


def _descriptions(model: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a model that have a docstring, and this."""
    for kind in (NodeFacts, Slurm) if model is PartitionFacts else model.__mro__:
        # a model that was made of another one has no source
        with suppress(OSError, TypeError):
            (written,) = ast.parse(inspect.getsource(kind)).body
            assert isinstance(written, ast.ClassDef)
            for statement, after in itertools.pairwise(written.body):
                match statement, after:
                    case ast.AnnAssign(target=ast.Name(key)), ast.Expr(ast.Constant(str(text))):
                        yield key, text


def _drop_nulls(node: Any) -> None:
    """Remove breaks of lines, and the null branches of optional keys: a key without a value is an error."""
    if isinstance(node, dict):
        if isinstance(node.get("description"), str):
            node["description"] = " ".join(node["description"].split())
        if "anyOf" in node:
            branches = [branch for branch in node["anyOf"] if branch != {"type": "null"}]
            if len(branches) == 1:
                del node["anyOf"]
                node.update(branches[0])
            else:
                node["anyOf"] = branches
        if node.get("default", ...) is None:
            del node["default"]
        for value in node.values():
            _drop_nulls(value)
    elif isinstance(node, list):
        for value in node:
            _drop_nulls(value)


# --- the tables of config/README.md ------------------------------------------------------------------

ORIGIN = "made by `make generated` from workflow/scripts/scalewise/config"
STUDY_MARKERS = (f"<!-- keys: {ORIGIN}/settings.py and experiment.py -->", "<!-- end of keys -->")
PROGRAM_MARKERS = (
    f"<!-- program keys: {ORIGIN}/program.py and experiment.py -->",
    "<!-- end of program keys -->",
)
SITE_MARKERS = (f"<!-- site keys: {ORIGIN}/site.py and slurm.py -->", "<!-- end of site keys -->")


def configuration_reference(text: str) -> str:
    """Replace the tables between the markers of a text."""
    experiment = study_schema()["$defs"]
    text = _between(text, STUDY_MARKERS, _study_table(experiment, "Experiment", SWEEPABLE))
    table = _study_table(experiment, "ProgramExperiment", SWEEPABLE_PROGRAM_KEYS, other="Experiment")
    text = _between(text, PROGRAM_MARKERS, table)
    schema = site_schema()
    return _between(text, SITE_MARKERS, _file_table(schema["properties"], schema["$defs"]))


def _between(text: str, markers: tuple[str, str], table: str) -> str:
    begin, end = markers
    head, rest = text.split(begin)
    _, foot = rest.split(end)
    return f"{head}{begin}\n\n{table}\n{end}{foot}"


def _study_table(
    definitions: dict[str, Any], model: str, sweepable: Collection[str], other: str | None = None
) -> str:
    """Make a row for each key of a model, without those that are the same in another model."""
    elsewhere = definitions[other]["properties"] if other is not None else {}
    rows = ["| key | type | default | sweep | meaning |", "|---|---|---|---|---|"]
    for key, schema in definitions[model]["properties"].items():
        if elsewhere.get(key) == schema:
            continue
        swept = "yes" if key in sweepable else ""
        meaning = schema.get("description", "")
        rows.append(f"| `{key}` | {_type(schema)} | {_default(schema)} | {swept} | {meaning} |")
        branches = [schema, *schema.get("anyOf", [])]
        nested = next((branch["$ref"] for branch in branches if "$ref" in branch), "").rsplit("/", 1)[-1]
        if nested and not nested.endswith("Sweep"):
            for inner, inner_schema in definitions[nested]["properties"].items():
                rows.append(
                    f"| `{key}.{inner}` | {_type(inner_schema)} | {_default(inner_schema)} |  | "
                    f"{inner_schema.get('description', '')} |"
                )
    return "\n".join(rows) + "\n"


def _file_table(properties: dict[str, Any], definitions: dict[str, Any]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]

    def add(prefix: str, keys: dict[str, Any]) -> None:
        for key, schema in keys.items():
            meaning = schema.get("description", "")
            rows.append(f"| `{prefix}{key}` | {_type(schema)} | {_default(schema)} | {meaning} |")
            reference = schema.get("$ref") or schema.get("items", {}).get("$ref", "")
            if nested := reference.rsplit("/", 1)[-1]:
                add(f"{prefix}{key}.", definitions[nested]["properties"])

    add("", properties)
    return "\n".join(rows) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if branches := schema.get("anyOf"):
        return " or ".join(_type(branch) for branch in branches)
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    names = {
        "integer": "whole number",
        "boolean": "true or false",
        "object": "mapping",
        "string": "text",
    }
    kind = names.get(schema.get("type", "object"), schema.get("type", "mapping"))
    limits = [
        f"{sign} {schema[key]}"
        for key, sign in (
            ("exclusiveMinimum", ">"),
            ("minimum", ">="),
            ("exclusiveMaximum", "<"),
            ("maximum", "<="),
        )
        if key in schema
    ]
    return f"{kind} {', '.join(limits)}".strip()


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in ("", None) else ""
