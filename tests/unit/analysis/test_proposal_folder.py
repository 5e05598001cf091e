"""The folder of a proposal: every demand of a centre is answered, and every answer is where it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tests.unit.analysis.planted_proposal import (
    RATES,
    experiment,
    planted_results,
    planted_runs,
    spec_of,
    write,
)
from tests.unit.analysis.planted_tables import decision_on, make_runs

from scalewise.analysis.proposal.folder import write_proposal
from scalewise.plan.catalog.centres import known_centres, read_centre
from scalewise.plan.config.centre import Requirement
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.terminal.card_lines import card_lines

pytestmark = pytest.mark.slow

PLACE = re.compile(r'`(?P<file>[^`]+)`(?:, section "(?P<section>[^"]+)")?(?:, table "(?P<table>[^"]+)")?')


def checklist(folder: Path) -> list[str]:
    lines = (folder / "checklist.md").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("- [")]


def broken_places(folder: Path) -> list[str]:
    """Return the answers of a checklist whose file, heading, table or column is not there."""
    text = (folder / "proposal.md").read_text(encoding="utf-8")
    columns = pd.read_csv(folder / "table.csv").columns
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    broken = []
    for line in checklist(folder):
        if not line.startswith("- [x] ") and "to write: " not in line:
            continue
        place = PLACE.search(line)
        assert place, line
        named = line.split("column", 1)[1] if "`table.csv`, column" in line else ""
        files = re.findall(r"`([\w/]+\.(?:md|csv|pdf|svg|sh))`", line)
        there = files and all((folder / file).is_file() for file in files)
        there = there and (place["section"] is None or place["section"] in headings)
        there = there and (place["table"] is None or f"*{place['table']}." in text)
        there = there and set(re.findall(r"`(\w+)`", named)) <= set(columns)
        broken += [] if there else [line]
    return broken


def text_of(folder: Path, name: str = "proposal.md") -> str:
    return (folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("centre", known_centres())
def test_every_demand_has_a_source_and_is_answered_in_a_place_that_is_there(
    centre: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, spec_of(centre, trainings=200, margin=0.05, unit_factor=1))
    read, _ = read_centre(centre, ())
    assert read is not None

    text = text_of(folder, "checklist.md")
    assert broken_places(folder) == []
    for demand in read.demands:
        assert f"> {demand.demand}" in text
        if centre != "generic":
            assert re.match(r"https?://", demand.source), demand.heading
            assert demand.date is not None, demand.heading
    parts = re.split(r"^## \d+\. ", text, flags=re.MULTILINE)[1:]
    assert len(parts) == len(read.demands)
    assert all("- [" in part for part in parts)
    demanded = list(dict.fromkeys(demand.heading for demand in read.demands))
    headings = [each for each in re.findall(r"^## (.*)$", text_of(folder), re.MULTILINE) if each in demanded]
    assert headings == sorted(headings, key=demanded.index), "in the centre's order"


@pytest.mark.parametrize(
    ("centre", "file", "words", "times"),
    [
        ("marlowe", "proposal.md", "TO WRITE: the scientific question, in a paragraph.", 1),
        ("marlowe", "proposal.tex", "TO WRITE: the scientific question, in a paragraph.", 1),
        ("incite", "checklist.md", "- [ ] to write: ", 4),
        # 20 s of start-up and 600,000 samples at 400 and 1,270 a second
        ("generic", "proposal.md", "A run takes 1.69 GPU-hours and 25.3 min on 4 GPUs, 2.19 GPU-hours and "
         "8.21 min on 16 GPUs.", 1),
    ],
    ids=["a gap for the user", "a gap in LaTeX", "demands on another machine", "cost next to the fewest"],
)  # fmt: skip
def test_a_text_says_what_the_study_gives_and_what_the_user_has_to_write(
    centre: str, file: str, words: str, times: int, tmp_path: Path
) -> None:
    assert text_of(write(tmp_path, spec_of(centre)), file).count(words) == times


@pytest.mark.parametrize("centre", ["generic", "csc-roihu", "nhr"])
def test_a_study_without_a_result_says_of_each_demand_what_would_supply_it(
    centre: str, tmp_path: Path
) -> None:
    runs = planted_runs().assign(outcome="failed", nodes=float("nan"), slurm_job_id=float("nan"))
    runs = runs.drop(columns=["throughput_samples_per_second", "wall_seconds", "device_hours"])
    folder = write(tmp_path, spec_of(centre), planted_results(tmp_path, runs))
    assert broken_places(folder) == []
    missing = [line for line in checklist(folder) if "missing: " in line]
    assert missing
    assert all(len(re.findall(r"[.:] ", line)) >= 1 for line in missing)
    if centre == "generic":
        assert "There is no baseline, and so no speedup." in text_of(folder)


def test_too_few_node_counts_are_named_with_the_fix(tmp_path: Path) -> None:
    runs = planted_runs({devices: RATES[devices] for devices in (4, 8)})
    folder = write(tmp_path, spec_of("csc-roihu"), planted_results(tmp_path, runs))
    assert (
        "- [ ] missing: 2 node counts were measured, 3 are demanded. Add more nodes to `devices`."
        in checklist(folder)
    )


def test_the_job_script_is_part_of_the_text_and_of_the_checklist(tmp_path: Path) -> None:
    folder = write(tmp_path, spec_of("csc-roihu"))
    assert "- [x] `job.sh`" in checklist(folder)
    assert "`job.sh`" in text_of(folder)
    folder = write(tmp_path / "without", spec_of("csc-roihu"), job_script=False)
    assert "- [ ] missing: No job script was written. Write one of the recommended row." in checklist(folder)


def test_what_the_answer_says_changes_what_the_proposal_says(tmp_path: Path) -> None:
    made = planted_results(tmp_path)
    rule = "The decision has no criterion: the largest speedup x efficiency."
    decision = {"device": "CPU process", "card": {**made.decision["card"], "rule": rule}}
    made = replace(made, decision={**made.decision, **decision})
    folder = write(tmp_path, spec_of("csc-roihu"), made)

    not_met = "not met: The demand is on GPUs, and the runs used CPU processes."
    demands = re.split(r"^## ", text_of(folder, "checklist.md"), flags=re.MULTILINE)[1:]
    assert [not_met in demand for demand in demands] == ["showcase GPU" in demand for demand in demands]
    assert "Our rule, apart from the requirement, by" in text_of(folder)
    assert "The decision has no criterion" not in text_of(folder)


def test_a_centres_own_file_by_its_path_needs_no_code(tmp_path: Path) -> None:
    file = tmp_path / "my-centre.yaml"
    file.write_text(
        "name: Ours\nunit: {name: node-hours, of: node}\ndemands:\n"
        "  - heading: Cost\n    demand: The node-hours.\n    sections: [totals]\n",
        encoding="utf-8",
    )
    folder = write(tmp_path, spec_of(str(file), trainings=10))
    # 16 GPUs are 4 nodes for 20 s + 600,000 samples / 1,270 samples/s
    assert "We request 5.47 (5.34 to 5.60) node-hours: 10 trainings x 0.547." in text_of(folder)
    assert "Demands: 1. Answered: 1. To write: 0." in text_of(folder, "checklist.md")


def test_equal_studies_write_equal_folders(tmp_path: Path) -> None:
    made = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_proposal(planted_results(tmp_path / name), experiment(), spec_of("ncar"))
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        made.append([path.read_bytes() for path in files])
    assert made[0] == made[1]


@pytest.mark.parametrize("devices", [(1, 2, 4), (4, 8, 16)])
def test_a_demand_on_projects_of_other_sizes_is_said_not_to_apply(
    devices: tuple[int, ...], tmp_path: Path
) -> None:
    runs = planted_runs({count: RATES.get(count, 100.0 * count) for count in devices})
    runs["nodes"] = (runs["devices"] / 4).clip(lower=1)
    folder = write(tmp_path, spec_of("archer2"), planted_results(tmp_path, runs))

    on_one = devices[-1] == 4
    others = "- [ ] does not apply: It is on projects on {} node{}, and the study has runs on up to {}."
    several, one = (others.format("several", "s", "1 node"), others.format("one", "", "4 nodes"))
    assert checklist(folder).count(several) == 3 * on_one
    assert checklist(folder).count(one) == (not on_one)
    text = text_of(folder)
    assert ("## Single-node performance" in text) is on_one
    assert ("## Parallel efficiency" in text) is not on_one
    assert f"Not on this study: {3 if on_one else 1}" in text_of(folder, "checklist.md")


# --- as the docs show it --------------------------------------------------------------------------------


DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "proposal.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^(\| GPUs \||\| \*{0,2}\d+|Each row is|Required is|\d+ to \d+ nodes|We request)")
"""Beginnings of the lines that are examples of a text."""

EFFICIENT = {1: 100.0, 2: 190.0, 4: 340.0, 8: 480.0}


def test_the_examples_in_the_docs_are_what_such_runs_give(tmp_path: Path) -> None:
    required = {"efficiency": 0.75, "per": "doubling_of_nodes", "by": "total_time"}
    written = text_of(write(tmp_path, spec_of("generic", required, trainings=200, margin=0.05))).splitlines()
    shown = [line for line in PAGE.splitlines() if SHOWN.match(line)]
    assert len(shown) == 11
    assert [line for line in shown if line not in written] == []
    assert Requirement.model_validate(required) == spec_of("csc-roihu").requirement


def test_the_docs_name_every_centre() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, re.MULTILINE)) >= set(known_centres())


def test_the_answer_in_the_guide_to_the_report_is_what_such_runs_give() -> None:
    runs = make_runs({("all runs", n): [0.99 * r, r, 1.01 * r] for n, r in EFFICIENT.items()})
    runs["nodes"] = [1.0 if devices < 8 else 2.0 for devices in runs["devices"]]
    runs["wall_seconds"] = 300 + 2_880_000 / runs["throughput_samples_per_second"]
    runs["device_hours"] = runs["wall_seconds"] * runs["devices"] / 3600
    decision = decision_on(runs, DecisionRule(min_efficiency=0.7), name="my-training", noun="GPU").named(
        "GPU"
    )
    answer = "\n".join(card_lines(decision.as_dict()))
    assert answer in (DOCS / "report.md").read_text(encoding="utf-8")
