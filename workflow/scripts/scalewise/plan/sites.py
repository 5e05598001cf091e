"""Read and check the site file: the site, or each of its partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalewise.config.errors import Problem, StudyError, problems_of
from scalewise.config.paths import find_site_file
from scalewise.config.site import SiteFile, Sites, facts_of_partition, resolve_site
from scalewise.config.yaml_source import read_source, to_plain
from scalewise.plan.checks.allocation import check_facts


def read_sites(site_file: str | Path | None, checkout: Path | None) -> Sites:
    """Read and check the site file.

    Args:
        site_file: The profile's facts; None for this machine as it is.
        checkout: Scalewise's folder; None if unknown.

    Raises:
        StudyError: names every mistake in it.
    """
    if site_file is None:
        return Sites(resolve_site(SiteFile()))
    path = find_site_file(site_file, checkout)
    if not path.exists():
        where = f"{Path.cwd()}, nor in {checkout}" if checkout else f"{Path.cwd()}"
        fix = "Give the path of a site file: --config site=PATH."
        raise StudyError([f"{site_file}: there is no such file in {where}. {fix}"])
    source = read_source(path, "Begin with a fact, such as `accelerator: auto`.")
    problems = list(source.problems)
    if not problems:
        to_plain(source.values, (), problems)
    if not problems:
        sites = _resolved(source.values, problems)
        if sites is not None and not problems:
            return sites
    raise StudyError([problem.render(source.origin(problem.place)) for problem in dict.fromkeys(problems)])


def _resolved(values: Mapping[str, Any], problems: list[Problem]) -> Sites | None:
    """Return the site and its partitions, and add the mistakes that were found."""
    try:
        facts = SiteFile.model_validate(values)
    except ValidationError as error:
        problems += problems_of(error, (), SiteFile, values)
        return None
    if facts.partitions is None:
        problems += check_facts(facts)
        return None if problems else Sites(resolve_site(facts))
    problems += _check_names(list(facts.partitions))
    sites = {}
    shared = {**values, **(values.get("slurm") or {})}
    for name in facts.partitions:
        of_partition = SiteFile.model_validate(facts_of_partition(values, name))
        own = values["partitions"][name] or {}
        for problem in check_facts(of_partition):
            # keys of `slurm` stand among the others of a partition
            place = problem.place[1:] if problem.place[:1] == ("slurm",) else problem.place
            is_own = place[0] in own or place[0] not in shared
            problems.append(replace(problem, place=("partitions", name, *place)) if is_own else problem)
        sites[name] = resolve_site(of_partition, name)
    problems += _check_costs({name: site.facts for name, site in sites.items()})
    return None if problems else Sites(next(iter(sites.values())), sites)


def _check_names(names: Sequence[str]) -> Iterator[Problem]:
    """Refuse partitions whose runs have one folder on a file system that ignores case."""
    spellings: dict[str, str] = {}
    for name in names:
        if (first := spellings.setdefault(name.lower(), name)) != name:
            text = f"differs from {first} only by case, and some file systems ignore case"
            yield Problem(("partitions", name), text, "Rename one of the two.")


def _check_costs(partitions: Mapping[str, SiteFile]) -> Iterator[Problem]:
    """Refuse partitions whose costs cannot be compared, as only some of them are known."""
    priced = [name for name, facts in partitions.items() if facts.price_per_device_hour is not None]
    for name in partitions:
        if priced and name not in priced:
            yield Problem(
                ("partitions", name),
                f"has no price_per_device_hour, but {priced[0]} has: their costs cannot be compared",
                "Give all partitions price_per_device_hour, or none of them.",
            )
