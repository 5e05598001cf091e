"""The sections of a page from decision.json and partitions.json, until the analysis writes ``Answer``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pandas as pd

from scalewise.analysis.answer import Answer, Candidate, Certainty
from scalewise.analysis.bottlenecks.disturbances import DISTURBED
from scalewise.analysis.experiment_results import ExperimentResults, read_json, read_table
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import format_3sig, name_devices
from scalewise.plan.plan_file import COMPARISON, Comparison
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.report.section import Section
from scalewise.report.tables import hours, time

_STATES = {
    "best": "done first",
    "shown": "slower",
    "not worth it": "as fast",
    "open": "may be as fast",
    "": "",
}
_UNITS = {"price": "unit of your prices", "billing": "billing units", "device-hours": "device-hours"}


def section_of(results: ExperimentResults) -> Section:
    """Return the section of an experiment."""
    decision, runs = results.decision, results.runs
    splits = decision.get("splits") or {}
    apart = runs[(runs["outcome"] == DISTURBED) | (_texts(runs, "conditions") != "")]
    target = results.target
    return Section(
        name=results.name,
        title=results.title or results.name,
        description=results.description,
        noun=results.noun,
        answer=answer_of(decision),
        figures=results.folder / "figures",
        points=results.scaling,
        runs=runs,
        epochs=results.epochs,
        options=results.options,
        costs=_costs(results.scaling, splits),
        cost_unit=f"{results.noun}-hours",
        fitted=_fitted(results),
        law=next(_laws(results), ""),
        required_efficiency=None if results.to_target else results.min_efficiency,
        target_accuracy=target if isinstance(target, float) else None,
        left_out=[
            (str(run["run"]), str(run["disturbance"] if run["outcome"] == DISTURBED else run["conditions"]))
            for _, run in apart.iterrows()
        ],
    )


def _texts(table: pd.DataFrame, column: str) -> pd.Series:
    """Return a column of text that may be empty or missing."""
    return table.reindex(columns=[column])[column].astype(object).fillna("").astype(str)


def answer_of(decision: Mapping[str, Any]) -> Answer:
    """Return the answer that decision.json has."""
    card, cpus, slow = decision["card"], decision["cpus"] or {}, decision["slowdown"] or {}
    splits = decision.get("splits") or {}
    figures = [
        (
            each["label"],
            f"{each['text']} ({each['interval']})" if each["interval"] else each["text"],
            each["note"],
        )
        for each in card["figures"]
    ]
    use = card["verdict"].split(". ")[0].rstrip(".")
    measured = "; ".join(f"{label.lower()} {value}" for label, value, _ in figures)
    return Answer(
        verdict=card["verdict"],
        certainty=cast(Certainty, card["certainty"].lower()),
        reason=card["reason"],
        figures=figures,
        rule=card["rule"],
        next_larger=card["next"],
        limit=" ".join(filter(None, [card["limit"], slow.get("advice", "")])),
        options=[*card["options"], " ".join(cpus.get("sentences", [])[:2])] if cpus else card["options"],
        others=decision["other_trainings"],
        cautions=[(text, "") for text in decision["cautions"]],
        to_do=f"{card['action']} `{card['paste']}`" if card["paste"] else card["action"],
        sentence=f"{use}: {measured}. {card['basis']}" if figures else "",
        candidates=list(_splits(splits, decision["device"])),
    )  # fmt: skip


def _splits(splits: Mapping[str, Any], noun: str) -> Iterator[Candidate]:
    for row in splits.get("rows", []):
        at_a_time = f"{row['at_a_time']:.0f} at a time" if row["at_a_time"] else ""
        yield Candidate(
            label=f"{splits['trainings']} trainings, {at_a_time} on {count_devices(row['devices'], noun)}",
            time=_text(row, "seconds", time),
            cost=_text(row, "device_hours", hours),
            verdict=row["note"] or _STATES[row["state"]],
        )


def _text(row: Mapping[str, Any] | pd.Series, column: str, form: Any, unit: str = "") -> str:
    value, low, high = (row.get(f"{column}{end}") for end in ("", "_low", "_high"))
    if value is None or pd.isna(value):
        return ""
    factor, suffix, write = form(float(value))
    text = f"{write(value * factor)}{suffix}{unit}"
    known = low is not None and high is not None and not pd.isna(low) and not pd.isna(high)
    return f"{text} ({write(low * factor)} to {write(high * factor)})" if known else text


def _costs(scaling: pd.DataFrame, splits: Mapping[str, Any]) -> pd.DataFrame:
    """Return time and cost of a whole run of each point, or of all trainings by their split."""
    if splits.get("rows"):
        rows = pd.DataFrame(splits["rows"]).rename(
            columns={f"device_hours{end}": f"cost{end}" for end in ("", "_low", "_high")}
        )
        return rows.assign(series=NO_OPTIONS, recommended=rows["devices"] == splits["best"])
    share = scaling["device_hours"] / scaling["wall_seconds"]
    ends = ("", "_low", "_high")
    return scaling.assign(
        **{f"seconds{end}": scaling[f"wall_seconds{end}"] for end in ends},
        **{f"cost{end}": scaling[f"wall_seconds{end}"] * share for end in ends},
    )


def _fitted(results: ExperimentResults) -> pd.DataFrame:
    rows = [
        {"series": law["series"], "devices": point["devices"], "speedup": point["estimate"]}
        for law in results.laws
        if law["series"] == results.series and not law["refused"] and law["law"] != "usl"
        for point in law["curve"]
        if "estimate" in point
    ]
    return pd.DataFrame(rows)


def _laws(results: ExperimentResults) -> Iterator[str]:
    for law in results.laws:
        fraction = law["parameters"].get("serial_fraction")
        if law["series"] == results.series and fraction and fraction["estimate"] is not None:
            low, high = fraction["low"], fraction["high"]
            ends = f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
            yield f"{law['law'].capitalize()}'s law: serial fraction {fraction['estimate']:.3f}{ends}."


def comparison_sections(plan: Mapping[str, Comparison], results: Path) -> list[Section]:
    """Return a section for each experiment that compares partitions.

    Args:
        plan: The comparisons of the plan.
        results: Holds a folder with partitions.json and partitions.csv for each.
    """
    return [_comparison(name, each, results / name) for name, each in plan.items()]


def _comparison(name: str, facts: Comparison, folder: Path) -> Section:
    answer, table = read_json(folder / COMPARISON), read_table(folder / "partitions.csv")
    card, noun = answer["card"], answer["device"]
    unit = {"price": "", "billing": " units", "device-hours": " device-hours"}[answer["cost_unit"]]
    best = {tuple(each["point"].values()) for each in answer["best"].values() if each["point"] is not None}
    several = table["series"].nunique() > 1
    places = list(zip(table["partition"], table["series"], table["devices"], strict=True))
    candidates = [
        Candidate(
            label=f"{count_devices(int(row['devices']), noun)} on {row['partition']}"
            + (f" with {row['series']}" if several else ""),
            time=_text(row, "seconds", time),
            cost=_text(row, "cost", lambda _: (1.0, unit, format_3sig)),
            energy=_text(row, "energy_kwh", lambda _: (1.0, " kWh", format_3sig)),
            wait=_text(row, "queue_seconds", time),
            verdict=_verdict(row, place in best),
        )
        for place, (_, row) in zip(places, table.iterrows(), strict=True)
    ]
    rows = [
        (
            each["label"],
            f"{each['place']}: {each['text']}" + (f" ({each['interval']})" if each["interval"] else ""),
            f"{each['relation']} [{each['status']}]",
        )
        for each in card["rows"]
    ]
    names = table["partition"] + (", " + table["series"] if several else "")
    return Section(
        name=name,
        title=f"{facts['title'] or name}: which partition?",
        description=facts["description"],
        noun=noun,
        answer=Answer(
            verdict=card["verdict"],
            certainty=cast(Certainty, card["certainty"].lower()),
            reason=card["reason"],
            figures=rows,
            rule=f"{card['basis']} {card['rule']}".strip(),
            options=[card["waits"]] if card["waits"] else [],
            cautions=[(text, "") for text in [*card["cautions"], *card["not_compared"]]],
            to_do=card["action"],
            candidates=candidates,
        ),
        figures=folder / "figures",
        costs=table.assign(series=names, recommended=[place in best for place in places]),
        cost_unit=name_devices(_UNITS[answer["cost_unit"]], noun),
    )


def _verdict(row: pd.Series, is_best: bool) -> str:
    note = row["note"] if isinstance(row["note"], str) else ""
    if note:
        # the row names the point already
        return note.partition(": ")[2] or note
    if is_best:
        return "the best by an aim"
    beaten = row["dominated_by"] if isinstance(row["dominated_by"], str) else ""
    return f"{beaten} is better" if beaten else "may be worth choosing"
