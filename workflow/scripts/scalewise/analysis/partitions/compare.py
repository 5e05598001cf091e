"""Compare the partitions of an experiment, and write partitions.csv and partitions.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.partitions.answer import AimAnswer, PartitionAnswer, answer
from scalewise.analysis.partitions.card import partition_card, place_text
from scalewise.analysis.partitions.points import Aim, PartitionStudy, collect_points
from scalewise.analysis.queue_waits import waits_by_run, with_measured_waits
from scalewise.plan.plan_file import COMPARISON, Comparison, ExperimentFacts
from scalewise.records import write_text

TABLE = "partitions.csv"
FINGERPRINTS = "fingerprints.json"

AMOUNTS: dict[Aim, str] = {
    "time": "seconds",
    "cost": "cost",
    "energy": "energy_kwh",
    "soonest": "seconds_with_queue",
}
"""Column of each aim; its bounds follow as ``_low`` and ``_high``."""

COLUMNS = [
    "partition", "series", "devices", "n",
    *(f"{column}{end}" for column in AMOUNTS.values() for end in ("", "_low", "_high")),
    "queue_seconds", "queue_n", "pareto", "dominated_by", "note",
]  # fmt: skip


def compare_partitions(
    comparison: Comparison, experiments: Mapping[str, ExperimentFacts], folder: Path
) -> PartitionAnswer:
    """Write the answer across the partitions of an experiment from the results on each of them.

    Args:
        comparison: The comparison's part of the plan.
        experiments: Those of all experiments.
        folder: Receives the files; named like the experiment, next to the folders of its partitions.
    """
    terms = json.loads(comparison["definition"])
    studies = []
    for partition, name in comparison["experiments"].items():
        experiment = AnalysisSpec.from_json(experiments[name]["definition"])
        results = ExperimentResults.of_study(experiments[name], folder.parent / name)
        conditions = (folder.parent / name / FINGERPRINTS).read_text(encoding="utf-8")
        studies.append(
            PartitionStudy(
                partition=partition,
                experiment=with_measured_waits(experiment, results.queue_waits),
                results=results,
                price=terms["prices"][partition],
                waits=waits_by_run(results.queue_waits),
                conditions=json.loads(conditions),
            )
        )
    found = answer(
        collect_points(studies, terms["unit"], terms["left_out"]), studies[0].experiment.spec.decision.by
    )
    write_comparison(folder.name, found, folder)
    return found


def write_comparison(name: str, found: PartitionAnswer, folder: Path) -> None:
    """Write the table and the answer across partitions.

    Args:
        name: The experiment, without a partition.
        found: The answer.
        folder: Receives the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TABLE, comparison_table(found).to_csv(index=False, lineterminator="\n"))
    write_text(folder / COMPARISON, json.dumps(comparison_facts(name, found), indent=2) + "\n")


def comparison_table(found: PartitionAnswer) -> pd.DataFrame:
    """Return a row for each partition, series and device count, also for those that cannot be compared."""
    return pd.DataFrame(list(_rows(found)), columns=COLUMNS)


def _rows(found: PartitionAnswer) -> Iterator[dict[str, Any]]:
    points = found.points
    for place in points.order:
        row: dict[str, Any] = place._asdict()
        if place in points.not_compared:
            yield row | {"n": 0, "pareto": "", "dominated_by": "", "note": points.not_compared[place]}
            continue
        point = points.points[place]
        for aim, column in AMOUNTS.items():
            if (interval := point.interval(aim)) is not None:
                row |= interval.as_columns(column)
        waits = point.waits.dropna()
        better = found.dominated.get(place)
        known = point.amounts("time") and point.amounts("cost")
        yield row | {
            "n": len(point.amounts("time")),
            "queue_seconds": waits.median() if len(waits) else math.nan,
            "queue_n": len(waits),
            "pareto": "" if not known else "front" if better is None else "dominated",
            "dominated_by": "" if better is None else place_text(points, better),
            "note": "; ".join(point.misses),
        }


def comparison_facts(name: str, found: PartitionAnswer) -> dict[str, Any]:
    """Return the answer across partitions as plain values for JSON; unknown numbers are None."""
    points = found.points
    return {
        "experiment": name,
        "device": points.noun,
        "partitions": {
            partition: {"experiment": study.experiment.name, "price": study.price}
            for partition, study in points.studies.items()
        },
        "by": found.by,
        "clock": points.clock,
        "cost_unit": points.unit,
        "min_gain": points.min_gain,
        "card": asdict(partition_card(found)),
        "best": {aim: _aim_facts(found, each) for aim, each in found.aims.items()},
    }


def _aim_facts(found: PartitionAnswer, each: AimAnswer) -> dict[str, Any]:
    interval = None if each.best is None else found.points.points[each.best].interval(each.aim)
    return {
        "point": None if each.best is None else each.best._asdict(),
        "amount": None if interval is None else {**interval.as_dict(), "n": interval.n},
        "partition_status": each.partition_status,
        "count_status": each.count_status,
        "unknown_on": list(each.unknown),
        "repeats_needed": each.repeats_needed,
        "rivals": [
            {
                **rival.place._asdict(),
                "ratio": rival.ratio.estimate,
                **{end: rival.ratio.interval().as_dict()[end] for end in ("low", "high")},
                "n": rival.ratio.n,
                "state": rival.state,
            }
            for rival in each.rivals
        ],
    }
