"""A study on one GPU, as its user sees it: records, report and what they say of a GPU alone."""

from __future__ import annotations

import statistics
from pathlib import Path

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
    assert {name.partition("/")[0] for name in others} == {
        *("digits-strong", "digits-transformer", "precisions", "fast", "steady"),
        *("own-ddp-throughput", "own-nanogpt"),
    }


@pytest.mark.usefixtures("needs_cuda")
def test_every_run_was_trained_on_the_gpu_and_its_records_name_it(gpu_study: GpuStudy) -> None:
    name = torch.cuda.get_device_name(0)
    for folder in gpu_study.run_folders():
        if folder.parents[1].name != "oversized":
            ranks = pd.read_csv(folder / RANKS)
            assert list(ranks["device"]) == [name], folder
    for run, summary in gpu_study.summaries().items():
        if summary.measurements is not None:
            assert summary.measurements.peak_memory_kind.startswith("CUDA allocator"), run
    assert name in gpu_study.page


@pytest.mark.usefixtures("needs_cuda")
def test_a_run_out_of_gpu_memory_is_a_result_with_its_reason_and_the_next_ones_are_not_harmed(
    gpu_study: GpuStudy, record_property: Record
) -> None:
    ended = {name: summary for name, summary in gpu_study.summaries().items() if "oversized" in name}
    (summary,) = ended.values()
    assert summary.outcome == "out-of-memory"
    assert "CUDA out of memory" in summary.reason
    assert "CUDA out of memory" in gpu_study.page
    began = {folder: began_at(folder) for folder in gpu_study.run_folders()}
    (oversized,) = (folder for folder in began if folder.parents[1].name == "oversized")
    later = [folder for folder, time in began.items() if time > began[oversized]]
    record_property("figure", f"{len(later)} runs after it completed")
    assert later, "no run came after the one without memory"


def began_at(run: Path) -> float:
    """Return the time of its record, seconds since the epoch: one without memory has no other."""
    return (run / RECORD).stat().st_mtime


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


@pytest.mark.usefixtures("needs_cuda")
def test_energy_by_nvmls_counter_is_mean_power_times_time(
    gpu_study: GpuStudy, record_property: Record
) -> None:
    folder, measured = gpu_study.measured("steady")
    samples = pd.read_csv(folder / UTILIZATION)
    seconds = sum(window.seconds for window in measured.windows if not window.warmup)
    # before and after the steps the GPU is idle
    watts = float(samples.loc[samples["utilization"] > 0.5, "power_watts"].median())
    assert measured.energy_joules is not None
    record_property(
        "figure",
        f"{measured.energy_joules:.0f} J by the counter, {watts * seconds:.0f} J by {watts:.0f} W "
        f"over {seconds:.1f} s",
    )
    assert measured.energy_joules == pytest.approx(watts * seconds, rel=0.25)


@pytest.mark.usefixtures("needs_cuda")
def test_utilization_csv_has_the_gpus_memory_and_how_busy_it_was(
    gpu_study: GpuStudy, record_property: Record
) -> None:
    folder, _ = gpu_study.measured("steady")
    samples = pd.read_csv(folder / UTILIZATION)
    total = torch.cuda.get_device_properties(0).total_memory
    # NVML also counts what the driver keeps for itself
    assert samples["memory_total_bytes"].to_numpy() == pytest.approx(total, rel=0.1)
    assert (samples["memory_bytes"] <= samples["memory_total_bytes"]).all()
    busy = samples["memory_utilization"]
    record_property("figure", f"memory busy {100 * busy.max():.0f} % at most, {total / 2**30:.0f} GiB")
    assert busy.between(0, 1).all()


@pytest.mark.usefixtures("needs_cuda")
def test_a_gpus_throttling_and_utilization_are_recorded(gpu_study: GpuStudy, record_property: Record) -> None:
    _, measured = gpu_study.measured("steady")
    record_property(
        "figure", f"throttled: {measured.throttled}; {measured.monitor_note or 'nothing is missing'}"
    )
    assert measured.throttled is not None
    assert "NVML gives no" not in measured.monitor_note
    assert measured.mean_utilization is not None
    assert measured.mean_utilization > 0.5


@pytest.mark.parametrize("experiment", ["own-ddp-throughput", "own-nanogpt"])
def test_a_script_of_ones_own_is_measured_on_a_gpu_by_its_events(
    gpu_study: GpuStudy, experiment: str, accelerator: str, record_property: Record
) -> None:
    folder, measured = gpu_study.measured(experiment)
    windows = [window for window in measured.windows if not window.warmup]
    assert windows
    assert measured.throughput_samples_per_second is not None
    assert measured.program is not None
    if accelerator == "cuda":
        assert measured.peak_memory_kind.startswith("CUDA allocator")
        assert measured.peak_memory_bytes > 0
    ranks = pd.read_csv(folder / RANKS)
    seconds = sum(window.seconds for window in windows) / sum(window.steps for window in windows)
    record_property("figure", f"{measured.throughput_samples_per_second:,.0f} samples/s")
    # nine short steps: a median may be far from a mean, but not by another clock's unit
    assert 1 / 5 < float(ranks["step_seconds_p50"].iloc[0]) / seconds < 5
