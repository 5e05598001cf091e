"""The rank of a program, in whose record the machine is quiet.

    python quiet_program_rank.py PYTHON path/to/program_rank.py ATTEMPT

Tests run at the same time as others: no run of theirs is set apart, or measured again, for the load of the
machine. The rank starts its program by PYTHON, which may have torch loaded already.
"""

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    sys.executable, script = sys.argv[1:3]
    sys.path[0] = str(Path(script).parent)
    if "COUNTS_OTHERS" not in os.environ:
        from scalewise.ranks.results import write as records  # noqa: PLC0415  found by the path above

        vars(records)["other_cpu_fraction"] = lambda _ranks: 0.0
    sys.argv = sys.argv[2:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
