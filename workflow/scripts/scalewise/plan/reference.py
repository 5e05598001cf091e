"""The table of configuration keys, from the models."""

from __future__ import annotations

from typing import Any

from scalewise.plan.config import SWEEPABLE, study_schema

BEGIN = "<!-- keys: made by `make generated` from workflow/scripts/scalewise/plan/config.py -->"
END = "<!-- end of keys -->"


def configuration_reference(text: str) -> str:
    """The text with the table between its markers made anew."""
    head, rest = text.split(BEGIN)
    _, foot = rest.split(END)
    return f"{head}{BEGIN}\n\n{_table()}\n{END}{foot}"


def _table() -> str:
    definitions = study_schema()["$defs"]
    rows = ["| key | type | default | sweep | meaning |", "|---|---|---|---|---|"]
    for key, schema in definitions["Experiment"]["properties"].items():
        swept = "yes" if key in SWEEPABLE else ""
        meaning = schema.get("description", "")
        rows.append(f"| `{key}` | {_type(schema)} | {_default(schema)} | {swept} | {meaning} |")
        nested = schema.get("$ref", "").rsplit("/", 1)[-1]
        if nested and nested != "Sweep":
            for inner, inner_schema in definitions[nested]["properties"].items():
                rows.append(
                    f"| `{key}.{inner}` | {_type(inner_schema)} | {_default(inner_schema)} |  | "
                    f"{inner_schema.get('description', '')} |"
                )
    return "\n".join(rows) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(branch) for branch in schema["anyOf"])
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
