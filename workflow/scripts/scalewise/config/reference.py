"""Tables of the keys of the configuration and of site files, from the models."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scalewise.config.program import SWEEPABLE_PROGRAM_KEYS
from scalewise.config.schema import site_schema, study_schema
from scalewise.config.settings import SWEEPABLE

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
