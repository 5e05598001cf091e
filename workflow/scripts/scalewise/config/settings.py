"""Settings of one training: every key, its type, its unit and its default."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import NoneType
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    create_model,
    model_serializer,
)

LauncherName = Literal["srun", "popen", "torchrun", "spawn"]
"""The programs that start the ranks of a run; popen is the run's own supervisor."""

Count = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

Memory = Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)]
"""GB of one node, from a megabyte, Slurm's unit, to a petabyte, more than any node has."""

MAX_SEED = 2**31 - 1


class StrictModel(BaseModel):
    """Model that refuses unknown keys and converts nothing: ``"4"`` is not 4."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class ShortForm(StrictModel):
    """A mapping that may be written as one value; files hold the shortest form."""

    @property
    def short(self) -> object:
        """The one value; None if only the mapping is complete."""
        raise NotImplementedError

    @model_serializer(mode="wrap")
    def _write(self, write_mapping: SerializerFunctionWrapHandler) -> Any:
        return write_mapping(self) if self.short is None else self.short


def short_form(kind: Any, model: type[ShortForm], read: Callable[[Any], ShortForm]) -> BeforeValidator:
    """Accept one value in place of a model's mapping, so that readers know one type.

    Args:
        kind: Type of the value.
        model: The annotated model.
        read: Makes the model from the value.
    """
    of_kind: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(strict=True, defer_build=True))

    def to_model(value: object) -> object:
        return value if isinstance(value, (dict, model)) else read(of_kind.validate_python(value))

    return BeforeValidator(to_model, json_schema_input_type=kind | model)


Scaling = Annotated[
    Literal["strong", "weak"],
    Field(description="strong: global_batch_size stays as devices grow. weak: batch_size_per_device stays."),
]
GlobalBatchSize = Annotated[
    Count | None,
    Field(description="Samples of one optimizer step over all devices. For strong scaling."),
]
BatchSizePerDevice = Annotated[
    Count | None, Field(description="Samples of one forward pass on one device. For weak scaling.")
]
AccumulationSteps = Annotated[
    Count,
    Field(
        description="Micro-batches (forward and backward passes) of one optimizer step; gradients are "
        "exchanged only in the last of them."
    ),
]
CpusPerDevice = Annotated[
    Count,
    Field(
        description="CPUs, and so threads, of each rank, and processes of the workers loader. Sweep it if "
        "CPU work may be the limit."
    ),
]
Launcher = Annotated[
    LauncherName | None,
    Field(
        description="What starts the ranks. srun: one task a device. popen: one process a device, no agent "
        "between, on one machine. torchrun: one agent a node. spawn: torch.multiprocessing, one process a "
        "node. Default: the site's."
    ),
]
WarmupSteps = Annotated[
    int,
    Field(
        ge=0,
        description="First steps that are excluded from the throughput; they train nevertheless. Raise it "
        "if the first epochs are slower.",
    ),
]
Seed = Annotated[
    int,
    Field(ge=0, le=MAX_SEED, description="Seed of the first repeat; each further repeat adds one."),
]


FEWEST_STEPS = 100
"""Fewest measured steps for the interval of a run's throughput: 20 windows of 5."""


class Steps(ShortForm):
    """Steps to measure: a fixed number, or fewer if a run's throughput has a narrow interval before."""

    most: Count = Field(
        description=f"Most optimizer steps beyond warmup_steps; at least the {FEWEST_STEPS} that an interval "
        "needs."
    )
    until_interval: Annotated[float, Field(gt=0, le=0.2, allow_inf_nan=False)] | None = Field(
        description="End the run once half the width of the 95 % interval of its throughput, over "
        "windows of 5 steps, is at most this share of the throughput, 0.01 for 1 %. Steps beyond "
        "warmup_steps that are not steady yet are excluded, at most half of `most`. The interval shows how "
        "well one run is known, not how much runs differ; repeats show that.",
    )

    @classmethod
    def exactly(cls, steps: int) -> Steps:
        """Make the form with a fixed number of steps."""
        return cls(most=steps, until_interval=None)

    @property
    def short(self) -> int | None:
        """The number of steps; None if the run may end earlier."""
        return self.most if self.until_interval is None else None

    def __str__(self) -> str:
        return str(self.short or f"at most {self.most}")


StepsKey = Annotated[Steps, short_form(Count, Steps, Steps.exactly)]


class Settings(StrictModel):
    """Settings of one built-in training.

    Every key may stand under ``sweep`` as a list, except ``scaling`` and ``steps``.
    """

    dataset: str = Field(
        description="digits, mnist, cifar10, cifar100, or synthetic-3x32x32-100classes-50000samples: random "
        "images of any shape. Train on your own data with a program.",
        json_schema_extra={"examples": ["digits", "cifar10", "synthetic-3x32x32"]},
    )
    image_size: Count | None = Field(
        None,
        description="Height and width in pixels to which images are resized, on the device, batch by batch. "
        "Default: those of the dataset.",
    )
    model: str = Field(
        description="The network to train: linear, digits_cnn, mnist_cnn, resnet18, wide_resnet, wrn-28-10 "
        "(depth, widening) or transformer-25M (parameters). Train your own model with a program.",
        json_schema_extra={"examples": ["digits_cnn", "resnet18"]},
    )
    pretrained: bool = Field(
        False,
        description="Begin from torchvision's ImageNet weights, fetched on the login node. For resnet18 with "
        "images of 224 pixels.",
    )
    scaling: Scaling = "strong"
    global_batch_size: GlobalBatchSize = None
    batch_size_per_device: BatchSizePerDevice = None
    accumulation_steps: AccumulationSteps = 1
    epochs: Count = Field(
        10,
        description="Passes over the training data. Throughput needs few, time to accuracy enough to reach "
        "the target. With steps they only shape the schedule.",
    )
    steps: StepsKey | None = Field(
        None,
        description="End the training after this many optimizer steps beyond warmup_steps: throughput needs "
        "no whole epoch. Nothing is evaluated then, the schedule is that of all epochs, and the data starts "
        "again if it ends before the steps do. A mapping ends it earlier, once its throughput is "
        "known well enough: `{most: 500, until_interval: 0.01}`. Default: train all epochs. Not together "
        "with a target.",
    )
    stop_at_accuracy: Fraction | None = Field(
        None,
        description="End the training once the test accuracy has been at least this, 0.69 for 69 %, in "
        "stop_patience_epochs epochs in a row. Default: train all epochs.",
    )
    stop_patience_epochs: Count = Field(
        1, description="Epochs in a row at stop_at_accuracy before the training ends."
    )
    optimizer: Literal["sgd", "adam", "adamw", "adadelta"] = Field(
        "sgd", description="The optimizer, as in torch.optim."
    )
    learning_rate: Rate = Field(0.1, description="Initial rate; the peak of a onecycle schedule.")
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description="Multiplies learning_rate by the number of devices (linear) or its square root (sqrt).",
    )
    learning_rate_warmup_epochs: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description="Epochs over which the rate rises linearly to its first value, ahead of its schedule. "
        "Parts of an epoch are possible.",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="Momentum of sgd; other optimizers ignore it."
    )
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="L2 penalty; decoupled from the gradient for adamw."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of each label spread over all classes while training."
    )
    schedule: Literal["constant", "step", "cosine", "onecycle"] = Field(
        "constant",
        description="step: times schedule_gamma every schedule_step_epochs. cosine: down to zero over the "
        "whole run. onecycle: up, then down, over the whole run.",
    )
    schedule_gamma: Fraction = Field(0.7, description="Factor of the step schedule, at each of its steps.")
    schedule_step_epochs: Count = Field(1, description="Epochs between two steps of the step schedule.")
    crop_padding: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Training images are padded by this many black pixels on each side and cropped back at a "
        "random place, another one for each image.",
    )
    horizontal_flip: bool = Field(
        False, description="Training images are mirrored at random, every second one."
    )
    loader: Literal["resident", "workers"] = Field(
        "resident",
        description="resident: the whole dataset on the device, a batch is one gather. workers: torch's "
        "DataLoader with cpus_per_device processes and a transform for each sample.",
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        "fp32",
        description="Number format of matrix products and convolutions. tf32: only inside the GPU. bf16, "
        "fp16: by autocast, fp16 with a gradient scaler.",
    )
    channels_last: bool = Field(
        False, description="Keep images and weights in the layout that tensor cores take, channels last."
    )
    compile: bool | Literal["reduce-overhead"] = Field(
        False,
        description="torch.compile the model; reduce-overhead: with CUDA graphs. Costs time before the first "
        "step. Needs a C++ compiler for CPUs, a C compiler and Python's headers for GPUs.",
    )
    parallelism: Literal["ddp", "zero1", "fsdp"] = Field(
        "ddp",
        description="ddp: every device holds all. zero1: optimizer states are divided "
        "(ZeroRedundancyOptimizer). fsdp: parameters, gradients and states are (FSDP2).",
    )
    gradient_as_bucket_view: bool = Field(
        False,
        description="DistributedDataParallel keeps gradients as views of its communication buckets, which "
        "saves one copy of them.",
    )
    static_graph: bool = Field(
        False, description="DistributedDataParallel may assume that every step uses the same parameters."
    )
    bucket_cap_mb: Count | None = Field(
        None,
        description="Size in MiB of the buckets in which gradients are exchanged. Default: torch's, 25.",
    )
    communication_hook: Literal["none", "fp16", "bf16"] = Field(
        "none", description="Compresses gradients to 16 bits on their way between devices."
    )
    cpus_per_device: CpusPerDevice = 1
    launcher: Launcher = None
    rendezvous: Literal["tcp", "file"] = Field(
        "tcp",
        description="How ranks find each other. tcp: at a free port of rank 0. file: in a file of the run's "
        "folder, if the network between nodes prevents that.",
    )
    warmup_steps: WarmupSteps = 10
    deterministic: bool = Field(
        False,
        description="Use only deterministic algorithms, which may be slower: equal seeds, equal weights.",
    )
    save_model: bool = Field(
        False, description="Keep the trained weights in the run's folder, as model.safetensors."
    )
    seed: Seed = 1

    @property
    def most_steps(self) -> int | None:
        """Most steps to measure beyond the warm-up; None if epochs end the training."""
        return None if self.steps is None else self.steps.most

    @property
    def last_step(self) -> int | None:
        """Most optimizer steps of the training, warm-up included; None if epochs end it."""
        return None if self.most_steps is None else self.warmup_steps + self.most_steps


SWEEPABLE = tuple(key for key in Settings.model_fields if key not in {"scaling", "steps"})

DEFAULT = "default"
"""Value of a swept key that means no value; as a word, it reads well in a run's name."""

SWEEPABLE_WITH_DEFAULT = ("image_size", "stop_at_accuracy", "bucket_cap_mb", "launcher")
"""Keys whose default cannot be written as a value."""


def sweep_model(
    name: str,
    settings: type[StrictModel],
    keys: Iterable[str],
    with_default: Collection[str] = (),
    base: type[StrictModel] = StrictModel,
) -> type[StrictModel]:
    """Make the model of ``sweep``: a list of values for each key that may be swept.

    Args:
        name: Name of the new model.
        settings: The model that has the keys.
        keys: Keys that may be swept.
        with_default: Keys that may have the word default as a value.
        base: A model with further keys.
    """
    fields: dict[str, Any] = {}
    for key in keys:
        info = settings.model_fields[key]
        # in a list, the word default stands for None
        element: Any = info.annotation
        if NoneType in get_args(element):
            (element,) = (kind for kind in get_args(element) if kind is not NoneType)
        if info.metadata:
            element = Annotated[element, *info.metadata]
        description = f"Values of {key} to try."
        if key in with_default:
            element = element | Literal["default"]
            description += " default: as without the key."
        fields[key] = (
            Annotated[list[element], Field(min_length=1)] | None,
            Field(None, description=description),
        )
    about = base.__doc__ if base is not StrictModel else "Options to combine, each with a list of values."
    return create_model(name, __base__=base, __doc__=about, **fields)
