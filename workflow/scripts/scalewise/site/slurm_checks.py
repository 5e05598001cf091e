"""Check a site's facts with Slurm's commands, on the login node before the first job."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Iterator, Mapping

from scalewise.config.errors import name_all
from scalewise.config.shape import Shape
from scalewise.config.site import NOT_FOUND
from scalewise.config.slurm import Slurm, duration_seconds
from scalewise.plan.formatting import pluralize
from scalewise.site.commands import ask, missing_commands
from scalewise.site.preflight import Finding, Preflight, bad, ok, unknown
from scalewise.site.reported import parse_gpus, record

LONGEST_POLL_SECONDS = 180
"""Longest time between two status queries of the executor plugin, while no job ends."""
SUBMISSION_COMMANDS = ("sbatch", "squeue", "scancel")
"""Slurm's commands without which no job can be sent and watched."""


def check_sites(preflights: Mapping[str, Preflight]) -> Iterator[Finding]:
    """Check every fact that Slurm knows of a site, or of each of its partitions by its name."""
    seen: set[Finding] = set()
    for partition, preflight in preflights.items():
        if partition:
            yield ok(f"partition {partition} of the site file:")
        for finding in check_site(preflight):
            if finding not in seen:
                yield finding
            seen.add(finding)


def check_site(preflight: Preflight) -> Iterator[Finding]:
    """Check every fact of the site that Slurm knows."""
    slurm = preflight.slurm
    if slurm is None:
        yield ok("one machine without a scheduler")
        return
    if missing := missing_commands(*SUBMISSION_COMMANDS, "srun", "sinfo"):
        fix = "Go to a login node of the cluster, or load its Slurm module."
        yield bad(f"{', '.join(missing)} not on PATH", fix)
        return
    version = ask("sbatch", "--version")
    yield ok(f"commands of {version.text or 'Slurm'}")
    yield from _check_account(slurm)
    yield from _check_partitions(slurm, preflight.longest_minutes)
    yield from _check_reservation(slurm)
    yield from _check_nodes(slurm, preflight)
    yield from _check_memory_of_jobs()
    for name in preflight.not_found:
        yield unknown(f"{name}: the site command did not find it. {NOT_FOUND[name]}")
    yield _check_acceptance("the largest job", preflight.shape, preflight.options, slurm)
    if preflight.part is not None:
        on_a_part = "the largest job on a part of a node"
        yield _check_acceptance(on_a_part, preflight.part.shape, preflight.part.options, slurm)


def _check_account(slurm: Slurm) -> Iterator[Finding]:
    user = getpass.getuser()
    fields = "format=account%100,qos%1000"
    answer = ask("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", fields)
    rows = [line.split("|") for line in answer.text.splitlines() if "|" in line]
    accounts = {row[0] for row in rows}
    if not rows:
        why = answer.error or "accounting names no account of yours"
        yield unknown(f"account and QoS could not be looked up ({why})")
        return
    if slurm.account is None:
        yield ok(f"account left to Slurm; yours are {', '.join(sorted(accounts))}")
    elif slurm.account.lower() in {name.lower() for name in accounts}:
        yield ok(f"account {slurm.account}")
    else:
        fix = f"Set slurm.account to one of yours. {name_all(accounts)}"
        yield bad(f"account {slurm.account} is not yours", fix)
        return
    if slurm.qos is None:
        return
    allowed = {
        qos
        for name, listed in rows
        if slurm.account is None or name.lower() == slurm.account.lower()
        for qos in listed.split(",")
        if qos
    }
    if slurm.qos in allowed:
        yield ok(f"QoS {slurm.qos}")
    elif allowed:
        fix = f"Set slurm.qos to one of them. {name_all(allowed)}"
        yield bad(f"QoS {slurm.qos} is not open to your account", fix)
    else:
        yield unknown(f"QoS {slurm.qos}: accounting lists none of yours")


def _check_partitions(slurm: Slurm, longest_minutes: int) -> Iterator[Finding]:
    if slurm.partition is None:
        yield ok("partition left to Slurm")
    else:
        for name in slurm.partition.split(","):
            yield _check_partition(name, longest_minutes)
    if (tests := slurm.test_partition) is not None and tests.name is not None:
        yield _check_partition(tests.name, (duration_seconds(tests.longest_walltime) or 0) // 60, tests=True)


def _check_partition(name: str, minutes: int, *, tests: bool = False) -> Finding:
    """Check that a partition is there and that its jobs may take so long.

    Args:
        name: The partition.
        minutes: Minutes of the longest job, or of what the site file states for ``tests``.
        tests: Whether the partition is the site's test_partition.
    """
    answer = ask("scontrol", "--oneliner", "show", "partition", name)
    facts = record(answer.text)
    if not answer.ok or facts.get("PartitionName") != name:
        key = "slurm.test_partition.name" if tests else "slurm.partition"
        known = set(ask("sinfo", "--noheader", "--format=%R").text.splitlines())
        return bad(f"partition {name} does not exist", f"Set {key} to one of them. {name_all(known)}")
    if facts.get("State", "UP") != "UP":
        return bad(f"partition {name} is {facts['State']}", "Wait, or use another.")
    longest = facts.get("MaxTime", "UNLIMITED")
    limit = duration_seconds(longest)
    if limit is None or minutes * 60 <= limit:
        return ok(f"partition {name}, jobs up to {facts.get('MaxTime', 'any time')}")
    if tests:
        return bad(
            f"partition {name} ends jobs after {longest}, and the site file states {minutes} minutes",
            f'Set slurm.test_partition.longest_walltime to "{longest}".',
        )
    return bad(
        f"partition {name} ends jobs after {longest}, and the longest requests {minutes} minutes",
        f'Set slurm.longest_walltime to "{longest}": longer runs then take several jobs.',
    )


def _check_reservation(slurm: Slurm) -> Iterator[Finding]:
    if slurm.reservation is None:
        return
    answer = ask("scontrol", "--oneliner", "show", "reservation", slurm.reservation)
    if answer.ok and f"ReservationName={slurm.reservation} " in f"{answer.text} ":
        yield ok(f"reservation {slurm.reservation}")
    else:
        fix = "Correct or remove slurm.reservation."
        yield bad(f"reservation {slurm.reservation} does not exist now", fix)


def _check_nodes(slurm: Slurm, preflight: Preflight) -> Iterator[Finding]:
    """Check that the partition has nodes as in the site file, with GPU types in Slurm's spelling."""
    partition = [f"--partition={slurm.partition}"] if slurm.partition else []
    answer = ask("sinfo", "--noheader", *partition, "--format=%D|%c|%m|%G|%f")
    rows = [line.split("|") for line in answer.text.splitlines() if line.count("|") == 4]
    if not rows:
        yield unknown(f"the partition's nodes could not be looked up ({answer.error})")
        return
    needed_nodes, devices = preflight.shape.nodes, preflight.shape.devices_per_node
    requests_gpus = slurm.gpu_request != "none" and (
        slurm.gpu_request is not None or preflight.accelerator == "cuda"
    )
    gpu_type = f"gpu:{slurm.gpu_type}" if slurm.gpu_type else "gpu"
    fitting = 0
    for nodes, cpus, memory, gres, _ in rows:
        enough = int(re.sub(r"\D", "", cpus)) >= preflight.cpus_per_node
        enough &= int(re.sub(r"\D", "", memory)) >= preflight.memory_mb_per_node
        enough &= not requests_gpus or _gpus(gres, slurm.gpu_type) >= devices
        fitting += int(nodes) if enough else 0
    needs = f"{preflight.cpus_per_node} CPUs, {preflight.memory_mb_per_node} MB" + (
        f" and {gpu_type}:{devices}" if requests_gpus else ""
    )
    nodes_found = pluralize(str(fitting), "node")
    if fitting >= needed_nodes:
        yield ok(f"{nodes_found} with {needs} or more; the largest run takes {needed_nodes}")
    else:
        present = "; ".join(
            f"{nodes} with {cpus} CPUs, {memory} MB, {gres}" for nodes, cpus, memory, gres, _ in rows
        )
        have = "has" if fitting == 1 else "have"
        yield bad(
            f"{nodes_found} {have} {needs}, and the largest run takes {needed_nodes}. There are: {present}",
            "Correct devices_per_node, cpus_per_node, memory_gb_per_node or gpu_type in the site file.",
        )


def _gpus(gres: str, kind: str | None) -> int:
    """Count the GPUs of a node, of one type or of all, from the output of sinfo."""
    found = parse_gpus(gres)
    return sum(found.values()) if kind is None else found.get(kind, 0)


def _check_memory_of_jobs() -> Iterator[Finding]:
    """Check that the controller keeps ended jobs until snakemake queries their status."""
    age = job_memory_seconds()
    if age is None:
        yield unknown("MinJobAge could not be looked up")
    elif age < LONGEST_POLL_SECONDS:
        yield unknown(
            f"Slurm forgets jobs {age} s after their end (MinJobAge), and snakemake may look only every "
            f"{LONGEST_POLL_SECONDS} s: set slurm-status-command to sacct in the profile, and end jobs "
            "by Ctrl-C, not by scancel, which the executor plugin does not recognise there"
        )


def job_memory_seconds() -> int | None:
    """Return the seconds for which the controller keeps an ended job; None if unknown."""
    match = re.search(r"MinJobAge\s*=\s*(\d+)", ask("scontrol", "show", "config").text)
    return int(match[1]) if match else None


def _check_acceptance(name: str, shape: Shape, options: list[str], slurm: Slurm) -> Finding:
    """Check that Slurm accepts a job, and report when it would start.

    Args:
        name: The job, as a reader should see it.
        shape: Nodes and devices of the job.
        options: Arguments of sbatch.
        slurm: Facts of the cluster.
    """
    whole = "--exclusive" in options
    answer = ask("sbatch", "--test-only", *options, "--wrap=true")
    if answer.ok:
        start = re.search(r"to start at (\S+)", answer.error)
        when = f"; it would start at {start[1]}" if start else ""
        return ok(f"Slurm takes {name} ({shape}{', whole nodes' if whole else ''}){when}")
    reason = answer.error.removeprefix("allocation failure: ")
    rest = [option for option in options if option != "--exclusive"]
    if whole and slurm.exclusive is None and ask("sbatch", "--test-only", *rest, "--wrap=true").ok:
        return bad(
            f"Slurm refuses whole nodes for {name} ({shape}): {reason}",
            "Write `exclusive: false` below `slurm:` in the site file. Jobs on a part of a node then run one "
            "at a time, next to jobs of others.",
        )
    return bad(
        f"Slurm refuses {name}: {reason}",
        f"The request was: sbatch {shlex.join(options)}. Correct the site file.",
    )
