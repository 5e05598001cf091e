"""Shapes of runs: nodes and devices per node.

A node is filled before a second one is taken, so that a device count has one shape and two runs with
equal counts are comparable. ``"2x2"`` forces a shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

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
        ValueError: The count does not fill its nodes, or exceeds the site.
    """
    if isinstance(devices, str):
        if not _SHAPE.fullmatch(devices):
            raise ValueError(f'is {devices!r}, no number of devices and no shape. Write 4 or "2x2".')
        shape = Shape.parse(devices)
    else:
        nodes = max(-(-devices // devices_per_node), 1)
        shape = Shape(nodes, devices if nodes == 1 else devices_per_node)
    if not (0 < shape.nodes <= max_nodes and 0 < shape.devices_per_node <= devices_per_node):
        raise ValueError(
            f"is {devices!r}, but a run may take {count_devices(max_nodes, 'node')} of "
            f"{count_devices(devices_per_node)} here. Use 1 to {max_nodes * devices_per_node}."
        )
    if isinstance(devices, int) and shape.world_size != devices:
        raise ValueError(
            f"is {devices}, which leaves a node partly empty at {devices_per_node} devices per node. "
            f"Use {shape.world_size - devices_per_node} or {shape.world_size}."
        )
    if shape.nodes > 1 and shape.devices_per_node == 1 < devices_per_node:
        raise ValueError(
            f"is {devices!r}: one device on each of {shape.nodes} nodes of {devices_per_node}. "
            f"Use {shape.world_size}; a node is filled before a second one is taken."
        )
    return shape


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
