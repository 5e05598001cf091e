"""Find out by ``sbatch --test-only``, which sends no job, how a cluster wants GPUs requested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from scalewise.site.choices import Choice
from scalewise.site.commands import ask

TEST_SECONDS = 30

Form = Literal["gres", "gpus-per-node"]


@dataclass(frozen=True)
class GpuRequest:
    """A form of request, and what Slurm says of it.

    Args:
        typed: Whether it names the GPU type.
        partial: Whether a job may take one GPU of a node; None if Slurm accepted no request.
        option: The option that Slurm accepted; empty if it accepted none.
        refusal: Slurm's reason for accepting none.
    """

    form: Form
    typed: bool
    partial: bool | None = None
    option: str = ""
    refusal: str = ""


def find_gpu_request(choice: Choice) -> GpuRequest:
    """Return the first request that Slurm accepts, of one GPU or of a whole node; else the usual form."""
    refusal = ""
    for form, typed, devices in _requests(choice):
        option = _option(choice, form, typed, devices)
        answer = ask("sbatch", "--test-only", *place(choice), option, "--wrap=true", seconds=TEST_SECONDS)
        if answer.ok:
            return GpuRequest(form, typed, devices < choice.devices or choice.devices == 1, option)
        if answer.code is None:
            return GpuRequest(form, typed, refusal=answer.failure)
        refusal = refusal or answer.error
    return GpuRequest("gres", bool(choice.gpu_type), refusal=refusal)


def place(choice: Choice) -> list[str]:
    """Return the options of a job of one task in the chosen partition."""
    account = [] if choice.account is None else [f"--account={choice.account.account}"]
    qos = [] if choice.qos is None else [f"--qos={choice.qos}"]
    constraint = [f"--constraint={choice.constraint}"] if choice.constraint else []
    return [
        *account,
        *qos,
        *constraint,
        f"--partition={choice.partition.name}",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--time=1",
    ]


def _requests(choice: Choice) -> Iterator[tuple[Form, bool, int]]:
    """Yield forms, whether they name the type, and numbers of GPUs; the best one first."""
    forms: tuple[Form, ...] = ("gres", "gpus-per-node")
    for devices in dict.fromkeys((1, choice.devices)):
        for typed in (True, False) if choice.gpu_type else (False,):
            for form in forms:
                yield form, typed, devices


def _option(choice: Choice, form: Form, typed: bool, devices: int) -> str:
    kind = f"{choice.gpu_type}:" if typed else ""
    return f"--gres=gpu:{kind}{devices}" if form == "gres" else f"--gpus-per-node={kind}{devices}"
