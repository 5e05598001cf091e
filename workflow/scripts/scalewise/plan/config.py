"""The models of ``config/experiments.yaml``: every key, its type, its unit and its default.

The JSON Schema that completes the file in editors, and the table in config/README.md, are generated
from these models (``workflow/scripts/write_generated.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from scalewise.records import LauncherName

MAX_REPEATS = 1000

Count = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Model(BaseModel):
    """Unknown keys are errors and nothing is converted: ``"4"`` is not 4."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Settings(Model):
    """What one training does. Every key may stand under ``sweep`` as a list, except ``scaling``."""

    dataset: str = Field(
        description="digits, or the path of your own .safetensors file with train_images and test_images "
        "(uint8, [samples, channels, height, width]) and train_labels and test_labels.",
        json_schema_extra={"examples": ["digits", "data/mine.safetensors"]},
    )
    model: Literal["digits_cnn", "linear"] = Field(description="The network to train.")
    scaling: Literal["strong", "weak"] = Field(
        "strong",
        description="strong: global_batch_size stays as devices grow. weak: batch_size_per_device stays.",
    )
    global_batch_size: Count | None = Field(
        None, description="Samples of one optimizer step over all devices. For strong scaling."
    )
    batch_size_per_device: Count | None = Field(
        None, description="Samples of one step on one device. For weak scaling."
    )
    epochs: Count = Field(
        10,
        description="Passes over the training data. Throughput needs few, time to accuracy enough to reach "
        "the target.",
    )
    optimizer: Literal["sgd", "adam", "adadelta"] = Field(
        "sgd", description="The optimizer, as in torch.optim."
    )
    learning_rate: Rate = Field(0.1, description="Initial rate; the peak of a onecycle schedule.")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="Momentum of sgd; other optimizers ignore it."
    )
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(0.0, description="L2 penalty.")
    schedule: Literal["constant", "step", "onecycle"] = Field(
        "constant",
        description="step: times schedule_gamma every schedule_step_epochs. onecycle: up, then down, over "
        "the whole run.",
    )
    schedule_gamma: Fraction = Field(0.7, description="Factor of the step schedule, at each of its steps.")
    schedule_step_epochs: Count = Field(1, description="Epochs between two steps of the step schedule.")
    gradient_as_bucket_view: bool = Field(
        False,
        description="DistributedDataParallel keeps gradients as views of its communication buckets, which "
        "saves one copy of them.",
    )
    cpus_per_device: Count = Field(
        1,
        description="CPUs, and so threads, of each rank. Sweep it where CPU work may be the limit.",
    )
    launcher: LauncherName | None = Field(
        None,
        description="What starts the ranks. srun: one task a device. torchrun: one agent a node. spawn: "
        "torch.multiprocessing, one process a node. Default: the site's.",
    )
    rendezvous: Literal["tcp", "file"] = Field(
        "tcp",
        description="How ranks meet. tcp: at a port of rank 0 that is free. file: in a file of the run's "
        "folder, where the network between nodes is in the way.",
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        10,
        description="First steps left out of the throughput; they train all the same. Raise it where "
        "the first epochs are slower.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        1, description="Seed of the first repeat; each further repeat adds one."
    )


class Target(Model):
    """What counts as trained."""

    accuracy: Fraction = Field(description="Test accuracy to reach, 0.97 for 97 %.")


class DecisionRule(Model):
    """How the number of devices is chosen."""

    min_efficiency: Fraction = Field(
        0.7, description="Recommend the most devices whose parallel efficiency is at least this."
    )


def _device_count(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PydanticCustomError(
            "device_count",
            "is {shown}, not a number of devices",
            {"shown": repr(value)},
        )
    return value


DeviceCount = Annotated[int | str, BeforeValidator(_device_count)]

SWEEPABLE = tuple(key for key in Settings.model_fields if key != "scaling")


def _sweep_model() -> type[Model]:
    fields: dict[str, Any] = {}
    for key in SWEEPABLE:
        info = Settings.model_fields[key]
        element: Any = info.annotation
        if info.metadata:
            element = Annotated[element, *info.metadata]
        fields[key] = (
            Annotated[list[element], Field(min_length=1)] | None,
            Field(None, description=f"Values of {key} to try."),
        )
    return create_model(
        "Sweep", __base__=Model, __doc__="Options to combine, each with a list of values.", **fields
    )


if TYPE_CHECKING:
    Sweep = Model
else:
    Sweep = _sweep_model()


class Experiment(Settings):
    """One study: a training, the device counts to compare and the options to combine."""

    title: str = Field("", description="Shown in the report. Changing it reruns nothing.")
    description: str = Field("", description="Shown below the title.")
    devices: Annotated[list[DeviceCount], Field(min_length=1)] = Field(
        description="Device counts to compare, such as [1, 2, 4]. "
        '"2x2" (nodes x devices per node) forces a shape.'
    )
    repeats: Annotated[int, Field(gt=0, le=MAX_REPEATS)] = Field(
        3, description="Jobs per device count and option. 3 show a trend; from 6 on there are 95 % intervals."
    )
    sweep: Sweep = Field(
        default_factory=Sweep,
        description="Every combination of these values is a series with a baseline of its own.",
    )
    exclude: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Combinations to leave out: a run that matches all keys of an entry (swept keys or "
        "devices) is not made.",
    )
    target: Target | None = Field(None, description="What counts as trained.")
    decision: DecisionRule = Field(
        default_factory=DecisionRule,
        description="The rule by which the report recommends a number of devices.",
    )
    runtime_minutes: Count = Field(
        10, description="A run is ended after this many minutes. Changing it reruns nothing."
    )
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Memory to ask for, per node, in GB. Changing it reruns nothing."
    )
    timeout_seconds: Annotated[int, Field(ge=5)] = Field(
        120,
        description="A run ends when a rank has waited this long for another: at the start, or in a "
        "collective operation. Raise it where evaluation or a slow file system keeps ranks apart. Changing "
        "it reruns nothing.",
    )

    @property
    def swept(self) -> dict[str, list[Any]]:
        """The swept keys with their values, in the order of the model's keys."""
        return self.sweep.model_dump(exclude_none=True)


class StudyFile(Model):
    """Scalewise experiments: what to train, on how many devices, with which options."""

    model_config = ConfigDict(title="Scalewise experiments")

    defaults: Experiment | None = Field(
        None, description="Values for every experiment that does not say otherwise."
    )
    experiments: dict[str, Experiment] = Field(description="One entry an experiment.")


def study_schema() -> dict[str, Any]:
    """JSON Schema of the YAML. Nothing is required in it, because ``defaults`` may give any key."""
    schema = schema_of(StudyFile)
    for name, definition in schema["$defs"].items():
        if name == "Experiment":
            definition.pop("required", None)
    names = {"pattern": EXPERIMENT_NAME, "maxLength": MAX_EXPERIMENT_NAME}
    schema["properties"]["experiments"]["propertyNames"] = names
    # --profile, --config and other tools put keys of their own beside ours in the same file
    schema["properties"]["site"] = {
        "type": "string",
        "description": "Path of the site file; the profile sets it.",
    }
    return schema


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of a model for editors: a key is left out, never null."""
    schema = model.model_json_schema()
    _drop_nulls(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


EXPERIMENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
MAX_EXPERIMENT_NAME = 100


def _drop_nulls(node: Any) -> None:
    """A key is left out, never null: strip the null branch that Optional brings."""
    if isinstance(node, dict):
        if "anyOf" in node:
            branches = [branch for branch in node["anyOf"] if branch != {"type": "null"}]
            if len(branches) == 1:
                del node["anyOf"]
                node.update(branches[0])
        if node.get("default", ...) is None:
            del node["default"]
        for value in node.values():
            _drop_nulls(value)
    elif isinstance(node, list):
        for value in node:
            _drop_nulls(value)
