"""Check the whole configuration and make its experiments and runs; report all mistakes at once."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scalewise.config.errors import Place, Problem, StudyError, did_you_mean, shown, validated
from scalewise.config.experiment import (
    AnyExperiment,
    Budget,
    Devices,
    Experiment,
    ProgramExperiment,
    StudyFile,
    experiment_kind,
)
from scalewise.config.program import is_file
from scalewise.config.site import AUTO_KEYS, Site, SiteFile, facts_of_partition, resolve_site, visible_gpus
from scalewise.config.yaml_source import Source, read_source, stop_at, to_plain
from scalewise.plan.checks import (
    check_case,
    check_choice,
    check_devices,
    check_experiment,
    choose_sites,
)
from scalewise.plan.planned_study import Part, Study
from scalewise.plan.rounds import requested_runs, resolve_choice
from scalewise.plan.runs import combinations, excluded, expand

MAX_RUNS = 1000
"""Most runs of a study: more are likely a mistake in the sweep."""
MOST_COUNTED = 1_000_000
"""Combinations of an experiment that are counted: a sweep of many keys has more than anybody can wait for."""


def load_study(
    config: Mapping[str, Any],
    files: Sequence[str | Path] = (),
    site_file: str | Path | None = None,
    *,
    checkout: Path | None = None,
    command: Mapping[str, Any] = MappingProxyType({}),
    is_module: bool = False,
) -> Study:
    """Check a configuration and make its runs.

    The site's mistakes come first: an experiment is checked against the site.

    Args:
        config: Keys and values that Snakemake merged from files and command line.
        files: The files of the configuration, for line numbers and mistakes of YAML.
        site_file: The profile's facts; None for this machine as it is.
        checkout: Scalewise's folder; None if unknown.
        command: Keys and values of the command, which are not in the files.
        is_module: Whether the files are another workflow's, which passes this study by its values.

    Raises:
        StudyError: Names every mistake.
    """
    sources = [] if is_module else [read_source(Path(file)) for file in files]
    command = {} if is_module else command
    problems = [problem for source in sources for problem in source.problems]
    raw = to_plain(config, (), problems)
    # --config and other tools may add keys at the top
    of_command = {key for key in raw if sources and not any((key,) in source.lines for source in sources)}
    ignored = of_command - StudyFile.model_fields.keys()
    validated(StudyFile, {key: raw[key] for key in raw if key not in ignored}, (), problems)
    stop_at([problem for problem in problems if problem.place == ("site",)], sources, command)
    sites = read_sites(site_file, checkout)
    parts: list[Part] = []
    if isinstance(raw.setdefault("experiments", {}), dict) and isinstance(raw.get("defaults", {}), dict):
        parts, of_experiments = _plan(raw, sites)
        problems += [_in_defaults(problem, raw) for problem in of_experiments]
    stop_at(problems, sources, command)
    site = next(iter(sites.values()))
    known = StudyFile.model_fields
    unused = [
        f"{key} of --config is no key of a study. {did_you_mean(key, known)}" for key in sorted(ignored)
    ]
    return Study(parts, site, list(dict.fromkeys([*unused, *_warnings(sources, site, parts)])))


def check_results_folder(folder: Path) -> None:
    """Stop before the first run if results cannot be written.

    Raises:
        StudyError: The folder cannot be written to.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise StudyError([f"{existing}: is a file, but results go there. Rename it."])
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = "Change its permissions, or run elsewhere."
        raise StudyError([f"{existing.absolute()}: cannot be written to. {fix}"])


def _in_defaults(problem: Problem, raw: Mapping[str, Any]) -> Problem:
    """Return a mistake at its place in ``defaults``, if the experiment takes the key from there."""
    match problem.place:
        case ("experiments", name, key, *_) if (
            key in raw.get("defaults", {}).keys() - raw["experiments"][name]
        ):
            return problem._replace(place=("defaults", *problem.place[2:]))
    return problem


def _plan(raw: Mapping[str, Any], sites: Mapping[str, Site]) -> tuple[list[Part], list[Problem]]:
    """Plan each experiment; return the mistakes as well."""
    defaults: dict[str, Any] = raw.get("defaults", {})
    experiments = {name: entry for name, entry in raw["experiments"].items() if isinstance(entry, dict)}
    parts: list[Part] = []
    problems = list(check_case(("experiments",), experiments))
    known = Experiment.model_fields | ProgramExperiment.model_fields
    for key in (key for key in defaults if key not in known):
        text = f"Extra inputs are not permitted (is {shown(defaults[key])}). {did_you_mean(key, known)}"
        problems.append(Problem(("defaults", key), text))
    total = 0
    for name, entry in experiments.items():
        place: Place = ("experiments", name)
        kind = experiment_kind(defaults | entry)
        other = ProgramExperiment if kind is Experiment else Experiment
        of_other = other.model_fields.keys() - kind.model_fields.keys()
        fix = "a program: add `program: train.py`" if kind is Experiment else "the built-in training"
        problems += [Problem((*place, key), f"is a key of {fix}.") for key in entry if key in of_other]
        merged = {key: value for key, value in defaults.items() if key in kind.model_fields} | entry
        spec = validated(kind, merged, place, problems)
        if spec is None:
            # device counts do not depend on the other keys; the other checks need a valid experiment
            counts = merged.get("devices")
            sound = [each for each in counts if type(each) in (int, str)] if isinstance(counts, list) else []
            problems += check_devices(place, sound, next(iter(sites.values())))[1]
            continue
        on, unknown = choose_sites(place, spec, sites)
        problems += [*unknown, *check_choice(place, spec, on)]
        counts = spec.devices.counts or [1]
        made = (not excluded(spec, options, n) for options in combinations(spec) for n in counts)
        total += sum(itertools.islice(made, MOST_COUNTED)) * spec.repeats.max * len(on)
        if total > MAX_RUNS:
            text = f"makes {total:,} runs with those before; at most {MAX_RUNS:,} are planned. Measure less."
            problems.append(Problem((*place, "sweep" if spec.sweep else "devices"), text))
            break
        for site in on:
            experiment, left_out = _on_site(spec, site, on)
            shapes, found = check_experiment(place, experiment, entry, site)
            where = f" Partition: {site.partition}." if len(on) > 1 else ""
            problems += [problem._replace(text=f"{problem.text}{where}") for problem in found]
            if not found:
                runs = expand(name, experiment, shapes, site.accelerator, site.launcher)
                part = Part(name, experiment, runs, site, left_out)
                problems += _check_budget(place, spec, part, len(on))
                parts.append(part)
    return parts, problems


def _on_site(spec: AnyExperiment, site: Site, sites: Sequence[Site]) -> tuple[AnyExperiment, list[str]]:
    """Return an experiment as it is on one of its sites, and a sentence on device counts that it leaves out.

    A count that no site can have stays, and so do all counts of a site that can have none: the checks of the
    experiment report them.
    """
    if spec.partitions is None:
        return resolve_choice(spec, site), []

    def fits(count: int | str, there: Site) -> bool:
        return not check_devices((), [count], there)[1]

    budget = spec.budget and Budget(device_hours=spec.budget.device_hours / len(sites))
    update: dict[str, Any] = {"partitions": [site.partition] if site.partition else None, "budget": budget}
    counts, left_out = spec.devices.counts, []
    gone = [count for count in counts if not fits(count, site) and any(fits(count, each) for each in sites)]
    if gone and (kept := [count for count in counts if count not in gone]):
        exclude = [entry for entry in spec.exclude if entry.get("devices") not in gone]
        update |= {"devices": Devices(counts=kept), "exclude": exclude}
        devices = ", ".join(map(str, gone))
        left_out = [
            f"Partition {site.partition} is measured without {devices} devices, which do not fit there."
        ]
    return resolve_choice(spec.model_copy(update=update), site), left_out


def _check_budget(place: Place, spec: AnyExperiment, part: Part, partitions: int) -> Iterator[Problem]:
    """Refuse a budget that does not cover the first runs at their full runtime."""
    first = requested_runs(part.runs, part.experiment, [])
    devices = partitions * sum(part.site.held_devices(run.shape) for run in first)
    needed = devices * spec.runtime_minutes / 60
    if spec.budget is not None and spec.budget.device_hours < needed:
        text = (
            f"is {spec.budget.device_hours:g}, but the first {partitions * len(first)} runs may take "
            f"{needed:.3g} device-hours by runtime_minutes ({spec.runtime_minutes}). "
            f"Use {needed:.3g} or more."
        )
        yield Problem((*place, "budget", "device_hours"), text)


def _warnings(sources: Sequence[Source], site: Site, parts: Sequence[Part]) -> Iterator[str]:
    """Warn of what is possible and rarely intended."""
    if len(sources) > 1:
        yield (
            f"{', '.join(source.name for source in sources)} are merged into one study: `defaults` and "
            "`sweep` of one apply to the experiments of the others. Name one file to run only its study."
        )
    if site.facts.accelerator == "auto" and site.accelerator == "cpu" and visible_gpus():
        yield (
            "this machine has a GPU, which `accelerator: auto` does not use: one has nothing to scale to. To "
            "measure on it, write `accelerator: cuda` in the site file, and `devices: [1]`."
        )
    for part in parts:
        yield from part.left_out
        fewest = min(run.shape.world_size for run in part.runs)
        if fewest > 1:
            yield (
                f"experiments.{part.name}.devices has no 1-device run: speedups will be relative to {fewest} "
                "devices. Add 1 for a baseline."
            )


# --- the site file ---------------------------------------------------------------------------------------


def find_site_file(site_file: str | Path, checkout: Path | None) -> Path:
    """Find the site's file below this folder, or else below Scalewise's, which its profiles refer to.

    Args:
        site_file: The key's value.
        checkout: Scalewise's folder; None if unknown.
    """
    path = Path(site_file)
    inside = checkout / path if checkout else path
    return inside if is_file(inside) and not is_file(path) else path


def read_sites(site_file: str | Path | None, checkout: Path | None) -> dict[str, Site]:
    """Read and check the site file.

    Args:
        site_file: The profile's facts; None for this machine as it is.
        checkout: Scalewise's folder; None if unknown.

    Returns:
        Each partition by its name; a site without partitions by an empty name.

    Raises:
        StudyError: Names every mistake in it.
    """
    if site_file is None:
        return {"": resolve_site(SiteFile())}
    path = find_site_file(site_file, checkout)
    if not path.exists():
        where = f"{Path.cwd()}, nor in {checkout}" if checkout else f"{Path.cwd()}"
        fix = "Give the path of a site file: --config site=PATH."
        raise StudyError([f"{site_file}: there is no such file in {where}. {fix}"])
    source = read_source(path)
    problems = source.problems
    values = to_plain(source.values, (), problems)
    file = validated(SiteFile, values, (), problems)
    stop_at(problems, [source])
    assert file is not None
    names = list(file.partitions or [""])
    problems += check_case(("partitions",), names)
    sites = {}
    for name in names:
        facts = SiteFile.model_validate(facts_of_partition(values, name)) if name else file
        own = values["partitions"][name] if name else {}
        for key in AUTO_KEYS if facts.slurm else ():
            if getattr(facts, key) == "auto":
                example = "cuda" if key == "accelerator" else 4
                text = (
                    "is auto, which looks at this machine, but the runs go to Slurm's nodes. Write what a "
                    f"compute node has, such as `{key}: {example}`."
                )
                problems.append(Problem(("partitions", name, key) if key in own else (key,), text))
        sites[name] = resolve_site(facts, name)
    priced = [name for name, site in sites.items() if site.facts.price_per_device_hour is not None]
    if 0 < len(priced) < len(sites):
        text = f"have a price_per_device_hour only for {', '.join(priced)}: costs cannot be compared."
        problems.append(Problem(("partitions",), text))
    stop_at(problems, [source])
    return sites
