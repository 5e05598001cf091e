"""The floating-point operations of a step, by torch's FlopCounterMode and its formulas."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils.flop_counter import FlopCounterMode

FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}

WITHOUT_OPERATIONS = (
    "aten",
    "prim",
    "prims",
    "profiler",
    "c10d",
    "c10d_functional",
    "_c10d_functional",
    "fsdp",
)
"""Torch's own namespaces: an operator of them without a formula counts as none."""


class FlopCount(FlopCounterMode):
    """Counts what runs within it by number format, and names what it cannot count."""

    def __init__(self) -> None:
        super().__init__(display=False)
        self.skip_unsupported = True  # otherwise it runs no Triton kernel
        # it would hook all modules, to count each apart
        self.mod_tracker: Any = nullcontext()
        self.by_format: dict[str, int] = {}
        """A multiplication and an addition are two operations."""
        self.uncounted: dict[str, None] = {}

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        try:
            if (formula := self.flop_registry.get(func_packet)) is not None:
                tensor = next(each for each in args if isinstance(each, torch.Tensor))
                if type(tensor).__name__ == "DTensor":  # its shape is that of all ranks together
                    raise NotImplementedError
                name = _format(tensor, is_convolution="conv" in str(func_packet))
                self.by_format[name] = self.by_format.get(name, 0) + formula(*args, **kwargs, out_val=out)
            elif str(func_packet).partition(".")[0] not in WITHOUT_OPERATIONS:
                self.uncounted[str(func_packet)] = None
        except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
            self.uncounted[f"{func_packet} ({type(error).__name__})"] = None
        return out

    @property
    def reason(self) -> str:
        """Reason that the count is not whole, as a clause; empty if it is."""
        if uncounted := [*self.uncounted, *self.get_unsupported_ops()]:
            return f"no formula for {', '.join(uncounted[:3])}"
        return "" if self.by_format else "no operator with a formula ran"

    def stop(self) -> None:
        """Leave the mode, also if a program has entered others since."""
        own, above = self.mode, []
        assert own is not None, "it has begun"
        while (mode := dispatch._pop_mode()) is not own:
            above.append(mode)
        dispatch._push_mode(own)  # it leaves in its own way
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            dispatch._push_mode(mode)


def _format(tensor: torch.Tensor, *, is_convolution: bool) -> str:
    """Return the format in which an operator multiplies."""
    name = str(tensor.dtype).removeprefix("torch.")
    name = FORMATS.get(name, name)
    if name == "fp32" and tensor.is_cuda:
        backends: Any = torch.backends  # its types know no operators
        operator = backends.cudnn.conv if is_convolution else backends.cuda.matmul
        for level in (operator, backends.cudnn if is_convolution else backends.cuda, backends):
            if (chosen := getattr(level, "fp32_precision", "none")) != "none":
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
            self._count.__enter__()  # type: ignore[no-untyped-call]
