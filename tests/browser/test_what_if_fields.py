"""The fields that decide again: what they take, what they refuse, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from playwright.sync_api import Page, expect
from tests.unit.analysis.decision_cases import (
    FOUR,
    MORE_BUT_BY_LUCK,
    SINGLE,
    UNKNOWN_WALLS,
    both,
    of,
    rule,
)
from tests.unit.analysis.planted_decisions import PlantedResults
from tests.unit.analysis.planted_tables import ONLY

from scalewise.analysis.report import page as report_page

OpenPage = Callable[..., Page]
OpenFields = Callable[..., Page]

HOSTILE = '</script><img src=x onerror="document.title=1"> & "it\'s"'
REPORT = Path(report_page.__file__).parent


@pytest.fixture
def fields(open_page: OpenPage, tmp_path: Path) -> OpenFields:
    """Opens a page with only the fields of a study, of four device counts unless another one is given."""

    def open_fields(facts: Mapping[str, Any] | None = None, **settings: Any) -> Page:
        facts = facts or FOUR.facts(rule(min_efficiency=0.7))
        environment = Environment(loader=FileSystemLoader(REPORT), autoescape=True, undefined=StrictUndefined)
        section = {"name": "study", "title": "A study", "what_if": facts}
        part = environment.get_template("what_if.html.j2").render(section=section)
        data = report_page.as_script_data({"what_if": facts})
        loader, script = (
            (REPORT / name).read_text(encoding="utf-8") for name in ("report_data.js", "what_if.js")
        )
        file = tmp_path / "fields.html"
        file.write_text(
            f"<!doctype html><html lang=en data-theme=auto><meta charset=utf-8><title>fields</title>"
            f"<meta name=viewport content='width=device-width'><style>{report_page.style()}</style>"
            f"<main><h1>Study</h1>{part}</main>"
            f'<script type="application/json" class="report-data" data-experiment="study">{data}</script>'
            f"<script>{loader}</script><script>{script}</script></html>",
            encoding="utf-8",
        )
        return open_page(file, **settings)

    return open_fields


def answer(page: Page) -> str:
    return page.locator(".what-if-answer").inner_text()


def number(page: Page, name: str) -> Any:
    return page.locator(f"[name={name}]")


def test_the_first_answer_is_the_study_s_own(fields: OpenFields) -> None:
    page = fields()
    own = FOUR.decision(rule(min_efficiency=0.7)).card
    assert own.next == (
        "8 devices would be 4.00x as fast as 1 device (3.91 to 4.09): "
        "efficiency 0.50, below the 0.70 required."
    )
    assert list(filter(None, answer(page).split("\n"))) == [
        own.verdict,
        own.next,
        "The study has the same answer.",
    ]
    assert page.get_by_label("Require: Efficiency at least").is_checked()


def test_a_value_that_is_written_counts_and_reset_brings_the_study_s_own_back(fields: OpenFields) -> None:
    page = fields()
    page.get_by_label("Efficiency at least, as a slider").fill("0.9")
    assert answer(page).startswith("Use 2 devices")
    assert number(page, "min_efficiency").input_value() == "0.9"
    assert "The study’s own answer: Use 4 devices." in answer(page)
    number(page, "deadline_minutes").fill("40")
    assert page.get_by_label("Require: Finished within (with queue)").is_checked()
    assert answer(page).startswith("No device count meets your criteria.")
    assert "Closest is 8 devices: efficiency 0.50, below the 0.90 required." in answer(page)
    page.get_by_label("Require: Efficiency at least").uncheck()
    assert answer(page).startswith("Use 4 devices")
    number(page, "queue_minutes").fill("30")
    assert "57.9 minutes in the queue and running, more than the 40 allowed" in answer(page)
    page.get_by_role("button", name="Reset").click()
    expect(number(page, "queue_minutes")).to_have_value("")
    expect(page.locator(".what-if-answer")).to_contain_text("The study has the same answer.")


def test_every_speedup_has_its_interval(fields: OpenFields) -> None:
    page = fields()
    cells = page.locator(".what-if-counts tbody tr td:nth-child(2)").all_inner_texts()
    found = FOUR.compared.of("throughput", ("all runs", 4), ("all runs", 1))
    assert found is not None
    low, high = found.at_least, found.at_most
    assert cells[0] == "1.00x"
    assert cells[2].split() == f"3.00x ({low:.2f} to {high:.2f})".split()
    assert "95 % intervals" in page.locator(".what-if-counts caption").inner_text()
    page = fields(SINGLE.facts(rule(min_efficiency=0.7)))
    assert page.locator(".what-if-counts tbody tr td:nth-child(2)").all_inner_texts()[2] == "3.00x"
    assert "A single run does not show how much repeats scatter." in answer(page)


def test_the_table_names_its_series_and_has_costs_only_with_a_price(fields: OpenFields) -> None:
    page = fields(both(of({1: 100, 2: 190}, series="slow"), of({1: 120, 2: 230}, series="fast")).facts())
    caption = page.locator(".what-if-counts caption")
    assert caption.inner_text().startswith("Every device count of fast under these criteria.")
    assert caption.bounding_box()["height"] > 10  # type: ignore[index]
    assert not page.get_by_role("columnheader", name="Cost of a run").is_visible()
    assert page.locator(".what-if-counts tbody tr").first.locator("td").count() == 5
    number(page, "price").fill("2")
    assert page.get_by_role("columnheader", name="Cost of a run").is_visible()


def test_with_a_target_the_answer_says_what_it_is_of_and_which_runs_missed_it(fields: OpenFields) -> None:
    page = fields(MORE_BUT_BY_LUCK.facts(rule(min_efficiency=0.1)))
    assert page.get_by_role("columnheader", name="Speedup to the target").is_visible()
    assert page.get_by_label("Require: Efficiency to the target at least").is_checked()
    why = page.locator(".what-if-counts tbody tr").last.locator("td").last.inner_text()
    assert why == "not shown to be 5 % faster than 1 device"
    page = fields(MORE_BUT_BY_LUCK.facts(rule(deadline_minutes=40)))
    assert answer(page).startswith("Use 4 devices")
    assert "3 of 4 runs on 4 devices reached the target." in answer(page)


def test_accuracy_that_the_chosen_devices_lose_stands_below_the_answer(fields: OpenFields) -> None:
    study = PlantedResults(FOUR.points, epochs={(ONLY, 1): [3] * 3, (ONLY, 2): [3] * 3})
    page = fields(study.facts(rule(deadline_minutes=40)))
    assert answer(page).startswith("Use 4 devices.")
    assert "Accuracy: 8.0 points lower than on 1 device." in answer(page)
    number(page, "deadline_minutes").fill("60")
    assert answer(page).startswith("Use 2 devices.")
    assert "Accuracy" not in answer(page)


def test_an_address_that_is_none_leaves_the_fields_alive(fields: OpenFields) -> None:
    page = fields()
    page.goto(page.url + "#50%")
    page.reload()
    assert page.locator(".what-if").is_visible()
    assert answer(page).startswith("Use 4 devices")


def test_only_another_answer_is_read_out(fields: OpenFields) -> None:
    page = fields()
    live = page.locator(".what-if [aria-live=polite]")
    assert live.evaluate_all("all => all.map((each) => each.className)") == ["sentence"]
    page.evaluate(
        "globalThis.changes = 0; new MutationObserver((all) => { changes += all.length; })"
        ".observe(document.querySelector('.what-if-answer .sentence'), {childList: true})"
    )
    slider = page.get_by_label("Efficiency at least, as a slider")
    slider.fill("0.71")
    first = page.evaluate("changes")
    slider.fill("0.72")
    assert page.evaluate("changes") == first, "the answer is the same"
    slider.fill("0.9")
    assert page.evaluate("changes") > first


def test_a_price_gives_every_device_count_its_cost(fields: OpenFields) -> None:
    page = fields()
    number(page, "price").fill("2")
    page.get_by_label("Currency").fill("USD")
    costs = page.locator(".what-if-counts tbody tr td:nth-child(6)").all_inner_texts()
    assert costs == ["3.40 USD", "3.64 USD", "4.71 USD", "7.20 USD"]
    assert page.locator(".what-if-counts tr.chosen th").all_inner_texts() == ["4"]


def test_values_that_no_rule_can_take_are_refused_in_words(fields: OpenFields) -> None:
    page = fields()
    before = answer(page)
    for name, value, message in (
        ("min_efficiency", "", "Give the efficiency required."),
        ("min_efficiency", "0", "The efficiency required must be above 0."),
        ("min_efficiency", "1.01", "The efficiency required must be at most 1."),
        ("deadline_minutes", "-5", "The deadline must be above 0."),
        ("deadline_minutes", "1e300", "The deadline must be at most 1,000,000,000."),
        ("max_device_hours", "1e-300", "The most device-hours must be 0.000001 or more."),
        ("min_gain", "", "Give the least gain."),
        ("min_gain", "101", "The least gain must be at most 100."),
        ("queue_minutes", "-1", "The wait in the queue must be 0 or more."),
        ("price", "-1", "The price must be 0 or more."),
    ):
        number(page, name).fill(value)
        assert answer(page) == f"Not decided again. {message}"
        assert number(page, name).get_attribute("aria-invalid") == "true"
        assert page.locator(rf"#study\.what-if-{name}-problem").inner_text() == message
        assert not page.locator(".what-if-counts").is_visible()
        number(page, name).fill("1")
        assert not answer(page).startswith("Not decided"), name
    number(page, "price").press_sequentially("e")
    assert answer(page) == "Not decided again. The price must be a number."
    assert "NaN" not in page.locator("main").inner_text()
    page.get_by_role("button", name="Reset").click()
    expect(number(page, "price")).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator(".what-if-answer")).to_have_text(before, use_inner_text=True)


@pytest.mark.parametrize("study", [FOUR, UNKNOWN_WALLS], ids=["known", "unknown-walls"])
def test_no_value_puts_anything_but_numbers_on_the_page(fields: OpenFields, study: PlantedResults) -> None:
    page = fields(study.facts())
    for value in ("0.000001", "1000000000", "0.1", "12345.678"):
        for name in ("deadline_minutes", "max_device_hours", "price", "queue_minutes"):
            number(page, name).fill(value)
            shown = page.locator("main").inner_text()
            assert not {"NaN", "undefined", "null", "Infinity"} & set(shown.replace(",", " ").split())


def test_a_link_holds_the_values(fields: OpenFields) -> None:
    facts = FOUR.facts(rule(min_efficiency=0.7))
    page = fields(facts)
    page.get_by_label("Require: Efficiency at least").uncheck()
    number(page, "max_device_hours").fill("1.9")
    number(page, "price").fill("3")
    said = answer(page)
    assert said.startswith("Use 2 devices")
    link = page.get_by_role("link", name="Link to these values").get_attribute("href")
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(".what-if-answer")).to_contain_text("Use 4 devices")
    page.evaluate("link => { location.hash = link }", link)
    expect(page.locator(".what-if-answer")).to_contain_text("Use 2 devices")
    assert answer(page) == said


def test_names_of_series_stay_text(fields: OpenFields) -> None:
    study = both(of({1: 100, 2: 190}, series="slow"), of({1: 120, 2: 230}, series=HOSTILE))
    page = fields(study.facts(rule(min_efficiency=0.7)))
    assert f"Use 2 devices with {HOSTILE}." in answer(page)
    number(page, "price").fill("1")
    page.get_by_label("Currency").fill("<b>€")
    assert "<b>€" in page.locator(".what-if-counts tbody").inner_text()
    assert page.locator("img, .what-if b").count() == 0
    assert page.title() == "fields"


def test_runs_that_steps_ended_leave_deadline_and_device_hours_out(fields: OpenFields) -> None:
    facts = UNKNOWN_WALLS.facts(rule(min_efficiency=0.7)) | {"whole_runs": False}
    page = fields(facts)
    assert number(page, "deadline_minutes").is_disabled()
    assert number(page, "max_device_hours").is_disabled()
    assert "Deadline and device-hours cannot be judged" in page.locator("main").inner_text()
    assert answer(page).startswith("Use 4 devices.")


def test_a_study_that_chose_its_counts_says_what_another_criterion_may_lack(fields: OpenFields) -> None:
    note = "The study measured the device counts that its own criteria needed. Not measured: 3, 6."
    page = fields(FOUR.facts() | {"chooses_devices": True, "notes": [note]})
    assert note in answer(page)


def test_everything_is_reached_and_changed_by_the_keyboard(fields: OpenFields) -> None:
    page = fields()
    page.get_by_label("Require: Efficiency at least").focus()
    page.keyboard.press("Space")
    assert "a worse balance of speed and efficiency" in answer(page)
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert number(page, "min_efficiency").input_value() == "1"
    assert answer(page).startswith("Use 1 device")


def test_without_scripts_no_field_is_shown(fields: OpenFields) -> None:
    page = fields(FOUR.facts(), java_script_enabled=False)
    assert not page.locator(".what-if").is_visible()
    assert page.get_by_role("heading", name="Study").is_visible()


def test_a_study_that_cannot_be_decided_again_says_why(fields: OpenFields) -> None:
    page = fields({"left_out": "There is nothing to choose among."})
    assert page.locator("main").inner_text().endswith("There is nothing to choose among.")


def test_on_a_narrow_screen_nothing_is_cut_off(fields: OpenFields) -> None:
    page = fields(viewport={"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
