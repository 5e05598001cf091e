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
from scalewise.config.site import Partition, SiteFile


class StudyFile(StrictModel):
    """Scalewise experiments: what to train, on how many devices, with which options."""

    model_config = ConfigDict(title="Scalewise experiments")

    experiments: dict[str, Experiment | ProgramExperiment]
    """One entry for each experiment."""


def study_schema() -> dict[str, Any]:
    """Make the JSON Schema of the YAML. No key is required, because ``defaults`` may give any."""
    schema = _schema_of(StudyFile)
    definitions = schema["$defs"]
    builtin, programs = (definitions[kind.__name__] for kind in (Experiment, ProgramExperiment))
    for kind in (builtin, programs):
        del kind["required"]
    sweep = definitions[ProgramSweep.__name__]
    sweep["patternProperties"] = {rf"^argument\.{CUSTOM_NAME}$": sweep["additionalProperties"]}
    sweep["additionalProperties"] = False
    # defaults may give keys that only some of the experiments take, and keys that differ between them
    defaults = programs["properties"] | builtin["properties"]
    for key in programs["properties"].keys() & builtin["properties"].keys():
        kinds = [kind["properties"][key] for kind in (builtin, programs)]
        if kinds[0] != kinds[1]:
            defaults[key] = {"description": kinds[0]["description"], "anyOf": kinds}
    schema["properties"] = {
        "defaults": {
            "type": "object",
            "description": "Values for every experiment that has the key and gives no other value.",
            "properties": defaults,
            "additionalProperties": False,
        },
        "experiments": schema["properties"]["experiments"]
        | {"propertyNames": {"pattern": EXPERIMENT_NAME, "maxLength": MAX_EXPERIMENT_NAME}},
        "site": {"type": "string", "description": "Path of the site file; the profile sets it."},
    }
    return schema


def site_schema() -> dict[str, Any]:
    """Make the JSON Schema of a site file."""
    schema = _schema_of(SiteFile)
    for key in schema["$defs"][Partition.__name__]["properties"].values():
        key.pop("default", None)  # that of the site
    return schema


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Make the JSON Schema of a model."""
    schema = model.model_json_schema(schema_generator=_Described)
    _drop_nulls(schema)
    return schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"}


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
    for kind in model.__mro__:
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
    if isinstance(node, list):
        for value in node:
            _drop_nulls(value)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("description"), str):
        node["description"] = " ".join(node["description"].split())
    branches = [branch for branch in node.pop("anyOf", []) if branch != {"type": "null"}]
    if len(branches) == 1:
        node.update(branches[0])
    elif branches:
        node["anyOf"] = branches
    if node.get("default", ...) is None:
        del node["default"]
    for value in node.values():
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
    study, site = study_schema()["$defs"], site_schema()
    builtin, programs = (study[kind.__name__]["properties"] for kind in (Experiment, ProgramExperiment))
    own = {key: schema for key, schema in programs.items() if builtin.get(key) != schema}
    text = _between(text, STUDY_MARKERS, _table(builtin, study, SWEEPABLE))
    text = _between(text, PROGRAM_MARKERS, _table(own, study, SWEEPABLE_PROGRAM_KEYS))
    return _between(text, SITE_MARKERS, _table(site["properties"], site["$defs"]))


def _between(text: str, markers: tuple[str, str], table: str) -> str:
    begin, end = markers
    head, rest = text.split(begin)
    _, foot = rest.split(end)
    return f"{head}{begin}\n\n{table}\n{end}{foot}"


def _table(keys: dict[str, Any], definitions: dict[str, Any], sweepable: Collection[str] = ()) -> str:
    """Make a row for each key, and for each key within it."""
    swept = ("sweep",) if sweepable else ()
    header = ("key", "type", "default", *swept, "meaning")
    rows = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]

    def add(prefix: str, keys: dict[str, Any]) -> None:
        for key, schema in keys.items():
            swept_too = ("yes" if key in sweepable and not prefix else "",) if sweepable else ()
            cells = (f"`{prefix}{key}`", _type(schema), _default(schema), *swept_too, schema["description"])
            rows.append(f"| {' | '.join(cells)} |")
            for branch in (schema, *schema.get("anyOf", [])):
                nested = branch.get("$ref", "").rpartition("/")[2]
                if nested and not nested.endswith("Sweep"):
                    add(f"{prefix}{key}.", definitions[nested]["properties"])

    add("", keys)
    return "\n".join(rows) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if branches := schema.get("anyOf"):
        return " or ".join(_type(branch) for branch in branches)
    kind = schema.get("type", "object")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    names = {"integer": "whole number", "boolean": "true or false", "object": "mapping", "string": "text"}
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    limits = [f"{sign} {schema[key]}" for key, sign in signs.items() if key in schema]
    return f"{names.get(kind, kind)} {', '.join(limits)}".strip()


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default", "")
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else ""
