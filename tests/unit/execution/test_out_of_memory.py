"""The words of a device without memory, whoever says them."""

from __future__ import annotations

import pytest
import torch

from scalewise.execution.messages import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        pytest.param("OutOfMemoryError: in the evaluation after epoch 1: 3 GiB", id="told on"),
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a total capacity of",
        "AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "DistBackendError: NCCL error ... Last error:\nCuda failure 2 'out of memory'",
    ],
)
def test_a_device_without_memory_is_recognised(error: str) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        "AcceleratorError: CUDA error: device-side assert triggered",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398 bytes.",
        "ValueError: too little memory for this cache",
    ],
)
def test_other_errors_are_none_of_a_device_without_memory(error: str) -> None:
    assert not is_out_of_memory(error)


def test_torchs_own_error_has_the_name_that_is_looked_for() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError.__name__)
