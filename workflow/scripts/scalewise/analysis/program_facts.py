"""A program of the user's own in a report's words: what it is, what was seen of it, and what is not known."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scalewise.analysis.analysis_spec import PROGRAM_FACTS
from scalewise.plan.catalog.own_programs import program_words
from scalewise.plan.config.experiment import ProgramExperiment
from scalewise.plan.formatting import format_3sig, goal_text, pluralize
from scalewise.records import ProgramMeasurements

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
        _counted(f"{reason}: {steps}" for run in runs for reason, steps in run.left_out.items()),
        list(dict.fromkeys(", ".join(run.optimizers) for run in runs if run.optimizers)),
        list(_exchanges(found)),
        list(dict.fromkeys(run.precision for run in runs if run.precision)),
        ["yes" if run else "no" for run in dict.fromkeys(run.compiled for run in runs)],
        [f"{size / 1e6:,.1f} MB" for size in dict.fromkeys(run.gradient_bytes for run in runs) if size],
        [f"{run.skipped_steps} in a run" for run in runs if run.skipped_steps][:1],
        list(_metric(spec, runs)),
        list(_unknown(found)),
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
    if last:
        spread = format_3sig(last[0])
        if last[-1] != last[0]:
            spread += f" to {format_3sig(last[-1])}"
        yield f"last reading of a run: {spread}"
    if without := sum(not run.metric for run in runs):
        yield f"{pluralize(str(without), 'run')} printed no line that the pattern fits"


def _unknown(found: Found) -> Iterator[str]:
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
