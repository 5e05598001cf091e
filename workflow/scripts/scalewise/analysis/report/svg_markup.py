"""SVG elements as text: attributes that all children share stand on their group, once."""

from __future__ import annotations

from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape, quoteattr

PAINT = (
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "stroke-dashoffset",
    "fill-opacity",
    "stroke-opacity",
)
"""Attributes of how a shape is painted, which its children inherit."""
_INHERITED = (*PAINT, "font-size", "text-anchor")
_NAMESPACES = ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def hoist(element: Element) -> None:
    """Move attributes that children inherit, and all share, to their group.

    Args:
        element: Changed in place, with all that is in it.
    """
    for child in list(element):
        hoist(child)
        if child.tag == "g" and not len(child):
            element.remove(child)
    if element.tag != "g" or not len(element):
        return
    for name in _INHERITED:
        values = {child.get(name) for child in element}
        if len(values) == 1 and None not in values and element.get(name) is None:
            element.set(name, element[0].attrib[name])
            for child in element:
                del child.attrib[name]


def markup(element: Element, *, standalone: bool) -> str:
    """The element and what is in it as text.

    Args:
        element: An element whose names carry no namespace.
        standalone: Write a file of its own, which names its namespaces, in place of HTML.
    """
    attributes = "".join(
        f" {'xlink:href' if name == 'href' and standalone else name}={quoteattr(value)}"
        for name, value in element.attrib.items()
    )
    if standalone and element.tag == "svg":
        attributes = _NAMESPACES + attributes
    inner = escape(element.text or "") + "".join(markup(child, standalone=standalone) for child in element)
    return f"<{element.tag}{attributes}>{inner}</{element.tag}>" if inner else f"<{element.tag}{attributes}/>"
