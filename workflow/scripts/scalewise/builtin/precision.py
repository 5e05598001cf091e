"""Number formats of a training: autocast, and the gradient scaler for fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.optim import Optimizer

from scalewise.plan.config.settings import Settings

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_fp32_format(*, tf32: bool) -> None:
    """Compute products and convolutions of fp32 tensors in TF32 or in fp32, whatever was set before.

    By default cuDNN uses TF32 for convolutions.
    """
    # torch has two sets of switches, and reading the older one raises if they disagree: its compiler does so
    # up to 2.15, and torch.backends.cudnn.flags. The older first, as they change the others
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    # each operator: one that is not set follows torch.backends.fp32_precision
    for operator in fp32_operators():
        operator.fp32_precision = "tf32" if tf32 else "ieee"


def fp32_operators() -> tuple[Any, ...]:
    """Return the operators whose format for fp32 tensors can be chosen.

    Raises:
        RuntimeError: This torch has other switches.
    """
    backends: Any = torch.backends  # its types know no operators
    try:
        return (
            *(backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn),
            *(backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn),
        )
    except AttributeError:
        raise RuntimeError(
            f"the ranks' torch is {torch.__version__}, and 2.11 or newer is needed. Name a newer one by "
            "python or container in the site file."
        ) from None


class Precision:
    """The number format of forward and backward passes on one device; parameters and updates stay fp32."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self._device_type = device.type
        self._dtype = _AUTOCAST.get(settings.precision)
        set_fp32_format(tf32=settings.precision == "tf32")
        # the smallest gradients of fp16 would be zero
        self._scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Enclose a forward pass."""
        return torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of the loss, scaled for fp16."""
        self._scaler.scale(loss).backward()

    def state(self) -> dict[str, Any]:
        """Return the scaler's state; empty if there is none."""
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def resume(self, state: dict[str, Any]) -> None:
        """Restore what ``state`` returned."""
        if state:
            self._scaler.load_state_dict(state)

    def step(self, optimizer: Optimizer) -> None:
        """Update the parameters, unless scaled gradients overflowed; the next scale is then smaller."""
        self._scaler.step(optimizer)
        self._scaler.update()
