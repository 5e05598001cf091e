"""A drawing in a page: the same lines and marks in fewer characters."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

from scalewise.analysis.report.svg_in_page import shorten
from scalewise.analysis.report.svg_markup import markup

DRAWING = """\
<svg><defs><path id="m" d="M0 0"/></defs><g class="panel">
<g class="lines" fill="none"><path d="M5 20 5 1M7.5 20 7.5 1M5 20 9 20M5 1 7 2"/></g>
<path d="M5 20 9 1" fill="none" stroke="#cccccc"/>
<g data-trace="0" data-series="a" fill="blue"><path d="M1 2 3 4" fill="none"/>{marks}</g>
<g data-trace="1" fill="blue">{marks}</g></g></svg>"""
MARKS = "".join(f'<use class="mark" data-devices="1" href="#m" x="{x}" y="2.5"/>' for x in (1, 2, 3))


def test_what_the_script_and_the_root_know_and_long_colours_are_left_out() -> None:
    root = fromstring(DRAWING.format(marks=MARKS))
    shorten(root, [])
    text = markup(root, standalone=False)
    assert '<path d="M5 20V1M7.5 20V1M5 20H9M5 1 7 2"/>' in text
    assert '<path d="M5 20 9 1" stroke="#ccc"/>' in text
    assert "data-series" not in text
    assert "data-devices" not in text
    assert '<path d="M1 2 3 4" fill="none"/>' in text, "a group between says blue"
    assert text.startswith('<svg fill="none">')


def test_the_marks_of_curves_alone_are_one_path_with_their_shape_at_every_point() -> None:
    root = fromstring(DRAWING.format(marks=MARKS))
    shorten(root, ["0"])
    curve, other = (root.find(f".//g[@data-trace='{number}']") for number in (0, 1))
    assert curve is not None
    assert other is not None
    (points,) = curve.findall("path[@class='points']")
    assert points.attrib["d"] == "M1 2.5 2 2.5 3 2.5"
    (marker,) = root.iter("marker")
    assert points.attrib["style"] == f"marker:url(#{marker.attrib['id']})"
    assert marker[0].attrib == {"href": "#m", "fill": "blue"}
    assert curve.findall("use") == []
    assert len(other.findall("use")) == 3
