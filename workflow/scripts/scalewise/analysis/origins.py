"""The origin of a study's figures, and what of it was equal wherever runs are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scalewise.analysis.analysis_spec import DIFFERED, EQUAL_IN_SERIES, HELD_EQUAL, NOT_KNOWN
from scalewise.analysis.comparison.comparable_runs import held_equal
from scalewise.analysis.comparison.fingerprint import (
    CONTENTS,
    IMPORTED,
    OTHER_VERSION,
    can_change_speed,
)
from scalewise.analysis.program_facts import program_facts
from scalewise.analysis.tables import Tables
from scalewise.plan.config.experiment import AnyExperiment, ProgramExperiment
from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.settings import Settings
from scalewise.records import CPU_PROCESS, Environment, Provenance


def distinct_origins(tables: Tables, spec: AnyExperiment) -> dict[str, list[str]]:
    """Every value that the runs' provenance takes, and what of it was equal wherever runs are compared."""
    origins = tables.origins
    environments = [environment for origin in origins for environment in origin.environments]
    may_differ = {
        "hosts": _distinct(host for origin in origins for host in origin.hosts),
        "operating system": _distinct(environment.operating_system for environment in environments),
        "commit": _distinct(origin.commit or "unknown: not a git checkout" for origin in origins),
        "day (UTC)": sorted({origin.started_at[:10] for origin in origins}),
    }
    equal = _with_files_counted(held_equal(tables.runs, tables.conditions))
    found: dict[str, list[str]] = {
        HELD_EQUAL: [f"{name} {values[0]}" for name, values in equal.items() if len(values) == 1]
        + [f"{name} {values[0]}" for name, values in may_differ.items() if len(values) == 1],
        EQUAL_IN_SERIES: _listed(equal),
        DIFFERED: [
            *("devices", "repeat and seed", _batch(spec)),
            *_listed(may_differ | _versions_without_effect(environments)),
        ],
        NOT_KNOWN: _unknown(origins),
        "settings": [_settings(spec)],
        "commit": may_differ["commit"],
        "devices": _distinct(device for origin in origins for device in origin.devices),
        "hosts": may_differ["hosts"],
        "CPU": _distinct(environment.cpu_model for environment in environments),
        "operating system": may_differ["operating system"],
        "launcher": _distinct(origin.launcher for origin in origins),
        "neighbours": shared_nodes(origins) or ["no other job on the nodes, or unknown"],
        "versions": _distinct(
            ", ".join(f"{name} {version}" for name, version in environment.versions.items())
            for environment in environments
        ),
    }
    if origins:
        first = min(origin.started_at for origin in origins)
        last = max(origin.ended_at for origin in origins)
        found["measured (UTC)"] = [f"{first} to {last}"]
    if isinstance(spec, ProgramExperiment):
        found |= program_facts(spec, tables.programs)
    return found


def _with_files_counted(equal: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The conditions with the files that a program has imported, of which there may be many, as one."""
    files = [name for name, values in equal.items() if name.startswith(IMPORTED) and len(values) == 1]
    rest: dict[str, Sequence[str]] = {name: values for name, values in equal.items() if name not in files}
    return rest | ({f"{CONTENTS}imported files": [f"({len(files)})"]} if files else {})


def _versions_without_effect(environments: Sequence[Environment]) -> dict[str, list[str]]:
    """Versions of the packages for which no run is left out of a comparison."""
    names = dict.fromkeys(name for environment in environments for name in environment.versions)
    return {
        f"{OTHER_VERSION}{name}": _distinct(
            environment.versions[name] for environment in environments if name in environment.versions
        )
        for name in names
        if not can_change_speed(name)
    }


def _listed(values: Mapping[str, Sequence[str]]) -> list[str]:
    """Each name that has several values, with them."""
    return [f"{name} ({', '.join(several)})" for name, several in values.items() if len(several) > 1]


def _batch(spec: AnyExperiment) -> str:
    """The batch size that follows from the number of devices."""
    return "global batch size" if spec.scaling == "weak" else "batch size per device"


def _unknown(origins: Sequence[Provenance]) -> list[str]:
    """Parts that GPUs without NVML do not tell, by the number of runs that lack them."""
    lacking = {
        "power limits and clocks of GPUs": sum(
            1 for origin in origins if set(origin.devices) != {CPU_PROCESS} and not any(origin.gpu_limits)
        ),
    }
    return [f"{name}, in {runs} of {len(origins)} runs" for name, runs in lacking.items() if runs]


def shared_nodes(origins: Sequence[Provenance]) -> list[str]:
    """A sentence where other jobs may have disturbed the figures."""
    shared = sum(1 for origin in origins if origin.other_jobs)
    if not shared:
        return []
    return [
        f"{shared} of {len(origins)} runs began on nodes where other jobs ran, which may have slowed them. "
        "The site file's slurm.exclusive asks for whole nodes."
    ]


def _settings(spec: AnyExperiment) -> str:
    """The experiment's training in one line, a swept key with all its values."""
    kind = ProgramSettings if isinstance(spec, ProgramExperiment) else Settings
    shown = {key: getattr(spec, key) for key in kind.model_fields} | spec.swept
    if isinstance(spec, ProgramExperiment):
        # the words of its command line stand by themselves
        shown |= {"arguments": None, "program": None}
    return ", ".join(f"{key} {value}" for key, value in shown.items() if value not in (None, [], {}))


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
