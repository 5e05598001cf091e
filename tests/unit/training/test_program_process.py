"""The process of a user's program: its environment, its signals, and its progress."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.small_runs import definition, rank_setup
from tests.waiting import wait_until

from scalewise.config.program import ProgramSettings
from scalewise.config.shape import Shape
from scalewise.plan.launch import RANK_VARIABLES
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.program.child import LONGEST_LINE, Child
from scalewise.ranks.program.environment import (
    build_command,
    build_environment,
    template_values,
)

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def _ignored_and_blocked() -> Iterator[None]:
    """The signals as a rank may find or leave them: of a study in the background, of a launcher."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in HEEDED}
    signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_ignored_and_blocked")
def test_a_program_inherits_no_ignored_and_no_blocked_signal() -> None:
    """Scripts that save at a signal rely on that, and one without handlers must end."""
    child = Child(["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"], os.environ)
    wait_until(lambda: child.wait(1) is not None, "the program has not ended")
    child.end()
    masks = {line.split(":")[0]: int(line.split(":")[1], 16) for line in child.tail}
    assert masks.keys() == {"SigBlk", "SigIgn"}
    assert [n.name for n in HEEDED for mask in masks.values() if mask >> (n - 1) & 1] == []


def printed_by(code: str) -> Child:
    """A program that has ended."""
    child = Child([sys.executable, "-c", code], os.environ)
    wait_until(lambda: child.wait(1) is not None, "the program has not ended")
    child.end()
    return child


def test_a_line_without_end_is_kept_from_its_begin_where_an_error_has_its_name() -> None:
    child = printed_by("raise ValueError('x' * 1_000_000)")
    assert child.last_error().startswith("ValueError: xxx")
    assert max(len(line) for line in child.tail) == LONGEST_LINE


@pytest.mark.parametrize(
    ("code", "error"),
    [
        pytest.param("raise ValueError('a\\nTypeError: b\\nc')", "ValueError: a", id="of several lines"),
        pytest.param(
            "raise ValueError('\\n\\nfull')", "ValueError:  full", id="that begins with empty lines"
        ),
        pytest.param("class Odd(Exception): ...\nraise Odd('x')", "Odd: x", id="of any name"),
        pytest.param(
            "print('OSError: x'); exit('no data')", "no data", id="a text, after one that is handled"
        ),
        pytest.param(
            "raise ExceptionGroup('both', [OSError('x')])",
            "ExceptionGroup: both (1 sub-exception)",
            id="group",
        ),
        pytest.param(
            "class A:\n  def __del__(self): raise OSError\nkept = A()\nraise ValueError('x')",
            "ValueError: x",
            id="before that of a destructor",
        ),
        pytest.param(
            "print('[rank1]: Traceback (most recent call last):\\n[rank1]:   x\\n[rank1]: E: y')", "E: y"
        ),
    ],
)
def test_the_error_that_ends_a_program_is_found_whatever_else_it_prints(code: str, error: str) -> None:
    assert printed_by(code).last_error() == error


CUDA, HIP, ROCR = (f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "HIP", "ROCR"))
UUIDS = "GPU-5ebe9f43,GPU-ac33420d,GPU-1f0a4c2b"


@pytest.fixture(autouse=True)
def _nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (CUDA, HIP, ROCR):
        monkeypatch.delenv(name, raising=False)


def variables_of(shape: str, rank: int = 0, accelerator: str = "cuda", **settings: Any) -> dict[str, str]:
    return started_as(shape, rank, accelerator, **settings)[1]


def started_as(
    shape: str, rank: int = 0, accelerator: str = "cpu", **settings: Any
) -> tuple[list[str], dict[str, str]]:
    """The command and the variables of one rank of a run."""
    there = Shape.parse(shape)
    run = definition().model_copy(update={"shape": there, "accelerator": accelerator})
    local, size = rank % there.devices_per_node, there.world_size
    identity = Identity(rank, local, size, there.devices_per_node, "node-a", None)
    program = ProgramSettings(program="train.py", **settings)
    values = template_values(run, program, Path("folder"), identity, ("127.0.0.1", 29500))
    environment = build_environment(
        program, values, rank_setup(run=run), identity, Path("startup"), Path("probe.json")
    )
    return build_command(program, values, "python"), environment


def test_a_rank_gets_the_values_of_the_study_in_its_command_and_its_variables() -> None:
    arguments = [
        "--seed={seed}",
        "{argument.lr}",
        "{rank} of {devices}",
        "{accumulation_steps}",
        "{folder}/x",
    ]
    command, variables = started_as(
        "2x2",
        rank=3,
        arguments=arguments,
        argument={"lr": 0.1},
        seed=7,
        accumulation_steps=4,
        environment={"PLACE": "{node_rank}.{local_rank}", "PORT": "{master_port}"},
    )

    assert command[0] == "python"
    assert command[-6:] == ["train.py", "--seed=7", "0.1", "3 of 4", "4", "folder/x"]
    assert (variables["PLACE"], variables["PORT"]) == ("1.1", "29500")
    assert [variables[name] for name in RANK_VARIABLES] == ["3", "1", "4", "2"]


def test_a_program_that_starts_its_ranks_is_given_no_rank() -> None:
    variables = variables_of("2x2", rank=2, starts="itself")

    assert not set(RANK_VARIABLES) & variables.keys()
    assert variables["NODE_RANK"] == "1"


@pytest.mark.parametrize("starts", ["ranks", "itself"])
@pytest.mark.parametrize(
    ("given", "shape", "visible"),
    [
        pytest.param({}, "1x1", "0", id="the first of a workstation"),
        pytest.param({}, "1x4", "0,1,2,3", id="as many as the run has"),
        pytest.param({CUDA: "2,3,5"}, "1x2", "2,3", id="the first of those that the user gives"),
        pytest.param({CUDA: UUIDS}, "1x1", "GPU-5ebe9f43", id="by their names"),
        pytest.param({CUDA: "0,1,2,3"}, "2x2", "0,1", id="more on each node than the run needs"),
        pytest.param({CUDA: "3"}, "1x4", "3", id="the one that Slurm has bound to the task"),
        pytest.param({CUDA: ""}, "1x2", "", id="none"),
        pytest.param({HIP: "4,5"}, "1x1", "4", id="of HIP"),
        pytest.param({ROCR: "4,5"}, "1x1", "0", id="within those of ROCR"),
        pytest.param({ROCR: "0,1", CUDA: "1,0"}, "1x1", "1", id="of ROCR and CUDA"),
    ],
)
def test_a_program_sees_the_gpus_of_its_run_on_this_node_and_no_other(
    given: dict[str, str],
    shape: str,
    visible: str,
    starts: Literal["ranks", "itself"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DataParallel and frameworks take all that they see: a run of one device would train on several."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = variables_of(shape, starts=starts)
    assert found[CUDA] == visible
    # within those of ROCR, if it is set
    assert found.get(HIP) == (visible if {HIP, ROCR} & given.keys() else None)
    assert found.get(ROCR) == given.get(ROCR)


def test_a_cpu_process_sees_no_gpu_unless_the_experiment_states_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most programs take a GPU wherever they see one, by their local rank."""
    monkeypatch.setenv(CUDA, "0,1")
    assert variables_of("2x2", 3, "cpu")[CUDA] == ""
    assert variables_of("2x2", 3, "cpu", environment={CUDA: "1"})[CUDA] == "1"
