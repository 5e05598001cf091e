"""Count the floating-point operations of forward and backward passes, by torch's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils.flop_counter import flop_registry

FORMATS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}

_WITHOUT_OPERATIONS = (
    *("aten", "prim", "prims", "profiler"),
    *("c10d", "c10d_functional", "_c10d_functional", "fsdp"),
)
"""Torch's own namespaces: an operator without a formula counts as none, as in torch's FlopCounterMode."""


class FlopCount(dispatch.TorchDispatchMode):
    """Counts what runs within it, and changes nothing of it.

    torch's FlopCounterMode has the same formulas, but knows no formats, decomposes operators, and does not
    run every Triton kernel: this one observes the passes of users' programs, too.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_format: dict[str, int] = {}
        """A multiplication and an addition are two operations."""
        self.uncounted: dict[str, None] = {}
        """Operators that compute and have no formula, in the order of their first call."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        out = func(*args, **(kwargs or {}))
        try:
            self._count(func, args, kwargs or {}, out)
        except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
            self.uncounted[f"{func} ({type(error).__name__})"] = None
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = getattr(func, "_overloadpacket", func)
        formula: Callable[..., int] | None = flop_registry.get(packet)
        if formula is None:
            if getattr(func, "namespace", "higher order") not in _WITHOUT_OPERATIONS:
                self.uncounted[str(packet)] = None
            return
        tensor = next(each for each in args if isinstance(each, torch.Tensor))
        if type(tensor).__name__ == "DTensor":
            # its shape is that of all ranks together
            self.uncounted[f"{packet} of a DTensor"] = None
            return
        number_format = _format(tensor, is_convolution="conv" in str(packet))
        found = formula(*args, **kwargs, out_val=out)
        self.by_format[number_format] = self.by_format.get(number_format, 0) + found

    @property
    def reason(self) -> str:
        """Reason that the count is not whole, as a clause; empty if it is."""
        if self.uncounted:
            return f"no formula for {', '.join(list(self.uncounted)[:3])}"
        return "" if self.by_format else "no operator with a formula ran"

    def stop(self) -> None:
        """Leave the mode, also if a program has entered others since."""
        above = []
        while (mode := dispatch._pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            dispatch._push_mode(mode)


def _format(tensor: torch.Tensor, *, is_convolution: bool) -> str:
    """Return the format in which an operator multiplies."""
    name = FORMATS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    if name == "fp32" and tensor.is_cuda:
        backends: Any = torch.backends  # its types know no operators
        operator, library = (
            (backends.cudnn.conv, backends.cudnn) if is_convolution else (backends.cuda.matmul, backends.cuda)
        )
        for level in (operator, library, backends):
            chosen = getattr(level, "fp32_precision", "none")
            if chosen != "none":
                return "tf32" if chosen == "tf32" else "fp32"
    return name


class CountedStep:
    """Counts one whole step of a user's program in its warm-up, where no figure counts it.

    Args:
        warmup_steps: Steps among which one is counted; never the first, whose begin is unknown.
    """

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._count: FlopCount | None = None
        self.by_format: dict[str, int] = {}
        self.reason = f"warmup_steps is {warmup_steps}, and a step of the warm-up after its first is counted"

    def after_step(self, done: int, *, is_plain: bool, compiled: bool) -> None:
        """End the count of a step, or begin that of the next one.

        Args:
            done: Steps so far.
            is_plain: Whether the step that ends only trained.
            compiled: Whether something is compiled, of which no operators are seen.
        """
        if (count := self._count) is not None:
            self._count = None
            count.stop()
            if is_plain:
                self.by_format, self.reason = count.by_format, count.reason
                return
            self.reason = "each step of the warm-up held something else than training"
        if compiled:
            self.reason = "the program compiles its model, and the operators of compiled code are not seen"
        elif not self.by_format and 0 < done < self._warmup_steps:
            self._count = FlopCount()
            dispatch._push_mode(self._count)
