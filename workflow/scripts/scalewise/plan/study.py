"""Check the whole configuration and make its experiments and runs; report all mistakes at once."""

from __future__ import annotations

import difflib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalewise.config.catalog.centres import check_centre
from scalewise.config.errors import (
    Place,
    Problem,
    StudyError,
    did_you_mean,
    format_value,
    key_path,
    problems_of,
)
from scalewise.config.experiment import AnyExperiment, Experiment, ProgramExperiment, experiment_kind
from scalewise.config.paths import site_file_problem
from scalewise.config.site import Site, Sites
from scalewise.config.yaml_source import Source, no_value, part_of_study, read_source, to_plain
from scalewise.plan.checks.chosen_devices import check_budget, check_choice
from scalewise.plan.checks.experiment import check_devices, check_experiment, check_model_names, check_names
from scalewise.plan.checks.options import option_warnings
from scalewise.plan.checks.packages import check_packages
from scalewise.plan.checks.partitions import choose_sites, fit_devices
from scalewise.plan.checks.program import (
    BUILTIN_KEYS,
    check_builtin_keys,
    check_program_is_named,
    program_warnings,
)
from scalewise.plan.planned_study import PARTITION_MARK, PlannedExperiment, Study
from scalewise.plan.runs.allocation import allocate
from scalewise.plan.runs.device_counts import resolve_choice
from scalewise.plan.runs.rounds import requested_runs
from scalewise.plan.runs.runs import expand
from scalewise.plan.sites import read_sites

_TOP_KEYS = ("defaults", "experiments", "site")


def load_study(
    config: Mapping[str, Any],
    files: Sequence[str | Path] = (),
    site_file: str | Path | None = None,
    *,
    conda_environments: bool = False,
    checkout: Path | None = None,
    is_module: bool = False,
) -> Study:
    """Check a configuration and make its runs.

    The site's mistakes come first: an experiment is checked against the site.

    Args:
        config: Keys and values that Snakemake merged from files and command line.
        files: The files of the configuration, for line numbers and mistakes of YAML.
        site_file: The profile's facts; None for this machine as it is.
        conda_environments: Snakemake makes conda environments with all packages for the rules.
        checkout: Scalewise's folder; None if unknown.
        is_module: Whether the files are another workflow's, of which this study is only a part.

    Raises:
        StudyError: names every mistake.
    """
    sources = [read_source(Path(file)) for file in files]
    if is_module:
        parts = (part_of_study(source, config) for source in sources)
        sources = [part for part in parts if part is not None]
    if misnamed := site_file_problem(site_file):
        raise StudyError([misnamed.render(_origin(misnamed.place, sources))])
    sites = read_sites(site_file, checkout)
    lines = [
        problem.render(source.origin(problem.place)) for source in sources for problem in source.problems
    ]
    reported = {problem.place for source in sources for problem in source.problems}

    unusable: list[Problem] = []
    raw = to_plain(config, (), unusable, keys_as_text=not sources)
    problems = [problem for problem in unusable if problem.place not in reported]
    lines += [problem.render(_origin(problem.place, sources)) for problem in problems]
    reported |= {problem.place for problem in unusable}
    problems = list(_check_top(raw, config, sources))
    experiments: dict[str, PlannedExperiment] = {}
    if isinstance(raw.get("experiments"), dict) and isinstance(raw.get("defaults", {}), dict):
        experiments, found = _plan(raw, sites, conda_environments)
        problems += _once(found, raw)
    lines += [
        problem.render(_origin(problem.place, sources))
        for problem in problems
        if not any(problem.place[: len(place)] == place for place in reported)
    ]
    if lines:
        raise StudyError(lines)
    runs = {(name, run.run): run for name, planned in experiments.items() for run in planned.runs}
    allocations = {
        key: allocate(run, experiments[run.experiment].experiment, experiments[run.experiment].site)
        for key, run in runs.items()
    }
    warnings = [
        *_mixed([] if is_module else files),
        *_site_warnings(sites.default),
        *_warnings(experiments, checkout),
    ]
    return Study(experiments, sites, list(dict.fromkeys(warnings)), runs, allocations)


def _mixed(files: Sequence[str | Path]) -> Iterator[str]:
    """Warn that Snakemake merges several configuration files into one study."""
    if len(files) > 1:
        yield (
            f"{', '.join(map(str, files))} are merged into one study: `defaults` and `sweep` of one apply to "
            "the experiments of the others. Name one file to run only its study."
        )


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


def _once(problems: Iterable[Problem], raw: Mapping[str, Any]) -> list[Problem]:
    """Report a mistake in ``defaults`` once, however many experiments take the value from there."""
    defaults, experiments = raw.get("defaults", {}), raw["experiments"]
    by_default: dict[Problem, list[str]] = defaultdict(list)
    kept: list[Problem] = []
    for problem in problems:
        name, key = (*problem.place, "", "", "")[1:3]
        entry = experiments.get(name) if problem.place[:1] == ("experiments",) else None
        if isinstance(entry, dict) and key in defaults and key not in entry:
            shared = replace(problem, place=("defaults", *problem.place[2:]))
            by_default[shared].append(str(name))
            kept.append(shared)
        else:
            kept.append(problem)
    return [_of_experiments(problem, by_default.get(problem, ()), raw) for problem in dict.fromkeys(kept)]


def _of_experiments(problem: Problem, names: Sequence[str], raw: Mapping[str, Any]) -> Problem:
    """Add the experiments that a mistake in ``defaults`` concerns, unless it concerns all of several."""
    if len(names) == 1:
        return replace(problem, place=("experiments", names[0], *problem.place[1:]))
    if not names or len(names) == len(raw["experiments"]):
        return problem
    return replace(problem, subject=f"{key_path(problem.place)} (for {', '.join(names)})")


def _check_top(
    raw: Mapping[str, Any], config: Mapping[str, Any], sources: Sequence[Source]
) -> Iterator[Problem]:
    """Check the keys at the top of the file, and that there are experiments.

    Args:
        raw: The configuration without keys and values that no record can hold.
        config: The whole configuration.
        sources: The files of the configuration.
    """
    unknown = [key for key in raw if key not in _TOP_KEYS and not _is_added(key, sources)]
    for key in unknown:
        yield Problem((key,), "is not a known key", did_you_mean(key, _TOP_KEYS))
    experiments, place = raw.get("experiments"), ("experiments",)
    example = "config/experiments.yaml is an example."
    if isinstance(experiments, dict) and experiments:
        yield from check_names(list(experiments))
    elif isinstance(experiments, list):
        yield Problem(place, "is a list", "Give each experiment a name, such as `my-training:`.")
    elif "experiments" in raw and not isinstance(experiments, dict):
        yield Problem(
            place, f"is {format_value(experiments)}, not a mapping", f"Write experiments below it; {example}"
        )
    elif "experiments" in raw:
        if not config["experiments"]:  # names that are no text are reported already
            yield no_value(place)
    elif not difflib.get_close_matches("experiments", [key.lower() for key in unknown], n=1):
        yield Problem(place, "is missing", f"Write `experiments:` with one experiment below it; {example}")
    if not isinstance(raw.get("defaults", {}), dict):
        yield Problem(
            ("defaults",),
            f"is {format_value(raw['defaults'])}, not a mapping of keys to values",
            "Indent its keys on the lines below it.",
        )


def _is_added(key: str, sources: Sequence[Source]) -> bool:
    """Return whether ``--config`` or another tool has added a top-level key that resembles none of ours."""
    is_written = any((key,) in source.lines for source in sources)
    return bool(sources) and not is_written and not difflib.get_close_matches(key.lower(), _TOP_KEYS, n=1)


def _plan(
    raw: Mapping[str, Any], sites: Sites, conda_environments: bool
) -> tuple[dict[str, PlannedExperiment], list[Problem]]:
    defaults: dict[str, Any] = raw.get("defaults", {})
    keys = Experiment.model_fields.keys() | ProgramExperiment.model_fields.keys()
    problems = [
        Problem(("defaults", key), "is not a known key", did_you_mean(key, keys))
        for key in defaults
        if key not in keys
    ]
    planned: dict[str, PlannedExperiment] = {}
    for name, entry in raw["experiments"].items():
        place: Place = ("experiments", name)
        if not isinstance(entry, dict):
            fix = "Indent its keys on the lines below it."
            problems.append(Problem(place, f"is {format_value(entry)}, not a mapping of keys to values", fix))
            continue
        kind = experiment_kind(defaults | entry)
        if kind is Experiment and (nameless := list(check_program_is_named(place, entry))):
            problems += nameless
            continue
        merged = {key: value for key, value in defaults.items() if key in kind.model_fields} | entry
        if kind is ProgramExperiment and (
            foreign := list(check_builtin_keys(place, merged["program"], entry))
        ):
            problems += foreign
            merged = {key: value for key, value in merged.items() if key not in BUILTIN_KEYS}
        try:
            spec: AnyExperiment = kind.model_validate(merged)
        except ValidationError as error:
            problems += problems_of(error, place, kind, merged)
            # the other checks need a valid experiment
            problems += check_model_names(place, merged)
            problems += check_devices(place, _sound_counts(merged.get("devices")), sites.default)[1]
            continue
        problems += () if conda_environments else check_packages(place, spec)
        if spec.proposal is not None:
            problems += check_centre((*place, "proposal", "centre"), spec.proposal.centre)
        on, unknown = choose_sites(place, spec, sites)
        problems += unknown
        made, found = _on_partitions(name, spec, entry, on)
        problems += found
        planned |= {each.name: each for each in made}
    return planned, problems


def _on_partitions(
    name: str, spec: AnyExperiment, entry: Mapping[str, Any], on: Sequence[Site]
) -> tuple[list[PlannedExperiment], list[Problem]]:
    """Plan an experiment on each site that it runs on; return the mistakes as well."""
    planned: list[PlannedExperiment] = []
    by_site = []
    for site, (fitting, left_out) in zip(on, fit_devices(("experiments", name), spec, on), strict=True):
        one, found = _on_site(name, fitting, entry, site, left_out)
        by_site.append(found)
        planned += [one] if one is not None else []
    planned = [replace(one, sharing=len(planned)) for one in planned]
    problems = _of_partitions(by_site, on)
    if not problems:
        problems += _check_budget(planned)
    return planned, problems


def _of_partitions(by_site: Sequence[Sequence[Problem]], on: Sequence[Site]) -> list[Problem]:
    """Return the mistakes on all partitions, each once; those of some partitions name them.

    Devices that each partition refuses are reported of the largest one, whose limit is the study's.
    """
    names: dict[Problem, list[str]] = defaultdict(list)
    for found, site in zip(by_site, on, strict=True):
        for problem in dict.fromkeys(found):
            names[problem].append(site.partition)
    largest, of_largest = max(zip(on, by_site, strict=True), key=lambda each: each[0].most_devices)
    limits = {problem.place for problem in of_largest if problem.place[2:3] == ("devices",)}
    return [
        problem
        if len(where) == len(on)
        else replace(problem, text=f"{problem.text} (partition {', '.join(where)})")
        for problem, where in names.items()
        if problem.place not in limits or largest.partition in where
    ]


def _on_site(
    name: str,
    spec: AnyExperiment,
    entry: Mapping[str, Any],
    site: Site,
    left_out: Sequence[str],
) -> tuple[PlannedExperiment | None, list[Problem]]:
    """Plan an experiment on a site, or return the mistakes."""
    place: Place = ("experiments", name)
    unresolved = list(check_choice(place, spec, site))
    problems = list(unresolved)
    spec = resolve_choice(spec, site)
    shapes, found = check_experiment(name, spec, entry, site)
    problems += found
    if found or unresolved:
        return None, problems
    if spec.partitions is not None:
        title = f"{spec.title or name} on {site.partition}"
        name, spec = f"{name}{PARTITION_MARK}{site.partition}", spec.model_copy(update={"title": title})
    runs = expand(name, spec, shapes, site.accelerator, site.launcher)
    terms = site.queue_and_billing(shapes.values())
    return PlannedExperiment(name, spec, shapes, runs, site, terms, left_out), problems


def _check_budget(planned: Sequence[PlannedExperiment]) -> Iterator[Problem]:
    """Refuse a budget whose equal parts do not cover the first runs on each partition."""
    if not planned or planned[0].experiment.budget is None:
        return
    first = [
        [
            (run.shape, each.site.held_devices(run.shape))
            for run in requested_runs(each.runs, each.experiment, [])
        ]
        for each in planned
    ]
    most = max(first, key=lambda runs: sum(billed for _, billed in runs))
    yield from check_budget(("experiments", planned[0].key), planned[0].experiment, most, len(planned))


def _sound_counts(devices: object) -> list[int | str]:
    """Return the entries of ``devices`` that are device counts; the others are reported already."""
    entries = devices if isinstance(devices, list) else []
    return [entry for entry in entries if isinstance(entry, (int, str)) and not isinstance(entry, bool)]


def _site_warnings(site: Site) -> Iterator[str]:
    if site.unused_gpus:
        yield (
            "this machine has a GPU, which `accelerator: auto` does not use: one has nothing to scale to. To "
            "measure on it, write `accelerator: cuda` in the site file, and `devices: [1]`."
        )


def _warnings(experiments: Mapping[str, PlannedExperiment], checkout: Path | None) -> Iterator[str]:
    for planned in experiments.values():
        name = planned.key
        yield from planned.left_out
        if isinstance(planned.experiment, ProgramExperiment):
            yield from program_warnings(name, planned.experiment, checkout)
        else:
            yield from option_warnings(
                name, planned.experiment, [run.shape.world_size for run in planned.runs]
            )
        fewest: dict[str, int] = {}
        for run in planned.runs:
            fewest[run.series] = min(run.shape.world_size, fewest.get(run.series, run.shape.world_size))
        for devices in sorted(set(fewest.values()) - {1}):
            series = [name for name, least in fewest.items() if least == devices]
            which = "" if len(series) == len(fewest) else f" for {', '.join(series)}"
            yield (
                f"experiments.{name}.devices has no 1-device run{which}: speedups will be relative to "
                f"{devices} devices. Add 1 for a baseline."
            )


def _origin(place: Place, sources: Sequence[Source]) -> str:
    """Return file and line of a place, from the file with the longest part of it."""
    if not sources:
        return "config"
    candidates = [place[:length] for length in range(len(place), 2, -1)]
    if place[:1] == ("experiments",):
        # a key that is not in the experiment's entry comes from defaults
        candidates += [("defaults", *place[2:length]) for length in range(len(place), 2, -1)]
    candidates += [place[:length] for length in range(min(len(place), 2), 0, -1)]
    for candidate in candidates:
        for source in reversed(sources):
            if candidate in source.lines:
                return source.origin(candidate)
    return sources[-1].origin(())
