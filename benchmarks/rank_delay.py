"""Write how long the batch script of this job of Slurm has run when its first task starts.

    rank_delay.py FILE

Needs Linux: all clocks are the kernel's, in seconds since it was booted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def batch_seconds(job: str) -> float:
    """Return the seconds since the batch script of a job began on this node."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            # behind the name, which may have spaces, the twentieth value is the start in clock ticks
            started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
        except OSError:
            continue
        if f"/job{int(job):05d}/slurm_script".encode() in command:
            now = float(Path("/proc/uptime").read_text().split()[0])
            return now - started / os.sysconf("SC_CLK_TCK")
    raise SystemExit(f"no batch script of job {job} on this node")


if __name__ == "__main__" and os.environ.get("SLURM_PROCID", "0") == "0":
    Path(sys.argv[1]).write_text(f"{batch_seconds(os.environ['SLURM_JOB_ID']):.2f}", encoding="utf-8")
