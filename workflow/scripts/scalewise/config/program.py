"""Settings of one training by the user's program: its keys, its files and its words."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from scalewise.config.errors import did_you_mean, shown
from scalewise.config.settings import (
    SWEEPABLE,
    Count,
    Settings,
    SharedSettings,
    StrictModel,
    plain_path,
    sweep_model,
)
from scalewise.config.templates import names_in

ARGUMENT = "argument."
"""Prefix of the name of a custom value in templates and under ``sweep``."""

CUSTOM_NAME = "[A-Za-z_][A-Za-z0-9_]*"
"""Pattern of the name of a custom value."""

FOLDER = "folder"
"""Name in a template of the run's folder for the program's output."""

BATCH_NAMES = ("batch_size_per_device", "global_batch_size")
"""Names of the batch size in a template."""

RUN_NAMES = ("devices", "devices_per_node", "nodes", *BATCH_NAMES, "accumulation_steps", "seed", FOLDER)
"""Names in a template that are the same on every rank of a run."""

NODE_NAMES = ("node_rank", "master_address", "master_port")
RANK_NAMES = ("rank", "local_rank")
"""Names whose values differ between ranks."""

PLANNED = "planned"
"""Value of ``samples_per_step`` for the planned global batch."""

SEEN_SAMPLES = "seen"
"""Value of ``samples_per_step`` for the samples counted in the measured steps."""


def _word(value: object) -> object:
    is_word = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    if not is_word or "\0" in str(value) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"is {shown(value)}, no word of a command line. Write it in quotes.")
    return value


def _in_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111  # Path removes the ./ that an option-like name needs


def _program(program: str) -> str:
    return program if re.fullmatch(r"-m [\w.]+", program) else plain_path(_in_home(program))


HomePath = Annotated[str, AfterValidator(_in_home), AfterValidator(plain_path)]
"""A path; a leading ``~`` or ``~user`` is a home folder."""

Word = Annotated[str | int | float, BeforeValidator(_word)]
"""Text or a number, as a command line can hold it."""

CustomName = Annotated[str, Field(pattern=f"^{CUSTOM_NAME}$")]

Reading = Annotated[float, Field(allow_inf_nan=False)]


class Metric(StrictModel):
    """A number in the output of rank 0 that decides when a training counts as done."""

    pattern: str
    """Regular expression with one group, the number, such as `val_loss=([-+0-9.eE]+)`; searched in each line
    that rank 0 prints."""
    at_most: Reading | None = None
    """Trained once the number is this or less."""
    at_least: Reading | None = None
    """Trained once the number is this or more."""

    @model_validator(mode="after")
    def _check(self) -> Metric:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("needs one of at_most and at_least.")
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"has the pattern {self.pattern!r}: {error}.") from error
        if groups != 1:
            raise ValueError(
                f"has the pattern {self.pattern!r} with {groups} groups, not one. Write parentheses around "
                "the number: `val_loss=([-+0-9.eE]+)`."
            )
        return self

    def is_reached(self, value: float) -> bool:
        """Whether a reading of the number counts as trained."""
        if self.at_most is not None:
            return value <= self.at_most
        assert self.at_least is not None
        return value >= self.at_least

    def __str__(self) -> str:
        limit = f"at most {self.at_most:g}" if self.at_most is not None else f"at least {self.at_least:g}"
        return f"{self.pattern} {limit}"


def _command_in_home(words: list[Word]) -> list[Word]:
    """Expand a home folder at the beginning of a command."""
    return [_in_home(word) if isinstance(word, str) else word for word in words[:1]] + words[1:]


class ProgramSettings(SharedSettings):
    """Settings of one training by a user's program."""

    program: Annotated[str, AfterValidator(_program)]
    """Your training: the path of a Python file, or `-m package.train` for a module. It is run as it is, once
    for each device, like with torchrun. An experiment with it has the keys of this table."""
    arguments: list[Word] = Field(default_factory=list)
    """Words of its command line. No shell reads them. Names in braces are replaced: {devices},
    {devices_per_node}, {nodes}, {batch_size_per_device}, {global_batch_size}, {accumulation_steps}, {seed},
    {folder} (the run's own folder for its output) and your own {argument.NAME}. A brace is {{ or }}. ${name}
    is passed as it is."""
    argument: dict[CustomName, Word] = Field(default_factory=dict)
    """Values of {argument.NAME}. Swept as `sweep: {argument.NAME: [0.1, 0.2]}`."""
    environment: dict[CustomName, Word] = Field(default_factory=dict)
    """Variables of its environment, with the same names in braces, with {rank}, {local_rank}, and with
    {node_rank}, {master_address}, {master_port}."""
    python: HomePath | None = None
    """The Python that has the program's packages, torch among them, such as /home/me/venv/bin/python.
    Default: that of the ranks."""
    working_directory: HomePath | None = None
    """The folder that the program runs in: its own relative paths, and a module of `-m package.train`, start
    there, and so do those of prepare. The paths of this table always start in the folder that snakemake runs
    in. Default: that folder."""
    samples_per_step: Count | Literal["planned", "seen"] | None = None
    """Samples of one optimizer step over all devices, if Scalewise cannot count them: sequence-first batches,
    LBFGS, several loaders. planned: the samples that the batch size plans. A number equal to
    global_batch_size: the program has that batch, whatever its arguments. seen: the samples of the loader in
    the measured steps, for batches that vary (packing, Poisson sampling, growing accumulation). Default:
    Scalewise counts them, and compares them with the plan after 3 steps."""
    same_batches: bool = False
    """All ranks train on the same batches on purpose. Otherwise Scalewise ends such a run: copies of one
    training look like perfect scaling."""
    count_flops: bool = False
    """Count the floating-point operations of one step of the warm-up, for the model FLOPs utilization. That
    step runs more slowly; the measured steps do not."""
    optimizer: str | None = Field(None, pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    """Class of the optimizer whose steps are measured, such as AdamW, if the program has several. Default: of
    those in the first 20 updates the one with the most parameters."""
    no_grad_passes: Literal["training", "evaluation"] | None = None
    """What forward passes without gradients are, if Scalewise cannot decide it. training: a part of the
    training (rollouts, generated samples), whose time counts. evaluation: their time does not count. Default:
    decided by when they occur."""
    metric: Metric | None = None
    """What counts as trained, read from the program's output: the time to it is reported, and decides. Not
    together with steps."""
    starts: Literal["ranks", "itself"] = "ranks"
    """ranks: the program is started once for each device. itself: once for each node, and starts its own
    ranks (torch.multiprocessing.spawn, its own launcher)."""
    resumes: bool = False
    """The program resumes from its own files in {folder}. Default: a run that was cut off starts again in an
    emptied folder."""
    prepare: Annotated[list[Word], AfterValidator(_command_in_home)] = Field(default_factory=list)
    """A command for the login node, done once before any job, such as [download.py, --out, data]: a Python
    file, or a program, with its arguments."""
    files: list[HomePath] = Field(default_factory=list)
    """Files and folders whose change trains again, in addition to the program itself: its modules, its
    configuration, its data. A file of at most 1 MB counts by its content; a larger one, and each file of a
    folder, by name, size and time."""

    rendezvous: ClassVar[Literal["tcp"]] = "tcp"
    """A program's ranks find each other by MASTER_ADDR and MASTER_PORT."""

    @property
    def batch_is_own(self) -> bool:
        """Whether the program fixes its global batch: it is stated, and the program does not get it."""
        stated = self.stated_samples
        return (
            self.scaling == "strong"
            and stated is not None
            and stated == self.global_batch_size
            and self.names.isdisjoint(BATCH_NAMES)
        )

    @property
    def stated_samples(self) -> int | None:
        """Samples of a step in the configuration; None for a word or no value."""
        return self.samples_per_step if isinstance(self.samples_per_step, int) else None

    @property
    def samples_given(self) -> bool:
        """Whether the samples of a step come from the configuration, and are not counted."""
        return self.samples_per_step not in {None, SEEN_SAMPLES} and not self.batch_is_own

    @property
    def names(self) -> frozenset[str]:
        """Names in braces in its arguments and its environment."""
        texts = (*self.arguments, *self.environment.values())
        return frozenset(name for text in texts for name in names_in(str(text)))


def _kind_of_settings(values: Any) -> str:
    is_program = "program" in values if isinstance(values, dict) else isinstance(values, ProgramSettings)
    return "program" if is_program else "builtin"


AnySettings = Annotated[
    Annotated[Settings, Tag("builtin")] | Annotated[ProgramSettings, Tag("program")],
    Discriminator(_kind_of_settings),
]
"""Settings of a training: the built-in one or a user's program."""

SWEEPABLE_PROGRAM_KEYS = (*(key for key in SWEEPABLE if key in SharedSettings.model_fields), "python")
"""Keys of a program that may stand under ``sweep``."""


def _custom_value_name(key: str) -> str:
    if not re.fullmatch(rf"argument\.{CUSTOM_NAME}", key):
        raise ValueError(
            f"is neither `{ARGUMENT}NAME` nor a key of a program that can be swept. "
            f"{did_you_mean(key, SWEEPABLE_PROGRAM_KEYS)}"
        )
    return key


class ProgramSweep(sweep_model(ProgramSettings, SWEEPABLE_PROGRAM_KEYS)):  # type: ignore[misc]
    """Options to combine, each with a list of values: ``argument.NAME``, or a key of the training."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[
        Annotated[str, AfterValidator(_custom_value_name)], Annotated[list[Word], Field(min_length=1)]
    ]


def is_file(path: str | Path) -> bool:
    """Return whether there is such a file; False for what cannot be a path."""
    return os.path.isfile(path)  # noqa: PTH113  # Path.is_file raises for long names


def module_of(program: str) -> str | None:
    """``-m package.train`` -> ``package.train``; None for the path of a file."""
    words = program.split()
    return words[1] if words[:1] == ["-m"] and len(words) == 2 else None


def program_words(program: str) -> list[str]:
    """The program as Python's command line takes it: a path, or ``-m`` and a module."""
    module = module_of(program)
    return [program] if module is None else ["-m", module]


def command_for_folder(command: str, folder: str | None) -> str:
    """Return a command's path so that it works in another folder; a name on PATH stays.

    Args:
        command: A path from this folder, or a name on PATH.
        folder: The folder that it runs in; None for this one.
    """
    is_path = "/" in command or command.endswith(".py")
    return str(Path(command).absolute()) if folder is not None and is_path else command


def program_command(settings: ProgramSettings, python: str, arguments: Sequence[str]) -> list[str]:
    """Return interpreter, program and arguments, for the folder that the program runs in.

    Args:
        settings: The program's.
        python: The interpreter if the settings name none.
        arguments: Those of the program, filled in.
    """
    folder = settings.working_directory
    *module, program = program_words(settings.program)
    if folder is not None and not module:
        program = str(Path(program).absolute())
    return [command_for_folder(settings.python or python, folder), *module, program, *arguments]


def program_files(settings: ProgramSettings) -> list[Path]:
    """Return the program's file; none for a module that is installed."""
    module = module_of(settings.program)
    if module is None:
        return [Path(settings.program)]
    runs_in = Path(settings.working_directory or "")
    added = str(settings.environment.get("PYTHONPATH", "")).split(":")
    places = [
        folder.joinpath(*module.split("."))
        for folder in (runs_in, *(runs_in / folder for folder in added if folder))
    ]
    files = (path for place in places for path in (place / "__main__.py", place.with_suffix(".py")))
    return [path for path in files if is_file(path)][:1]
