"""What is learned depends neither on the number of ranks nor on how the work is divided between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.distributed.trainings import Place, Trainings, distance, largest_difference


def test_two_ranks_learn_what_one_process_learns_from_the_whole_batch(trained: Trainings) -> None:
    one, two = trained.of("linear", world_size=1), trained.of("linear", world_size=2)
    assert largest_difference(one.end, two.end) < 1e-4


AS_ON_A_CPU = {
    "linear": 1e-4,
    "deep": 1e-4,
    "accumulated": 1e-4,
    "workers": 1e-4,
    "cnn": 1e-2,
    # CUDA's fused kernel has 1 - beta2 in fp32, and makes steps that are 6.5e-6 longer: with such a learning
    # rate a weight ends 4.5e-3 off on a CPU, too. The shards of fsdp are updated by another kernel
    "adamw": 5e-3,
    "fsdp": 1e-4,
}
"""Variants that are compared, and the largest difference of a weight."""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "world_size"),
    # two ranks have statistics of two batches, where there is batch norm
    [(name, ranks) for name in AS_ON_A_CPU for ranks in (1, 2) if (name, ranks) != ("cnn", 2)],
)
def test_a_gpu_learns_what_one_process_on_a_cpu_learns(
    trained_for: Callable[[Place], Trainings],
    name: str,
    world_size: int,
    record_property: Callable[[str, object], None],
) -> None:
    """One rank of a GPU by NCCL, and two that share it by gloo, learn what one process on a CPU learns."""
    on_gpu, on_cpu = trained_for("gpu").of(name, world_size), trained_for("cpu").of(name, world_size=1)
    difference = largest_difference(on_gpu.end, on_cpu.end)
    record_property("figure", f"largest difference of a weight {difference:.1e}")
    assert difference < AS_ON_A_CPU[name]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "usual"),
    [
        *(("zero1", "adamw"), ("fsdp", "adamw"), ("fsdp-accumulated", "adamw"), ("fsdp-cnn", "cnn")),
        *(("bucket-view", "deep"), ("static", "deep"), ("small-buckets", "deep")),
        *(("channels-last", "cnn"), ("workers", "linear"), ("accumulated", "linear")),
    ],
)
def test_options_of_a_gpu_by_nccl_learn_the_same(
    trained_for: Callable[[Place], Trainings], name: str, usual: str
) -> None:
    trained = trained_for("gpu")
    ends = (trained.of(which, world_size=1).end for which in (name, usual))
    # another layout, and another process, may take another of cuDNN's convolutions; fsdp as above
    allowed = {"cnn": 1e-2, "adamw": AS_ON_A_CPU["adamw"] if name.startswith("fsdp") else 1e-3}
    assert largest_difference(*ends) < allowed.get(usual, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "usual"),
    [("bf16", "cnn"), ("fp16", "linear"), ("tf32", "cnn"), ("fp16-hook", "deep"), ("bf16-hook", "deep")],
)
def test_rounded_numbers_of_a_gpu_by_nccl_learn_nearly_but_not_exactly_the_same(
    trained_for: Callable[[Place], Trainings], name: str, usual: str
) -> None:
    learned_nearly_the_same(trained_for("gpu"), name, usual, world_size=1)


def test_training_moves_the_weights_that_are_compared(trained: Trainings) -> None:
    for name in ("linear", "cnn", "deep", "adamw"):
        training = trained.of(name)
        assert largest_difference(training.part("start"), training.end) > 0.005, name


def test_training_begins_with_equal_weights_on_any_number_of_ranks(trained: Trainings) -> None:
    for name in ("linear", "cnn", "fsdp"):
        one, two = trained.of(name, world_size=1), trained.of(name, world_size=2)
        assert largest_difference(one.part("start"), two.part("start")) == 0, name


@pytest.mark.parametrize("name", ["linear", "cnn", "bf16", "fp16-hook", "zero1", "workers"])
def test_both_ranks_end_with_the_same_model_bit_for_bit(trained: Trainings, name: str) -> None:
    first, second = trained.of(name, rank=0).part("here"), trained.of(name, rank=1).part("here")
    # each rank counts its own; a batch's own statistics are rank 0's when they are evaluated
    assert first.keys() == second.keys()
    different = [key for key in first if not torch.equal(first[key], second[key])]
    assert different == []


@pytest.mark.parametrize("world_size", [1, 2])
def test_several_passes_of_a_step_learn_what_one_pass_of_the_whole_batch_learns(
    trained: Trainings, world_size: int
) -> None:
    whole, parts = trained.of("linear", world_size), trained.of("accumulated", world_size)
    assert largest_difference(whole.end, parts.end) < 1e-4
    assert len(parts.seen.gradients_at_pass) == 3 * len(whole.seen.gradients_at_pass)


@pytest.mark.parametrize(
    ("name", "usual"), [("zero1", "adamw"), ("fsdp", "adamw"), ("fsdp-cnn", "cnn"), ("workers", "linear")]
)
def test_a_model_in_parts_and_another_loader_learn_the_same(
    trained: Trainings, name: str, usual: str
) -> None:
    # as above
    allowed = 1e-2 if usual == "cnn" and trained.place == "gpu" else 1e-4
    assert largest_difference(trained.of(name).end, trained.of(usual).end) < allowed


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_model_in_parts_learns_the_same_in_several_passes_and_on_one_rank(
    trained: Trainings, world_size: int
) -> None:
    usual = trained.of("adamw", world_size=1).end
    # adam divides by gradients near zero, which the order of a sum changes; on a GPU as above
    allowed = AS_ON_A_CPU["adamw"] if trained.place == "gpu" else 1e-3
    for name in ("fsdp", "fsdp-accumulated"):
        assert largest_difference(trained.of(name, world_size).end, usual) < allowed, name


@pytest.mark.parametrize("name", ["bucket-view", "static", "small-buckets"])
def test_how_gradients_are_packed_does_not_change_what_is_learned(trained: Trainings, name: str) -> None:
    assert largest_difference(trained.of(name).end, trained.of("deep").end) < 1e-5


def test_compiled_code_learns_the_same(trained: Trainings) -> None:
    """Compared after one epoch, as its training has no more."""
    compiled, usual = trained.of("compiled").seen.epochs[0], trained.of("linear").seen.epochs[0]
    assert compiled["train_loss"] == pytest.approx(usual["train_loss"], rel=1e-4)
    assert compiled["test_loss"] == pytest.approx(usual["test_loss"], rel=1e-4)


@pytest.mark.parametrize(("name", "usual"), [("bf16", "cnn"), ("fp16", "linear"), ("fp16-hook", "deep")])
def test_rounded_numbers_learn_nearly_but_not_exactly_the_same(
    trained: Trainings, name: str, usual: str
) -> None:
    learned_nearly_the_same(trained, name, usual)


def learned_nearly_the_same(trained: Trainings, name: str, usual: str, world_size: int = 2) -> None:
    """Compares rounded numbers with the usual ones, by how far the training moves the weights."""
    rounded, exact = (trained.of(which, world_size) for which in (name, usual))
    moved = distance(exact.part("start"), exact.end)
    allowed = 0.05 if trained.place == "gpu" else 0.01
    assert 0 < distance(rounded.end, exact.end) < allowed * moved
    last, expected = (each.seen.epochs[-1]["train_loss"] for each in (rounded, exact))
    assert last == pytest.approx(expected, rel=0.01)
