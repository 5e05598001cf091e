"""Shapes of runs: nodes and devices per node.

A node is filled before a second one is taken, so that a device count has one shape and two runs with
equal counts are comparable. ``"2x2"`` forces a shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from scalewise.config.errors import RefusedValueError

_SHAPE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")


@dataclass(frozen=True, order=True, slots=True)
class Shape:
    """Nodes x devices per node; one rank a device.

    Args:
        devices_per_node: Devices, and so ranks, on each of them.
    """

    nodes: int
    devices_per_node: int

    @property
    def world_size(self) -> int:
        """Ranks, and so devices, in all."""
        return self.nodes * self.devices_per_node

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read a shape from the text that ``str`` makes."""
        nodes, devices_per_node = map(int, text.split("x"))
        return cls(nodes, devices_per_node)

    def __str__(self) -> str:
        return f"{self.nodes}x{self.devices_per_node}"


ShapeText = Annotated[
    Shape,
    BeforeValidator(lambda value: Shape.parse(value) if isinstance(value, str) else value),
    PlainSerializer(str),
]
"""A shape that files hold as ``2x4``."""


def shape_for(devices: int | str, *, devices_per_node: int, max_nodes: int) -> Shape:
    """Return the shape of a device count on a site.

    Args:
        devices: A total (``4``) or a forced shape (``"2x2"``).
        devices_per_node: Devices of each of the site's nodes.
        max_nodes: Most nodes of a run.

    Raises:
        RefusedValueError: the count does not fill its nodes, or exceeds the site.
    """
    if isinstance(devices, str):
        shape = _parse(devices)
        if shape.devices_per_node > devices_per_node:
            raise RefusedValueError(
                f"is {devices!r}, but a node of this site has {count_devices(devices_per_node)}",
                f"Use at most {devices_per_node} after the x.",
            )
        if shape.nodes > 1 and shape.devices_per_node == 1 and devices_per_node > 1:
            raise RefusedValueError(
                f"is {devices!r}: one device on each of {shape.nodes} nodes that have "
                f"{devices_per_node} each",
                f"Use {shape.world_size}; a node is filled before a second one is taken.",
            )
    else:
        most = max_nodes * devices_per_node
        if devices > most:
            nodes = count_devices(max_nodes, "node")
            raise RefusedValueError(
                f"is {devices}, but a run may take {nodes} of {count_devices(devices_per_node)} here",
                f"Use at most {most}.",
            )
        shape = fill(devices, devices_per_node)
    if shape.nodes > max_nodes:
        raise RefusedValueError(
            f"is {devices!r}, but a run may take {count_devices(max_nodes, 'node')} here",
            f"Use at most {max_nodes} before the x.",
        )
    return shape


def _parse(text: str) -> Shape:
    match = _SHAPE.fullmatch(text)
    if match is None or not int(match[1]) or not int(match[2]):
        fix = f"Write {text} without quotes." if re.fullmatch("[0-9]{1,9}", text) else 'Write 4 or "2x2".'
        raise RefusedValueError(f"is {text!r}, neither a number of devices nor nodes x devices per node", fix)
    return Shape.parse(text)


def fill(devices: int, devices_per_node: int) -> Shape:
    """Return the shape of a device count that fills its nodes.

    Args:
        devices: Number of devices over all nodes.
        devices_per_node: Devices of each of the site's nodes.

    Raises:
        RefusedValueError: The count does not fill its nodes.
    """
    if devices < 1:
        raise RefusedValueError(f"is {devices}, but a run needs at least 1 device", "Use 1 or more.")
    if devices <= devices_per_node:
        return Shape(1, devices)
    nodes, rest = divmod(devices, devices_per_node)
    if rest:
        below, above = nodes * devices_per_node, (nodes + 1) * devices_per_node
        spread, odd = divmod(devices, nodes + 1)
        force = f', or force the shape "{nodes + 1}x{spread}"' if spread > 1 and not odd else ""
        raise RefusedValueError(
            f"is {devices}, which leaves a node partly empty at {devices_per_node} devices per node",
            f"Use {below} or {above}{force}.",
        )
    return Shape(nodes, devices_per_node)


def device_noun(accelerator: str) -> str:
    """Return the reader's word for a device.

    Args:
        accelerator: ``cuda`` or ``cpu`` for a known device.
    """
    return {"cuda": "GPU", "cpu": "CPU process"}.get(accelerator, "device")


def plural_of(noun: str) -> str:
    """Name several devices: ``GPUs``, ``CPU processes``."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def count_devices(number: int, noun: str = "device") -> str:
    """Write a number of devices: ``1 device``, ``4 GPUs``, ``2 CPU processes``."""
    return f"{number} {noun if number == 1 else plural_of(noun)}"
