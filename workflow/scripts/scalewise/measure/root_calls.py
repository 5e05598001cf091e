"""Forward passes of the modules that are trained, seen at their classes.

A hook of a module would be saved with it, and torch.jit would try to compile it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

Note = Callable[[Any, Any], None]


class RootCalls:
    """Looks at the calls of some modules, until it is told to stop.

    Args:
        roots: The modules.
        note: Called before each of their forward passes, with positional and named inputs.
    """

    def __init__(self, roots: Iterable[nn.Module], note: Note) -> None:
        self._roots = {id(root) for root in roots}
        self._note = note
        self._own: dict[type[nn.Module], Any] = {}
        for kind in {type(root) for root in roots}:
            self._watch(kind)

    def stop(self) -> None:
        """Leave the classes as they were."""
        for kind, own in self._own.items():
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own  # type: ignore[method-assign]
        self._own.clear()

    def _watch(self, kind: type[nn.Module]) -> None:
        roots, note = self._roots, self._note
        own = self._own[kind] = kind.__dict__.get("__call__")

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(module) in roots:
                note(args, kwargs)
            if own is not None:
                return own(module, *args, **kwargs)
            return super(kind, module).__call__(*args, **kwargs)  # type: ignore[misc]  # nn.Module has one

        kind.__call__ = call  # type: ignore[method-assign]
