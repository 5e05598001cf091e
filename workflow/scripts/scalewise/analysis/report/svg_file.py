"""The SVG files of the figures: what matplotlib writes, small, and with the facts that its artists carry.

Text stays text. Every mark is an element of class ``mark`` in a group that names its series; what the marks
stand for lies in the file's metadata as JSON, in the order of the marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring

from scalewise.analysis.report.hatches import hatch_pattern
from scalewise.analysis.report.marks import X_AXIS, Y_AXIS
from scalewise.analysis.report.svg_markup import PAINT, hoist, markup
from scalewise.analysis.report.text_width import text_width

FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_ROUNDING = 0.01
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_PART = re.compile(r"[MLQCZz]|-?\d+(?:\.\d+)?(?:e-?\d+)?")
_FRAME = re.compile(
    r"M([\d.]+) ([\d.]+) \1 ([\d.]+)M([\d.]+) \2 \4 \3M\1 \2 \4 \2M\1 \3 \4 \3",
)
# of the markers the round one alone has curves
_CIRCLE = re.compile(r"M0 ([\d.]+)C[\d. -]+Z")
_CAP = re.compile(r"M(-?[\d.]+) 0 ?(-?[\d.]+) 0")
_LOOK = (*PAINT, "opacity")
_TICK = re.compile(r"[xy]tick_\d+")
_ROTATED = re.compile(r"rotate\((-?[\d.]+)")
_MOVED = re.compile(r"translate\((-?[\d.]+) (-?[\d.]+)\)")


@dataclass
class _Place:
    """A place in the walk over a drawing.

    Args:
        out: Receives what is found.
        panel: Number of the panel; None outside of all.
        facts: Facts that the artist carries.
    """

    out: Element
    panel: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def compact(svg: str, title: str) -> str:
    """A figure's SVG as the file that is kept.

    Args:
        svg: Output of matplotlib, its text as text.
        title: Name of the figure.

    Returns:
        An SVG file; equal drawings make equal files.
    """
    return _Compaction(fromstring(svg), title).text()  # noqa: S314  our own drawing


class _Compaction:
    """One pass over a drawing."""

    def __init__(self, root: Element, title: str) -> None:
        _, _, width, height = (float(number) for number in root.attrib["viewBox"].split())
        size = {"width": f"{_short(width)}pt", "height": f"{_short(height)}pt"}
        box = f"0 0 {_short(width)} {_short(height)}"
        self._out = Element("svg", {**size, "viewBox": box, "font-family": FONTS, "stroke-linejoin": "round"})
        SubElement(self._out, "title").text = title
        self._data: dict[str, Any] = {"panels": [], "traces": []}
        self._trace_numbers: dict[str, int] = {}
        self._drawn: dict[int, list[int]] = {}
        self._height = height
        self._metadata = SubElement(self._out, "metadata")
        self._defs = SubElement(self._out, "defs")
        self._sources = {element.get("id", ""): element for element in root.iter() if element.get("id")}
        self._names: dict[str, str] = {}
        for figure in root.findall(f"{_SVG}g"):
            self._children(figure, _Place(self._out))

    def text(self) -> str:
        """The file."""
        self._data["traces"] = [
            _as_kept(trace, self._drawn.get(number, [])) for number, trace in enumerate(self._data["traces"])
        ]
        self._metadata.text = json.dumps(self._data, separators=(",", ":"))
        for path in self._out.iter("path"):
            path.set("d", _FRAME.sub(r"M\1 \2 \1 \3 \4 \3 \4 \2Z", path.attrib["d"]))
        hoist(self._out)
        if not len(self._defs):
            self._out.remove(self._defs)
        return markup(self._out, standalone=True) + "\n"

    def _children(self, element: Element, place: _Place) -> None:
        for child in element:
            self._element(child, place)

    def _element(self, element: Element, place: _Place) -> None:
        kind = element.tag.removeprefix(_SVG)
        if kind == "g":
            self._group(element, place)
        elif kind == "path":
            self._path(element, place)
        elif kind == "use":
            self._use(element, place)
        elif kind == "text":
            self._text(element, place)

    def _group(self, group: Element, place: _Place) -> None:
        name = group.get("id", "")
        out, panel, facts = place.out, place.panel, place.facts
        if name.startswith("{"):
            facts = json.loads(name)
            if "panel" in facts:
                panel = len(self._data["panels"])
                out = SubElement(out, "g", {"class": "panel", "data-panel": str(panel)})
                self._data["panels"].append(facts.pop("panel"))
            elif "series" in facts:
                out = self._of_series(out, facts, panel)
        elif name in {X_AXIS, Y_AXIS}:
            out = SubElement(out, "g", {"class": name})
            for part in ("lines", "labels"):
                SubElement(out, "g", {"class": part})
        elif _TICK.fullmatch(name):
            self._tick(group, place)
            return
        self._children(group, _Place(out, panel, facts))

    def _tick(self, tick: Element, place: _Place) -> None:
        lines, labels = place.out[0], place.out[1]
        for path in tick.iter(f"{_SVG}path"):
            self._path(path, _Place(lines, place.panel))
        for text in tick.iter(f"{_SVG}text"):
            self._text(text, _Place(labels, place.panel))

    def _of_series(self, out: Element, facts: dict[str, Any], panel: int | None) -> Element:
        """The group for what an artist draws; that of the artist before it where it is of the same."""
        wanted = {"data-series": facts["series"]}
        trace = facts.get("trace")
        if trace is not None:
            key = json.dumps([panel, trace], sort_keys=True)
            if key not in self._trace_numbers:
                self._trace_numbers[key] = len(self._data["traces"])
                self._data["traces"].append({"panel": panel} | trace)
            wanted["data-trace"] = str(self._trace_numbers[key])
            if "devices" in trace:
                wanted["data-devices"] = str(trace["devices"])
        if facts.get("shift"):
            wanted["data-shift"] = _short(facts["shift"])
        if len(out) and out[-1].tag == "g" and out[-1].attrib == wanted:
            return out[-1]
        return SubElement(out, "g", wanted)

    def _path(self, path: Element, place: _Place) -> None:
        look, data = _look(path), _path_data(path.get("d", ""))
        facts = place.facts
        if place.panel is None and look.get("fill") == "#ffffff" and not place.out.findall("path"):
            SubElement(place.out, "path", {"class": "back", "d": data} | look)
            return
        if place.panel is not None and "box" not in (panel := self._data["panels"][place.panel]):
            numbers = [float(number) for number in _NUMBER.findall(data)]
            panel["box"] = _box(numbers)
            return
        if look.get("fill", "").startswith("url") or facts.get("hatch"):
            look["fill"] = self._hatched(look["fill"], facts["hatch"])
        if look.get("stroke", "none") == "none":
            look = {name: value for name, value in look.items() if not name.startswith("stroke")}
        drawn = {"d": data} | look
        if "index" in facts:
            drawn |= {"class": "mark", "data-devices": str(facts["trace"]["x"][facts["index"]])}
            numbers = [float(number) for number in _NUMBER.findall(data)]
            left, top, right, bottom = _box(numbers)
            if top == bottom:
                return
            drawn["d"] = f"M{left:g} {top:g}H{right:g}V{bottom:g}H{left:g}Z"
            self._drawn.setdefault(self._number(place), []).append(facts["index"])
        elif path.get("clip-path") and place.out.get("class") != "lines":
            drawn |= self._clip(place.panel, data)
        self._line(place.out, drawn)

    @staticmethod
    def _line(out: Element, drawn: dict[str, str]) -> None:
        """Draw a path, as part of the one before it where both look alike."""
        before = out[-1] if len(out) else None
        if before is not None and before.tag == "path" and _but_data(before) == _but_data(drawn):
            before.set("d", before.attrib["d"] + drawn["d"])
        else:
            SubElement(out, "path", drawn)

    def _use(self, use: Element, place: _Place) -> None:
        x, y = float(use.attrib["x"]), float(use.attrib["y"])
        shape = self._sources[use.attrib[_HREF][1:]].attrib["d"]
        if x == 0 and abs(y - self._height) < _ROUNDING:
            # an area, which matplotlib draws as a shape of its own at the lower left corner
            data = _path_data(shape, below=y)
            SubElement(place.out, "path", {"d": data} | _look(use) | self._clip(place.panel, data))
            return
        trace = place.facts.get("trace")
        if trace is None and place.panel is not None and (cap := _CAP.fullmatch(_path_data(shape, 2))):
            # the end of an interval's bar is a line like the bar
            left, right = sorted(float(each) for each in cap.groups())
            data = f"M{_short(x + left)} {_short(y)} {_short(x + right)} {_short(y)}"
            self._line(place.out, {"class": "caps", "d": data} | _look(use) | {"fill": "none"})
            return
        where = {"href": f"#{self._defined('m', _path_data(shape, 2))}", "x": _short(x), "y": _short(y)}
        marks = place.out
        if len(marks) and marks[-1].tag == "g" and not marks[-1].attrib:
            marks = marks[-1]
        elif len(marks) and marks[-1].tag != "use":
            marks = SubElement(marks, "g")
        if trace is None:
            SubElement(marks, "use", where | _look(use))
            return
        shown = self._drawn.setdefault(self._number(place), [])
        every = trace.get("every", 1)
        candidates = range(0, len(trace["x"]), every)
        index = [index for index in candidates if trace["value"][index] is not None][len(shown)]
        shown.append(index)
        devices = {} if "devices" in trace else {"data-devices": str(trace["x"][index])}
        SubElement(marks, "use", {"class": "mark", **devices, **where} | _look(use))

    def _text(self, text: Element, place: _Place) -> None:
        style = _style(text)
        size = float(style["font-size"].removesuffix("px"))
        said = {"font-size": _short(size), "fill": style.get("fill", "#000000")}
        turn = text.get("transform", "")
        rotation = -float(match[1]) if (match := _ROTATED.search(turn)) else 0.0
        if "x" in text.attrib:
            x, y = float(text.attrib["x"]), float(text.attrib["y"])
            anchor = style.get("text-anchor", "start")
        else:
            # placed by the width of the layout's font: the middle stays where it is in any other
            x, y = (float(number) for number in _MOVED.search(turn).groups())  # type: ignore[union-attr]
            along = text_width(text.text or "", size) / 2
            x, y, anchor = (x, y - along, "middle") if rotation else (x + along, y, "middle")
        if anchor != "start":
            said["text-anchor"] = anchor
        if rotation:
            said["transform"] = f"rotate({_short(-rotation)} {_short(x)} {_short(y)})"
        if place.facts.get("moves"):
            said["class"] = "moves"
        SubElement(place.out, "text", {"x": _short(x), "y": _short(y), **said}).text = text.text

    def _number(self, place: _Place) -> int:
        """The number of the trace that an artist draws."""
        return self._trace_numbers[json.dumps([place.panel, place.facts["trace"]], sort_keys=True)]

    def _clip(self, panel: int | None, data: str) -> dict[str, str]:
        """The attribute that keeps a path in its panel; none where it is there anyway, or nowhere."""
        if panel is None or not data:
            return {}
        left, top, right, bottom = self._data["panels"][panel]["box"]
        numbers = [float(number) for number in _NUMBER.findall(data)]
        most_left, highest, most_right, lowest = _box(numbers)
        if left <= most_left and most_right <= right and top <= highest and lowest <= bottom:
            return {}
        return {
            "clip-path": f"url(#{self._defined('c', f'M{left:g} {top:g}H{right:g}V{bottom:g}H{left:g}Z')})"
        }

    def _defined(self, kind: str, data: str) -> str:
        key = kind + data
        if key not in self._names:
            self._names[key] = name = f"{kind}{len(self._names)}"
            if kind == "c":
                clip = SubElement(self._defs, "clipPath", {"id": name})
                SubElement(clip, "path", {"d": data})
            elif circle := _CIRCLE.fullmatch(data):
                SubElement(self._defs, "circle", {"id": name, "r": circle[1]})
            else:
                SubElement(self._defs, "path", {"id": name, "d": data})
        return self._names[key]

    def _hatched(self, fill: str, hatch: str) -> str:
        """The fill of a hatched area, by a small tile in place of matplotlib's large one."""
        if not fill.startswith("url"):
            return fill
        pattern = self._sources[fill[5:-1]]
        colour = pattern[0].attrib["fill"]
        key = f"h{colour}{hatch}"
        if key not in self._names:
            self._names[key] = name = f"h{len(self._names)}"
            self._defs.append(hatch_pattern(name, colour, hatch))
        return f"url(#{self._names[key]})"


def _style(element: Element) -> dict[str, str]:
    parts = (part.split(":", 1) for part in element.get("style", "").split(";") if ":" in part)
    return {name.strip(): value.strip() for name, value in parts}


def _look(element: Element) -> dict[str, str]:
    """Those parts of an element's style that are not as they would be anyway, with short numbers."""
    style = _style(element)
    look = {name: style[name] for name in _LOOK if name in style}
    look.setdefault("fill", "#000000")
    if look.get("stroke-dashoffset") == "0":
        del look["stroke-dashoffset"]
    for name, value in look.items():
        if not value.startswith(("#", "url")):
            look[name] = ",".join(_plain(part) for part in value.split(","))
    return look


def _plain(value: str) -> str:
    return _short(value, 2) if _NUMBER.fullmatch(value.strip()) else value


def _box(numbers: Sequence[float]) -> list[float]:
    """Left, top, right and bottom of points, given as x and y in turn."""
    return [min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])]


def _path_data(data: str, digits: int = 1, below: float = 0.0) -> str:
    """Absolute commands with as few characters as they need.

    Args:
        data: Commands M, L, Q, C and Z.
        digits: Number of decimals.
        below: Added to every height.
    """
    return "".join(_tokens(data, digits, below))


def _tokens(data: str, digits: int, below: float) -> Iterator[str]:
    command, place, after_number = "", 0, False
    for part in _PART.findall(data):
        if part.isalpha():
            # what follows a move is a line anyway, and what follows a command is of its kind
            understood = part == command != "M" or [command, part] == ["M", "L"]
            command, place = part, 0
            if not understood:
                yield part.upper()
                after_number = False
            continue
        number = _short(float(part) + below * (place % 2), digits)
        place += 1
        yield f" {number}" if after_number and not number.startswith("-") else number
        after_number = True


def _but_data(path: Element | dict[str, str]) -> dict[str, str]:
    """The attributes of a path that say how it looks; a mark is like no other."""
    attributes = dict(path.attrib if isinstance(path, Element) else path)
    shape = attributes.pop("d")
    return attributes | (
        {"d": shape} if attributes.get("class") == "mark" or attributes.get("fill") != "none" else {}
    )


def _as_kept(trace: dict[str, Any], drawn: list[int]) -> dict[str, Any]:
    """A trace as the page reads it: what is the same for all points stands once.

    Args:
        trace: Facts that an artist has told.
        drawn: Numbers of its points that have a mark, in the order of the marks.
    """
    kept = {key: value for key, value in trace.items() if key != "every"}
    if kept["x"] == list(range(1, len(kept["x"]) + 1)) and "against" in kept:
        kept["x"] = len(kept["x"])
    if len(set(kept.get("n", ()))) == 1:
        kept["n"] = kept["n"][0]
    if drawn != list(range(len(trace["x"]))):
        kept["marks"] = drawn
    return kept


def _short(number: str | float, digits: int = 1) -> str:
    text = f"{float(number):.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in {"-0", ""} else text
