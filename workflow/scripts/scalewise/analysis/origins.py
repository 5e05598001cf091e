"""The origin of a study's figures, what of it was equal, and what is known of a user's program."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from scalewise.analysis.analysis_spec import DIFFERED, EQUAL_IN_SERIES, HELD_EQUAL, NOT_KNOWN, PROGRAM_FACTS
from scalewise.analysis.comparison.comparable_runs import held_equal
from scalewise.analysis.comparison.fingerprint import (
    CONTENTS,
    IMPORTED,
    OTHER_VERSION,
    can_change_speed,
)
from scalewise.analysis.tables import Tables
from scalewise.plan.catalog.program_files import program_words
from scalewise.plan.config.experiment import AnyExperiment, ProgramExperiment
from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.settings import Settings
from scalewise.plan.formatting import format_3sig, goal_text, pluralize
from scalewise.records import CPU_PROCESS, Environment, ProgramMeasurements, Provenance


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
        found["measured (UTC)"] = [" to ".join(map(_to_the_second, (first, last)))]
    if excluded := _counted(f"{why}: {steps}" for run in tables.excluded for why, steps in run.items()):
        found["steps that are not measured"] = excluded
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
    own = sum(1 for origin in origins if origin.study_jobs)
    return [
        f"{shared} of {len(origins)} runs began on nodes where other jobs ran, which may have slowed them"
        f"{f'; in {own} of these, jobs of this study' if own else ''}. "
        "The site file's slurm.exclusive: true requests whole nodes for all runs."
    ]


def _settings(spec: AnyExperiment) -> str:
    """The experiment's training in one line, a swept key with all its values."""
    kind = ProgramSettings if isinstance(spec, ProgramExperiment) else Settings
    shown = {key: getattr(spec, key) for key in kind.model_fields} | spec.swept
    if isinstance(spec, ProgramExperiment):
        # the words of its command line stand by themselves
        shown |= {"arguments": None, "program": None}
    return ", ".join(f"{key} {value}" for key, value in shown.items() if value not in (None, [], {}))


def _to_the_second(time: str) -> str:
    """A time in UTC, as people write it."""
    return f"{datetime.fromisoformat(time).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


Found = Sequence[tuple[int, ProgramMeasurements]]
"""Devices and findings of each run."""

_ENDED = {
    "steps": "by Scalewise, after the steps to measure: what comes at its end was not run",
    "itself": "by itself",
}
_SAMPLES = {
    "loader": "counted in the batches of its DataLoader",
    "forward": "counted in the inputs of its forward passes",
    "configuration": "taken from the configuration",
}


def program_facts(spec: ProgramExperiment, found: Found) -> dict[str, list[str]]:
    """The facts of a program's study, by name; those without any are left out.

    Args:
        spec: The study.
        found: Findings on its runs.
    """
    runs = [program for _, program in found]
    values = (
        _command(spec, runs),
        _counted(_ENDED[run.ended] for run in runs),
        list(_samples(runs)),
        list(dict.fromkeys(", ".join(run.optimizers) for run in runs if run.optimizers)),
        list(_exchanges(found)),
        list(dict.fromkeys(run.precision for run in runs if run.precision)),
        ["yes" if run else "no" for run in dict.fromkeys(run.compiled for run in runs)],
        [f"{size / 1e6:,.1f} MB" for size in dict.fromkeys(run.gradient_bytes for run in runs) if size],
        [f"{run.skipped_steps} in a run" for run in runs if run.skipped_steps][:1],
        list(_metric(spec, runs)),
        list(_not_known(found)),
        _counted(note for run in runs for note in run.notes if note),
    )
    return {name: facts for name, facts in zip(PROGRAM_FACTS, values, strict=True) if facts}


def program_cautions(found: Found) -> list[str]:
    """Sentences of the runs that belong next to the answer, each once with the number of its runs."""
    sentences = Counter(sentence for _, program in found for sentence in program.cautions)
    total = pluralize(str(len(found)), "run")
    return [f"In {count} of {total}: {sentence}" for sentence, count in sentences.items()]


def _command(spec: ProgramExperiment, runs: Sequence[ProgramMeasurements]) -> list[str]:
    template = " ".join([*program_words(spec.program), *map(str, spec.arguments)])
    return [template, *(f"in one of the runs: {shlex.join(run.command)}" for run in runs[:1])]


def _samples(runs: Sequence[ProgramMeasurements]) -> Iterator[str]:
    for source, text in _SAMPLES.items():
        of_source = [run for run in runs if run.samples_from == source]
        if not of_source:
            continue
        seen = sorted({run.samples_seen for run in of_source if run.samples_seen is not None})
        shown = f" ({', '.join(f'{each:g}' for each in seen)} a step)" if seen else " (none could be seen)"
        yield f"{text}{shown}"


def _exchanges(found: Found) -> Iterator[str]:
    by_names: dict[str, set[int]] = {}
    for devices, run in found:
        by_names.setdefault(", ".join(run.parallelism) or "none seen", set()).add(devices)
    for names, counts in by_names.items():
        listed = ", ".join(map(str, sorted(counts)))
        yield f"{names} (on {listed} {'device' if counts == {1} else 'devices'})"


def _metric(spec: ProgramExperiment, runs: Sequence[ProgramMeasurements]) -> Iterator[str]:
    if spec.metric is None:
        return
    reached = sum(run.seconds_to_metric is not None for run in runs)
    last = sorted(run.metric[-1].value for run in runs if run.metric)
    goal = goal_text(str(spec.metric))
    yield f"{goal}: reached in {reached} of {pluralize(str(len(runs)), 'run')}"
    if first := next((run.metric_line for run in runs if run.metric_line), ""):
        yield f"first line read: {first}"
    if last:
        spread = format_3sig(last[0])
        if last[-1] != last[0]:
            spread += f" to {format_3sig(last[-1])}"
        yield f"last reading of a run: {spread}"
    if without := sum(not run.metric for run in runs):
        yield f"{pluralize(str(without), 'run')} printed no line that the pattern fits"


def _not_known(found: Found) -> Iterator[str]:
    """Each quantity that is not known, with its reason and the device counts that it is not known on."""
    everywhere = {devices for devices, _ in found}
    places: dict[str, set[int]] = {}
    for devices, run in found:
        for quantity, reason in run.unknown.items():
            if not (devices == 1 and quantity == "communication"):  # one device has nobody to exchange with
                places.setdefault(f"{quantity} ({reason})", set()).add(devices)
    for text, counts in places.items():
        where = "" if counts == everywhere else f" on {', '.join(map(str, sorted(counts)))} devices"
        yield f"{text}{where}"


def _counted(texts: Iterable[str]) -> list[str]:
    """Each text once, with the number of runs that it is of."""
    return [f"{text} ({pluralize(str(count), 'run')})" for text, count in Counter(texts).items()]
