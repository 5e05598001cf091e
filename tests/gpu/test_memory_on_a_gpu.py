"""What gradient_as_bucket_view saves of a GPU's memory, and that nothing stays taken by what was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.bucket_view_study import COPIES, TOLERANCE, compared_options
from tests.distributed.runs import ENDLESS, Runs
from tests.gpu.conftest import GpuStudy
from tests.marked_outcomes import Record
from tests.startup.planted_models import HELD_BYTES
from tests.waiting import wait_until

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("optimizer", COPIES)
def test_gradient_as_bucket_view_saves_one_copy_of_the_parameters_of_a_gpus_memory(
    memory_study: GpuStudy, optimizer: str, record_property: Record
) -> None:
    """Memory with gradient_as_bucket_view off over on is 3/2, 4/3 and 5/4, from a study's options.csv."""
    copies = COPIES[optimizer]
    gain = compared_options(memory_study.results / optimizer)
    parameters = 4 * int(memory_study.runs(optimizer)["parameters"].iloc[0])
    before, after = (gain[f"{side}peak_memory_bytes"] / parameters for side in ("reference_", ""))
    record_property("figure", f"{before:.3f} copies without, {after:.3f} with it, ratio {before / after:.3f}")
    assert before == pytest.approx(copies, rel=TOLERANCE)
    assert after == pytest.approx(copies - 1, rel=TOLERANCE)
    assert before / after == pytest.approx(copies / (copies - 1), rel=TOLERANCE)
    assert gain["peak_memory_saved_bytes"] / parameters == pytest.approx(1, rel=TOLERANCE)


HOLDING = ENDLESS | {"model": "planted_holding", "devices": [1]}
MOST_OF_IT = HELD_BYTES // 2
PATIENCE_SECONDS = 30.0


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Starts runs on a GPU, which end with the test."""
    started = Runs(tmp_path, facts="accelerator: cuda\ndevices_per_node: 1\ncpus_per_node: 2\n")
    yield started
    started.close()


def memory_used() -> int:
    """Return the bytes of the first GPU that any process uses."""
    free, total = torch.cuda.mem_get_info(0)
    return total - free


def wait_for_memory(used: int, *, above: bool) -> int:
    """Wait until more, or less, of the GPU's memory is used than so many bytes; what is used at the end."""
    missing = f"the GPU has not {'more' if above else 'less'} than {used:,} bytes in use"
    wait_until(lambda: (memory_used() > used) == above, missing, PATIENCE_SECONDS)
    return memory_used()


@pytest.mark.usefixtures("needs_cuda")
@pytest.mark.parametrize("killed", ["rank", "train.py"])
def test_what_was_killed_frees_its_memory_of_the_gpu_and_the_next_run_completes(
    killed: str, runs: Runs, record_property: Record
) -> None:
    """A rank that is killed, or whose supervisor is, frees its GPU's memory, and the next run completes."""
    before = memory_used()
    training = runs.start("killed", 1, HOLDING)
    training.wait_for_step()
    during = wait_for_memory(before + MOST_OF_IT, above=True)
    os.kill(training.pid(0) if killed == "rank" else training.process.pid, signal.SIGKILL)
    code, _ = training.end()
    assert code != 0
    assert training.left_over() == {}
    after = wait_for_memory(before + MOST_OF_IT, above=False)
    gib = " GiB, ".join(f"{bytes_ / 2**30:.1f}" for bytes_ in (before, during, after))
    record_property("figure", f"{gib} GiB used before, while it trained, and after")
    assert during > before + MOST_OF_IT
    assert after < before + MOST_OF_IT
    following = runs.complete("next", 1, {"devices": [1]})
    assert following.summary.outcome == "completed"
