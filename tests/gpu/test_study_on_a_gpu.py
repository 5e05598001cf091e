"""A study on one GPU, as its user sees it: records, report and what they say of a GPU alone."""

import statistics

import pandas as pd
import pytest
import torch
from tests.gpu.conftest import GpuStudy
from tests.marked_outcomes import Record

from scalewise.records import RANKS, RECORD, UTILIZATION

pytestmark = pytest.mark.gpu


def test_every_run_of_a_study_on_a_gpu_completes_but_the_one_that_is_oversized(gpu_study: GpuStudy) -> None:
    outcomes = {name: summary.outcome for name, summary in gpu_study.summaries().items()}
    assert gpu_study.outcome.code == 0, gpu_study.outcome.text
    others = {name: outcome for name, outcome in outcomes.items() if not name.startswith("oversized/")}
    assert set(others.values()) == {"completed"}
    trained = {"digits-strong", "digits-transformer", "precisions", "fast", "steady"}
    assert {name.partition("/")[0] for name in others} == trained


@pytest.mark.usefixtures("needs_cuda")
def test_a_run_out_of_gpu_memory_is_a_result_with_its_reason_and_the_next_ones_are_not_harmed(
    gpu_study: GpuStudy, record_property: Record
) -> None:
    ended = {name: summary for name, summary in gpu_study.summaries().items() if "oversized" in name}
    (summary,) = ended.values()
    assert summary.outcome == "out-of-memory"
    assert "CUDA out of memory" in summary.reason
    assert "CUDA out of memory" in gpu_study.page
    # one without memory has no other time
    began = {folder: (folder / RECORD).stat().st_mtime for folder in gpu_study.run_folders()}
    (oversized,) = (folder for folder in began if folder.parents[1].name == "oversized")
    later = [folder for folder, time in began.items() if time > began[oversized]]
    record_property("figure", f"{len(later)} runs after it completed")
    assert later, "no run came after the one without memory"


@pytest.mark.usefixtures("needs_cuda")
def test_every_run_was_trained_on_the_gpu_and_its_records_name_it(gpu_study: GpuStudy) -> None:
    name = torch.cuda.get_device_name(0)
    for run, summary in gpu_study.summaries().items():
        if summary.measurements is not None:
            ranks = pd.read_csv(gpu_study.results / run.replace("/", "/runs/") / RANKS)
            assert list(ranks["device"]) == [name], run
            assert summary.measurements.peak_memory_kind.startswith("CUDA allocator"), run
    assert name in gpu_study.page


@pytest.mark.usefixtures("needs_cuda")
def test_nvmls_energy_is_power_times_time_and_utilization_memory_and_throttling_are_recorded(
    gpu_study: GpuStudy, record_property: Record
) -> None:
    folder, measured = gpu_study.measured("steady")
    samples = pd.read_csv(folder / UTILIZATION)
    seconds = sum(window.seconds for window in measured.windows if not window.warmup)
    # before and after the steps the GPU is idle
    watts = float(samples.loc[samples["utilization"] > 0.5, "power_watts"].median())
    joules = f"{measured.energy_joules} J by the counter, {watts * seconds:.0f} J by the power"
    record_property("figure", f"{joules}; throttled: {measured.throttled}; {measured.monitor_note}")
    assert measured.energy_joules == pytest.approx(watts * seconds, rel=0.25)
    # NVML also counts what the driver keeps for itself
    total = torch.cuda.get_device_properties(0).total_memory
    assert samples["memory_total_bytes"].to_numpy() == pytest.approx(total, rel=0.1)
    assert (samples["memory_bytes"] <= samples["memory_total_bytes"]).all()
    assert samples["memory_utilization"].between(0, 1).all()
    assert measured.throttled is not None
    assert "NVML gives no" not in measured.monitor_note
    assert (measured.mean_utilization or 0) > 0.5


def test_steps_by_the_devices_clock_add_up_to_the_windows_of_the_hosts(
    gpu_study: GpuStudy, record_property: Record
) -> None:
    folder, measured = gpu_study.measured("steady")
    windows = [window for window in measured.windows if not window.warmup]
    # both medians: steps during which others have the GPU are few and long
    by_host = statistics.median(window.seconds / window.steps for window in windows)
    by_device = float(pd.read_csv(folder / RANKS)["step_seconds_p50"].iloc[0])
    record_property("figure", f"{1e3 * by_device:.3f} ms by events, {1e3 * by_host:.3f} ms by the host")
    # the host's also holds what is between steps and the edges of windows
    assert by_device == pytest.approx(by_host, rel=0.1)
