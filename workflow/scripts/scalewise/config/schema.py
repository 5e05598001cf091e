"""What is generated from the models: JSON Schemas for editors, and the tables of keys in config/README.md."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pydantic.json_schema import models_json_schema

from scalewise.config.experiment import EXPERIMENT_NAME, Experiment, ProgramExperiment, StudyFile
from scalewise.config.program import CUSTOM_NAME, SWEEPABLE_PROGRAM_KEYS, ProgramSweep
from scalewise.config.settings import SWEEPABLE
from scalewise.config.site import SiteFile

DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def study_schema() -> dict[str, Any]:
    """Make the JSON Schema of the YAML. No key is required, because ``defaults`` may give any."""
    models = (StudyFile, Experiment, ProgramExperiment)
    definitions = models_json_schema([(model, "validation") for model in models])[1]["$defs"]
    top, builtin, programs = (definitions[model.__name__] for model in models)
    del definitions[StudyFile.__name__]
    for kind in (builtin, programs):
        del kind["required"]
    sweep = definitions[ProgramSweep.__name__]
    sweep["patternProperties"] = {rf"^argument\.{CUSTOM_NAME}$": sweep["additionalProperties"]}
    sweep["additionalProperties"] = False
    kinds = [{"$ref": f"#/$defs/{model.__name__}"} for model in models[1:]]
    experiments, defaults = (top["properties"][key] for key in ("experiments", "defaults"))
    experiments |= {"additionalProperties": {"anyOf": kinds}, "propertyNames": {"pattern": EXPERIMENT_NAME}}
    # defaults may give keys that only some of the experiments take, and keys that differ between them
    defaults["additionalProperties"] = False
    defaults["properties"] = {
        key: {"anyOf": [kind["properties"][key] for kind in (builtin, programs) if key in kind["properties"]]}
        for key in builtin["properties"] | programs["properties"]
    }
    schema: dict[str, Any] = _simplified(top | {"title": "Scalewise experiments", "$defs": definitions})
    return schema | DIALECT


def site_schema() -> dict[str, Any]:
    """Make the JSON Schema of a site file."""
    schema: dict[str, Any] = _simplified(SiteFile.model_json_schema())
    return schema | DIALECT


def _simplified(node: Any) -> Any:
    """Return a schema without repeated branches, and without null: a key without a value is an error."""
    if isinstance(node, list):
        return [
            _simplified(value)
            for index, value in enumerate(node)
            if value != {"type": "null"} and value not in node[:index]
        ]
    if not isinstance(node, dict):
        return node
    node = {key: _simplified(value) for key, value in node.items() if (key, value) != ("default", None)}
    if isinstance(text := node.get("description"), str):
        node["description"] = " ".join(text.split())
    if len(branches := node.get("anyOf", [])) == 1:
        del node["anyOf"]
        node = branches[0] | node
    return node


# --- the tables of config/README.md ------------------------------------------------------------------


def configuration_reference(text: str) -> str:
    """Replace the tables between the markers of a text."""
    study, site = study_schema()["$defs"], site_schema()
    builtin, programs = (study[kind.__name__]["properties"] for kind in (Experiment, ProgramExperiment))
    of_programs = {key: schema for key, schema in programs.items() if builtin.get(key) != schema}
    for name, table in {
        "keys": _table(builtin, study, SWEEPABLE),
        "program keys": _table(of_programs, study, SWEEPABLE_PROGRAM_KEYS),
        "site keys": _table(site["properties"], site["$defs"]),
    }.items():
        head, begin, rest = re.split(rf"(<!-- {name}: .* -->\n)", text)
        text = f"{head}{begin}\n{table}\n<!-- end{rest.partition('<!-- end')[2]}"
    return text


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
