"""Check the whole configuration and make its experiments and runs; report all mistakes at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalewise.config.catalog.centres import check_centre
from scalewise.config.errors import Place, Problem, StudyError, did_you_mean, problems_of, shown
from scalewise.config.experiment import AnyExperiment, Budget, Experiment, ProgramExperiment, experiment_kind
from scalewise.config.paths import site_file_problem
from scalewise.config.site import Site, Sites
from scalewise.config.yaml_source import Source, read_source, to_plain
from scalewise.plan.checks.experiment import (
    MAX_RUNS,
    check_budget,
    check_choice,
    check_devices,
    check_experiment,
    check_names,
)
from scalewise.plan.checks.partitions import choose_sites, fit_devices
from scalewise.plan.planned_study import Part, Study
from scalewise.plan.runs.rounds import requested_runs, resolve_choice
from scalewise.plan.runs.runs import expand, series_name
from scalewise.plan.sites import read_sites

_TOP_KEYS = ("defaults", "experiments", "site")


def load_study(
    config: Mapping[str, Any],
    files: Sequence[str | Path] = (),
    site_file: str | Path | None = None,
    *,
    checkout: Path | None = None,
    is_module: bool = False,
) -> Study:
    """Check a configuration and make its runs.

    The site's mistakes come first: an experiment is checked against the site.

    Args:
        config: Keys and values that Snakemake merged from files and command line.
        files: The files of the configuration, for line numbers and mistakes of YAML.
        site_file: The profile's facts; None for this machine as it is.
        checkout: Scalewise's folder; None if unknown.
        is_module: Whether the files are another workflow's, which passes this study by its values.

    Raises:
        StudyError: names every mistake.
    """
    sources = [] if is_module else [read_source(Path(file)) for file in files]
    if misnamed := site_file_problem(site_file):
        raise StudyError([misnamed.render(_origin(misnamed.place, sources))])
    sites = read_sites(site_file, checkout)
    lines = [
        problem.render(source.origin(problem.place)) for source in sources for problem in source.problems
    ]
    reported = {problem.place for source in sources for problem in source.problems}
    problems: list[Problem] = []
    raw = to_plain(config, (), problems)
    # a value that is missing, or that YAML misunderstands, has one mistake
    hidden = reported | {problem.place for problem in problems}
    found = [*_check_top(raw, sources)]
    parts: list[Part] = []
    if isinstance(raw.get("experiments"), dict) and isinstance(raw.get("defaults", {}), dict):
        parts, of_experiments = _plan(raw, sites)
        found += of_experiments
    problems = [_in_defaults(each, raw) for each in problems if each.place not in reported]
    problems += [
        each
        for each in (_in_defaults(each, raw) for each in found)
        if not any(each.place[: len(place)] == place for place in hidden)
    ]
    lines += [problem.render(_origin(problem.place, sources)) for problem in dict.fromkeys(problems)]
    if lines:
        raise StudyError(lines)
    return Study(parts, sites.default, list(dict.fromkeys(_warnings(sources, sites, parts))))


def check_spelling(file: str | Path) -> None:
    """Stop if Snakemake cannot read the file; unlike Snakemake, name the line.

    Raises:
        StudyError: the file is missing, empty or not YAML.
    """
    source = read_source(Path(file))
    if source.fatal:
        raise StudyError([problem.render(source.origin(problem.place)) for problem in source.fatal])


def check_results_folder(folder: Path) -> None:
    """Stop before the first run if results cannot be written.

    Raises:
        StudyError: the folder cannot be written to.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise StudyError([f"{existing}: is a file, but results go there. Rename it."])
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StudyError(
            [f"{existing.absolute()}: cannot be written to. Change its permissions, or run elsewhere."]
        )


def _in_defaults(problem: Problem, raw: Mapping[str, Any]) -> Problem:
    """Return a mistake at its place in ``defaults``, if the experiment takes the key from there."""
    experiments = raw.get("experiments")
    if problem.place[:1] != ("experiments",) or len(problem.place) < 3 or not isinstance(experiments, dict):
        return problem
    name, key = problem.place[1:3]
    entry = experiments.get(name)
    if isinstance(entry, dict) and key not in entry and key in raw.get("defaults", {}):
        return replace(problem, place=("defaults", *problem.place[2:]))
    return problem


def _origin(place: Place, sources: Sequence[Source]) -> str:
    """Return file and line of a place, from the file with the longest part of it."""
    for length in range(len(place), 0, -1):
        for source in reversed(sources):
            if place[:length] in source.lines:
                return source.origin(place[:length])
    return sources[-1].origin(()) if sources else "config"


def _check_top(raw: Mapping[str, Any], sources: Sequence[Source]) -> Iterator[Problem]:
    """Check the keys at the top of the file, and that there are experiments."""
    for key in raw:
        # --config and other tools may add further keys
        is_written = not sources or any((key,) in source.lines for source in sources)
        near = did_you_mean(key, _TOP_KEYS)
        if key not in _TOP_KEYS and (is_written or near.startswith("Did")):
            yield Problem((key,), f"Extra inputs are not permitted (is {shown(raw[key])})", near)
    experiments = raw.get("experiments")
    if not isinstance(experiments, dict) or not experiments:
        value = f"is {shown(experiments)}" if "experiments" in raw else "is missing"
        text = f"Input should be a mapping of names to experiments ({value})"
        yield Problem(("experiments",), text, "config/experiments.yaml is an example.")
    else:
        yield from check_names(experiments)
    if not isinstance(raw.get("defaults", {}), dict):
        yield Problem(
            ("defaults",), f"Input should be a mapping of keys to values (is {shown(raw['defaults'])})"
        )


def _plan(raw: Mapping[str, Any], sites: Sites) -> tuple[list[Part], list[Problem]]:
    defaults: dict[str, Any] = raw.get("defaults", {})
    kinds = (Experiment, ProgramExperiment)
    known = {key for kind in kinds for key in kind.model_fields}
    problems = [
        Problem(
            ("defaults", key), f"Extra inputs are not permitted (is {shown(value)})", did_you_mean(key, known)
        )
        for key, value in defaults.items()
        if key not in known
    ]
    parts: list[Part] = []
    for name, entry in raw["experiments"].items():
        place: Place = ("experiments", name)
        if not isinstance(entry, dict):
            problems.append(
                Problem(place, f"Input should be a mapping of keys to values (is {shown(entry)})")
            )
            continue
        kind = experiment_kind(defaults | entry)
        merged = {key: value for key, value in defaults.items() if key in kind.model_fields} | entry
        try:
            spec: AnyExperiment = kind.model_validate(merged)
        except ValidationError as error:
            found = problems_of(error, place, kind, merged)
            problems += [_of_other_kind(each, kind) for each in found]
            # device counts do not depend on the other keys; the other checks need a valid experiment
            counts = merged.get("devices")
            sound = [each for each in counts if type(each) in (int, str)] if isinstance(counts, list) else []
            problems += check_devices(place, sound, sites.default)[1]
            continue
        if spec.proposal is not None:
            problems += check_centre((*place, "proposal", "centre"), spec.proposal.centre)
        on, unknown = choose_sites(place, spec, sites)
        problems += unknown
        made, of_sites = _parts_of(name, spec, entry, on)
        problems += of_sites
        parts += made
    total = sum(len(part.runs) for part in parts)
    if total > MAX_RUNS:
        text = f"makes {total:,} runs in all; at most {MAX_RUNS:,} are planned"
        problems.append(Problem(("experiments",), text, "Write several files."))
    return parts, problems


def _of_other_kind(problem: Problem, kind: type[AnyExperiment]) -> Problem:
    """Add to an unknown key that it is one of the built-in training's, or of a program's."""
    other = Experiment if kind is ProgramExperiment else ProgramExperiment
    if (
        len(problem.place) != 3
        or problem.place[2] in kind.model_fields
        or problem.place[2] not in other.model_fields
    ):
        return problem
    if kind is ProgramExperiment:
        return replace(
            problem, fix="It is a key of the built-in training: give it to the program in `arguments`."
        )
    return replace(problem, fix="It is a key of a program: add `program: train.py`, the path of your script.")


def _parts_of(
    name: str, spec: AnyExperiment, entry: Mapping[str, Any], on: Sequence[Site]
) -> tuple[list[Part], list[Problem]]:
    """Plan an experiment on each site that it runs on; return the mistakes as well."""
    place, parts = ("experiments", name), []
    names: dict[Problem, list[str]] = {}
    for site, (fitting, left_out) in zip(on, fit_devices(place, spec, on), strict=True):
        problems = list(check_choice(place, fitting, site))
        experiment = resolve_choice(fitting, site)
        if spec.partitions is not None:
            budget = spec.budget and Budget(device_hours=spec.budget.device_hours / len(on))
            update = {"partitions": [site.partition], "budget": budget}
            experiment = experiment.model_copy(update=update)
        shapes, found = check_experiment(name, experiment, entry, site)
        problems += found
        for problem in dict.fromkeys(problems):
            names.setdefault(problem, []).append(site.partition)
        if not problems:
            runs = expand(name, experiment, shapes, site.accelerator, site.launcher)
            parts.append(Part(name, experiment, runs, site, left_out))
    problems = [
        replace(each, text=f"{each.text} (partition {', '.join(where)})") if len(where) < len(on) else each
        for each, where in names.items()
    ]
    if parts and not problems and spec.budget is not None:
        first = [
            [part.site.held_devices(run.shape) for run in requested_runs(part.runs, part.experiment, [])]
            for part in parts
        ]
        problems += check_budget(place, spec, max(first, key=sum), len(parts))
    return parts, problems


def _warnings(sources: Sequence[Source], sites: Sites, parts: Sequence[Part]) -> Iterator[str]:
    """Warn of what is possible and rarely intended."""
    if len(sources) > 1:
        yield (
            f"{', '.join(source.name for source in sources)} are merged into one study: `defaults` and "
            "`sweep` of one apply to the experiments of the others. Name one file to run only its study."
        )
    if sites.default.unused_gpus:
        yield (
            "this machine has a GPU, which `accelerator: auto` does not use: one has nothing to scale to. To "
            "measure on it, write `accelerator: cuda` in the site file, and `devices: [1]`."
        )
    for part in parts:
        yield from part.left_out
        fewest: dict[str, int] = {}
        for run in part.runs:
            series = series_name(tuple(run.options.items()))
            fewest[series] = min(run.shape.world_size, fewest.get(series, run.shape.world_size))
        for series, devices in fewest.items():
            if devices > 1:
                which = f" of {series}" if len(fewest) > 1 else ""
                yield (
                    f"experiments.{part.name}.devices has no 1-device run{which}: speedups will be "
                    f"relative to {devices} devices. Add 1 for a baseline."
                )
