"""Check a site's facts with Slurm's commands, on the login node before the first job."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from scalewise.plan.config.errors import name_all
from scalewise.plan.config.slurm import Slurm, duration_seconds
from scalewise.plan.jobs.preflight import Finding, Preflight, bad, ok, unknown

LONGEST_POLL_SECONDS = 180
"""Longest time between two status queries of the executor plugin, while no job ends."""
SUBMISSION_COMMANDS = ("sbatch", "squeue", "scancel")
"""Slurm's commands without which no job can be sent and watched."""


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
    version = _run("sbatch", "--version")
    yield ok(f"commands of {version.text or 'Slurm'}")
    yield from _check_account(slurm)
    yield from _check_partition(slurm, preflight.longest_minutes)
    yield from _check_reservation(slurm)
    yield from _check_nodes(slurm, preflight)
    yield from _check_memory_of_jobs()
    yield _check_acceptance(preflight)


def missing_commands(*names: str) -> list[str]:
    """Return the commands that are not on PATH."""
    return [name for name in names if shutil.which(name) is None]


@dataclass(frozen=True)
class _Answer:
    text: str
    error: str
    ok: bool


def _run(*command: str) -> _Answer:
    # SINFO_PARTITION hides the partitions from the executor plugin, not from these checks
    environ = {name: value for name, value in os.environ.items() if name != "SINFO_PARTITION"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environ | {"LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _Answer("", str(error), False)
    return _Answer(done.stdout.strip(), " ".join(done.stderr.split()), done.returncode == 0)


def _check_account(slurm: Slurm) -> Iterator[Finding]:
    user = getpass.getuser()
    fields = "format=account%100,qos%1000"
    answer = _run("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", fields)
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


def _check_partition(slurm: Slurm, longest_minutes: int) -> Iterator[Finding]:
    if slurm.partition is None:
        yield ok("partition left to Slurm")
        return
    for name in slurm.partition.split(","):
        answer = _run("scontrol", "--oneliner", "show", "partition", name)
        facts = dict(word.split("=", 1) for word in answer.text.split() if "=" in word)
        if not answer.ok or facts.get("PartitionName") != name:
            known = set(_run("sinfo", "--noheader", "--format=%R").text.splitlines())
            fix = f"Set slurm.partition to one of them. {name_all(known)}"
            yield bad(f"partition {name} does not exist", fix)
            continue
        if facts.get("State", "UP") != "UP":
            fix = "Wait, or use another."
            yield bad(f"partition {name} is {facts['State']}", fix)
            continue
        limit = duration_seconds(facts.get("MaxTime", "UNLIMITED"))
        if limit is not None and longest_minutes * 60 > limit:
            yield bad(
                f"partition {name} ends jobs after {facts['MaxTime']}, and the longest requests "
                f"{longest_minutes} minutes",
                f'Set slurm.longest_walltime to "{facts["MaxTime"]}": longer runs then take several jobs.',
            )
        else:
            yield ok(f"partition {name}, jobs up to {facts.get('MaxTime', 'any time')}")


def _check_reservation(slurm: Slurm) -> Iterator[Finding]:
    if slurm.reservation is None:
        return
    answer = _run("scontrol", "--oneliner", "show", "reservation", slurm.reservation)
    if answer.ok and f"ReservationName={slurm.reservation} " in f"{answer.text} ":
        yield ok(f"reservation {slurm.reservation}")
    else:
        fix = "Correct or remove slurm.reservation."
        yield bad(f"reservation {slurm.reservation} does not exist now", fix)


def _check_nodes(slurm: Slurm, preflight: Preflight) -> Iterator[Finding]:
    """Check that the partition has nodes as in the site file, with GPU types in Slurm's spelling."""
    partition = [f"--partition={slurm.partition}"] if slurm.partition else []
    answer = _run("sinfo", "--noheader", *partition, "--format=%D|%c|%m|%G|%f")
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
    if fitting >= needed_nodes:
        yield ok(f"{fitting} nodes with {needs} or more; the largest run takes {needed_nodes}")
    else:
        present = "; ".join(
            f"{nodes} with {cpus} CPUs, {memory} MB, {gres}" for nodes, cpus, memory, gres, _ in rows
        )
        yield bad(
            f"{fitting} nodes have {needs}, and the largest run takes {needed_nodes}. There are: {present}",
            "Correct devices_per_node, cpus_per_node, memory_gb_per_node or gpu_type in the site file.",
        )


def _gpus(gres: str, kind: str | None) -> int:
    """Count the GPUs of a node from the output of sinfo, such as ``gpu:h100:4(S:0-1),nvme:1``."""
    total = 0
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = entry.split(":")
        if name != "gpu" or not rest or not rest[-1].isdigit():
            continue
        if kind is None or rest[:-1] == [kind]:
            total += int(rest[-1])
    return total


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
    match = re.search(r"MinJobAge\s*=\s*(\d+)", _run("scontrol", "show", "config").text)
    return int(match[1]) if match else None


def _check_acceptance(preflight: Preflight) -> Finding:
    """Check that Slurm accepts the largest job, and report when it would start."""
    answer = _run("sbatch", "--test-only", *preflight.options, "--wrap=true")
    if answer.ok:
        start = re.search(r"to start at (\S+)", answer.error)
        when = f"; it would start at {start[1]}" if start else ""
        return ok(f"Slurm takes the largest job ({preflight.shape}){when}")
    reason = answer.error.removeprefix("allocation failure: ")
    return bad(
        f"Slurm refuses the largest job: {reason}",
        f"The request was: sbatch {shlex.join(preflight.options)}. Correct the site file.",
    )
