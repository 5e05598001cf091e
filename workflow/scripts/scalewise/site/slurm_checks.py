"""Check a study's requests with Slurm's commands, on the login node before the first job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from scalewise.config.slurm import Slurm
from scalewise.site.cluster import parse_config, read_accounts
from scalewise.site.commands import SUBMISSION_COMMANDS, ask, missing_commands
from scalewise.site.preflight import Finding, Preflight, Request, bad, ok, unknown

LONGEST_POLL_SECONDS = 180
"""Longest time between two status queries of the executor plugin, while no job ends."""


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
    yield _check_acceptance(
        "the largest job", Request(shape=preflight.shape, options=preflight.options), slurm
    )
    if preflight.smallest is not None:
        yield _check_acceptance("the smallest job", preflight.smallest, slurm)


def _check_account(slurm: Slurm, config: Mapping[str, str]) -> Finding:
    """Check that the user's account may use the partition, by accounting's rows of this cluster."""
    accounts = read_accounts(config)
    if accounts.unknown:
        return unknown(f"the account could not be looked up ({accounts.unknown})")
    if slurm.partition is None:
        usable = {each.account for each in accounts.associations}
    else:
        usable = set(accounts.usable_in(slurm.partition))
    where = f" in partition {slurm.partition}" if slurm.partition else ""
    listed = ", ".join(sorted(usable)) or "none"
    if slurm.account is None:
        return ok(f"account left to Slurm: {accounts.default or 'unknown'}; yours{where} are {listed}")
    # Slurm keeps names of accounts in small letters
    if slurm.account.lower() in {name.lower() for name in usable}:
        return ok(f"account {slurm.account}{where}")
    return bad(
        f"account {slurm.account} is not yours{where}", f"Set slurm.account to one of yours: {listed}."
    )


def _check_memory_of_jobs(config: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the controller keeps ended jobs until snakemake queries their status."""
    age = job_memory_seconds(config)
    if age is None:
        yield unknown("MinJobAge could not be looked up")
    elif age < LONGEST_POLL_SECONDS:
        yield unknown(
            f"Slurm forgets jobs {age} s after their end (MinJobAge), and snakemake may look only every "
            f"{LONGEST_POLL_SECONDS} s: set slurm-status-command to sacct in the profile, and end jobs "
            "by Ctrl-C, not by scancel, which the executor plugin does not recognise there"
        )


def job_memory_seconds(config: Mapping[str, str]) -> int | None:
    """Return the seconds for which the controller keeps an ended job; None if unknown."""
    match = re.match(r"(\d+)", config.get("MinJobAge", ""))
    return int(match[1]) if match else None


def _check_acceptance(name: str, request: Request, slurm: Slurm) -> Finding:
    """Check that Slurm accepts a job, and report when it would start.

    Args:
        name: The job, as a reader should see it.
        request: Its shape and options.
        slurm: Facts of the cluster.
    """
    whole = "--exclusive" in request.options
    answer = ask("sbatch", "--test-only", *request.options, "--wrap=true")
    if answer.ok:
        start = re.search(r"to start at (\S+)", answer.error)
        when = f"; it would start at {start[1]}" if start else ""
        return ok(f"Slurm takes {name} ({request.shape}{', whole nodes' if whole else ''}){when}")
    reason = answer.error
    rest = [option for option in request.options if option != "--exclusive"]
    if whole and slurm.exclusive is None and ask("sbatch", "--test-only", *rest, "--wrap=true").ok:
        return bad(
            f"Slurm refuses whole nodes for {name} ({request.shape}): {reason}",
            "Write `exclusive: false` below `slurm:` in the site file. Jobs on a part of a node then run one "
            "at a time, next to jobs of others.",
        )
    return bad(f"Slurm refuses {name} ({request.shape}): {reason}", _fix(reason, request, slurm))


def _fix(reason: str, request: Request, slurm: Slurm) -> str:
    """Return an instruction for a request that Slurm refuses, with the nodes that the cluster has."""
    sent = f"The request was: sbatch {shlex.join(request.options)}."
    if re.search(r"\bqos\b", reason, re.IGNORECASE):
        return f'Add the QOS to slurm.extra, as ["--qos=NAME"]. {sent}'
    fix = "Correct the site file, or add what is missing to slurm.extra."
    partition = [f"--partition={slurm.partition}"] if slurm.partition else []
    facts = ask(
        "scontrol", "--oneliner", "show", "partition", *([slurm.partition] if slurm.partition else [])
    )
    fewest = re.search(r"\bMinNodes=(\d+)", facts.text) if slurm.partition else None
    if fewest is not None and request.shape.nodes < int(fewest[1]):
        return (
            f"Partition {slurm.partition} takes jobs of {fewest[1]} nodes or more (MinNodes): leave out the "
            f"smaller device counts, or use another partition. {sent}"
        )
    kinds = ask("sinfo", "--noheader", *partition, "--format=%R: %D nodes with %c CPUs, %m MB, %G").text
    present = f" There are: {'; '.join(kinds.splitlines())}." if kinds else ""
    return f"{fix} {sent}{present}"
