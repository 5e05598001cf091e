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


MeasuredSteps = Annotated[
    Count | None,
    Field(
        description="End the training after this many optimizer steps beyond warmup_steps, which are "
        "measured: throughput needs no whole epoch. The built-in training evaluates nothing then, and its "
        "schedule is that of all epochs. Default: to its own end. Not together with target, metric or limits "
        "of a whole run."
    ),
]


class Settings(StrictModel):
    """Settings of one built-in training.

    Every key may stand under ``sweep`` as a list, except ``scaling`` and ``steps``.
    """

    dataset: str = Field(json_schema_extra={"examples": ["digits", "cifar10", "synthetic-3x32x32"]})
    """digits, mnist, cifar10, cifar100, or synthetic-3x32x32-100classes-50000samples: random images of any
    shape. Train on your own data with a program."""
    image_size: Count | None = None
    """Height and width in pixels to which images are resized, on the device, batch by batch. Default: those
    of the dataset."""
    model: str = Field(json_schema_extra={"examples": ["digits_cnn", "resnet18"]})
    """The network to train: linear, digits_cnn, mnist_cnn, resnet18, wide_resnet, wrn-28-10 (depth, widening)
    or transformer-25M (parameters). Train your own model with a program."""
    scaling: Scaling = "strong"
    global_batch_size: GlobalBatchSize = None
    batch_size_per_device: BatchSizePerDevice = None
    accumulation_steps: AccumulationSteps = 1
    epochs: Count = 10
    """Passes over the training data. Throughput needs few, time to accuracy enough to reach the target. With
    steps they only shape the schedule."""
    steps: MeasuredSteps = None
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
    cpus_per_device: CpusPerDevice = 1
    launcher: Launcher = None
    rendezvous: Literal["tcp", "file"] = "tcp"
    """How ranks find each other. tcp: at a free port of rank 0. file: in a file of the run's folder, if the
    network between nodes prevents that."""
    warmup_steps: WarmupSteps = 10
    deterministic: bool = False
    """Use only deterministic algorithms, which may be slower: equal seeds, equal weights."""
    save_model: bool = False
    """Keep the trained weights in the run's folder, as model.safetensors."""
    seed: Seed = 1

    @property
    def last_step(self) -> int | None:
        """Most optimizer steps of the training, warm-up included; None if epochs end it."""
        return None if self.steps is None else self.warmup_steps + self.steps


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
