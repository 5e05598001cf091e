"""The modules that the training's optimizer updates, and a hook on their forward passes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .discovery import TrainedModules, find_trained, no_figures, parameter_figures
from .guards import Notes, untraced


class TrainedModel:
    """The trained modules and the figures of their parameters; empty before ``follow``.

    Args:
        notes: Receives why forward passes are not hooked.
        before_forward: Called before each forward pass of a root, with positional and named inputs, and
            with a third argument before those of a copy without gradients.
    """

    def __init__(self, notes: Notes, before_forward: Callable[..., None]) -> None:
        self.modules = TrainedModules()
        self.figures = no_figures()
        self.copies: dict[int, type[nn.Module]] = {}
        """Identities and classes of modules like what is trained that are no part of it: a moving average."""
        self._notes = notes
        self._before_forward = untraced(notes, "forward pass", before_forward)
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._original_calls: dict[type[nn.Module], Any] = {}

    def follow(
        self, optimizer: Optimizer, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
    ) -> None:
        """Find the modules that an optimizer trains, and hook their forward passes.

        Args:
            optimizer: Leads the training.
            modules: All of the process.
            optimizers: All of the process.
        """
        self._optimizer = weakref.ref(optimizer)
        self.modules = find_trained(optimizer, modules, optimizers)
        self.copies = self._copies(modules)
        self.hook_forward_passes()

    def follows_another_than(self, optimizer: Optimizer) -> bool:
        """Return whether the modules are those of another optimizer; false before there are any."""
        return self._optimizer is not None and self._optimizer() is not optimizer

    def count_parameters(self, parameters: list[torch.Tensor], *, is_over: bool) -> None:
        """Renew the figures of the parameters.

        Args:
            parameters: All that are trained and still there.
            is_over: True at the program's own end, when it may have dropped some of them.
        """
        if parameters and not (is_over and self.figures["parameters"]):
            self.figures = parameter_figures(parameters, self.modules)

    def hook_forward_passes(self) -> None:
        """Hook the classes of the roots.

        A hook of a module would be saved with it, and torch.jit would try to compile it.
        """
        self.unhook()
        if self.modules.calls_are_compiled:
            self._notes.note(
                "forward passes are not looked at: they may be a part of a function that is compiled"
            )
            return
        roots = {id(root) for root in self.modules.roots}
        for kind in {type(root) for root in self.modules.roots} | set(self.copies.values()):
            self._hook(kind, roots)

    def _trained(self) -> list[nn.Module]:
        """Return the roots, and what DDP or torch.compile has wrapped in them."""
        wrapped = [
            getattr(root, name, None) for root in self.modules.roots for name in ("module", "_orig_mod")
        ]
        return [*self.modules.roots, *(each for each in wrapped if isinstance(each, nn.Module))]

    def _copies(self, modules: Sequence[nn.Module]) -> dict[int, type[nn.Module]]:
        """Find the modules that have the class and the parameters of what is trained, and others' values."""
        kinds: dict[type[nn.Module], set[tuple[torch.Size, ...]]] = {}
        for trained in self._trained():
            kinds.setdefault(type(trained), set()).add(_shapes(trained))
        parts = {id(part) for root in self.modules.roots for part in root.modules()}
        return {
            id(module): type(module)
            for module in modules
            if type(module) in kinds and id(module) not in parts and _shapes(module) in kinds[type(module)]
        }

    def unhook(self) -> None:
        """Leave the classes as they were."""
        for kind, original in self._original_calls.items():
            if original is None:
                del kind.__call__
            else:
                kind.__call__ = original  # type: ignore[method-assign]
        self._original_calls.clear()

    def _hook(self, kind: type[nn.Module], roots: set[int]) -> None:
        before, copies = self._before_forward, self.copies
        original = self._original_calls[kind] = kind.__dict__.get("__call__")

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(module) in roots:
                before(args, kwargs)
            elif id(module) in copies and not torch.is_grad_enabled():
                before(args, kwargs, True)
            if original is not None:
                return original(module, *args, **kwargs)
            return super(kind, module).__call__(*args, **kwargs)  # type: ignore[misc]  # nn.Module has one

        kind.__call__ = call  # type: ignore[method-assign]


def _shapes(module: nn.Module) -> tuple[torch.Size, ...]:
    return tuple(parameter.shape for parameter in module.parameters())
