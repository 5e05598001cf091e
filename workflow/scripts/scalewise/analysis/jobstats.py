"""Read what jobstats measured of the runs' jobs, from Slurm's accounting.

A site that runs jobstats (github.com/PrincetonUniversity/jobstats) keeps a summary of each job in the job's
AdminComment: ``JS1:`` and base64 of gzip of JSON, written after the job's end.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from scalewise.analysis.accounting import Accounting

MOST_BYTES = 4 << 20
"""Largest summary: one of 1,000 GPUs has a tenth of it."""

PREFIX = "JS1:"
_WITHOUT_DATA = {"Short": "the job was too short for jobstats", "None": "jobstats has no data of the job"}

JOBSTATS_COLUMNS = [
    "run", "series", "devices", "slurm_job_id", "gpus", "gpu_utilization", "lowest_gpu_utilization",
    "gpu_memory_bytes", "note",
]  # fmt: skip
"""Columns of jobstats.csv: means over the GPUs of a job, the least busy one, and the most memory of one."""


def jobstats_table(runs: pd.DataFrame, accounting: Accounting | None) -> pd.DataFrame:
    """Return a row for each run with a result that was a job; none on a site without Slurm.

    Args:
        runs: Rows of runs.csv.
        accounting: Slurm's records of the jobs; None on a site without Slurm.
    """
    if accounting is None or "slurm_job_id" not in runs:
        return pd.DataFrame(columns=JOBSTATS_COLUMNS)
    rows = []
    comments = {record.job: record.comment for record in accounting.records if record.comment}
    for _, run in runs[runs["slurm_job_id"].notna()].iterrows():
        # read_csv makes numbers of ids where a run has none
        job = str(run["slurm_job_id"]).removesuffix(".0")
        row = {"run": run["run"], "series": run["series"], "devices": run["devices"], "slurm_job_id": job}
        try:
            row |= (
                job_figures(read_summary(comments.get(job, "")))
                if not accounting.reason
                else {"note": accounting.reason}
            )
        except ValueError as error:
            row["note"] = f"not stated: {error}"
        rows.append(row)
    return pd.DataFrame(rows, columns=JOBSTATS_COLUMNS)


def read_summary(comment: str) -> Mapping[str, Any]:
    """Return jobstats' summary of a job.

    Raises:
        ValueError: There is none; the message is the reason, as a clause.
    """
    if not comment:
        raise ValueError("the job has no AdminComment")
    if comment.startswith(PREFIX.lower()):
        # then letters of base64 are lost
        raise ValueError("the job's AdminComment is in lower case, as sacctmgr before Slurm 23.02 writes it")
    if not comment.startswith(PREFIX):
        raise ValueError(f"the job's AdminComment does not begin with {PREFIX}")
    text = comment.removeprefix(PREFIX)
    if text in _WITHOUT_DATA:
        raise ValueError(_WITHOUT_DATA[text])
    try:
        unpacked = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        data = unpacked.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"jobstats' summary is damaged ({error})") from error
    if unpacked.unconsumed_tail:
        raise ValueError(f"jobstats' summary is longer than {MOST_BYTES >> 20} MiB")
    if not unpacked.eof:
        raise ValueError("jobstats' summary is damaged (its end is missing)")
    try:
        summary = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"jobstats' summary is damaged ({type(error).__name__})") from error
    if not isinstance(summary, dict) or not isinstance(summary.get("nodes"), dict):
        raise ValueError("jobstats' summary has no nodes")
    return summary


def job_figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a job's GPUs.

    Raises:
        ValueError: They are missing or impossible.
    """
    nodes = summary["nodes"].values()
    busy = [value / 100 for value in _of_gpus(nodes, "gpu_utilization", 100)]
    used = list(_of_gpus(nodes, "gpu_used_memory", 2**60))
    if not busy:
        raise ValueError("jobstats' summary names no GPU")
    return {
        "gpus": len(busy),
        "gpu_utilization": sum(busy) / len(busy),
        "lowest_gpu_utilization": min(busy),
        "gpu_memory_bytes": max(used, default=math.nan),
        "note": "",
    }


def _of_gpus(nodes: Any, name: str, most: float) -> Iterator[float]:
    """Yield a figure of each GPU of each node."""
    for node in nodes:
        values = node.get(name, {}) if isinstance(node, dict) else None
        if not isinstance(values, dict):
            raise ValueError(f"jobstats' summary has no {name} by GPU")
        for value in values.values():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
                raise ValueError(f"jobstats' summary has {str(value)[:40]} as a {name}")
            yield value
