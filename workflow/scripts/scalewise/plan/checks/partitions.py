"""Choose the partitions of an experiment, and leave out the device counts that one of them cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewise.config.errors import Place, Problem, did_you_mean, key_path, shown
from scalewise.config.experiment import AnyExperiment
from scalewise.config.site import Site, Sites
from scalewise.plan.checks.experiment import check_devices


def choose_sites(place: Place, spec: AnyExperiment, sites: Sites) -> tuple[list[Site], list[Problem]]:
    """Return where an experiment runs, and the mistakes in its choice of partitions."""
    known, names, by = sites.partitions, spec.partitions, spec.decision.by
    here, aim = (*place, "partitions"), (*place, "decision", "by")
    if names is None:
        text = f"is {by}, which decides between partitions, but the experiment names none"
        return [sites.default], [Problem(aim, text, "Add `partitions: all`.")] if by else []
    if not known:
        text = f"is {shown(names)}, but the site file has no partitions"
        return [sites.default], [Problem(here, text, "Add `partitions:` to it, or remove this key.")]
    chosen = list(known) if names == "all" else list(dict.fromkeys(names))
    problems = [
        Problem(
            (*here, index), f"is {each!r}, which is no partition of the site file", did_you_mean(each, known)
        )
        for index, each in enumerate(chosen)
        if each not in known
    ]
    on = [known[each] for each in chosen if each in known] or [sites.default]
    return on, problems


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
    if (up_to := spec.devices.up_to) is not None:
        most = max(site.most_devices for site in sites)
        for site in sites:
            if site.most_devices >= up_to or most < up_to:
                yield spec, []
                continue
            devices = spec.devices.model_copy(update={"up_to": site.most_devices})
            text = (
                f"{key_path((*place, 'devices', 'up_to'))} is {up_to}: partition {site.partition} is "
                f"measured up to {site.most_devices}, the most that a run may take there."
            )
            yield spec.model_copy(update={"devices": devices}), [text]
        return
    counts = spec.devices.counts
    # of several mistakes of a count, the first
    refused = [
        {int(problem.place[-1]): problem for problem in reversed(check_devices(place, counts, site)[1])}
        for site in sites
    ]
    nowhere = set(refused[0]).intersection(*refused)
    for site, problems in zip(sites, refused, strict=True):
        kept = [devices for index, devices in enumerate(counts) if index in nowhere or index not in problems]
        left = {index: problem for index, problem in problems.items() if index not in nowhere}
        if not left or not kept:
            yield spec, []
            continue
        gone = [counts[index] for index in left]
        fitting = {
            "devices": spec.devices.model_copy(update={"counts": kept}),
            "exclude": [entry for entry in spec.exclude if entry.get("devices") not in gone],
        }
        yield (
            spec.model_copy(update=fitting),
            [
                f"Partition {site.partition} is measured without {counts[index]} devices: "
                f"{key_path(problem.place)} {problem.text}."
                for index, problem in sorted(left.items())
            ],
        )
