"""Check the partitions of an experiment, and leave out the device counts that one of them cannot have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from scalewise.config.errors import Place, Problem, did_you_mean, format_value, key_path
from scalewise.config.experiment import AnyExperiment
from scalewise.config.site import Site, Sites
from scalewise.plan.checks.experiment import check_devices


def choose_sites(place: Place, spec: AnyExperiment, sites: Sites) -> tuple[list[Site], list[Problem]]:
    """Return where an experiment runs, and the mistakes in its choice of partitions."""
    known, names = sites.partitions, spec.partitions
    here: Place = (*place, "partitions")
    if names is None:
        by = spec.decision.by
        text = f"is {by}, which decides between partitions, but the experiment names none"
        fix = f"Add `partitions: all`, or remove {'it' if by else ''}."
        return [sites.default], [] if by is None else [Problem((*place, "decision", "by"), text, fix)]
    if not known:
        text = f"is {format_value(names)}, but the site file has no partitions"
        return [sites.default], [Problem(here, text, "Add `partitions:` to it, or remove this key.")]
    if names == "all":
        return list(known.values()), _check_aim(place, spec, known.values())
    problems = []
    for index, each in enumerate(names):
        if each not in known:
            text = f"is {each!r}, which is no partition of the site file"
            problems.append(Problem((*here, index), text, did_you_mean(each, known)))
        elif each in names[:index]:
            problems.append(Problem((*here, index), f"is {each!r}, listed twice", "Keep one of the two."))
    chosen = [known[each] for each in dict.fromkeys(names) if each in known] or [sites.default]
    return chosen, problems or _check_aim(place, spec, chosen)


def _check_aim(place: Place, spec: AnyExperiment, sites: Collection[Site]) -> list[Problem]:
    """Refuse an aim that the sites cannot measure, and name those that they can."""
    by = spec.decision.by
    here: Place = (*place, "decision", "by")
    reasons = {}
    if any(site.accelerator == "cpu" for site in sites):
        reasons["energy"] = "which is measured of GPUs only, and devices here are CPU processes"
    if any(site.slurm is None for site in sites):
        reasons["soonest"] = "but without `slurm:` in the site file there is no queue to wait in"
    if by not in reasons:
        return []
    aims = [aim for aim in ("time", "cost", "energy", "soonest") if aim not in reasons]
    fix = f"Use {', '.join(aims[:-1])} or {aims[-1]}."
    return [Problem(here, f"is {by}, {reasons[by]}", fix)]


def fit_devices(
    place: Place, spec: AnyExperiment, sites: Sequence[Site]
) -> Iterator[tuple[AnyExperiment, list[str]]]:
    """Yield for each site the experiment without device counts that other sites can have and it cannot.

    A count that no site can have stays, and so do all counts of a site that can have none: the checks of the
    experiment report them.

    Args:
        place: The experiment's place.
        spec: The experiment, with valid values.
        sites: The site, or the partitions, that it runs on.

    Yields:
        The experiment, and a sentence on each count that is left out.
    """
    if spec.devices.up_to is not None and spec.devices.among is None:
        yield from _up_to(place, spec, spec.devices.up_to, sites)
        return
    counts = spec.devices.counts
    refused = [_refused(place, counts, site) for site in sites]
    nowhere = set(refused[0]).intersection(*refused)
    for site, problems in zip(sites, refused, strict=True):
        kept = [devices for index, devices in enumerate(counts) if index in nowhere or index not in problems]
        left = {index: problem for index, problem in problems.items() if index not in nowhere}
        if not left or not kept:
            yield spec, []
            continue
        gone = [counts[index] for index in left]
        key = "every" if spec.devices.every else "among"
        fitting = spec.model_copy(
            update={
                "devices": spec.devices.model_copy(update={key: kept}),
                "exclude": [entry for entry in spec.exclude if entry.get("devices") not in gone],
            }
        )
        yield fitting, [_left_out(counts[index], problem, site) for index, problem in left.items()]


def _up_to(
    place: Place, spec: AnyExperiment, up_to: int, sites: Sequence[Site]
) -> Iterator[tuple[AnyExperiment, list[str]]]:
    """Yield the experiment with as many devices as a site has, if another has as many as it names."""
    most = max(site.most_devices for site in sites)
    for site in sites:
        if site.most_devices >= up_to or most < up_to:
            yield spec, []
            continue
        devices = spec.devices.model_copy(update={"up_to": site.most_devices})
        text = (
            f"{key_path((*place, 'devices', 'up_to'))} is {up_to}: partition {site.partition} is measured "
            f"up to {site.most_devices}, the most that a run may take there."
        )
        yield spec.model_copy(update={"devices": devices}), [text]


def _refused(place: Place, counts: Sequence[int | str], site: Site) -> dict[int, Problem]:
    """Return the first mistake of each device count that a site cannot have, by its index."""
    _, problems = check_devices(place, counts, site)
    found: dict[int, Problem] = {}
    for problem in problems:
        found.setdefault(int(problem.place[-1]), problem)
    return found


def _left_out(devices: int | str, problem: Problem, site: Site) -> str:
    without = f"Partition {site.partition} is measured without {devices} devices"
    return f"{without}: {key_path(problem.place)} {problem.text}."
