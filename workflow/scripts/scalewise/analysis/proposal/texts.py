"""The texts of a proposal that follow from the study. Each says why it is missing if it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from scalewise.analysis.decision.card import NO_CRITERION
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.proposal.markup import Block, Grid, Paragraph
from scalewise.analysis.proposal.proposal_spec import ProposalSpec
from scalewise.analysis.proposal.table import CLOCKS, hours_name, method_text, shown_points, time_unit
from scalewise.analysis.proposal.totals import find_totals
from scalewise.analysis.requirement import (
    Clock,
    clock_of,
    dominating_startup,
    find_doublings,
    largest_startup,
    plural_of,
    requirement_sentences,
    unmet,
)
from scalewise.plan.config.centre import SectionName
from scalewise.plan.config.experiment import AnyExperiment, Experiment
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    counts_listed,
    format_3sig,
    format_ratio,
    listed,
    name_devices,
    percent_in_digits,
    pluralize,
)
from scalewise.plan.planned_study import PARTITION_MARK
from scalewise.records import CPU_PROCESS

MAX_NAMED = 6
"""Hosts or jobs that a sentence names; provenance.json has all."""

_PARALLELISM = {
    "ddp": "data-parallel by PyTorch's DistributedDataParallel: every device holds the whole model and "
    "trains on its share of each batch, and an all-reduce averages the gradients over all devices in each "
    "step",
    "zero1": "data-parallel by PyTorch's DistributedDataParallel, with the optimizer's states divided among "
    "the devices (ZeroRedundancyOptimizer)",
    "fsdp": "data-parallel by PyTorch's FSDP2: parameters, gradients and optimizer states are divided among "
    "the devices and gathered layer by layer",
}
_LOADERS = {
    "resident": "The dataset is read once at the start and lies in the memory of each device; training steps "
    "read no file.",
    "workers": "Worker processes of PyTorch's DataLoader read and transform each batch from a memory-mapped "
    "file.",
}


@dataclass(frozen=True)
class Study:
    """All that the texts are written from.

    Args:
        results: Tables and answer.
        experiment: The experiment's keys.
        spec: The centre, and what only the user knows.
    """

    results: ExperimentResults
    experiment: AnyExperiment
    spec: ProposalSpec

    @property
    def is_fixed_work(self) -> bool:
        """Whether every run does the same work; unknown of a program with weak scaling."""
        return self.experiment.scaling == "strong" or isinstance(self.experiment, Experiment)

    @property
    def clock(self) -> Clock:
        """The clock of speedups and efficiencies."""
        requirement = self.spec.requirement
        return clock_of(requirement, self.results.points, is_fixed_work=self.is_fixed_work)

    @property
    def points(self) -> pd.DataFrame:
        """The points of the table and the figures."""
        return shown_points(self.results, self.clock)

    @property
    def runs(self) -> pd.DataFrame:
        """The runs of these points."""
        runs = self.results.runs
        shown: pd.DataFrame = runs[runs["series"] == self.points["series"].iloc[0]]
        return shown

    def origin(self, name: str) -> str:
        """Return the values of a part of the provenance as a list; empty if unknown."""
        return _shortened(self.results.origins.get(name, ()))


@dataclass(frozen=True)
class Text:
    """A text of a proposal, or the reason for there being none.

    Args:
        blocks: Paragraphs and small tables.
        missing: Reason for the absence of a part, with the fix; empty if all is there.
        summary: Sentences of it that belong into the checklist, too.
        not_met: The part of the centre's requirement that is not shown, with the fix; empty if all is.
    """

    blocks: Sequence[Block] = field(default_factory=list)
    missing: str = ""
    not_met: str = ""
    summary: str = ""


def _shortened(values: Sequence[str]) -> str:
    """Return the first values as a list, and the number of the others."""
    more = f" and {len(values) - MAX_NAMED} more" if len(values) > MAX_NAMED else ""
    return ", ".join(values[:MAX_NAMED]) + more


def _said(*sentences: str, missing: str = "") -> Text:
    text = " ".join(filter(None, sentences))
    return Text([Paragraph(text)] if text else [], missing)


def _software(study: Study) -> Text:
    spec, versions = study.experiment, _shortened(study.origin("versions").split(", "))
    packages = f"Versions: {versions}." if versions else ""
    missing = "" if versions else "No run has recorded its versions."
    if isinstance(spec, Experiment):
        what = f"The training is a {spec.model} on the dataset {spec.dataset} in PyTorch, {spec.precision}."
        how = f"It is {_PARALLELISM[spec.parallelism]}."
        said = name_devices(f"{what} {how} {_LOADERS[spec.loader]}", study.results.noun)
        return _said(said, packages, missing=missing)
    exchange = study.origin("exchange of gradients")
    seen = f"Seen in its runs, the exchange of gradients: {exchange}." if exchange else ""
    formats = study.origin("formats")
    what = f"The program is `{spec.program}` in PyTorch{f', {formats}' if formats else ''}."
    return _said(what, name_devices(seen, study.results.noun), packages, missing=missing)


def _machine(study: Study) -> Text:
    devices, hosts = study.origin("devices"), study.origin("hosts")
    if not devices:
        return Text(missing="No run has recorded where it ran.")
    cpu = study.origin("CPU")
    on_cpus = set(study.results.origins["devices"]) == {CPU_PROCESS}
    measured = f"CPU processes of {cpu or 'unknown CPUs'}" if on_cpus else devices
    days = study.origin("measured (UTC)")
    jobs = study.runs["slurm_job_id"].dropna() if "slurm_job_id" in study.runs else pd.Series(dtype=object)
    names = list(dict.fromkeys(re.sub(r"\.0$", "", str(job)) for job in jobs))
    of_jobs = ""
    if names:
        of_slurm = f"{len(jobs)} of {len(study.runs)} runs were jobs of Slurm"
        of_jobs = f"{of_slurm}, each a separate job ({_shortened(names)})."
    return _said(
        f"Every row was measured on {measured}, on the host{'s' if ',' in hosts else ''} {hosts}.",
        f"CPU: {cpu}." if cpu and not on_cpus else "",
        f"The runs were made from {days} (UTC)." if days else "",
        of_jobs,
        missing="" if names else "The runs were not jobs of Slurm. Run the study with profiles/slurm.",
    )


def _case(study: Study) -> Text:
    spec = study.experiment
    plural = count_devices(2, study.results.noun).removeprefix("2 ")
    if spec.scaling == "strong":
        size = f" of {spec.global_batch_size:,} samples" if spec.global_batch_size else ""
        kind = f"Strong scaling: the global batch{size} stays the same on every number of {plural}."
    else:
        size = f" of {spec.batch_size_per_device:,} samples" if spec.batch_size_per_device else ""
        kind = (
            f"Weak scaling: the batch{size} of each {study.results.noun} stays the same, so the global batch "
            f"grows with the number of {plural}."
        )
    data = "All runs read the same input data."
    if spec.steps is not None:
        length = (
            f"A run ends after {spec.steps} measured steps; {spec.warmup_steps} warm-up steps come first."
        )
    elif isinstance(spec, Experiment):
        length = f"A run trains {pluralize(str(spec.epochs), 'epoch')}."
    else:
        length = "A run is one whole run of the program."
    counts = counts_listed(sorted({int(count) for count in study.points["devices"]}), study.results.noun)
    return _said(kind, data, length, f"Measured on {counts}.")


def _method(study: Study) -> Text:
    return _said(method_text(study.results, study.clock))


def _startup(study: Study) -> Text:
    row = largest_startup(study.points)
    if row is None:
        reason = "no run is a whole one" if study.experiment.steps is not None else "no run has recorded it"
        return Text(missing=f"The share of the start-up in a run is unknown: {reason}.")
    dominates = dominating_startup(study.points)
    unit, seconds = time_unit(row["wall_seconds"])
    parts = " of ".join(format_3sig(row[name] / seconds) for name in ("startup_seconds", "wall_seconds"))
    return _said(
        f"The start-up, until the second step, takes at most {percent_in_digits(row['share'])} of a run: "
        f"{parts} {unit} on {count_devices(int(row['devices']), study.results.noun)}.",
        "" if dominates else "It does not dominate the time of any run.",
        missing=dominates,
    )


def _answer(study: Study) -> Text:
    results, card = study.results, study.results.decision.get("card") or {}
    chosen = study.points[study.points["recommended"]]
    if chosen.empty:
        return Text(missing="The study recommends no number of devices. See what to do in report.html.")
    row, base = chosen.iloc[0], int(chosen["baseline_devices"].iloc[0])
    nodes = "" if pd.isna(row["nodes"]) else f" ({count_devices(int(row['nodes']), 'node')})"
    partition = results.name.partition(PARTITION_MARK)[2]
    of = f" of the partition {partition}" if partition else ""
    use = f"We train on {count_devices(int(row['devices']), results.noun)}{nodes}{of}."
    measured = ""
    if row["devices"] != base and pd.notna(row["speedup"]):
        bounds = [format_ratio(row[f"speedup_{end}"]) for end in ("low", "high")]
        interval = f" ({' to '.join(bounds)})" if pd.notna(row["speedup_low"]) else ""
        measured = (
            f"By {CLOCKS[study.clock]} they are {format_ratio(row['speedup'])} times as fast as "
            f"{count_devices(base, results.noun)}{interval}, at a parallel efficiency of "
            f"{row['parallel_efficiency']:.2f}. {_costs(study, row, base)}"
        ).rstrip()
    rule, further, doubt = (
        name_devices(card.get(key) or "", results.noun) for key in ("rule", "next", "reason")
    )
    clock = CLOCKS["throughput"] if results.decision.get("measure") == "throughput" else "time to the target"
    if rule:
        # next to a requirement, a reader would look for it in the rule
        apart = ", apart from the requirement" if study.spec.requirement else ""
        rule = f"Our rule{apart}, by {clock}: {rule.removeprefix(NO_CRITERION)}"
    return _said(use, measured, rule, further, doubt)


def _costs(study: Study, row: pd.Series, base: int) -> str:
    """A sentence on what more devices cost, next to the fewest; empty if the runs do not compare."""
    pair = study.points[study.points["devices"].isin([base, row["devices"]])].sort_values("devices")
    if not study.is_fixed_work or pair[["wall_seconds", "device_hours"]].isna().any(axis=None):
        return ""
    unit, seconds = time_unit(float(pair["wall_seconds"].max()))
    noun, hours = study.results.noun, hours_name(study.results.noun)
    shown = [
        f"{format_3sig(point['device_hours'])} {hours} and {format_3sig(point['wall_seconds'] / seconds)} "
        f"{unit} on {count_devices(int(point['devices']), noun)}"
        for _, point in pair.iterrows()
    ]
    return f"A run takes {', '.join(shown)}."


def _requirement(study: Study) -> Text:
    requirement = study.spec.requirement
    if requirement is None:
        return Text(
            missing="No scaling is required. If your centre does, add `requirement: {efficiency: ...}`."
        )
    found = find_doublings(study.results, requirement, is_fixed_work=study.is_fixed_work)
    if not found:
        what = plural_of(requirement, study.results.noun)
        return Text(missing=f"No measured point has twice the {what} of another. Add one to `devices`.")
    sentences = requirement_sentences(requirement, found, study.results)
    by_throughput = requirement.by == "total_time" and found[0].by == "throughput"
    missing = (
        "Total times of equal work are unknown. Measure whole runs of one length." if by_throughput else ""
    )
    not_met = " ".join(unmet(found, study.results))
    blocks = [Paragraph(sentence) for sentence in sentences]
    return Text(blocks, missing, not_met, " ".join(sentences[1:]))


def _limits(study: Study) -> Text:
    decision = study.results.decision
    card = decision.get("card") or {}
    sentences = list(dict.fromkeys(filter(None, [card.get("limit", ""), *decision.get("limits", ())])))
    if not sentences:
        return Text(missing="It is unknown what limits the training.")
    return _said(*(name_devices(sentence, study.results.noun) for sentence in sentences))


def _failures(study: Study) -> Text:
    outcomes = study.runs["outcome"].value_counts()
    total, done = int(outcomes.sum()), int(outcomes.get("completed", 0))
    if done == total:
        return _said(f"All {pluralize(str(total), 'run')} completed." if total > 1 else "The run completed.")
    others = listed([f"{count} {outcome}" for outcome, count in outcomes.items() if outcome != "completed"])
    return _said(f"{done} of {total} runs completed; the others: {others}.")


def _totals(study: Study) -> Text:
    found = find_totals(study.results, study.spec)
    if isinstance(found, str):
        return Text([Paragraph(f"the computing time to request. {found}", is_gap=True)], found)
    missing = "" if found.trainings is not None else "Add `trainings: ...`, the number planned."
    gap = [Paragraph("the number of trainings: `trainings: ...`", is_gap=True)] if missing else []
    return Text([Paragraph(found.text()), Grid(found.rows()), *gap], missing, summary=found.text())


def _reproduction(study: Study) -> Text:
    settings, commit = ", ".join(study.results.origins.get("settings", ())), study.origin("commit")
    if not settings:
        return Text(missing="No run has recorded its settings.")
    return _said(
        f"Settings of the experiment {study.results.name}: {settings}.",
        f"Commit of the measuring code: {commit}." if commit else "",
        "Every run's settings, versions, hosts and times are in its summary.json.",
    )


SECTIONS: dict[SectionName, Callable[[Study], Text]] = {
    "software": _software,
    "machine": _machine,
    "case": _case,
    "method": _method,
    "startup": _startup,
    "answer": _answer,
    "requirement": _requirement,
    "limits": _limits,
    "failures": _failures,
    "totals": _totals,
    "reproduction": _reproduction,
}
"""Writers of the texts that a centre's file names."""

CONTENTS: dict[SectionName, str] = {
    "software": "software, parallelization and versions",
    "machine": "devices, hosts, dates and jobs",
    "case": "kind of scaling, batch and length of a run",
    "method": "how the figures were made, and their baseline",
    "startup": "share of the start-up in a run",
    "answer": "number of devices, and why",
    "requirement": "verdict on each doubling",
    "limits": "what slows the training down",
    "failures": "outcomes of the runs",
    "totals": "computing time to request",
    "reproduction": "settings and commit",
}
"""Contents of each text, for the checklist."""
