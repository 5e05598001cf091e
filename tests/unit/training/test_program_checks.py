"""What a user's program did is compared with the plan, and named with its fix where it failed."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.small_runs import definition, rank_setup
from tests.unit.training.small_training import record

from scalewise.config.program import Metric, ProgramSettings
from scalewise.execution.rank_files import RankFiles, RankSetup, is_consequence
from scalewise.measure.step_flags import NO_GRAD
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.monitoring.machine_load import CpuUse
from scalewise.ranks.program import rank
from scalewise.ranks.program.child import Child, EndRequest
from scalewise.ranks.program.failure import ProgramError, add_source, check_end, find_fix, is_out_of_memory
from scalewise.ranks.program.plan_check import check_plan
from scalewise.ranks.program.rank import ProgramRank
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.program_findings import cautions_on_epochs
from scalewise.ranks.results.rank_report import report_of
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.start_records import StartRecords
from scalewise.ranks.results.write import write_records
from scalewise.records import (
    RECORD,
    Measurements,
    RunRecord,
    read_record,
)

BATCH = "batch_size_per_device"


def planned(
    samples: int = 16,
    devices: int = 2,
    passes: int = 1,
    name: str = BATCH,
    *,
    given: bool = False,
    accelerator: str = "cpu",
) -> Planned:
    return Planned("train.py", devices, samples, passes, given, frozenset({name}), accelerator)


def pair(**changed: Any) -> list[ProbeRecord]:
    return [record(rank, steps=4, **changed) for rank in (0, 1)]


DIFFERENCES: dict[str, tuple[Planned, list[ProbeRecord], list[str]]] = {
    "copies": (planned(), pair(world_size=1), ["2 devices", "world size 1", "`devices: [1]`"]),
    "on the CPU": (
        *(planned(accelerator="cuda"), pair()),
        ["planned were GPUs", "rank 0", "on the CPU", "LOCAL_RANK", "`accelerator: cpu`"],
    ),
    "on a GPU": (
        *(planned(), pair(cuda=True, device="NVIDIA H100")),
        ["planned were CPU processes", "on NVIDIA H100", "`accelerator: cuda`"],
    ),
    "world": (planned(), pair(world_size=4), ["4 ranks", "2 devices", "WORLD_SIZE"]),
    "apart": (
        *(planned(), [record(0, steps=4), record(1, steps=4, weights=[1.5, -2.25000001])]),
        ["rank 1", "other weights than rank 0", "DistributedDataParallel", "`.module`"],
    ),
    "nothing exchanged, the same samples": (
        *(planned(), pair(parallelism=[], batches=[1.0, 2.0, 3.0])),
        ["same batches", "perfect scaling", "nothing that exchanges gradients", "DistributedSampler"],
    ),
    "per device, given that of all": (
        *(planned(32, name="global_batch_size"), pair(samples=[32] * 4)),
        ["64 samples", "32 were planned", "{batch_size_per_device} instead of {global_batch_size}"],
    ),
    "of all, given that per device": (
        *(planned(32), pair(samples=[8] * 4)),
        ["16 samples", "32 were planned", "{global_batch_size} instead of {batch_size_per_device}"],
    ),
    "passes": (
        *(planned(16), pair(samples=[24] * 4, backward_passes=[3] * 4)),
        ["48 samples", "`accumulation_steps: 3`"],
    ),
    "own batch": (planned(100), pair(samples=[35] * 4), ["70 samples", "`batch_size_per_device: 35`"]),
    "no loader": (
        *(planned(16), pair(samples=[])),
        ["cannot be seen", "`samples_per_step: planned`", "16 samples"],
    ),
    "batches of random size": (
        *(planned(64, devices=1), [record(steps=4, samples=[57, 60, 71, 66], world_size=1)]),
        ["vary (57, 60, 71 samples in its first", "64 were planned", "`samples_per_step: seen`"],
    ),
    "DDP on the same samples": (
        *(planned(), pair(batches=[1.0, 2.0, 3.0])),
        ["2 ranks", "same batches", "DistributedSampler", "`same_batches: true`"],
    ),
    "one process on all GPUs": (
        planned(devices=1, samples=8),
        [record(steps=4, world_size=1, data_parallel_devices=4, cuda=True)],
        ["divides each batch among 4 GPUs", "torch.nn.DataParallel", "DistributedDataParallel"],
    ),
    "another optimizer than the named one": (
        *(planned(), pair(optimizers=["SGD"], misses_optimizer="AdamW")),
        ["class AdamW", "SGD", "Correct `optimizer`"],
    ),
    "shards of a model of its own": (
        *(planned(devices=2), pair(parallelism=["fully_shard"], sharded=True, sharded_over=1, weights=[])),
        ["rank 0", "among 1 of 2 ranks", "perfect scaling", "fully_shard a mesh of all 2 ranks"],
    ),
    "tensor parallel": (planned(), pair(refused="tensor parallel"), ["tensor parallel"]),
}


@pytest.mark.parametrize(("plan", "records", "words"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_is_named_with_both_numbers_and_the_fix(
    plan: Planned, records: list[ProbeRecord], words: list[str]
) -> None:
    message = check_plan(plan, records)

    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(pair(), id="DDP"),
        pytest.param(pair(parallelism=[], weights=[1.5]), id="an all-reduce by hand: equal weights"),
        pytest.param(pair(parallelism=["fully_shard"], sharded=True, weights=[]), id="divided parameters"),
        pytest.param(
            pair(parallelism=["fully_shard"], sharded=True, sharded_over=2, weights=[]), id="of all ranks"
        ),
        pytest.param(pair(batches=[1.0, 1.0, 1.0]), id="batches that are all alike"),
        pytest.param(
            [
                record(rank, steps=4, batches=[1.0, 2.0, 3.0], forward_batches=[5.0 + rank, 6.0, 7.0])
                for rank in (0, 1)
            ],
            id="batches that the ranks divide by themselves",
        ),
        pytest.param(
            [record(0, steps=4, samples=[16] * 4), record(1, steps=4, samples=[0] * 4)], id="one reads"
        ),
        pytest.param(pair(samples=[16, 8, 8, 8]), id="fetched ahead"),
        pytest.param(pair(samples=[], forward_samples=8.0), id="by forward passes"),
    ],
)
def test_common_programs_have_no_difference(records: list[ProbeRecord]) -> None:
    assert check_plan(planned(), records) == ""


WIDTH = """Traceback (most recent call last):
  File "bar.py", line 8, in <module>
    width = os.get_terminal_size().columns
OSError: [Errno 25] Inappropriate ioctl for device"""
DRIVER = (
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
    "installed a driver from http://www.nvidia.com/Download/index.aspx"
)


FIXES = {
    ("`starts: itself`", "option to train on CPUs", ""): [
        DRIVER,
        "AssertionError: Torch not compiled with CUDA enabled",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "AssertionError at 02_pytorch_ddp.py:31: assert torch.cuda.is_available()",
    ],
    ("`prepare`",) * 3: [
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='openaipublic.blob.core.windows.net', "
        "port=443): Max retries exceeded with url: /vocab.bpe (Caused by NameResolutionError(",
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file",
        "RuntimeError: Error downloading train-images-idx3-ubyte.gz:",
    ],
    ("`python:`",) * 3: ["ModuleNotFoundError: No module named 'deepspeed'"],
    ("`shutil.get_terminal_size`",) * 3: [WIDTH],
    ("",) * 3: [
        "ValueError: no more samples in shard 7",
        "ValueError: not enough values to unpack (expected 2, got 0)",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address "
        "of (node07, 29500). The IPv4 network addresses of (node07, 29500) cannot be retrieved (gai error: "
        "-2 - Name or service not known).",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "",
    ],
}
"""Words of the fix for ranks on CPUs, for a program on CPUs that starts its ranks, and for ranks on GPUs; and
the errors or tracebacks that have it."""


@pytest.mark.parametrize(
    ("raised", "fixes"), [(error, fixes) for fixes, errors in FIXES.items() for error in errors]
)
def test_an_error_that_a_job_causes_comes_with_its_fix_and_another_stands_by_itself(
    raised: str, fixes: tuple[str, str, str]
) -> None:
    *_, error = raised.splitlines() or [""]
    for words, on_cpus, as_ranks in zip(fixes, (True, True, False), (True, False, True), strict=True):
        fix = find_fix(error, raised, on_cpus=on_cpus, as_ranks=as_ranks)
        assert words in fix
        assert bool(words) == bool(fix)


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_an_error_without_a_message_is_quoted_with_file_line_and_source(prefix: str) -> None:
    traceback = [
        "Traceback (most recent call last):",
        '  File "/src/pyro/svi_torch.py", line 20, in <module>',
        "    main()",
        '  File "/src/pyro/svi_torch.py", line 12, in main',
        "    assert pyro.__version__.startswith('1.9')",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "AssertionError",
    ]
    lines = [prefix + line for line in traceback]
    quoted = "AssertionError at svi_torch.py:12: assert pyro.__version__.startswith('1.9')"
    assert add_source("AssertionError", lines) == quoted
    assert add_source("AssertionError: needs pyro 1.9", lines) == "AssertionError: needs pyro 1.9"
    assert add_source("AssertionError", ["AssertionError"]) == "AssertionError"


SETTINGS = ProgramSettings(program="train.py", steps=15, warmup_steps=5)
PLANNED = Planned("train.py", 1, 8, 1, False, frozenset(), accelerator="cpu", samples_vary=False)
STARTED, ENDED = "2026-01-01T00:00:00.000+00:00", "2026-01-01T00:01:30.000+00:00"


def setup_of(folder: Path, devices: int = 1, **keys: Any) -> RankSetup:
    run = definition(devices).model_copy(update={"settings": SETTINGS.model_copy(update=keys)})
    return rank_setup(folder, run, started_at=STARTED)


def program_rank(folder: Path, devices: int = 1, **keys: Any) -> ProgramRank:
    setup, identity = setup_of(folder, devices, **keys), Identity(0, 0, devices, devices, "n1", None)
    assert isinstance(setup.definition.settings, ProgramSettings)
    return ProgramRank(
        RankFiles(folder / "attempt"),
        setup,
        setup.definition.settings,
        identity,
        range(1),
        began=0.0,
    )


def figures_of(folder: Path, probe: ProbeRecord, **keys: Any) -> Measurements:
    """Return the measurements of a program on one device."""
    monitored = report_of(Identity(0, 0, 1, 1, "n1", None), [], None, 0.5, ENDED)
    start = StartRecords([probe], [replace(monitored, cpu_use=CpuUse("n1", 1.0, 1.0, 10.0))])
    setup = setup_of(folder, **keys)
    program = setup.definition.settings
    assert isinstance(program, ProgramSettings)
    write_records(setup, PLANNED, start, program, ["python"], [])
    measured = read_record(folder / RECORD, RunRecord).measurements
    assert measured is not None
    return measured


def test_a_run_whose_metric_cannot_be_read_whole_is_refused(tmp_path: Path) -> None:
    program = program_rank(tmp_path, metric=Metric(pattern=r"loss=(\S+)", at_most=0.4))
    program.probe_folder.mkdir(parents=True)
    for at, line in enumerate(("loss=0.5", "loss=0,45", "loss=0.3")):
        program._read_metric(line, 1001.0 + at)
    child = Child([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    # the request leaves SIGUSR1 ignored, which the processes of later tests would inherit
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        with (
            EndRequest(program.rank_files, range(1), False) as request,
            pytest.raises(ProgramError, match="0,45") as refused,
        ):
            program._watch(child, request)
    finally:
        child.end()
        for number, handler in before.items():
            signal.signal(number, handler)

    assert refused.value.permanent
    assert [value for _, value in program.readings] == [0.5]
    assert program.metric is not None
    assert "'loss=0.5' as 0.5" in program.metric.first_line


@pytest.mark.parametrize(
    ("keys", "ranks"),
    [
        pytest.param({"same_batches": True}, pair(batches=[1.0, 2.0, 3.0]), id="the same on all ranks"),
        pytest.param({"samples_per_step": "seen"}, pair(samples=[7, 10, 6, 9]), id="of random size"),
        pytest.param({"samples_per_step": "planned"}, pair(samples=[35] * 4), id="as planned"),
    ],
)
def test_what_a_study_says_of_batches_reaches_the_check(
    keys: dict[str, Any], ranks: list[ProbeRecord], tmp_path: Path
) -> None:
    assert check_plan(program_rank(tmp_path, 2).planned, ranks) != ""
    assert check_plan(program_rank(tmp_path, 2, **keys).planned, ranks) == ""


def test_a_rank_that_does_not_end_after_its_last_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank, "wait_for_start", lambda *_arguments: StartRecords(pair()[:1], []))
    program = program_rank(tmp_path, 2)
    with pytest.raises(ProgramError, match="rank 0, rank 1 did not end within 120 s of") as ended:
        program._write_records([])
    assert not ended.value.permanent


@pytest.mark.parametrize("named", [False, True])
def test_a_file_that_the_study_names_is_not_missing_in_it(named: bool, tmp_path: Path) -> None:
    helper = str(tmp_path / "helper.py")
    imported = record(world_size=1, imported_files={helper: "0"})
    program = figures_of(tmp_path, imported, files=[helper] if named else []).program

    assert program is not None
    assert any("does not train again" in note for note in program.notes) is not named


# ten steps of 8 samples take 1 s, and 0.3 s for those passes if they count
@pytest.mark.parametrize(("passes", "rate"), [("training", 80 / 1.3), ("evaluation", 80)])
def test_a_user_says_what_forward_passes_without_gradients_are_in_the_record(
    passes: str, rate: float, tmp_path: Path
) -> None:
    times = range(10, 60, 10)
    seconds = [0.4 if index in times else 0.1 for index in range(1, 60)]
    flags, without = dict.fromkeys(times, NO_GRAD), dict.fromkeys(times, 0.3)
    probe = record(0, seconds, flags=flags, without_training=without, world_size=1)
    measured = figures_of(tmp_path, probe, no_grad_passes=passes)

    assert measured.throughput_samples_per_second == pytest.approx(rate)


def end(probe_folder: Path, code: int, *lines: str) -> None:
    """Check the end of a program that has printed some lines and left no record."""
    output: Any = SimpleNamespace(last_error=lambda: "", traceback=lambda: "\n".join(lines), tail=list(lines))
    check_end(output, code, SETTINGS, on_cpus=True, records=[], rank_count=1, probe_folder=probe_folder)


@pytest.mark.parametrize(
    ("steps", "code", "words"),
    [
        pytest.param("10", 0, r"at least 10, .*Replace os\._exit by sys\.exit", id="no exit handlers"),
        pytest.param("", 0, "ended without error before its first optimizer step", id="no step"),
        pytest.param("", -signal.SIGKILL, "SIGKILL, as the system's out-of-memory killer does", id="killed"),
        pytest.param("", -40, "ended by signal 40", id="a signal without a name"),
    ],
)
def test_a_program_that_leaves_no_record_gets_the_reason(
    steps: str, code: int, words: str, tmp_path: Path
) -> None:
    if steps:
        (tmp_path / "0.123.steps").write_text(steps)
    with pytest.raises(ProgramError, match=words):
        end(tmp_path, code)


def test_a_rank_that_nccl_aborts_is_not_taken_for_the_one_it_waited_for(tmp_path: Path) -> None:
    watchdog = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE"
    found = []
    for lines in ([watchdog], ["free(): invalid pointer"]):
        with pytest.raises(ProgramError) as ended:
            end(tmp_path, -signal.SIGABRT, *lines)
        found.append(is_consequence(str(ended.value)))

    assert found == [True, False]


def test_ranks_that_all_read_the_whole_dataset_make_no_epoch_shorter_which_is_said() -> None:
    ranks = pair(reads_all=True)
    (caution,) = cautions_on_epochs(ranks, SETTINGS)
    assert "Each of the 2 ranks reads the whole dataset" in caution
    on_purpose = SETTINGS.model_copy(update={"same_batches": True})
    assert cautions_on_epochs(ranks, on_purpose) == cautions_on_epochs(ranks[:1], SETTINGS) == []
    assert cautions_on_epochs([ranks[0], record(1)], SETTINGS) == []


@pytest.mark.parametrize(
    ("error", "recognized"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a total", True),
        ("AcceleratorError: CUDA error: out of memory", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("DistBackendError: NCCL error ... Last error:\nCuda failure 2 'out of memory'", True),
        ("AcceleratorError: CUDA error: device-side assert triggered", False),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398 byt", False),
        ("ValueError: too little memory for this cache", False),
    ],
)
def test_a_device_without_memory_is_recognized(error: str, recognized: bool) -> None:
    assert is_out_of_memory(error) is recognized
