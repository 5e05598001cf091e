"""Settings of one training: every key, its type, its unit and its default."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

LauncherName = Literal["srun", "popen", "torchrun", "spawn"]
"""The programs that start the ranks of a run; popen is the run's own supervisor."""

Count = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

Memory = Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)]
"""GB of one node, from a megabyte, Slurm's unit, to a petabyte, more than any node has."""

# Snakemake fills in braces and angle brackets. Its plugin for Slurm puts a job's command between double
# quotes, where a shell expands $ and backquotes; the job's shell misreads quotes and backslashes.
_CHANGED = re.compile(r"^-|[{}<>$`\\'\"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|^$")


def plain_path(path: str) -> str:
    """Return a path that may stand in the command line of a job.

    Raises:
        ValueError: Programs or shells would change it.
    """
    if found := _CHANGED.search(path):
        raise ValueError(
            f"is {path!r}, which programs and shells would not take as it is ({found[0]!r}). Use a path "
            "without { } < > $ ` \\, quotes and control characters."
        )
    return path


PlainPath = Annotated[str, AfterValidator(plain_path)]


class StrictModel(BaseModel):
    """Model that refuses unknown keys and converts nothing: ``"4"`` is not 4."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, defer_build=True, use_attribute_docstrings=True
    )


class SharedSettings(StrictModel):
    """Settings of one training, whichever program trains."""

    scaling: Literal["strong", "weak"] = "strong"
    """strong: global_batch_size stays as devices grow. weak: batch_size_per_device stays."""
    global_batch_size: Count | None = None
    """Samples of one optimizer step over all devices. For strong scaling."""
    batch_size_per_device: Count | None = None
    """Samples of one forward pass on one device. For weak scaling."""
    accumulation_steps: Count = 1
    """Micro-batches (forward and backward passes) of one optimizer step; gradients are exchanged only in the
    last of them."""
    steps: Count | None = None
    """End the training after this many optimizer steps beyond warmup_steps, which are measured: throughput
    needs no whole epoch. The built-in training evaluates nothing then, and its schedule is that of all
    epochs. Default: to its own end. Not together with target, metric or limits of a whole run."""
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    """First steps that are excluded from the throughput; they train nevertheless. Raise it if the first
    epochs are slower."""
    cpus_per_device: Count = 1
    """CPUs, and so threads, of each rank, and processes of the workers loader. Sweep it if CPU work may be
    the limit."""
    launcher: LauncherName | None = None
    """What starts the ranks. srun: one task a device. popen: one process a device, no agent between, on one
    machine. torchrun: one agent a node. spawn: torch.multiprocessing, one process a node. Default: the
    site's."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    """Seed of the first repeat; each further repeat adds one."""


class Settings(SharedSettings):
    """Settings of one built-in training."""

    dataset: str = Field(json_schema_extra={"examples": ["digits", "cifar10", "synthetic-3x32x32"]})
    """digits, mnist, cifar10, cifar100, or synthetic-3x32x32-100classes-50000samples: random images of any
    shape. Train on your own data with a program."""
    image_size: Count | None = None
    """Height and width in pixels to which images are resized, on the device, batch by batch. Default: those
    of the dataset."""
    model: str = Field(json_schema_extra={"examples": ["digits_cnn", "resnet18"]})
    """The network to train: linear, digits_cnn, mnist_cnn, resnet18, wide_resnet, wrn-28-10 (depth, widening)
    or transformer-25M (parameters). Train your own model with a program."""
    epochs: Count = 10
    """Passes over the training data. Throughput needs few, time to accuracy enough to reach the target. With
    steps they only shape the schedule."""
    stop_at_accuracy: Fraction | None = None
    """End the training once the test accuracy has been at least this, 0.69 for 69 %, in stop_patience_epochs
    epochs in a row. Default: train all epochs."""
    stop_patience_epochs: Count = 1
    """Epochs in a row at stop_at_accuracy before the training ends."""
    optimizer: Literal["sgd", "adam", "adamw", "adadelta"] = "sgd"
    """The optimizer, as in torch.optim."""
    learning_rate: Rate = 0.1
    """Initial rate; the peak of a onecycle schedule."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd; other optimizers ignore it."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """L2 penalty; decoupled from the gradient for adamw."""
    schedule: Literal["constant", "step", "cosine", "onecycle"] = "constant"
    """step: times 0.7 after each epoch. cosine: down to zero over the whole run.
    onecycle: up, then down, over the whole run."""
    crop_padding: Annotated[int, Field(ge=0)] = 0
    """Training images are padded by this many black pixels on each side and cropped back at a random place,
    another one for each image."""
    horizontal_flip: bool = False
    """Training images are mirrored at random, every second one."""
    loader: Literal["resident", "workers"] = "resident"
    """resident: the whole dataset on the device, a batch is one gather. workers: torch's DataLoader with
    cpus_per_device processes and a transform for each sample."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Number format of matrix products and convolutions. tf32: only inside the GPU. bf16, fp16: by autocast,
    fp16 with a gradient scaler."""
    channels_last: bool = False
    """Keep images and weights in the layout that tensor cores take, channels last."""
    compile: bool | Literal["reduce-overhead"] = False
    """torch.compile the model; reduce-overhead: with CUDA graphs. Costs time before the first step. Needs a
    C++ compiler for CPUs, a C compiler and Python's headers for GPUs."""
    parallelism: Literal["ddp", "zero1", "fsdp"] = "ddp"
    """ddp: every device holds all. zero1: optimizer states are divided (ZeroRedundancyOptimizer). fsdp:
    parameters, gradients and states are (FSDP2)."""
    gradient_as_bucket_view: bool = False
    """DistributedDataParallel keeps gradients as views of its communication buckets, which saves one copy of
    them."""
    bucket_cap_mb: Count | None = None
    """Size in MiB of the buckets in which gradients are exchanged. Default: torch's, 25."""
    communication_hook: Literal["none", "fp16", "bf16"] = "none"
    """Compresses gradients to 16 bits on their way between devices."""
    rendezvous: Literal["tcp", "file"] = "tcp"
    """How ranks find each other. tcp: at a free port of rank 0. file: in a file of the run's folder, if the
    network between nodes prevents that."""
    save_model: bool = False
    """Keep the trained weights in the run's folder, as model.safetensors."""

    @property
    def last_step(self) -> int | None:
        """Most optimizer steps of the training, warm-up included; None if epochs end it."""
        return None if self.steps is None else self.warmup_steps + self.steps


SWEEPABLE = tuple(key for key in Settings.model_fields if key not in {"scaling", "steps"})
"""Keys of the built-in training that may stand under ``sweep``."""


def sweep_model(settings: type[StrictModel], keys: Iterable[str]) -> type[StrictModel]:
    """Make a model with a list of values for each of these keys."""
    fields: dict[str, Any] = {}
    for key in keys:
        info = settings.model_fields[key]
        value: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        values = Annotated[list[value], Field(min_length=1)] | None
        fields[key] = (values, Field(None, description=f"Values of {key} to try."))
    return create_model("Sweep", __base__=StrictModel, **fields)
