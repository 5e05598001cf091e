"""The hello job: its ranks are started where a training's would be, and say what they found."""

from __future__ import annotations

from pathlib import Path

from scalewise.execution.preflight_report import DATASETS, RANK_REPORT, PreflightReport, check_report, sizes
from scalewise.execution.rank_command import command_for, rank_setup_for
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.supervisor import RankGroup, failure_reason, supervise
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.jobs.preflight import Findings, Preflight, bad, ok
from scalewise.plan.plan_file import Plan
from scalewise.records import write_json, write_text


def run_hello_job(plan: Plan, log: Path, output: Path) -> None:
    """Start the ranks of the study's largest shape, and write what they found.

    Args:
        plan: The study's.
        log: Receives what the ranks print.
        output: Receives ``Findings``, also if the ranks ended without a result.
    """
    preflight, limits = Preflight.model_validate(plan["preflight"]), plan["hello"]["limits"]
    shape, start = preflight.shape, SiteLaunch.model_validate(plan["launch"])
    rank_files = RankFiles(output.parent / "attempt")
    visible = [Path(path).resolve().parent for path in preflight.datasets]
    launch = command_for(preflight, start, rank_files, visible)
    rank_files.begin(rank_setup_for(preflight, start, limits["timeout_seconds"], "hello"))
    write_text(rank_files.folder / DATASETS, "\n".join(preflight.datasets))
    rank_group = RankGroup(
        label="hello",
        rank_files=rank_files,
        launch=launch,
        world_size=shape.world_size,
        log=log,
        limit_seconds=limits["limit_seconds"],
        fix="Look for what is slow in the log: imports, the container, the network.",
    )
    ended = supervise(rank_group)
    report = rank_files.folder / RANK_REPORT
    if ended.code == 0 and report.exists():
        met = PreflightReport.model_validate_json(report.read_text(encoding="utf-8"))
        findings = list(check_report(met, preflight, sizes(preflight.datasets)))
    else:
        why = failure_reason(rank_group, ended, rank_files.root_cause(shape.world_size))
        fix = f"The ranks' output is in {log}."
        findings = [bad(f"the hello job over {shape} ended without a result: {why}", fix)]
    if start.container is not None and ended.code == 0:
        findings.append(ok(f"container {start.container.image}"))
    rank_files.end()
    write_json(output, Findings(findings=findings))
