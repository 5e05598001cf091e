"""Unedited trainings of all kinds under the probe: what its records say is what they did."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.waiting import LIMIT_SECONDS

from scalewise.ranks.program.environment import write_startup

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "probed_scripts"
WARMUP_STEPS, STEPS = 2, 10
LAST = WARMUP_STEPS + STEPS
EVALUATION, SAVE, NEW_ITERATION, NO_GRAD, EVAL_MODE, COPY = 1, 2, 4, 8, 64, 128


@dataclass
class Ended:
    """What a case has left: of each rank its exit status, its output and the probe's files."""

    statuses: list[int]
    outputs: list[str]
    files: list[dict[str, str]]

    def record(self, rank: int = 0, kind: str = "record.json") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files[rank][kind])
        return found


def run(folder: Path, cases: list[str], environment: dict[str, str]) -> dict[str, Ended]:
    """Run cases, or all of them, in processes forked from one that has imported torch."""
    folder.mkdir()
    subprocess.run(
        [sys.executable, SCRIPTS / "run_cases.py", folder, *cases],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        check=True,
        timeout=600,
    )
    left = folder.parent / "left"
    return {
        name: Ended(
            ended["statuses"],
            [(folder / f"{name}.{rank}.txt").read_text() for rank in range(len(ended["pids"]))],
            [
                {path.name.split(".", 2)[2]: path.read_text() for path in left.glob(f"*.{pid}.*")}
                for pid in ended["pids"]
            ],
        )
        for name, ended in json.loads((folder / "cases.json").read_text()).items()
    }


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probe") / "left"


@pytest.fixture(scope="module")
def probed(left: Path) -> dict[str, Ended]:
    left.mkdir()
    write_startup(left.parent / "startup")
    spec = {"folder": str(left), "warmup_steps": WARMUP_STEPS, "steps": STEPS, "check_after": 3}
    spec["count_flops"] = True
    (left.parent / "spec.json").write_text(json.dumps(spec))
    path = {"PYTHONPATH": str(left.parent / "startup"), "SCALEWISE_PROBE": str(left.parent / "spec.json")}
    return run(left.parent / "probed", [], path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The same without the probe, as far as their losses are compared."""
    return run(tmp_path_factory.mktemp("alone") / "cases", COMPARED, {})


COMPARED = ["plain_loop", "skipped_steps", "compiled_step", "data_parallel"]

SEEN: dict[str, dict[str, Any]] = {
    "plain_loop": {
        "flags": [4, *[0] * 9, EVALUATION | NO_GRAD | NEW_ITERATION | EVAL_MODE, 0],
        "samples": [8] * LAST,
        "forward_samples": 8,
        "backward_passes": [1] * LAST,
        "optimizers": ["AdamW"],
        "parameters": 6 * 12 + 12 + 12 * 3 + 3,
        "gradient_bytes": 4 * (6 * 12 + 12 + 12 * 3 + 3),
        "parameter_dtypes": ["torch.float32"],
        "precision": {"cpu:bfloat16": LAST},
        "parallelism": [],
        "refused": None,
        "compiled": False,
        "sharded": False,
        "sharded_over": None,
        "communication_seconds": [],
        "device": "CPU process",
        "world_size": 1,
        "backend": None,
        "events": [],
        # forward, both weights, and the gradients of the second layer's input
        "step_flops": {"bf16": 2 * 8 * (2 * (6 * 12 + 12 * 3) + 12 * 3)},
    },
    # the first, fourth, seventh and tenth step are refused; no loader says what feeds them
    "skipped_steps": {
        "skipped_by_scaler": 4,
        "optimizers": ["SGD"],
        "backward_passes": [1] * LAST,
        "samples": [],
        "wait_seconds": [],
        "forward_samples": 8,
        "batches": None,
    },
    "skipped_steps_of_a_fused_optimizer": {
        "skipped_by_scaler": 4,
        "optimizers": ["SGD"],
        "weights_finite": True,
    },
    "compiled_step": {
        "compiled": True,
        "samples": [8] * LAST,
        "backward_passes": [1] * LAST,
        "step_flops": {},
    },
    # four steps an epoch: four batches are fetched for the first step, two for the last
    "batches_of_a_step_at_once": {
        "samples": [32, 24, 24, 16] * 3,
        "backward_passes": [3] * LAST,
        "flags": [NEW_ITERATION, 0, 0, 0] + [EVALUATION | NO_GRAD | NEW_ITERATION, 0, 0, 0] * 2,
    },
    "an_optimizer_for_each_parameter": {
        "samples": [8] * LAST,
        "backward_passes": [1] * LAST,
        "parameters": 123,
    },
    "without_a_loader": {
        "samples": [],
        "forward_samples": 15,
        "backward_passes": [3] * LAST,
        "flags": [0, 0, 0, 0, *[NO_GRAD | EVAL_MODE | SAVE, 0, 0, 0] * 2],
    },
    # the copy is not known before the first step
    "evaluation_without_eval": {"flags": [0, *[COPY] * 5, COPY | NO_GRAD, *[COPY] * 5]},
    "endless_loaders": {
        "samples": [8] * LAST,
        "flags": [NEW_ITERATION, 0, 0] + [EVALUATION | NO_GRAD, 0, 0] * 3,
    },
    # whose waits are not of the steps
    "batches_from_a_thread": {"samples": [], "wait_seconds": [], "forward_samples": 8},
    "gradients_by_hand": {"samples": [8] * LAST, "backward_passes": [2] * LAST},
    "data_parallel": {
        "parallelism": ["DistributedDataParallel"],
        "world_size": 2,
        "backend": "gloo",
        "forward_samples": 4,
        "flags": [*[0] * 7, NO_GRAD | EVAL_MODE, 0, 0, 0, 0],
        "parameters": 123,
        "sharded": False,
    },
    "exchange_by_hand": {
        "parallelism": [],
        "world_size": 2,
        "communication_seconds": [],
        "samples": [8] * LAST,
        "reads_all": True,
    },
    "divided_model": {
        "parallelism": ["fully_shard"],
        "sharded": True,
        "sharded_over": 2,
        "parameters": 123,
        "gradient_bytes": 492,
        "weights": [],
        "refused": None,
    },
    "replicas_of_divided_models": {"sharded_over": 4, "refused": None},
    "divided_among_itself": {"sharded_over": 1, "world_size": 2, "refused": None},
    "tensor_parallel": {"refused": "tensor parallel", "weights": []},
    "pipeline": {"refused": "pipeline parallel"},
}


@pytest.mark.parametrize("name", SEEN)
def test_the_record_says_what_the_program_did(probed: dict[str, Ended], name: str) -> None:
    ended = probed[name]
    record = ended.record()

    assert set(ended.statuses) == {0}
    assert {name: record[name] for name in SEEN[name]} == SEEN[name]
    assert (record["ended"], len(record["seconds"])) == ("steps", LAST)


@pytest.mark.parametrize("name", COMPARED)
def test_losses_are_equal_to_the_last_digit_and_graphs_the_same(
    probed: dict[str, Ended], alone: dict[str, Ended], name: str
) -> None:
    for with_probe, without in zip(probed[name].outputs, alone[name].outputs, strict=True):
        losses = [line for line in with_probe.splitlines() if line[0].isdigit() or line == "inf"]
        assert len(losses) == LAST - 1  # the last step ends the program before it prints
        assert losses == [line for line in without.splitlines() if line in losses][: LAST - 1]
        graphs = [line for line in with_probe.splitlines() if line.startswith("graphs")]
        assert graphs == [line for line in without.splitlines() if line.startswith("graphs")]
        assert bool(graphs) == name.startswith("compiled")


def test_times_of_steps_leave_nothing_out_and_waits_lie_within_them(probed: dict[str, Ended]) -> None:
    record = probed["plain_loop"].record()
    ended_at, seconds = record["ended_at"], record["seconds"]

    assert seconds[0] is None
    assert ended_at == sorted(ended_at)
    for (before, after), taken in zip(pairwise(ended_at), seconds[1:], strict=True):
        # the probe's own work, when the record so far is written and the warm-up ends, is in no step
        assert 0 < taken <= after - before
    assert sum(seconds[4:]) == pytest.approx(ended_at[-1] - ended_at[3])
    assert all(0 < wait < taken for wait, taken in zip(record["wait_seconds"][1:], seconds[1:], strict=True))
    assert record["first_step_began"] < record["first_step_ended"] == ended_at[0]


def test_weights_and_losses_that_are_lost_are_seen(probed: dict[str, Ended]) -> None:
    lost, kept = probed["lost_weights"].record(), probed["plain_loop"].record()

    assert (lost["weights_finite"], kept["weights_finite"]) == (False, True)
    assert lost["losses"]["10"] is None
    assert lost["losses"]["0"] < 10, "what the program adds to its tensor is no part of the loss"
    assert probed["lost_weights"].record(kind="seen.json")["weights_finite"] is True


def test_an_evaluation_is_as_long_as_it_was(probed: dict[str, Ended]) -> None:
    for name, place, slept in (
        ("plain_loop", 10, 0.05),
        ("without_a_loader", 4, 0.05),
        ("evaluation_without_eval", 6, 0.05),
        # in the step that follows the first check of the program, too
        ("endless_loaders", 3, 0.04),
    ):
        record = probed[name].record()
        assert slept <= record["seconds_without_training"][place] <= record["seconds"][place]
        assert [
            seconds
            for seconds, bits in zip(record["seconds_without_training"], record["flags"], strict=True)
            if not bits
        ] == [0.0] * sum(not bits for bits in record["flags"])


def test_batches_and_weights_tell_copies_from_ranks_that_work_together(probed: dict[str, Ended]) -> None:
    copies = [probed["copies"].record(rank) for rank in (0, 1)]
    together = [probed["exchange_by_hand"].record(rank, "seen.json") for rank in (0, 1)]

    assert len(set(copies[0]["batches"])) == 3
    assert copies[0]["batches"] == copies[1]["batches"]
    assert [record["world_size"] for record in copies] == [1, 1]
    assert len(together[0]["weights"]) == 4
    assert together[0]["weights"] == together[1]["weights"]
    # which began alike, and learned from other batches
    assert together[0]["weights"] != copies[0]["weights"]


def test_ranks_clean_up_at_the_end_and_communication_is_of_the_measured_steps_that_ddp_has_timed(
    probed: dict[str, Ended],
) -> None:
    records = [probed["data_parallel"].record(rank) for rank in (0, 1)]
    assert all(output.endswith("cleaned up\n") for output in probed["data_parallel"].outputs)
    # it times the first ten exchanges, and tells of each as the next begins
    columns = [record["communication_seconds"] for record in records]
    timed = list(range(WARMUP_STEPS, 10))
    assert [[index for index, each in enumerate(column) if each is not None] for column in columns] == [
        timed,
        timed,
    ]
    assert sum(columns[0][index] for index in timed) > 0


def test_a_program_that_ends_by_itself_keeps_its_end_and_leaves_a_whole_record(
    probed: dict[str, Ended], left: Path
) -> None:
    record = probed["its_own_end"].record()

    assert (record["ended"], len(record["seconds"]), record["parameters"]) == ("itself", 2, 123)
    assert len(record["weights"]) == 4  # though what it trained is gone
    assert probed["its_own_end"].statuses == [0]
    assert (left.parent / "probed" / "its_own_end" / "handler").read_text() == "ran"


def test_a_process_that_runs_no_exit_handlers_leaves_its_record_too(
    probed: dict[str, Ended], left: Path
) -> None:
    pid, status = probed["a_process_of_its_own"].outputs[0].split()[-2:]
    record = json.loads((left / f"0.{pid}.record.json").read_text())

    assert status == "0"
    assert (record["ended"], record["samples"]) == ("itself", [8] * 6)
    assert probed["a_process_of_its_own"].files == [{}]


def test_an_error_of_the_program_stays_its_own(probed: dict[str, Ended]) -> None:
    assert probed["its_own_error"].statuses == [1]
    assert probed["its_own_error"].outputs[0].endswith("own hook: ValueError of the program\n")
    assert len(probed["its_own_error"].record()["seconds"]) == 4


def test_an_error_of_the_probe_reaches_no_program(probed: dict[str, Ended]) -> None:
    record = probed["a_batch_that_raises"].record()

    assert probed["a_batch_that_raises"].statuses == [0]
    assert len(record["seconds"]) == LAST // 2
    assert record["events"] == ["probe: batch: RuntimeError('do not look')"]


def test_a_program_whose_optimizer_is_unknown_leaves_its_backward_passes_only(
    probed: dict[str, Ended],
) -> None:
    assert probed["no_torch_optimizer"].statuses == [0]
    assert probed["no_torch_optimizer"].files == [{"backwards": "50"}]


def test_a_whole_model_is_saved_without_a_trace_of_the_probe(probed: dict[str, Ended], left: Path) -> None:
    assert set(probed["without_a_loader"].statuses) == {0}
    saved = torch.load(left.parent / "probed" / "without_a_loader" / "checkpoint.pt", weights_only=False)

    assert saved["model"](torch.zeros(1, 6)).shape == (1, 3)


def test_files_are_the_programs_own_and_versions_of_what_it_imports(probed: dict[str, Ended]) -> None:
    record = probed["plain_loop"].record()

    assert {Path(path).name for path in record["imported_files"]} == {"run_cases.py", "cases.py"}
    assert record["versions"]["torch"] == str(torch.__version__)
    assert {"python", "numpy"} <= set(record["versions"])
    assert "pytest" not in record["versions"]


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_a_gpus_steps_are_timed_by_its_own_clock(probed: dict[str, Ended]) -> None:
    record = probed["on_a_gpu"].record()
    memory = record["peak_memory"]

    assert record["cuda"]
    assert record["device_uuid"]
    assert all(seconds > 1e-3 for seconds in record["seconds"][1:])  # ten million cycles
    assert memory["kind"] == "CUDA allocator"
    assert memory["whole_bytes"] - memory["training_bytes"] > 2**25


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_workers_that_start_in_each_epoch_after_steps_on_a_gpu_end_without_an_error(
    probed: dict[str, Ended],
) -> None:
    """A CUDA event of the probe that is freed in a worker would end it by SIGABRT."""
    ended = probed["workers_of_each_epoch_on_a_gpu"]

    assert ended.statuses == [0], ended.outputs
    assert ended.record()["samples"] == [8] * LAST
    assert ended.record()["flags"] == [NEW_ITERATION, 0, 0, 0] * 3


PRINTED = """
import os, sys
print(os.path.basename(os.path.dirname(sys.modules["sitecustomize"].__file__)))
print(*sys.path)
print(*sys.modules)
"""


def test_the_probe_leaves_the_users_own_start_in_place(tmp_path: Path) -> None:
    """Without torch it imports nothing of ours."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import os, pathlib\n(pathlib.Path(__file__).parent / f'{os.getpid()}.ran').touch()\n"
    )
    startup = tmp_path / "startup"
    write_startup(startup)
    (tmp_path / "spec.json").write_text(json.dumps({"folder": str(tmp_path), "warmup_steps": 1, "steps": 4}))
    variables = {"PYTHONPATH": f"{startup}{os.pathsep}{own}", "SCALEWISE_PROBE": str(tmp_path / "spec.json")}
    command, environment = [sys.executable, "-uc", PRINTED], os.environ | variables
    printed = subprocess.check_output(command, env=environment, text=True, timeout=LIMIT_SECONDS)
    customized, paths, modules = map(str.split, printed.splitlines())

    assert customized == ["own"]
    assert str(startup) not in paths
    assert len(list(own.glob("*.ran"))) == 1
    assert [name for name in modules if "scalewise" in name] == []
