"""A figure's drawing as a page holds it: what a page or its script can say as well is left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from xml.etree.ElementTree import Element, SubElement

_UPRIGHT = re.compile(r"M([\d.]+) ([\d.]+) \1 ([\d.]+)(?![\d. -])")
_LEVEL = re.compile(r"M([\d.]+) ([\d.]+) ([\d.]+) \2(?![\d. -])")
_TWICE = re.compile(r"#(.)\1(.)\2(.)\3")
"""A colour each of whose channels is one digit twice, which can be written once."""
_LEAST_POINTS = 3
"""Fewer marks are as short by themselves, and a single point has no path."""


def shorten(root: Element, curves: Collection[str]) -> None:
    """Say in fewer characters what a drawing shows, in place.

    Args:
        root: The drawing, its namespaces removed.
        curves: Numbers of the traces whose marks become the markers of one path. The page's script makes
            elements of them, because a reader can point at those.
    """
    defs = root.find("defs")
    for group in root.iter("g"):
        if group.get("data-trace") in curves and defs is not None:
            _marks_as_path(group, defs)
        if "data-trace" in group.attrib:
            # the script knows it by the trace, as it does the devices of each mark
            group.attrib.pop("data-series", None)
        if group.get("class") == "lines":
            for path in group.findall("path"):
                upright = _UPRIGHT.sub(r"M\1 \2V\3", path.get("d", ""))
                path.set("d", _LEVEL.sub(r"M\1 \2H\3", upright))
    for element in root.iter():
        element.attrib.pop("data-devices", None)
        for name in ("fill", "stroke"):
            if name in element.attrib:
                element.set(name, _TWICE.sub(r"#\1\2\3", element.attrib[name]))
    root.set("fill", "none")
    for child in root:
        if child.tag != "defs":
            _leave_out_fill(child)


def _marks_as_path(group: Element, defs: Element) -> None:
    for holder in [group, *group.findall("g")]:
        marks = holder.findall("use")
        if len(marks) < _LEAST_POINTS or len({_but_place(mark) for mark in marks}) > 1:
            continue
        look = {**_look(group), **_look(holder), **_look(marks[0])}
        url = f"url(#{_marker(defs, marks[0].attrib['href'], look)})"
        points = " ".join(f"{mark.attrib['x']} {mark.attrib['y']}" for mark in marks)
        path = Element("path", {"class": "points", "d": f"M{points}", "style": f"marker:{url}"})
        holder.insert(list(holder).index(marks[0]), path)
        for mark in marks:
            holder.remove(mark)
        for name, value in _look(marks[0]).items():
            holder.set(name, value)


def _marker(defs: Element, shape: str, look: Mapping[str, str]) -> str:
    """The id of the marker of a shape and a look, which is drawn once."""
    for marker in defs.findall("marker"):
        if marker[0].attrib == {"href": shape, **look}:
            return marker.attrib["id"]
    name = f"{shape[1:]}-{len(defs)}"
    marker = SubElement(defs, "marker", {"id": name, "overflow": "visible", "markerUnits": "userSpaceOnUse"})
    SubElement(marker, "use", {"href": shape, **look})
    return name


def _but_place(mark: Element) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in mark.attrib.items() if name not in {"x", "y"}))


def _look(element: Element) -> dict[str, str]:
    names = ("fill", "stroke", "opacity")
    return {name: value for name, value in element.attrib.items() if name.startswith(names)}


def _leave_out_fill(element: Element) -> None:
    """Take the root's fill where no group between says another."""
    fill = element.get("fill")
    if fill == "none":
        del element.attrib["fill"]
    if fill in {None, "none"}:
        for child in element:
            _leave_out_fill(child)
