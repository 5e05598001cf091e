"""The preflight of a study: its requests, and what Slurm's commands answer on them before a job is sent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from scalewise.config.site import Site
from scalewise.plan.allocation import sbatch_options
from scalewise.plan.plan_file import Plan, Value
from scalewise.plan.run_definition import RunDefinition
from scalewise.site.cluster import Facts, parse_config, read_accounts
from scalewise.site.commands import SUBMISSION_COMMANDS, WHAT_IS_MISSING, ask, missing_commands, try_job

Request = Mapping[str, Value]
"""Resources of a job, as the executor plugin reads them."""
LONGEST_POLL_SECONDS = 180
"""Longest time between two status queries of the executor plugin, while no job ends."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        state: ``?`` if the check has no answer, ``NOT OK`` if a study cannot run before it is fixed.
        text: The result, as a clause.
        fix: An instruction, as a sentence; empty if nothing is wrong.
    """

    state: Literal["ok", "NOT OK", "?"]
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.state:<7} {self.text}{f'. {self.fix}' if self.fix else ''}"


ok, bad, unknown = partial(Finding, "ok"), partial(Finding, "NOT OK"), partial(Finding, "?")


@dataclass(frozen=True)
class Preflight:
    """What a preflight checks on a partition.

    Args:
        site: The partition's facts.
        run: The largest run there.
        requests: Resources of the largest run, with the time of the longest one, then those of the smallest
            one, by the names of their jobs.
        datasets: Paths of the prepared files that every rank must be able to read.
    """

    site: Site
    run: RunDefinition
    requests: Mapping[str, Request]
    datasets: Sequence[str]

    @classmethod
    def of(cls, plan: Plan, partition: str) -> Preflight:
        """Find the largest and the smallest run of a study on a partition."""
        jobs = [job for runs in plan["runs"].values() for job in runs.values() if job["site"] == partition]
        runs = [(RunDefinition.model_validate_json(job["definition"]), job["resources"]) for job in jobs]
        runs.sort(key=lambda each: (each[0].shape.world_size, each[0].settings.cpus_per_device))
        (smallest, least), (largest, most) = runs[0], runs[-1]
        minutes = max(int(resources["runtime"]) for _, resources in runs)
        requests = {f"the largest job ({largest.shape})": {**most, "runtime": minutes}}
        if smallest.shape != largest.shape:
            requests[f"the smallest job ({smallest.shape})"] = least
        datasets = sorted({str(job["inputs"]["dataset"]) for job in jobs if job["inputs"]["dataset"]})
        return cls(Site.model_validate_json(plan["sites"][partition]), largest, requests, datasets)


# ---- what Slurm answers before a job is sent


def check_site(preflight: Preflight) -> Iterator[Finding]:
    """Check that Slurm takes the study's requests; no job is sent."""
    if preflight.site.slurm is None:
        yield ok("one machine without a scheduler")
        return
    if missing := missing_commands(*SUBMISSION_COMMANDS, "srun", "scontrol"):
        fix = "Go to a login node of the cluster, or load its Slurm module."
        yield bad(f"{', '.join(missing)} not on PATH", fix)
        return
    yield ok(f"commands of {ask('sbatch', '--version').text or 'Slurm'}")
    config = parse_config(ask("scontrol", "show", "config").text)
    yield _check_account(next(iter(preflight.requests.values())), config)
    kept = re.match(r"\d+", config.get("MinJobAge", ""))
    if kept is not None and int(kept[0]) < LONGEST_POLL_SECONDS:
        yield unknown(
            f"Slurm forgets jobs {kept[0]} s after their end (MinJobAge), and snakemake may look only every "
            f"{LONGEST_POLL_SECONDS} s",
            "Set slurm-status-command to sacct in the profile, and end jobs by Ctrl-C, not by scancel.",
        )
    yield from (_check_request(job, request) for job, request in preflight.requests.items())


def _check_account(request: Request, config: Facts) -> Finding:
    """Check that the user's account may use the partition, by accounting's rows of this cluster."""
    accounts = read_accounts(config)
    if accounts.unknown:
        return unknown(f"the account could not be looked up ({accounts.unknown})")
    account, partition = (str(request.get(f"slurm_{name}", "")) for name in ("account", "partition"))
    usable = accounts.usable_in(partition)
    where = f" in partition {partition}" if partition else ""
    listed = ", ".join(sorted(usable)) or "none"
    if not account:
        return ok(f"account left to Slurm: {accounts.default or 'unknown'}; yours{where} are {listed}")
    # Slurm keeps names of accounts in small letters
    if account.lower() in map(str.lower, usable):
        return ok(f"account {account}{where}")
    return bad(f"account {account} is not yours{where}", f"Set slurm.account to one of yours: {listed}.")


def _check_request(job: str, request: Request) -> Finding:
    """Check that Slurm accepts a job, and report when it would start, or what its partition has."""
    options = sbatch_options(request)
    answer = try_job(options)
    if answer.ok:
        start = re.search(r"to start at (.+?) using", answer.error)
        return ok(f"Slurm takes {job}{f'; it would start at {start[1]}' if start else ''}")
    fix = WHAT_IS_MISSING
    if "--exclusive" in options:
        fix += (
            " If the site gives no whole nodes, write `exclusive: false` below `slurm:`: jobs on a part of a "
            "node then run one at a time, next to jobs of others."
        )
    place = [option for option in options if option.startswith("--partition=")]
    form = "--format=%R: %D nodes with %c CPUs, %m MB, %G; jobs of %s nodes, at most %l"
    kinds = "; ".join(ask("sinfo", "--noheader", *place, form).text.splitlines()) or "unknown"
    return bad(
        f"Slurm refuses {job}: {answer.error}",
        f"{fix} The request was: sbatch {shlex.join(options)}. Slurm has: {kinds}.",
    )
