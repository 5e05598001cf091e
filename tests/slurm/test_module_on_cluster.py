"""A workflow that uses Scalewise as a module, on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

from tests.slurm.lab import Lab
from tests.slurm.study import LIMIT_SECONDS, ONE_RANK_A_NODE, ROOT, ClusterStudy

PARENT = f"""
module scalewise:
    snakefile: "{ROOT / "workflow" / "Snakefile"}"
    config: config

use rule * from scalewise as scaling_*

rule mine:
    default_target: True
    input: "results/report.html"
    output: "mine.txt"
    localrule: True
    shell: "echo > {{output}}"
"""


def test_a_study_as_a_module_is_shown_requeued_after_preemption_and_reported(
    study: ClusterStudy, lab: Lab, preloaded_python: Path
) -> None:
    study.snakefile = study.folder / "Snakefile"
    study.snakefile.write_text(PARENT, encoding="utf-8")
    # at a walk until it has been preempted
    walks = 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then export PERIL_PAUSE=0.15; fi'
    long = {"model": "planted_perilous", "devices": [2], "epochs": 60, "checkpoint_minutes": 0.02}
    # Slurm ends the jobs of this partition for others, and requeues none
    study.configure(
        {"own": long},
        **ONE_RANK_A_NODE,
        slurm={"partition": "fragile"},
        python=str(preloaded_python),
        prelude=[walks],
    )
    process = study.start()
    study.wait_checkpoint("own", "d2.r1")
    other = lab.run(
        *("sbatch", "--parsable", "--exclusive", "--nodes=4", "--output=/dev/null", "--wrap=sleep 1")
    ).stdout.strip()
    lab.wait(other, "COMPLETED")

    output, _ = process.communicate(timeout=LIMIT_SECONDS)

    assert process.returncode == 0, output
    assert "1 of 1 runs done" in output
    assert "was preempted or lost its node and had ended; it is back in the queue" in output
    summary = study.summary("own", "d2.r1")
    assert summary.provenance is not None
    assert summary.provenance.restart_count == 1
    (decision,) = json.loads(Path(study.folder / "results" / "decision.json").read_text(encoding="utf-8"))
    assert f"own: {decision['card']['verdict']}" in output
    assert (study.folder / "mine.txt").exists()
