"""A Slurm that writes down how each job is asked for, and then refuses it: no test need wait for an end."""

import json
import sys
from pathlib import Path

from tests.stand_ins import stand_ins

SBATCH = """\
import json, os, sys
record = os.open({record!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
plan = os.environ.get("SCALEWISE_PLAN", "")
os.write(record, (json.dumps([sys.argv, {{"SCALEWISE_PLAN": plan}}]) + "\\n").encode())
sys.exit("sbatch: error: this one only writes down")"""

# A cluster has a default partition. With this variable, sinfo shows that partition alone.
SINFO = """\
echo PARTITION
case "${SINFO_PARTITION-all}" in all) echo "the-default*"; echo gpu ;; esac"""

# what the plugin calls ends in `| tail -1`, without a shell
SACCT = """\
echo "sacct: invalid option -- '1'" >&2
exit 1"""


def recording_slurm(programs: Path, account: str) -> Path:
    """Add the commands to PATH; returns the file that gets the arguments of each sbatch."""
    record = programs / "sbatch.jsonl"
    stand_ins(
        programs,
        {
            "squeue": "exit 0",
            "sinfo": SINFO,
            "sacct": SACCT,
            "sacctmgr": f"echo {account}",
            "sshare": f"echo {account}",
            "scontrol": "echo 'MinJobAge = 300 sec'",
            "scancel": "exit 0",
        },
    )
    stand_ins(programs, {"sbatch": SBATCH.format(record=str(record))}, f"{sys.executable} -SE")
    return record


def submissions(record: Path) -> list[list[str]]:
    """The arguments of every sbatch, in the order of the submissions."""
    return [arguments for arguments, _ in submitted_jobs(record)]


def submitted_jobs(record: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Return the arguments of every sbatch, and the plan that its job reads."""
    lines = record.read_text(encoding="utf-8").splitlines()
    return [(arguments, environment) for arguments, environment in map(json.loads, lines)]
