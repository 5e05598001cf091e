"""The SVG files of the figures, with text as text and a key on every mark.

A renderer of matplotlib writes a figure's elements while they are drawn. What an artist carries (``marks``)
becomes attributes: ``data-series`` on what hides with a series of that number, ``data-mark`` on a mark: the
numbers of its trace and its point. What the lines and labels of an axis share stands on their groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase, GraphicsContextBase, RendererBase
from matplotlib.colors import to_hex, to_rgba
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Transform

from scalewise.analysis.report.marks import PART, Drawing, Mark, name_panels, panel_facts

FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
POINTS_PER_INCH = 72
EDGE = 0.5
"""Distance from a panel, in points, within which a mark belongs to it."""
HATCH_STEP = 4.0
"""Distance of a hatch's lines in points."""
_HATCH_WIDTH = 0.6
_COMMANDS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
"""Matplotlib's code of a path's part -> SVG's command."""
_ANCHORS = {"center": "middle", "right": "end"}


def draw_svg(figure: Drawing, title: str) -> tuple[str, dict[str, Any]]:
    """Draw a figure.

    Args:
        figure: A figure that is drawn for the first time; its layout is made here.
        title: Name of the figure.

    Returns:
        An SVG file, equal for equal drawings, and the numbers behind its marks: ``panels``, ``traces``, and
        ``message`` in place of marks.
    """
    figure.set_dpi(POINTS_PER_INCH)
    panels = [axes for axes in figure.axes if axes.axison and axes.get_visible()]
    name_panels(panels)
    renderer = _SvgRenderer(figure, panels, title)
    _Canvas(figure, renderer)
    figure.draw(renderer)
    stacked = {trace["panel"] for trace in figure.traces if trace["kind"] == PART}
    data = {
        "panels": [
            panel_facts(axes, renderer.box(axes), stacked=number in stacked)
            for number, axes in enumerate(panels)
        ],
        "traces": [trace | {"series": figure.series.index(trace["series"])} for trace in figure.traces],
        "series": figure.series,
        "message": figure.message,
    }
    return tostring(renderer.root, encoding="unicode").replace(" />", "/>") + "\n", data


class _Canvas(FigureCanvasBase):
    """A canvas whose layout is measured by a given renderer."""

    def __init__(self, figure: Drawing, renderer: RendererBase) -> None:
        super().__init__(figure)
        self._renderer = renderer

    def get_renderer(self) -> RendererBase:
        """Return the renderer, as matplotlib's layout takes it."""
        return self._renderer


@dataclass(frozen=True)
class _Place:
    """A place in the file.

    Args:
        out: Receives what is drawn.
        panel: Number of the panel; None outside of all.
        mark: Meaning of the artist that is drawn.
        in_tick: The artist is a line or a label at an axis.
    """

    out: Element
    panel: int | None = None
    mark: Mark | None = None
    in_tick: bool = False


class _SvgRenderer(RendererBase):
    """Write a drawing as elements of an SVG file.

    Args:
        figure: The figure that is drawn.
        panels: Panels of the figure, in order.
        title: Name of the figure.
    """

    def __init__(self, figure: Drawing, panels: list[Axes], title: str) -> None:
        super().__init__()
        self._figure, self._panels = figure, panels
        self.width, self.height = (POINTS_PER_INCH * inches for inches in figure.get_size_inches())
        width, height = _short(self.width), _short(self.height)
        self.root = Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "xmlns:xlink": "http://www.w3.org/1999/xlink",
                "width": f"{width}pt",
                "height": f"{height}pt",
                "viewBox": f"0 0 {width} {height}",
                "font-family": FONTS,
                "stroke-linejoin": "round",
                "fill": "none",
            },
        )
        SubElement(self.root, "title").text = title
        self._defs = SubElement(self.root, "defs")
        self._shapes: dict[str, str] = {}
        self._open = [_Place(self.root)]

    def box(self, axes: Axes) -> list[float]:
        """Left, top, right and bottom of a panel, in points from the top left corner."""
        left, bottom, right, top = axes.bbox.extents
        return [round(float(each), 1) for each in (left, self.height - top, right, self.height - bottom)]

    def get_canvas_width_height(self) -> tuple[float, float]:
        """Return the size in points."""
        return self.width, self.height

    def open_group(self, s: str, gid: str | None = None) -> None:
        """Begin what an artist draws.

        Args:
            s: Matplotlib's name of its kind.
            gid: Id that the artist was given.
        """
        place = self._open[-1]
        out, panel, mark = place.out, place.panel, self._figure.marks.get(gid or "")
        in_tick = s in {"xtick", "ytick"} or place.in_tick
        if s == "axes" and (shown := [n for n, axes in enumerate(self._panels) if axes.get_gid() == gid]):
            panel = shown[0]
            out = SubElement(out, "g", {"class": "panel", "data-panel": str(panel)})
            self._clip(panel)
        elif s == "matplotlib.axis" and panel is not None:
            out = SubElement(out, "g", {"class": f"axis {'x' if gid else 'y'}"})
            for part in ("lines", "labels"):
                SubElement(out, "g", {"class": part})
        elif mark is not None and mark.index is None:
            out = SubElement(out, "g", {} if mark.series is None else {"data-series": str(mark.series)})
            if mark.shift:
                out.set("data-shift", _short(mark.shift))
        if mark is not None and mark.trace is not None:
            self._figure.traces[mark.trace]["panel"] = panel
        self._open.append(_Place(out, panel, mark, in_tick))

    def close_group(self, s: str) -> None:  # noqa: ARG002  matplotlib's names of arguments, here and below
        """End what an artist draws."""
        self._open.pop()

    def draw_path(
        self,
        gc: GraphicsContextBase,
        path: Path,
        transform: Transform,
        rgbFace: Any = None,  # noqa: N803
    ) -> None:
        """Draw a line or an area; a bar that is a mark gets its key, and a hatch lies over it."""
        place, look = self._open[-1], _look(gc, rgbFace)
        data = self._data(path, transform)
        if not data or not {"fill", "stroke"} & look.keys():
            return
        if place.in_tick:
            place.out[0].attrib |= look
            SubElement(place.out[0], "path", {"d": data})
            return
        mark, attributes = place.mark, {"d": data} | look
        box = left, top, right, bottom = self._box_of(path, transform)
        if mark is not None and mark.index is not None:
            if top == bottom:
                return
            attributes["d"] = f"M{left:g} {bottom:g}H{right:g}V{top:g}H{left:g}Z"
            attributes |= {"data-series": str(mark.series), "data-mark": f"{mark.trace}.{mark.index}"}
        elif gc.get_clip_rectangle() is not None and self._leaves(place.panel, box):
            attributes["clip-path"] = f"url(#c{place.panel})"
        SubElement(place.out, "path", attributes)
        if hatch := gc.get_hatch():
            of_series = {key: attributes[key] for key in ("data-series",) if key in attributes}
            self._hatch(place.out, hatch[0], box, of_series)

    def draw_markers(
        self,
        gc: GraphicsContextBase,
        marker_path: Path,
        marker_trans: Transform,
        path: Path,
        trans: Transform,
        rgbFace: Any = None,  # noqa: N803
    ) -> None:
        """Draw a mark at every vertex; those of a trace get their keys."""
        points = trans.transform(path.vertices)
        if len(points) == 1 and not points.any():
            # an area, which matplotlib draws as a mark at the lower left corner
            self.draw_path(gc, marker_path, marker_trans, rgbFace)
            return
        place = self._open[-1]
        mark, every = place.mark, 1
        if mark is not None and mark.trace is not None:
            every = self._figure.traces[mark.trace]["every"]
        shape = self._shape(self._data(marker_path, marker_trans, origin=0.0, digits=2))
        marks = SubElement(place.out, "g", _look(gc, rgbFace))
        clip = gc.get_clip_rectangle()
        for number, (x, y) in enumerate(points):
            # the cap of a bar may lie beyond the panel
            if clip is not None and not clip.y0 - EDGE <= y <= clip.y1 + EDGE:
                continue
            if np.isfinite(x) and np.isfinite(y):
                attributes = {"xlink:href": f"#{shape}", "x": _short(x), "y": _short(self.height - y)}
                if mark is not None and mark.trace is not None:
                    attributes["data-mark"] = f"{mark.trace}.{number * every}"
                SubElement(marks, "use", attributes)

    def draw_text(
        self,
        gc: GraphicsContextBase,
        x: float,
        y: float,
        s: str,
        prop: FontProperties,
        angle: float,
        ismath: bool | Literal["TeX"] = False,  # noqa: ARG002
        mtext: Text | None = None,
    ) -> None:
        """Draw a line of text; it stays at its anchor in fonts of other widths than the layout's."""
        place, turn = self._open[-1], math.radians(angle)
        if mtext is not None and (angle == 0 or mtext.get_rotation_mode() == "anchor"):
            # as matplotlib's own renderer: anchored along the text, placed by the layout across it
            along_x, along_y = mtext.get_transform().transform(mtext.get_unitless_position())
            along_y = self.height - along_y
            across = (x - along_x) * math.sin(turn) + (y - along_y) * math.cos(turn)
            x, y = along_x + across * math.sin(turn), along_y + across * math.cos(turn)
            anchor = _ANCHORS.get(mtext.get_horizontalalignment(), "start")
        else:
            half = self.get_text_width_height_descent(s, prop, ismath=False)[0] / 2
            x, y, anchor = x + half * math.cos(turn), y - half * math.sin(turn), "middle"
        attributes = {"x": _short(x), "y": _short(y)}
        look = {
            "font-size": _short(prop.get_size_in_points()),
            "fill": to_hex(gc.get_rgb()),
            "text-anchor": anchor,
        }
        if place.in_tick:
            place.out[1].attrib |= look
            SubElement(place.out[1], "text", attributes).text = s
            return
        attributes |= look
        if angle:
            attributes["transform"] = f"rotate({_short(-angle)} {_short(x)} {_short(y)})"
        if place.mark is not None and place.mark.moves:
            attributes["class"] = "moves"
        SubElement(place.out, "text", attributes).text = s

    def _data(self, path: Path, transform: Transform, origin: float | None = None, digits: int = 1) -> str:
        """A path in SVG's commands.

        Args:
            path: Vertices of a line or an area.
            transform: Transform to points from the lower left corner.
            origin: Height from which the file counts downward; the figure's by default.
            digits: Decimals of a coordinate.
        """
        zero = self.height if origin is None else origin
        parts = []
        for numbers, code in path.iter_segments(transform, simplify=False):
            places = [each if index % 2 == 0 else zero - each for index, each in enumerate(numbers)]
            texts = " ".join(_short(each, digits) for each in places)
            parts.append(_COMMANDS[int(code)] + ("" if code == Path.CLOSEPOLY else texts))
        return "".join(parts)

    def _leaves(self, panel: int | None, box: list[float]) -> bool:
        """Whether something in a panel reaches beyond it."""
        if panel is None:
            return False
        left, top, right, bottom = self.box(self._panels[panel])
        return box[0] < left or box[1] < top or box[2] > right or box[3] > bottom

    def _box_of(self, path: Path, transform: Transform) -> list[float]:
        """Left, top, right and bottom of what a path covers."""
        (left, bottom), (right, top) = path.get_extents(transform).get_points()
        return [round(float(each), 1) for each in (left, self.height - top, right, self.height - bottom)]

    def _clip(self, panel: int) -> None:
        left, top, right, bottom = self.box(self._panels[panel])
        clip = SubElement(self._defs, "clipPath", {"id": f"c{panel}"})
        SubElement(clip, "path", {"d": f"M{left} {top}L{right} {top}L{right} {bottom}L{left} {bottom}Z"})

    def _shape(self, data: str) -> str:
        """The id of a mark's shape, which the file has once."""
        if data not in self._shapes:
            self._shapes[data] = f"m{len(self._shapes)}"
            SubElement(self._defs, "path", {"id": self._shapes[data], "d": data})
        return self._shapes[data]

    @staticmethod
    def _hatch(out: Element, kind: str, box: list[float], of_series: dict[str, str]) -> None:
        """Draw a hatch as lines: browsers print a pattern as an image of the page."""
        if box[3] - box[1] < HATCH_STEP / 2:
            return  # too low for a pattern to be seen
        slopes = {"/": (-1,), "\\": (1,), "x": (-1, 1)}.get(kind, ())
        look = {"class": "hatch", "stroke": "#ffffff", "stroke-width": str(_HATCH_WIDTH)}
        if kind == ".":
            dashes = f"{_HATCH_WIDTH} {_short(HATCH_STEP - _HATCH_WIDTH)}"
            look |= {"stroke-linecap": "round", "stroke-dasharray": dashes}
        data = "".join(_diagonals(box, slope) for slope in slopes) if slopes else _rows(box)
        if data:
            SubElement(out, "path", {"d": data} | look | of_series)


def _diagonals(box: list[float], slope: int) -> str:
    """Lines y = slope * x + offset, cut off at the box."""
    left, top, right, bottom = box
    low, high = (left + top, right + bottom) if slope < 0 else (top - right, bottom - left)
    parts = []
    for step in range(math.ceil(low / HATCH_STEP), math.ceil(high / HATCH_STEP)):
        offset = step * HATCH_STEP
        ends = sorted((edge - offset) * slope for edge in (top, bottom))
        start, end = max(left, ends[0]), min(right, ends[1])
        if start < end:
            heights = (_short(slope * each + offset) for each in (start, end))
            parts.append(f"M{_short(start)} {next(heights)}L{_short(end)} {next(heights)}")
    return "".join(parts)


def _rows(box: list[float]) -> str:
    left, top, right, bottom = box
    heights = np.arange(math.ceil(top / HATCH_STEP) * HATCH_STEP + HATCH_STEP / 2, bottom, HATCH_STEP)
    return "".join(f"M{left:g} {_short(y)}H{right:g}" for y in heights)


def _look(gc: GraphicsContextBase, face: Any) -> dict[str, str]:
    """Return how a shape is painted, as attributes."""
    opaque = gc.get_alpha() if gc.get_forced_alpha() else None
    look = {}
    for name, color in (("fill", face), ("stroke", gc.get_rgb() if gc.get_linewidth() else None)):
        alpha = 0.0 if color is None else to_rgba(color)[3]
        if color is None or not alpha:
            continue
        look[name] = to_hex(color)
        alpha = alpha if opaque is None else opaque
        if alpha != 1:
            look[f"{name}-opacity"] = _short(alpha, 2)
    if "stroke" in look:
        look["stroke-width"] = _short(gc.get_linewidth(), 2)
        offset, dashes = cast("tuple[float, Sequence[float] | None]", gc.get_dashes())
        if dashes:
            look["stroke-dasharray"] = ",".join(_short(each, 2) for each in dashes)
            if offset:
                look["stroke-dashoffset"] = _short(offset, 2)
    return look


def _short(number: float, digits: int = 1) -> str:
    """A number without zeros at its end."""
    text = f"{float(number):.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in {"-0", ""} else text
