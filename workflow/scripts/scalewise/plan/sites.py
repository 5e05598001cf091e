"""Find, read and check the site file: the site, or each of its partitions."""

from __future__ import annotations

from pathlib import Path

from scalewise.config.errors import Problem, StudyError, validated
from scalewise.config.program import is_file
from scalewise.config.site import AUTO_KEYS, Site, SiteFile, facts_of_partition, resolve_site
from scalewise.config.yaml_source import read_source, stop_at, to_plain
from scalewise.plan.checks.experiment import check_case


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
