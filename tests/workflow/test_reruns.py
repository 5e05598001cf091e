"""A change of the configuration trains what it defines, and nothing else."""

import os

from tests.workflow.workplace import SITE, TINY, FinishedStudy, Workplace

NOTHING = "Nothing to be done"


def test_what_defines_no_run_reruns_nothing(study: FinishedStudy) -> None:
    outcome = study.after(
        ("defaults:\n", "# a comment\ndefaults:\n"),
        ("title: First title", "title: Second title"),
        ("  model: linear\n  epochs: 2\n", "  epochs: 2\n  model: linear\n"),
        # seed has its default here
        ("  epochs: 2\n", "  epochs: 2\n  runtime_minutes: 7\n  memory_gb: 3\n  seed: 1\n"),
    )
    assert NOTHING in outcome.text


def test_an_addition_trains_only_the_new_runs(study: FinishedStudy) -> None:
    outcome = study.after(
        ("devices: [1]", "devices: [1, 2]"),
        ("[false]", "[false, true]"),
        ("  weak:\n", "  more:\n    global_batch_size: 128\n    repeats: 1\n  weak:\n"),
        ("per_device: 128\n    repeats: 1", "per_device: 128\n    repeats: 2"),
    )
    new = {f"strong/d{devices}.bucket-view-{view}.r{repeat}"
           for devices, view in ((2, "off"), (1, "on"), (2, "on")) for repeat in (1, 2)}  # fmt: skip
    assert outcome.trained == {*new, "more/d1.r1", "more/d2.r1", "weak/d1.r2", "weak/d2.r1", "weak/d2.r2"}


def test_only_forced_runs_are_trained_again_without_a_change_and_the_plan_warns(study: FinishedStudy) -> None:
    data, runs = (
        study.workplace.snakemake("-n", "--forcerun", rule, config=TINY)
        for rule in ("prepare_dataset", "train")
    )
    assert "prepare_dataset" in data.rules
    assert data.trained == set()
    assert len(runs.trained) == 3
    assert "finished runs are trained again: 3." in runs.text.splitlines()[-1]


def test_a_changed_target_makes_new_tables_but_no_training(study: FinishedStudy) -> None:
    outcome = study.after(("accuracy: 0.5", "accuracy: 0.6"))
    assert outcome.trained == set()
    assert "analyze" in outcome.rules


def test_a_changed_fact_of_the_site_writes_the_job_script_again_and_trains_nothing(
    study: FinishedStudy,
) -> None:
    outcome = study.workplace.snakemake("-n", config=TINY, site=SITE + "prelude: ['true']\n")
    assert outcome.code == 0, outcome.text
    assert outcome.rules == {"proposal", "all"}


def test_another_centre_and_a_proposal_that_is_requested_later_make_nothing_else(
    study: FinishedStudy,
) -> None:
    outcome = study.after(
        ("centre: ncar", "centre: nhr, unit_factor: 2"),
        ("repeats: 1\n", "repeats: 1\n    proposal: {centre: ncar}\n"),
    )
    assert outcome.rules == {"proposal", "all"}
    assert outcome.text.count("rule proposal:") == 2


PROGRAM = """\
import torch
from helper import features  # the model's input

model = torch.nn.Linear(features(), 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    optimizer.zero_grad()
    model(torch.randn(16, features())).sum().backward()
    optimizer.step()
"""
OWN = """\
experiments:
  own:
    title: First title
    program: train.py
    files: [settings.txt, helper.py]
    scaling: weak
    batch_size_per_device: 16
    devices: [1]
    steps: 20
    warmup_steps: 2
    repeats: 1
"""


def test_a_changed_file_of_a_program_trains_it_again_and_nothing_else(workplace: Workplace) -> None:
    folder, run = workplace.folder, "results/own/runs/d1.r1/record.json"
    (folder / "train.py").write_text(PROGRAM)
    (folder / "helper.py").write_text("def features():\n    return 8\n")
    (folder / "settings.txt").write_text("wide\n")
    (folder / "beside.py").write_text("# not named\n")
    first = workplace.snakemake(run, config=OWN)
    assert first.code == 0, first.text

    def trained(config: str = OWN) -> set[str]:
        outcome = workplace.snakemake("-n", run, config=config)
        assert outcome.code == 0, outcome.text
        return outcome.trained

    (folder / "beside.py").write_text("# still not named\n")
    os.utime(folder / "train.py")
    os.utime(folder / "helper.py")
    assert trained(OWN.replace("First", "Second")) == set()
    assert trained(OWN.replace("steps: 20", "steps: 21")) == {"own/d1.r1"}
    (folder / "settings.txt").write_text("deep\n")
    assert trained() == {"own/d1.r1"}
    (folder / "settings.txt").write_text("wide\n")
    assert trained() == set()
    (folder / "helper.py").write_text("def features():\n    return 9\n")
    assert trained() == {"own/d1.r1"}
