"""A study on several partitions: its plan, its preflight, and it as a module of another workflow."""

from __future__ import annotations

import re

from tests.workflow.conftest import Workplace
from tests.workflow.test_compared_partitions import TINY, TINY_SITE
from tests.workflow.test_module_reuse import PARENT


def test_the_plan_of_a_study_on_partitions_shows_the_runs_of_each(workplace: Workplace) -> None:
    plan = workplace.snakemake("-n", config=TINY, site=TINY_SITE)

    assert plan.code == 0, plan.text
    assert re.findall(r"^(\S+)/d1\.r1-2 ", plan.text, re.MULTILINE) == ["digits@one", "digits@other"]
    assert "4 runs" in plan.text
    assert {"train", "compute_scaling", "compare_partitions"} <= plan.rules
    assert not (workplace.folder / "results").exists()


def test_the_preflight_starts_ranks_on_each_partition(workplace: Workplace) -> None:
    plan = workplace.snakemake("-n", "preflight", config=TINY, site=TINY_SITE)

    assert plan.code == 0, plan.text
    for partition in ("one", "other"):
        assert f"results/preflight/hello@{partition}.json" in plan.text
    assert "results/preflight/hello.json" not in plan.text


def test_an_unknown_partition_is_refused_with_its_line(workplace: Workplace) -> None:
    refused = workplace.snakemake("-n", config=TINY.replace(": all", ": [one, othr]"), site=TINY_SITE)

    assert refused.code == 1
    assert "study.yaml:8: experiments.digits.partitions[1] is 'othr'" in refused.text
    assert "Did you mean 'other'?" in refused.text
    assert "Traceback" not in refused.text


def test_a_module_plans_the_runs_of_each_partition(workplace: Workplace) -> None:
    indented = "".join(f"  {line}\n" for line in TINY.splitlines())
    (workplace.folder / "parent.yaml").write_text(f"scaling:\n  site: site.yaml\n{indented}")
    (workplace.folder / "site.yaml").write_text(TINY_SITE)
    (workplace.folder / "Snakefile").write_text(PARENT)
    plan = workplace.run(["snakemake", "-n", "--cores", "1"])

    assert plan.code == 0, plan.text
    assert "digits@one" in plan.text
    assert "digits@other" in plan.text
