"""Fingerprint of a run: all that must be equal for a ratio of two runs to be a speedup. Pure functions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.plan.config.program import ARGUMENT, AnySettings, ProgramSettings
from scalewise.plan.formatting import as_in_yaml
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.runs import repeat_settings
from scalewise.records import OUTSIDE_THE_STEPS, GpuLimits, ProgramMeasurements, Provenance

NOT_RECORDED = "not recorded"

PARAMETERS = "parameters of the model"
CONTENTS = "contents of the "
"""Begins the name of a condition that is the hash of an input."""

IMPORTED = f"{CONTENTS}imported "
"""Begins the name of a condition that is the hash of a file which a program has imported."""
DEVICE_MODEL = "device model"
EXCHANGE, PRECISION = "exchange of gradients", "formats of numbers"
OTHER_VERSION = "version of "
"""Begins the name of the version of a package that a program has imported; not every run need have it."""

_MAY_LACK = {PARAMETERS, EXCHANGE, PRECISION}
_MAY_LACK |= {*GpuLimits(power_watts=0, sm_clock_mhz=0, memory_clock_mhz=0).named()}

_ALWAYS_THERE = frozenset({"scalewise", "python", "torch", "cuda", "nccl", "driver"})
"""Versions that every run of a program has, or none on such devices."""

_NEITHER_SPEED_NOR_WORK = frozenset(
    {"seed", "launcher", "global_batch_size", "batch_size_per_device", "steps"}
)
"""Settings that are no condition: the batch size that is stands beside them, and so does the launcher that
was. How many steps are measured changes nothing about any of them."""

_OF_PROGRAMS_LEFT_OUT = frozenset(
    {"arguments", "argument", "environment", "files", "inputs", "prepare", "metric", "resumes"}
)
"""Settings of a program that are conditions in another form, or none: the first three word by word; files and
data by their contents, which what is prepared is part of; a metric is looked for in what is printed, and
whether a folder is kept matters to a run that was cut off alone."""


def may_lack(condition: str) -> bool:
    """Whether a record may lack a condition: its GPU does not tell it, or a program did not need it.

    A program may import a module, or wrap its model, on several devices alone.
    """
    return condition in _MAY_LACK or condition.startswith((CONTENTS, OTHER_VERSION))


def can_change_speed(package: str) -> bool:
    """Whether another version of a package may change the speed of a training.

    Args:
        package: Name of the distribution, as it spells it.
    """
    return re.sub(r"[-_.]+", "-", package).lower() not in OUTSIDE_THE_STEPS


def imported_elsewhere(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """Imported files that one of two runs has alone, if each has some: they did not run the same modules.

    Where just one has more than the other, such as a module that several devices need, its own code, which
    is the same, has asked for it.
    """
    alone = [
        [name for name in one if name.startswith(IMPORTED) and name not in other]
        for one, other in ((first, second), (second, first))
    ]
    return [*alone[0], *alone[1]] if all(alone) else []


def made_with(definition: RunDefinition, settings: AnySettings) -> bool:
    """Whether a run was made with these settings.

    A launcher left to the site may be any.

    Args:
        definition: The run's.
        settings: Those of its series.
    """
    return settings.launcher in {None, definition.launcher} and definition.settings == repeat_settings(
        settings, definition.repeat
    )


@dataclass(frozen=True)
class Fingerprint:
    """All that must be equal between two runs for their ratio to be a speedup.

    Args:
        conditions: Value of each, under the user's word for it: a key of experiments.yaml, or what the run
            met.
    """

    conditions: Mapping[str, str]

    @classmethod
    def of(
        cls,
        definition: RunDefinition,
        origin: Provenance | None,
        parameters: int | None = None,
        program: ProgramMeasurements | None = None,
    ) -> Fingerprint:
        """The fingerprint of a run, by its definition, its provenance, its model's size, and its program.

        What the hosts or ranks of a run do not have alike is a condition with several values, such as
        ``580.65, 580.95`` for the driver's version.

        Left out: the seed, which the repeats differ in; the batch size that follows from the devices (the
        global one of weak scaling, the one per device of strong scaling); hosts, for nodes of one model are
        what a cluster is made of. The commit of the workflow is left out too: it changes with every edit of
        a title or a page of text, and the version of Scalewise, which is in, stands for the code that
        measures. It is a caution, like the kernel (``origin_cautions``). The number of steps to measure is
        left out, too, and of a program what ``_OF_PROGRAMS_LEFT_OUT`` names; names in braces stay as they
        are, so that neither the seed nor the run's folder is in.

        Args:
            definition: The settings and the shape that were asked for.
            origin: None where the run ended before its ranks had met.
            parameters: Trainable parameters; None where the run has no figures.
            program: Findings on a program of the user's own; None for the built-in loop.
        """
        given = definition.settings.model_dump()
        settings = {key: value for key, value in given.items() if key not in _NEITHER_SPEED_NOR_WORK}
        is_program = isinstance(definition.settings, ProgramSettings)
        if is_program:
            settings = _program_settings(settings)
        if definition.settings.scaling == "weak":
            settings["batch_size_per_device"] = definition.batch_size_per_device
        else:
            settings["global_batch_size"] = definition.global_batch_size
        met: dict[str, object] = {"accelerator": definition.accelerator, "launcher": definition.launcher}
        if parameters is not None:
            met[PARAMETERS] = f"{parameters:,}"
        if origin:
            met |= _met(origin, may_lack_packages=is_program)
        if program is not None:
            met |= _program_found(program, alone=len(origin.devices) == 1 if origin else True)
        return cls({key: as_in_yaml(value) for key, value in (settings | met).items()})

    @property
    def id(self) -> str:
        """12 hexadecimal digits, equal for equal conditions alone."""
        text = json.dumps(self.conditions, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _program_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a program as conditions: its arguments' template, and each value that it is filled with."""
    return {
        **{key: value for key, value in settings.items() if key not in _OF_PROGRAMS_LEFT_OUT},
        "arguments": " ".join(map(str, settings["arguments"])),
        **{f"{ARGUMENT}{name}": value for name, value in settings["argument"].items()},
        **{f"environment variable {name}": value for name, value in settings["environment"].items()},
    }


def _program_found(program: ProgramMeasurements, *, alone: bool) -> dict[str, object]:
    """Conditions that a program's run has shown.

    One device exchanges nothing, and many programs wrap their model for several alone: what exchanges
    gradients is no condition of it.

    Args:
        program: Findings on the run.
        alone: True for a run on one device.
    """
    found: dict[str, object] = {"compiled": program.compiled}
    if program.precision:
        found[PRECISION] = program.precision
    if not alone:
        found[EXCHANGE] = ", ".join(sorted(program.parallelism)) or "none seen"
    contents = {f"{IMPORTED}{path}": f"sha256 {value[:12]}" for path, value in program.imported_files.items()}
    return found | contents


def _met(origin: Provenance, *, may_lack_packages: bool = False) -> dict[str, str]:
    """Conditions that all hosts and ranks of a run met, with every value that they take.

    Args:
        origin: The run's.
        may_lack_packages: A package is recorded where it was imported alone, and some ranks may not need it.
    """
    environments = origin.environments
    libraries = dict.fromkeys(
        name for environment in environments for name in environment.versions if can_change_speed(name)
    )
    limits = [limit.named() for limit in origin.gpu_limits if limit is not None]
    return {
        "launcher": origin.launcher,
        DEVICE_MODEL: _joined(origin.devices),
        "CPU model": _joined(environment.cpu_model for environment in environments),
        **{
            f"{name} version": _joined(
                environment.versions.get(name, NOT_RECORDED) for environment in environments
            )
            for name in libraries
            if not may_lack_packages or name in _ALWAYS_THERE
        },
        **{
            f"{OTHER_VERSION}{name}": _joined(
                environment.versions[name] for environment in environments if name in environment.versions
            )
            for name in libraries
            if may_lack_packages and name not in _ALWAYS_THERE
        },
        **{
            name: _joined(limit[name] for limit in limits if name in limit)
            for name in dict.fromkeys(name for limit in limits for name in limit)
        },
        # sizes stand before some hashes, which hold them
        **{
            f"{CONTENTS}{name}": f"sha256 {value.rpartition(':')[2][:12]}"
            for name, value in origin.inputs.items()
        },
    }


def _joined(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))


def complete(found: Sequence[Fingerprint]) -> list[Fingerprint]:
    """Fingerprints in which a condition that a record could not hold is taken from the runs it agrees with.

    A record may lack conditions that others have, which is no difference: where all runs that agree with it
    in everything else have the same value, it is counted among them. Where these runs differ, nobody
    can say to which it belongs: it stays apart, and the condition is ``not recorded``.

    Args:
        found: One for each run.

    Returns:
        One for each run, in the same order.
    """
    groups: list[dict[str, str]] = []
    group_of: dict[str, int] = {}
    # those that hold most come first: each of the others then meets all that it may agree with
    for fingerprint in sorted(found, key=lambda one: (-len(one.conditions), one.id)):
        if fingerprint.id in group_of:
            continue
        conditions = dict(fingerprint.conditions)
        fits = [index for index, group in enumerate(groups) if _agree(group, conditions)]
        if len(fits) == 1:
            groups[fits[0]] |= conditions
            group_of[fingerprint.id] = fits[0]
            continue
        lacking = dict.fromkeys(name for index in fits for name in groups[index] if name not in conditions)
        values = {name: {groups[index].get(name) for index in fits} for name in lacking}
        group_of[fingerprint.id] = len(groups)
        groups.append(conditions | {name: NOT_RECORDED for name in lacking if len(values[name]) > 1})
    return [Fingerprint(groups[group_of[fingerprint.id]]) for fingerprint in found]


def _agree(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Whether two runs differ in nothing but conditions that one of them could not record."""
    return all(
        first[name] == second[name] if name in first and name in second else may_lack(name)
        for name in {*first, *second}
    ) and not imported_elsewhere(first, second)
