"""JSON Schemas of the study's and the site's file, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scalewise.config.experiment import (
    EXPERIMENT_NAME,
    MAX_EXPERIMENT_NAME,
    Experiment,
    ProgramExperiment,
)
from scalewise.config.program import CUSTOM_NAME, ProgramSweep
from scalewise.config.settings import StrictModel
from scalewise.config.site import SiteFile


class StudyFile(StrictModel):
    """Scalewise experiments: what to train, on how many devices, with which options."""

    model_config = ConfigDict(title="Scalewise experiments")

    experiments: dict[str, Experiment | ProgramExperiment] = Field(
        description="One entry for each experiment."
    )


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
    schema = model.model_json_schema()
    _drop_nulls(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


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
