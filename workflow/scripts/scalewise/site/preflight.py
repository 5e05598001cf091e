"""The preflight of a study: its requests, and what Slurm's commands answer on them before a job is sent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from scalewise.config.shape import Shape
from scalewise.config.site import Site
from scalewise.config.slurm import Slurm
from scalewise.plan.plan_file import Plan, Value
from scalewise.plan.runs.allocation import sbatch_options
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.site.cluster import Facts, parse_config, read_accounts
from scalewise.site.commands import SUBMISSION_COMMANDS, Answer, ask, missing_commands

LONGEST_POLL_SECONDS = 180
"""Longest time between two status queries of the executor plugin, while no job ends."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        state: ``unknown`` if the check has no answer, ``bad`` if a study cannot run before it is fixed.
        text: The result, as a clause.
        fix: An instruction, as a sentence; empty if nothing is wrong.
    """

    state: Literal["ok", "bad", "unknown"]
    text: str
    fix: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok", "bad": "NOT OK", "unknown": "?"}[self.state]
        return f"{mark:<7} {self.text}{f'. {self.fix}' if self.fix else ''}"


ok, bad, unknown = partial(Finding, "ok"), partial(Finding, "bad"), partial(Finding, "unknown")


@dataclass(frozen=True)
class Preflight:
    """What a preflight checks on a partition.

    Args:
        site: The partition's facts.
        run: The largest run there.
        requests: Resources of the largest run, with the time of the longest one, and those of the smallest
            one, by their shapes.
        datasets: Paths of the prepared files that every rank must be able to read.
    """

    site: Site
    run: RunDefinition
    requests: Mapping[str, Mapping[str, Value]]
    datasets: Sequence[str]

    @property
    def slurm(self) -> Slurm | None:
        """Facts of the cluster; None for one machine."""
        return self.site.slurm

    @property
    def shape(self) -> Shape:
        """The shape of the largest run."""
        return self.run.shape

    @property
    def options(self) -> list[str]:
        """Options of sbatch for the largest run."""
        return sbatch_options(self.requests[str(self.shape)])

    @classmethod
    def of(cls, plan: Plan, partition: str) -> Preflight:
        """Find the largest and the smallest run of a study on a partition."""
        jobs = [job for runs in plan["runs"].values() for job in runs.values() if job["site"] == partition]
        runs = [(RunDefinition.model_validate_json(job["definition"]), job["resources"]) for job in jobs]
        runs.sort(key=lambda each: (each[0].shape.world_size, each[0].settings.cpus_per_device))
        (smallest, least), (largest, most) = runs[0], runs[-1]
        minutes = max(int(resources["runtime"]) for _, resources in runs)
        return cls(
            site=Site.model_validate_json(plan["sites"][partition]),
            run=largest,
            requests={str(largest.shape): {**most, "runtime": minutes}}
            | ({} if smallest.shape == largest.shape else {str(smallest.shape): least}),
            datasets=sorted({str(job["inputs"]["dataset"]) for job in jobs if job["inputs"]["dataset"]}),
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
    for name, (shape, resources) in zip(("largest", "smallest"), preflight.requests.items(), strict=False):
        yield _check_request(f"the {name} job ({shape}", sbatch_options(resources), slurm)


def _check_account(slurm: Slurm, config: Facts) -> Finding:
    """Check that the user's account may use the partition, by accounting's rows of this cluster."""
    accounts, partition = read_accounts(config), slurm.partition
    if accounts.unknown:
        return unknown(f"the account could not be looked up ({accounts.unknown})")
    usable = accounts.usable_in(partition) if partition else {row["account"] for row in accounts.rows}
    where = f" in partition {partition}" if partition else ""
    listed = ", ".join(sorted(usable)) or "none"
    if slurm.account is None:
        return ok(f"account left to Slurm: {accounts.default or 'unknown'}; yours{where} are {listed}")
    # Slurm keeps names of accounts in small letters
    if slurm.account.lower() in map(str.lower, usable):
        return ok(f"account {slurm.account}{where}")
    fix = f"Set slurm.account to one of yours: {listed}."
    return bad(f"account {slurm.account} is not yours{where}", fix)


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


def _check_request(job: str, options: Sequence[str], slurm: Slurm) -> Finding:
    """Check that Slurm accepts a job, and report when it would start.

    Args:
        job: Its name, with an open bracket.
        options: Its options of sbatch.
        slurm: Facts of the cluster.
    """
    answer = _test(options)
    if answer.ok:
        start = re.search(r"to start at (\S+)", answer.error)
        whole = ", whole nodes" if "--exclusive" in options else ""
        return ok(f"Slurm takes {job}{whole}){f'; it would start at {start[1]}' if start else ''}")
    shared = [option for option in options if option != "--exclusive"]
    if shared != list(options) and slurm.exclusive is None and _test(shared).ok:
        return bad(
            f"Slurm refuses whole nodes for {job}): {answer.error}",
            "Write `exclusive: false` below `slurm:` in the site file. Jobs on a part of a node then run one "
            "at a time, next to jobs of others.",
        )
    fix = "Correct the site file, or add what is missing to slurm.extra."
    if re.search(r"\bqos\b", answer.error, re.IGNORECASE):
        fix = 'Add the QOS to slurm.extra, as ["--qos=NAME"].'
    place = [f"--partition={slurm.partition}"] if slurm.partition else []
    form = "--format=%R: %D nodes with %c CPUs, %m MB, %G; jobs of %s nodes, at most %l"
    kinds = ask("sinfo", "--noheader", *place, form).text.splitlines()
    there = f" There are: {'; '.join(kinds)}." if kinds else ""
    sent = f"The request was: sbatch {shlex.join(options)}."
    return bad(f"Slurm refuses {job}): {answer.error}", f"{fix} {sent}{there}")


def _test(options: Sequence[str]) -> Answer:
    return ask("sbatch", "--test-only", *options, "--wrap=true")
