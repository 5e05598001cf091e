"""What gradient_as_bucket_view saves of a GPU's memory."""

import pytest
from tests.bucket_view_study import COPIES, TOLERANCE, compared_options
from tests.gpu.conftest import GpuStudy
from tests.marked_outcomes import Record

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
