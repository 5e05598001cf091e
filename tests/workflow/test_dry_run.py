"""What a user sees before anything runs."""

import shutil

import pytest
from tests.paths import ROOT, SNAKEFILE
from tests.workflow.workplace import SITE, TINY, Workplace


def test_the_shipped_study_shows_its_plan_on_a_terminal_and_starts_nothing(workplace: Workplace) -> None:
    for folder in ("config", "profiles"):
        shutil.copytree(ROOT / folder, workplace.folder / folder)
    outcome = workplace.run(["snakemake", "-n", "-s", str(SNAKEFILE), "--profile", "profiles/local"])
    assert outcome.code == 0, outcome.text
    lines = outcome.text.splitlines()
    assert len(lines) <= 60
    plan = lines[-11:]
    assert plan[0].split() == ["runs", "shape", "batch", "length", "device-hours"]
    assert plan[-2].startswith("32 runs, at most "), "the plan is not last"
    assert "d2.bucket-view-on" in {line.split()[0] for line in plan[1:-2]}
    assert max(map(len, plan)) <= 80
    assert not (workplace.folder / "results").exists()


def test_all_mistakes_are_reported_at_once_without_a_traceback(workplace: Workplace) -> None:
    broken = TINY.replace("epochs: 2", "epoch: 2").replace("model: linear", "model: linaer")
    outcome = workplace.snakemake("-n", config=broken.replace("repeats: 1", "repeats: 1.5"))
    assert outcome.code == 1
    assert "3 mistakes in the configuration. Nothing was started." in outcome.text
    assert "device-hours" not in outcome.text
    lines = [line.rpartition("study.yaml:")[2] for line in outcome.text.splitlines() if "study.yaml:" in line]
    mistakes = {(line.split(": ")[0], line.split(": ")[1].split()[0]) for line in lines}
    number = 1 + broken[: broken.index("repeats: 1\n")].count("\n")
    assert mistakes == {
        ("4", "defaults.epoch"),
        ("3", "defaults.model"),
        (str(number), "experiments.weak.repeats"),
    }
    assert "Traceback" not in outcome.text
    assert "WorkflowError" not in outcome.text, "lines of the workflow are none of the user's mistakes"


@pytest.mark.parametrize(
    ("option", "word", "name"),
    [
        *(("--set-resources", f"train:{name}=3", name) for name in ("nodes", "tasks_per_gpu", "gres")),
        ("--set-threads", "train=3", "threads"),
    ],
)
def test_a_profile_that_changes_the_devices_of_runs_is_refused_in_one_line(
    option: str, word: str, name: str, workplace: Workplace
) -> None:
    site = f"{SITE}max_nodes: 2\nslurm: {{account: mine, partition: main}}\n"
    outcome = workplace.snakemake("-n", option, word, config=TINY, site=site)
    assert outcome.code == 1
    assert f"sets {name} of the runs" in outcome.text.splitlines()[-1]
    assert "Traceback" not in outcome.text


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("results/weak/runs/d2.r1/record.json", "weak/d2.r1 is no run of the study"),
        ("results/week/answer.json", "No rule to produce results/week/answer.json"),
    ],
)
def test_a_target_that_is_not_in_the_study_is_refused(
    target: str, message: str, workplace: Workplace
) -> None:
    outcome = workplace.snakemake("-n", target, config=TINY)
    assert outcome.code == 1
    assert message in outcome.text.splitlines()[-1]
    assert "Traceback" not in outcome.text


@pytest.mark.parametrize(
    ("text", "snakemakes", "ours"),
    [
        ("- a", "Config file must be given as JSON or YAML with keys at top level", ":1: "),
        ("a: [1", "Config file is not valid JSON or YAML", ":1: "),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_as_the_readme_says(
    text: str, snakemakes: str, ours: str, workplace: Workplace
) -> None:
    """A --configfile is read by Snakemake before any of our code is."""
    readme = (ROOT / "config" / "README.md").read_text().replace("\n", " ")
    assert f"`{snakemakes}`" in readme
    assert snakemakes in workplace.snakemake("-n", config=text).text

    assert "experiments.yaml in " in workplace.snakemake("-n").text.splitlines()[-1]
    (workplace.folder / "config").mkdir()
    (workplace.folder / "config" / "experiments.yaml").write_text(text)
    assert f"config/experiments.yaml{ours}" in workplace.snakemake("-n").text


def test_only_an_experiment_that_names_a_centre_has_a_proposal(workplace: Workplace) -> None:
    """In a copy of only the workflow, which knows no centre."""
    copy = shutil.copytree(ROOT / "workflow", workplace.folder / "copy" / "workflow")
    (workplace.folder / "ours.md.j2").write_text("{{ title }}\n")
    command = ["snakemake", "-n", "-s", str(copy / "Snakefile"), "--configfile", "study.yaml"]

    def planned(weak: str) -> str:
        study = TINY.replace("    proposal: {centre: ncar}\n", "")
        (workplace.folder / "study.yaml").write_text(study + weak)
        return workplace.run(command).text

    assert "proposal" not in planned("")
    text = planned("    proposal: {centre: ours.md.j2}\n")
    assert "results/weak/proposal/proposal.md" in text
    assert "results/strong/proposal" not in text
    refused = planned("    proposal: {centre: ncar}\n")
    assert "experiments.weak.proposal.centre is 'ncar', and" in refused


def test_results_that_are_a_file_are_refused_before_training(workplace: Workplace) -> None:
    (workplace.folder / "results").write_text("a file in the way")
    outcome = workplace.snakemake("-n", config=TINY)
    assert outcome.code == 1
    assert "results: is a file, but results go there" in outcome.text
