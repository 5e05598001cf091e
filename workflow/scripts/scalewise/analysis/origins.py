"""The origin of a study's figures, what of it was equal, and what is known of a user's program."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from scalewise.analysis.runs import Tables
from scalewise.config.experiment import AnyExperiment, ProgramExperiment
from scalewise.config.program import ProgramSettings, program_words
from scalewise.config.settings import Settings
from scalewise.plan.formatting import format_3sig, goal_text, pluralize
from scalewise.records import ProgramMeasurements


def origins_of(tables: Sequence[Tables], spec: AnyExperiment) -> dict[str, list[str]]:
    """Return every value that each part of the runs' provenance takes.

    Args:
        tables: The measurements of each partition.
        spec: The experiment.
    """
    origins = [origin for table in tables for origin in table.origins]
    environments = [environment for origin in origins for environment in origin.environments]
    found: dict[str, list[str]] = {
        "settings": [_settings(spec)],
        "commit": _distinct(origin.commit or "unknown: not a git checkout" for origin in origins),
        "devices": _distinct(device for origin in origins for device in origin.devices),
        "hosts": _distinct(host for origin in origins for host in origin.hosts),
        "CPU": _distinct(environment.cpu_model for environment in environments),
        "operating system": _distinct(environment.operating_system for environment in environments),
        "launcher": _distinct(origin.launcher for origin in origins),
        "versions": _distinct(
            ", ".join(f"{name} {version}" for name, version in environment.versions.items())
            for environment in environments
        ),
    }
    if origins:
        first = min(origin.started_at for origin in origins)
        last = max(origin.ended_at for origin in origins)
        found["measured (UTC)"] = [" to ".join(map(_to_the_second, (first, last)))]
    if isinstance(spec, ProgramExperiment):
        found |= program_facts(spec, [program for table in tables for program in table.programs])
    return found


def _settings(spec: AnyExperiment) -> str:
    """The experiment's training in one line: what is not a default, and a swept key with all its values."""
    kind = ProgramSettings if isinstance(spec, ProgramExperiment) else Settings
    shown = {
        key: getattr(spec, key)
        for key, described in kind.model_fields.items()
        if getattr(spec, key) != described.default
    } | spec.swept
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
    template = " ".join([*program_words(spec.program), *map(str, spec.arguments)])
    facts = {
        "command line": [template, *(f"in one of the runs: {shlex.join(run.command)}" for run in runs[:1])],
        "ended": _counted(_ENDED[run.ended] for run in runs),
        "samples of a step": list(_samples(runs)),
        "optimizers": _distinct(", ".join(run.optimizers) for run in runs if run.optimizers),
        "exchange of gradients": list(_exchanges(found)),
        "formats": _distinct(run.precision for run in runs if run.precision),
        "compiled": _distinct("yes" if run.compiled else "no" for run in runs),
        "gradients": _distinct(f"{run.gradient_bytes / 1e6:,.1f} MB" for run in runs if run.gradient_bytes),
        "steps refused by a gradient scaler": [
            f"{run.skipped_steps} in a run" for run in runs if run.skipped_steps
        ][:1],
        "metric": list(_metric(spec, runs)),
        "not known": list(_not_known(found)),
        "notes": _counted(note for run in runs for note in run.notes if note),
    }
    return {name: values for name, values in facts.items() if values}


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
