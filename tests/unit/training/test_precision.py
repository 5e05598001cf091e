"""Number formats: what autocast computes in, which switches of the GPU are set, what the scaler does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
import torch
from torch import nn, optim

from scalewise.builtin.optim import build_optimizer
from scalewise.builtin.precision import Precision, fp32_operators, set_fp32_format
from scalewise.builtin.trainer import choose_algorithms
from scalewise.plan.config.settings import Settings

CPU = torch.device("cpu")


def precision(name: Any) -> Precision:
    return Precision(Settings(dataset="digits", model="linear", precision=name), CPU)


def formats() -> list[str]:
    """The format in which each operator computes with fp32 tensors."""
    return [operator.fp32_precision for operator in fp32_operators()]


@pytest.fixture(autouse=True)
def untouched_switches() -> Iterator[None]:
    before = formats()
    searching = torch.backends.cudnn.benchmark
    yield
    for backend in (torch.backends, torch.backends.cudnn):
        backend.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for operator, chosen in zip(fp32_operators(), before, strict=True):
        operator.fp32_precision = chosen
    torch.backends.cudnn.benchmark = searching
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_products_are_computed_in_the_format_asked_for_and_weights_stay_whole(
    name: str, dtype: torch.dtype
) -> None:
    layer = nn.Linear(4, 3)
    with precision(name).autocast():
        output = layer(torch.ones(2, 4))
    assert output.dtype == dtype
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16"])
def test_tf32_is_on_where_it_is_asked_for_and_nowhere_else(name: str) -> None:
    set_fp32_format(tf32=name != "tf32")
    precision(name)
    assert set(formats()) == {"tf32" if name == "tf32" else "ieee"}


@pytest.mark.parametrize("name", ["fp32", "tf32"])
@pytest.mark.parametrize(
    "line",
    [
        "backends.fp32_precision = 'tf32'",
        "backends.cudnn.fp32_precision = 'tf32'",
        "backends.cudnn.conv.fp32_precision = 'ieee'",
        "backends.cuda.matmul.fp32_precision = 'tf32'",
        "backends.cuda.matmul.fp32_precision = 'ieee'",
        "backends.cuda.matmul.allow_tf32 = True",
        "set_float32_matmul_precision('medium')",
    ],
)
def test_a_model_that_chooses_a_format_neither_keeps_it_nor_makes_torch_raise(line: str, name: str) -> None:
    exec(f"torch.{line}", {"torch": torch})
    precision(name)
    assert set(formats()) == {"tf32" if name == "tf32" else "ieee"}
    # what torch's compiler asks, and what many models do
    assert torch.get_float32_matmul_precision() == ("high" if name == "tf32" else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 is (name == "tf32")
    with torch.backends.cudnn.flags(enabled=True):
        pass


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_tf32_rounds_what_fp32_does_not() -> None:
    matrix = torch.rand(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    exact = matrix.double() @ matrix.double()
    errors = {}
    for name in ("fp32", "tf32"):
        precision(name)
        errors[name] = float((matrix @ matrix - exact).abs().max())
    assert errors["tf32"] > 10 * errors["fp32"]


def update(name: str, loss_of: float = 1.0) -> tuple[torch.Tensor, float, float]:
    """The weight after a step of SGD from 0 at rate 1, and the largest gradient before and after."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = optim.SGD([weight], lr=1.0)
    used = precision(name)
    used.backward((weight * loss_of).sum())
    assert weight.grad is not None
    scaled = float(weight.grad)
    used.step(optimizer)
    return weight.detach(), scaled, float(weight.grad)


def test_fp16_scales_gradients_up_and_updates_by_the_true_ones() -> None:
    weight, scaled, _ = update("fp16", 1e-6)
    assert scaled == pytest.approx(1e-6 * 2**16)
    assert float(weight) == pytest.approx(-1e-6)


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16"])
def test_other_formats_leave_gradients_as_they_are(name: str) -> None:
    weight, gradient, _ = update(name, 1e-6)
    assert gradient == pytest.approx(1e-6)
    assert float(weight) == pytest.approx(-1e-6)


def test_fp16_leaves_out_a_step_whose_gradients_overflow() -> None:
    weight, scaled, _ = update("fp16", 1e38)
    assert scaled == float("inf")
    assert float(weight) == 0.0


def test_after_an_overflow_the_next_step_is_scaled_less() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = optim.SGD([weight], lr=1.0)
    used = precision("fp16")
    scales: list[float] = []
    for size in (1e38, 1e-6):
        weight.grad = None
        used.backward((weight * size).sum())
        assert weight.grad is not None
        scales.append(float(weight.grad) / size)
        used.step(optimizer)
    assert scales[1] == pytest.approx(2**15)
    assert float(weight.detach()) == pytest.approx(-1e-6)


def trained_by_fp16(optimizer_name: str, sizes: Sequence[float], device: torch.device) -> torch.Tensor:
    """Weights after a step of fp16 for each of these gradients."""
    weight = nn.Parameter(torch.zeros(4096, device=device))
    chosen = Settings.model_validate(
        {"dataset": "digits", "model": "linear", "precision": "fp16", "optimizer": optimizer_name}
    )
    optimizer = build_optimizer(chosen, [weight], 1)
    used = Precision(chosen, device)
    for size in sizes:
        optimizer.zero_grad()
        used.backward((weight * size).sum())
        # what is taken next without being filled holds this
        torch.full_like(weight, float("nan"))
        used.step(optimizer)
    return weight.detach().cpu()


@pytest.mark.parametrize("home", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("optimizer_name", get_args(Settings.model_fields["optimizer"].annotation))
@pytest.mark.parametrize("place", [0, 2], ids=["the first", "a later"])
def test_a_step_that_overflows_leaves_weights_as_if_it_had_not_been(
    place: int, optimizer_name: str, home: str, accelerator: str
) -> None:
    device = torch.device(accelerator if home == "gpu" else "cpu")
    sizes = [1e-3, -2e-3, 3e-3, 1e-3]
    overflowing = [*sizes[:place], 1e38, *sizes[place:]]
    expected, found = (trained_by_fp16(optimizer_name, each, device) for each in (sizes, overflowing))
    assert expected.abs().min() > 0
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def scatter() -> None:
    """Which of two values stays is up to chance where threads write at once."""
    torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_deterministic_refuses_what_has_no_deterministic_way() -> None:
    chosen = Settings(dataset="digits", model="linear", deterministic=True)
    choose_algorithms(chosen, CPU)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        scatter()
    choose_algorithms(chosen.model_copy(update={"deterministic": False}), CPU)
    scatter()


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_fastest_convolutions_are_looked_for_unless_they_must_be_deterministic(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    chosen = Settings(dataset="digits", model="linear", deterministic=deterministic)
    choose_algorithms(chosen, torch.device("cuda", 0))
    assert torch.backends.cudnn.benchmark is not deterministic
