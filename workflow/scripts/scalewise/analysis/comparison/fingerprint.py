"""Fingerprint of a run: all that must be equal for a ratio of two runs to be a speedup. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalewise.analysis.formatting import as_in_yaml
from scalewise.records import OUTSIDE_THE_STEPS, Definition, GpuLimits, Provenance

NOT_RECORDED = "not recorded"

PARAMETERS = "parameters of the model"
CONTENTS = "contents of the "
"""Begins the name of a condition that is the hash of an input."""

_LATER = {PARAMETERS, *GpuLimits(power_watts=0, sm_clock_mhz=0, memory_clock_mhz=0).named()}


def recorded_later(condition: str) -> bool:
    """Whether a record may lack a condition because it is old, or its GPU does not tell it."""
    return condition in _LATER or condition.startswith(CONTENTS)


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
        cls, definition: Definition, origin: Provenance | None, parameters: int | None = None
    ) -> Fingerprint:
        """The fingerprint of a run, by its definition, its provenance and the size of its model.

        What the hosts or ranks of a run do not have alike is a condition with several values, such as
        ``580.65, 580.95`` for the driver's version.

        Left out: the seed, which the repeats differ in; the batch size that follows from the devices (the
        global one of weak scaling, the one per device of strong scaling); hosts, for nodes of one model are
        what a cluster is made of. The commit of the workflow is left out too: it changes with every edit of
        a title or a page of text, and the version of Scalewise, which is in, stands for the code that
        measures. It is a caution, like the kernel (``origin_cautions``).

        Args:
            definition: The settings and the shape that were asked for.
            origin: None where the run ended before its ranks had met.
            parameters: Trainable parameters; None where the run has no figures.
        """
        settings = {
            key: value
            for key, value in definition.settings.items()
            if key not in {"seed", "launcher", "global_batch_size", "batch_size_per_device"}
        }
        if definition.settings.get("scaling") == "weak":
            settings["batch_size_per_device"] = definition.batch_size_per_device
        else:
            settings["global_batch_size"] = definition.global_batch_size
        met: dict[str, object] = {"accelerator": definition.accelerator, "launcher": definition.launcher}
        if parameters is not None:
            met[PARAMETERS] = f"{parameters:,}"
        if origin:
            met |= _met(origin)
        return cls({key: as_in_yaml(value) for key, value in (settings | met).items()})

    @property
    def id(self) -> str:
        """12 hexadecimal digits, equal for equal conditions alone."""
        text = json.dumps(self.conditions, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _met(origin: Provenance) -> dict[str, str]:
    """Conditions that all hosts and ranks of a run met, with every value that they take."""
    environments = origin.known_environments
    libraries = dict.fromkeys(name for environment in environments for name in environment.versions)
    limits = [limit.named() for limit in origin.gpu_limits if limit is not None]
    return {
        "launcher": origin.launcher,
        "device model": _joined(origin.devices),
        "CPU model": _joined(environment.cpu_model for environment in environments),
        **{
            f"{name} version": _joined(
                environment.versions.get(name, NOT_RECORDED) for environment in environments
            )
            for name in libraries
            if name not in OUTSIDE_THE_STEPS
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

    An older record lacks conditions that newer ones have, which is no difference: where all runs that agree
    with it in everything else have the same value, it is counted among them. Where these runs differ, nobody
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
        first[name] == second[name] if name in first and name in second else recorded_later(name)
        for name in {*first, *second}
    )
