"""Conditions of runs: all that must be equal for a ratio of two runs to be a speedup. Pure functions.

Runs under other conditions than most of their experiment are left out of every figure, and named.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import pandas as pd

from scalewise.analysis.words import as_in_yaml
from scalewise.config.program import ARGUMENT, AnySettings, ProgramSettings
from scalewise.plan.formatting import pluralize
from scalewise.plan.run_definition import RunDefinition
from scalewise.plan.runs import repeat_settings
from scalewise.records import GpuLimits, Measurements, Provenance

OUTSIDE_THE_STEPS = frozenset(
    {
        *("safetensors", "scikit-learn", "snakemake"),
        # dates, locks and classes
        *("python-dateutil", "pytz", "tzdata", "tzlocal", "filelock", "attrs", "annotated-types"),
        *("typing-extensions", "typing-inspection", "six"),
        # configuration, templates and what is printed
        *("pyyaml", "toml", "tomli", "jinja2", "markupsafe", "pygments", "markdown", "markdown-it-py"),
        *("mdurl", "click", "typer", "shellingham", "colorama", "loguru", "rich", "tqdm", "wcwidth"),
        # plots
        *("matplotlib", "seaborn", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing"),
        # downloads
        *("requests", "urllib3", "certifi", "idna", "charset-normalizer"),
        # packaging and tests
        *("pip", "setuptools", "wheel", "packaging", "platformdirs", "importlib-metadata", "zipp"),
        *("pytest", "pluggy", "iniconfig"),
        # modules of some of these packages, under whose names a rank finds their versions
        *("sklearn", "dateutil", "attr", "yaml", "markdown-it"),
    }
)
"""Packages that change no measured time: they compute nothing of a step, and read, decode or move no data.

Normalized names (PEP 503). The list names what does not matter, not what does: an unlisted package stays a
condition, which costs a comparison and makes none wrong. Pillow, which decodes images, and fsspec, which
reads data, are therefore not in it.
"""

Conditions = Mapping[str, str]
"""Value of each condition, by the user's word for it: a key of experiments.yaml, or what the run met."""

OTHER_CONDITIONS = "other conditions"
"""Outcome of a completed run that is left out."""
NEVER_MORE = {"out-of-memory", "diverged"}
"""Outcomes that another try would repeat."""

NOT_RECORDED, NOT_IMPORTED = "not recorded", "not imported"
MAX_DIFFERENCES = 3
"""Differences in one sentence."""

PARAMETERS, EXCHANGE, PRECISION = "parameters of the model", "exchange of gradients", "formats of numbers"
DEVICE_MODEL, CPU_MODEL = "device model", "CPU model"
CONTENTS = "contents of the "
"""Begins the name of a condition that is the hash of an input."""
IMPORTED = f"{CONTENTS}imported "
"""Begins the name of a condition that is the hash of a file which a program has imported."""
OTHER_VERSION = "version of "
"""Begins the name of the version of a package that a program has imported; not every run need have it."""

_LIMITS = {
    "GPU power limit": ("power_watts", "W"),
    "GPU maximum clock": ("sm_clock_mhz", "MHz"),
    "GPU memory's maximum clock": ("memory_clock_mhz", "MHz"),
}
"""Limits of a GPU by their names in messages, with field and unit."""
_MAY_LACK = {PARAMETERS, EXCHANGE, PRECISION, *_LIMITS}
_ALWAYS_THERE = frozenset({"scalewise", "python", "torch", "cuda", "nccl", "driver"})
"""Versions that every run of a program has, or none on such devices."""
PATCHED = {"driver": 1, "python": 2}
"""Packages with the parts of their version that can change the speed: a driver's branch, Python's 3.11. A
patch is a caution (``origin_cautions``)."""

_NOT_CONDITIONS = frozenset({"seed", "launcher", "global_batch_size", "batch_size_per_device", "steps"})
"""Settings that are in the conditions in another form, or that change neither the speed nor the work."""
_NOT_OF_PROGRAMS = frozenset(
    {"arguments", "argument", "environment", "files", "prepare", "metric", "resumes"}
)
"""Settings of a program that are in the conditions word by word or as hashes of contents, or are none."""


# --- the conditions of a run ----------------------------------------------------------------------------


def conditions_of(
    definition: RunDefinition, origin: Provenance | None, measured: Measurements | None = None
) -> dict[str, str]:
    """Return the conditions of a run.

    A condition in which hosts or ranks of a run differ has several values, such as ``580, 595``. The batch
    size that follows from the devices is none, nor are hosts, commit and operating system: a commit
    changes with every edit of a text, and the version of Scalewise stands for the code that measures.

    Args:
        definition: The settings and the shape.
        origin: None if the run ended before its ranks had met.
        measured: None if the run has no figures.
    """
    given = definition.settings.model_dump()
    found: dict[str, Any] = {key: value for key, value in given.items() if key not in _NOT_CONDITIONS}
    is_program = isinstance(definition.settings, ProgramSettings)
    if is_program:
        found = {
            **{key: value for key, value in found.items() if key not in _NOT_OF_PROGRAMS},
            "arguments": " ".join(map(str, given["arguments"])),
            **{f"{ARGUMENT}{name}": value for name, value in given["argument"].items()},
            **{f"environment variable {name}": value for name, value in given["environment"].items()},
        }
    batch = "batch_size_per_device" if definition.settings.scaling == "weak" else "global_batch_size"
    found[batch] = getattr(definition, batch)
    found |= {"accelerator": definition.accelerator, "launcher": definition.launcher}
    if measured is not None:
        found[PARAMETERS] = f"{measured.parameters:,}"
    if origin:
        found |= _met(origin, is_program=is_program)
    if measured is not None and (program := measured.program) is not None:
        found["compiled"] = program.compiled
        if program.precision:
            found[PRECISION] = program.precision
        # one device exchanges nothing, and many programs wrap their model for several only
        if origin is None or len(origin.devices) > 1:
            found[EXCHANGE] = ", ".join(sorted(program.parallelism)) or "none seen"
        found |= {
            f"{IMPORTED}{path}": f"sha256 {hashed[:12]}" for path, hashed in program.imported_files.items()
        }
    return {key: as_in_yaml(value) for key, value in found.items()}


def _met(origin: Provenance, *, is_program: bool) -> dict[str, str]:
    """Return the conditions that the hosts and ranks of a run met."""
    environments = origin.environments
    names = dict.fromkeys(
        name for environment in environments for name in environment.versions if can_change_speed(name)
    )
    limits = [known_limits(limit) for limit in origin.gpu_limits if limit is not None]
    found = {
        "launcher": origin.launcher,
        DEVICE_MODEL: _joined(origin.devices),
        CPU_MODEL: _joined(environment.cpu_model for environment in environments),
    }
    for name in names:
        known = [environment.versions.get(name, NOT_RECORDED) for environment in environments]
        if (parts := PATCHED.get(name)) is not None:
            known = [".".join(version.split(".")[:parts]) for version in known]
        if is_program and name not in _ALWAYS_THERE:
            # recorded if it was imported, and some ranks may not need it
            found[f"{OTHER_VERSION}{name}"] = _joined(version for version in known if version != NOT_RECORDED)
        else:
            found[f"{name} version"] = _joined(known)
    for name in dict.fromkeys(name for limit in limits for name in limit):
        found[name] = _joined(limit[name] for limit in limits if name in limit)
    for name, hashed in origin.inputs.items():
        # some hashes have the size before them
        found[f"{CONTENTS}{name}"] = f"sha256 {hashed.rpartition(':')[2][:12]}"
    return found


def known_limits(limits: GpuLimits) -> dict[str, str]:
    """Return the known limits of a GPU with their units, by their names in messages."""
    values = {name: (getattr(limits, field), unit) for name, (field, unit) in _LIMITS.items()}
    return {name: f"{value:.0f} {unit}" for name, (value, unit) in values.items() if value is not None}


def _joined(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))


def can_change_speed(package: str) -> bool:
    """Return whether another version of a package may change the speed of a training.

    Args:
        package: Name of the distribution, or of its module.
    """
    return re.sub(r"[-_.]+", "-", package).lower() not in OUTSIDE_THE_STEPS


def fingerprint(conditions: Conditions) -> str:
    """Return 12 hexadecimal digits, the same for equal conditions only."""
    return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:12]


def made_with(definition: RunDefinition, settings: AnySettings) -> bool:
    """Return whether a run was made with these settings; a launcher left to the site may be any.

    Args:
        definition: The run's.
        settings: Those of its series.
    """
    return settings.launcher in {None, definition.launcher} and definition.settings == repeat_settings(
        settings, definition.repeat
    )


# --- differences in words -------------------------------------------------------------------------------


class Difference(NamedTuple):
    """One condition in which two runs differ.

    Args:
        field: The user's word for it.
        first: Value in the first run, the reference.
        second: Value in the second run.
    """

    field: str
    first: str
    second: str

    def __str__(self) -> str:
        if not self.is_file:
            return f"{self.field} is {self.second}, not {self.first}"
        # the whole path is long, and hashes help no reader
        file = "/".join(PurePath(self.field.removeprefix(IMPORTED)).parts[-2:])
        some = NOT_IMPORTED in (self.first, self.second)
        return f"{file} was imported by some runs only" if some else f"{file} differs"

    @property
    def is_file(self) -> bool:
        """True for the contents of a file that a program imports."""
        return self.field.startswith(IMPORTED)


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> list[Difference]:
    """Return the conditions that differ, in the order of the first, imported files last.

    A condition that a record may lack differs only if both have it: a GPU may not report its limits, and a
    program may import a module, or wrap its model, on several devices only. Imported files that only one
    run has differ if each run has some: they did not run the same modules.
    """
    alone = [
        [name for name in one if name.startswith(IMPORTED) and name not in other]
        for one, other in ((first, second), (second, first))
    ]
    elsewhere = {*alone[0], *alone[1]} if all(alone) else set()
    found = []
    for name in dict.fromkeys((*first, *second)):
        may_lack = name in _MAY_LACK or name.startswith((CONTENTS, OTHER_VERSION))
        if (name in first and name in second) or name in elsewhere or not may_lack:
            missing = NOT_IMPORTED if name in elsewhere else NOT_RECORDED
            values = (as_in_yaml(side[name]) if name in side else missing for side in (first, second))
            found.append(Difference(name, *values))
    differing = (difference for difference in found if difference.first != difference.second)
    return sorted(differing, key=lambda difference: difference.is_file)


def named(differing: Iterable[Difference]) -> str:
    """Return ``precision is fp16, not fp32; model.py differs; and 2 other files``; empty without any."""
    distinct = sorted(dict.fromkeys(differing), key=lambda difference: difference.is_file)
    shown, others = distinct[:MAX_DIFFERENCES], distinct[MAX_DIFFERENCES:]
    kind = "other file" if all(difference.is_file for difference in others) else "other difference"
    return "; ".join([*map(str, shown), *([f"and {pluralize(str(len(others)), kind)}"] if others else [])])


def origin_cautions(origins: Sequence[Provenance]) -> list[str]:
    """Return a sentence for each difference among the runs of an experiment for which no run is left out."""
    environments = [environment for origin in origins for environment in origin.environments]
    found = {
        "the commit of the workflow": {origin.commit or NOT_RECORDED for origin in origins},
        "the operating system": {environment.operating_system for environment in environments},
        **{
            f"the patch of {name}": {each.versions[name] for each in environments if name in each.versions}
            for name in PATCHED
        },
    }
    return [
        f"The runs differ in {name} ({'; '.join(sorted(values))}), and are compared all the same."
        for name, values in found.items()
        if len(values) > 1
    ]


# --- runs that are left out -----------------------------------------------------------------------------


def leave_out(runs: pd.DataFrame, known: Mapping[str, Conditions]) -> pd.DataFrame:
    """Return the runs, those under other conditions with the outcome ``OTHER_CONDITIONS`` and the reason.

    The machine is the same for all series of an experiment, so that they can be compared; within a series
    everything is. The conditions that the most device counts ran under are the reference, of several those
    of the most runs, then of the fewest devices.

    Args:
        runs: A row for each planned run; completed ones have a fingerprint.
        known: The conditions behind each fingerprint.
    """
    done = runs[runs["outcome"] == "completed"]
    of_machine = {
        name: {condition: value for condition, value in met.items() if _is_of_machine(condition)}
        for name, met in known.items()
    }
    apart = _apart(done, of_machine)
    for _, series in done.drop(index=[*apart]).groupby("series", sort=False):
        apart |= _apart(series, known)
    judged = runs.astype({"outcome": object, "reason": object})
    for run, differing in apart.items():
        judged.loc[run, ["outcome", "reason"]] = OTHER_CONDITIONS, named(differing)
    return judged


def _is_of_machine(condition: str) -> bool:
    return condition in {"accelerator", DEVICE_MODEL, CPU_MODEL, *_LIMITS} or condition.endswith(" version")


def _apart(runs: pd.DataFrame, known: Mapping[str, Conditions]) -> dict[Any, list[Difference]]:
    """Return what differs in the runs that differ from most, by their index.

    Args:
        runs: Completed runs.
        known: The conditions behind each fingerprint.
    """
    # different fingerprints may have equal conditions of the machine
    alike = runs["fingerprint"].map({name: fingerprint(met) for name, met in known.items()})
    groups = [group for _, group in runs.groupby(alike, sort=False)]
    groups.sort(key=lambda group: (-group["devices"].nunique(), -len(group), group["devices"].min()))
    reference: dict[str, str] = {}
    apart: dict[Any, list[Difference]] = {}
    for group in groups:
        conditions = known[group["fingerprint"].iloc[0]]
        if reference and (differing := differences(reference, conditions)):
            apart |= dict.fromkeys(group.index, differing)
        else:
            # what the reference lacks is that of the largest group that agrees with it
            reference |= conditions
    return apart
