"""The preflight of a study: its largest run, and what Slurm's commands answer on it before a job is sent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from scalewise.config.catalog.datasets import prepared_path
from scalewise.config.shape import ShapeText
from scalewise.config.slurm import Slurm
from scalewise.plan.launch import RankLaunch
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import PLACE_RESOURCES, sbatch_options
from scalewise.site.cluster import Facts, number, parse_config, read_accounts, record
from scalewise.site.commands import SUBMISSION_COMMANDS, Answer, ask, missing_commands

LONGEST_POLL_SECONDS = 180
"""Longest time between two status queries of the executor plugin, while no job ends."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        state: ``unknown`` if the check has no answer.
        text: The result, as a clause.
        fix: An instruction, as a sentence; empty if nothing is wrong.
    """

    state: Literal["ok", "bad", "unknown"]
    text: str
    fix: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok", "bad": "NOT OK", "unknown": "?"}[self.state]
        return f"{mark:<7} {self.text}{f'. {self.fix}' if self.fix else ''}"


def ok(text: str) -> Finding:
    """Make a finding that needs no fix."""
    return Finding("ok", text)


def bad(text: str, fix: str) -> Finding:
    """Make a finding that must be fixed before a study can run."""
    return Finding("bad", text, fix)


def unknown(text: str, fix: str = "") -> Finding:
    """Make the finding of a check that has no answer."""
    return Finding("unknown", text, fix)


class Request(BaseModel, frozen=True, defer_build=True):
    """A run's shape and its options of sbatch."""

    shape: ShapeText
    options: list[str]

    def on_profile(self, resources: Mapping[str, object]) -> Request:
        """Return the request with resources of a profile, by the executor plugin's names, for the site's."""
        names = {name: option for option, name in PLACE_RESOURCES.items()} | {
            "mem_mb": "mem",
            "runtime": "time",
        }
        changed = {names[name]: value for name, value in resources.items() if name in names}
        kept = [word for word in self.options if word.removeprefix("--").partition("=")[0] not in changed]
        options = [*(f"--{option}={value}" for option, value in changed.items()), *kept]
        return Request(shape=self.shape, options=options)


class Preflight(RankLaunch):
    """Facts that a preflight checks: the site's, and the largest run of the study.

    Args:
        slurm: Facts of the cluster; None for one machine.
        options: Options of sbatch for the largest run, with the time of the longest one.
        smallest: The request of the smallest run; None if all have the same shape.
        datasets: Paths of the prepared files that every rank must be able to read.
    """

    slurm: Slurm | None
    options: list[str]
    smallest: Request | None = None
    datasets: list[str]

    @property
    def largest(self) -> Request:
        """The request of the largest run."""
        return Request(shape=self.shape, options=self.options)

    def on_profile(self, resources: Mapping[str, object]) -> Preflight:
        """Return the preflight of runs whose resources a profile replaces."""
        smallest = self.smallest and self.smallest.on_profile(resources)
        options = self.largest.on_profile(resources).options
        return self.model_copy(update={"options": options, "smallest": smallest})

    @classmethod
    def of(cls, study: Study, partition: str) -> Preflight:
        """Describe the largest run of a study on a partition."""
        parts = [part for part in study.parts if part.site.partition == partition]
        keys = [(part.name, run.run) for part in parts for run in part.runs]
        ordered = sorted(
            keys, key=lambda key: (study.runs[key].shape.world_size, study.runs[key].settings.cpus_per_device)
        )
        (smallest, few), (largest, many) = (
            (study.runs[key], sbatch_options(study.allocations[key].resources))
            for key in (ordered[0], ordered[-1])
        )
        minutes = max(study.allocations[key].minutes for key in keys)
        return cls(
            **dict(RankLaunch.for_run(largest)),
            slurm=study.partitions[partition].slurm,
            options=[*(word for word in many if not word.startswith("--time=")), f"--time={minutes}"],
            smallest=Request(shape=smallest.shape, options=few) if smallest.shape != largest.shape else None,
            datasets=[str(prepared_path(dataset)) for dataset in study.datasets],
        )


# ---- what Slurm answers before a job is sent


def check_site(preflight: Preflight) -> Iterator[Finding]:
    """Check that Slurm takes the study's requests; no job is sent."""
    slurm = preflight.slurm
    if slurm is None:
        yield ok("one machine without a scheduler")
        return
    if missing := missing_commands(*SUBMISSION_COMMANDS, "srun", "scontrol"):
        fix = "Go to a login node of the cluster, or load its Slurm module."
        yield bad(f"{', '.join(missing)} not on PATH", fix)
        return
    yield ok(f"commands of {ask('sbatch', '--version').text or 'Slurm'}")
    config = parse_config(ask("scontrol", "show", "config").text)
    yield _check_account(slurm, config)
    yield from _check_memory_of_jobs(config)
    yield _check_request("the largest job", preflight.largest, slurm)
    if preflight.smallest is not None:
        yield _check_request("the smallest job", preflight.smallest, slurm)


def _check_account(slurm: Slurm, config: Facts) -> Finding:
    """Check that the user's account may use the partition, by accounting's rows of this cluster."""
    accounts = read_accounts(config)
    if accounts.unknown:
        return unknown(f"the account could not be looked up ({accounts.unknown})")
    partition, account = slurm.partition, slurm.account
    usable = {row.account for row in accounts.associations}
    if partition:
        usable = set(accounts.usable_in(partition))
    where = f" in partition {partition}" if partition else ""
    listed = ", ".join(sorted(usable)) or "none"
    if account is None:
        return ok(f"account left to Slurm: {accounts.default or 'unknown'}; yours{where} are {listed}")
    # Slurm keeps names of accounts in small letters
    if account.lower() in map(str.lower, usable):
        return ok(f"account {account}{where}")
    return bad(f"account {account} is not yours{where}", f"Set slurm.account to one of yours: {listed}.")


def _check_memory_of_jobs(config: Facts) -> Iterator[Finding]:
    """Check that the controller keeps ended jobs until snakemake queries their status."""
    seconds = re.match(r"\d+", config.get("MinJobAge", ""))
    if seconds is None:
        yield unknown("MinJobAge could not be looked up")
    elif int(seconds[0]) < LONGEST_POLL_SECONDS:
        yield unknown(
            f"Slurm forgets jobs {seconds[0]} s after their end (MinJobAge), and snakemake may look only "
            f"every {LONGEST_POLL_SECONDS} s: set slurm-status-command to sacct in the profile, and end jobs "
            "by Ctrl-C, not by scancel, which the executor plugin does not recognise there"
        )


def _check_request(name: str, request: Request, slurm: Slurm) -> Finding:
    """Check that Slurm accepts a job, and report when it would start.

    Args:
        name: The job, as a reader should see it.
        request: Its shape and options.
        slurm: Facts of the cluster.
    """
    whole = "--exclusive" in request.options
    answer = _test(request.options)
    if answer.ok:
        start = re.search(r"to start at (\S+)", answer.error)
        when = f"; it would start at {start[1]}" if start else ""
        return ok(f"Slurm takes {name} ({request.shape}{', whole nodes' if whole else ''}){when}")
    rest = [option for option in request.options if option != "--exclusive"]
    if whole and slurm.exclusive is None and _test(rest).ok:
        return bad(
            f"Slurm refuses whole nodes for {name} ({request.shape}): {answer.error}",
            "Write `exclusive: false` below `slurm:` in the site file. Jobs on a part of a node then run one "
            "at a time, next to jobs of others.",
        )
    sent = f"The request was: sbatch {shlex.join(request.options)}."
    return bad(
        f"Slurm refuses {name} ({request.shape}): {answer.error}",
        f"{_fix(answer.error, request, slurm)} {sent}{_nodes_in(slurm.partition)}",
    )


def _test(options: Sequence[str]) -> Answer:
    return ask("sbatch", "--test-only", *options, "--wrap=true")


def _fix(refusal: str, request: Request, slurm: Slurm) -> str:
    """Return an instruction for a request that Slurm refuses."""
    if re.search(r"\bqos\b", refusal, re.IGNORECASE):
        return 'Add the QOS to slurm.extra, as ["--qos=NAME"].'
    if slurm.partition:
        facts = record(ask("scontrol", "--oneliner", "show", "partition", slurm.partition).text)
        fewest = number(facts, "MinNodes") or 1
        if request.shape.nodes < fewest:
            return (
                f"Partition {slurm.partition} takes jobs of {fewest} nodes or more (MinNodes): leave out the "
                "smaller device counts, or use another partition."
            )
    return "Correct the site file, or add what is missing to slurm.extra."


def _nodes_in(partition: str | None) -> str:
    """Return a sentence on the nodes that the cluster or a partition has; empty if unknown."""
    named = [f"--partition={partition}"] if partition else []
    kinds = ask("sinfo", "--noheader", *named, "--format=%R: %D nodes with %c CPUs, %m MB, %G").text
    return f" There are: {'; '.join(kinds.splitlines())}." if kinds else ""
