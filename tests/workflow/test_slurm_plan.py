"""What a user of a cluster sees before anything is sent to it, on a machine without Slurm."""

import re

import pytest
from tests.prepared_digits import place_digits_of_study
from tests.stand_ins import stand_ins
from tests.workflow.recording_slurm import recording_slurm, submissions
from tests.workflow.workplace import ACCOUNT, TINY, LoginNode

SITE = "profiles/slurm/site.yaml"


@pytest.fixture
def ready(login_node: LoginNode) -> LoginNode:
    login_node.fill_in(SITE)
    return login_node


def mistakes(text: str) -> list[str]:
    """The lines of the error that a command ended in."""
    return re.findall("^  - (.*)$", text, re.MULTILINE)


def made(node: LoginNode) -> set[str]:
    """What a command left in the checkout, but for snakemake's own folder."""
    return {path.name for path in node.folder.iterdir()} - {".snakemake"}


def line_of(node: LoginNode, key: str) -> int:
    lines = (node.folder / SITE).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if line.startswith(f"  {key}:")]
    return number


def test_shipped_site_lacks_two_facts_and_the_study_is_not_judged_by_this_machine(
    login_node: LoginNode,
) -> None:
    login_node.write("study.yaml", TINY.replace("devices: [1]", 'devices: [1, 4, "2x4"]'))
    outcome = login_node.snakemake("-n", "--configfile", "study.yaml")

    assert outcome.code == 1
    assert [line.split(",")[0] for line in mistakes(outcome.text)] == [
        f"{SITE}:{line_of(login_node, key)}: slurm.{key} is '<{key}>'" for key in ("account", "partition")
    ]


def test_filled_in_site_shows_what_every_run_asks_for(ready: LoginNode) -> None:
    outcome = ready.snakemake("-n")

    assert outcome.code == 0, outcome.text
    assert len(outcome.trained) == 32
    # each holds a whole node of four
    for devices in (1, 2):
        rows = re.findall(
            rf"^  d{devices}\S* +\d 1x{devices} .*$".replace(" 1x", " +1x"), outcome.text, re.MULTILINE
        )
        assert [row.split()[-1] for row in rows] == ["1.600", "0.800", "0.800"]
        plan = outcome.text.replace("\n    ", " ")
        lines = re.findall(rf"^Each job requests (.*)|^  1x{devices}: (.*)", plan, re.MULTILINE)
        asked = " ".join(word for words in lines for word in words)
        assert {
            *("nodes=1", "cpus_per_task=1", "runtime=5", f"mem_mb={devices * 60000}", f"gres=gpu:{devices}"),
            *("slurm_account=proj123", "slurm_partition=gpu", f"--ntasks-per-node={devices}"),
            *("--exclusive", "--signal=USR1@30"),
        } <= set(asked.split())
    text = " ".join(outcome.text.split())
    assert "32 runs, at most 6.400 device-hours. Devices are GPUs, 4 per node." in text
    assert "hold whole nodes: 4.000 of these device-hours" in text
    assert "Warning: there is no sbatch on this machine" in outcome.text
    assert not (ready.folder / "results").exists()


STUDY = ["--configfile", "study.yaml"]
WITHOUT_SITE = "Add site=profiles/slurm/site.yaml to it."
IN_A_JOB = {"SLURM_JOB_ID": "4711"}
inside_a_job = pytest.mark.refuses("slurm: started inside a job")


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        pytest.param([*STUDY, "--config", 'defaults={"model":"linear"}'], {}, WITHOUT_SITE, id="no site"),
        pytest.param([*STUDY, "-n", "--config", "foo=bar"], {}, WITHOUT_SITE, id="no site, dry run"),
        pytest.param(
            [], {}, "Go to a login node", marks=pytest.mark.refuses("slurm: sbatch missing"), id="no Slurm"
        ),
        pytest.param([], IN_A_JOB, "env -u SLURM_JOB_ID snakemake", marks=inside_a_job, id="in a job"),
        pytest.param(
            ["-n"], IN_A_JOB, "env -u SLURM_JOB_ID snakemake", marks=inside_a_job, id="in a job, dry run"
        ),
        pytest.param(
            ["--config", f"site={SITE}"],
            {"profile": "profiles/local"},
            "Use --profile profiles/slurm",
            id="local",
        ),
    ],
)
def test_a_command_that_cannot_send_jobs_is_refused_with_the_fix_before_anything_is_made(
    ready: LoginNode, words: list[str], given: dict[str, str], said: str
) -> None:
    ready.write("study.yaml", TINY.replace("devices: [1]", 'devices: [1, 4, "2x4"]'))
    if "profile" in given:
        recording_slurm(ready.programs, ACCOUNT)
    before = made(ready)
    outcome = ready.snakemake(*words, **given)

    assert outcome.code == 1
    assert said in outcome.text
    assert "devices here" not in outcome.text
    assert made(ready) == before


def test_what_a_profile_requests_reaches_the_request_of_the_preflight(ready: LoginNode) -> None:
    ready.write("study.yaml", TINY)
    place_digits_of_study(ready.folder)
    record = recording_slurm(ready.programs, ACCOUNT)
    stand_ins(ready.programs, {"srun": "exit 0", "python": f'exec "{ready.python}" "$@"'})

    outcome = ready.snakemake(
        *("preflight", "--configfile", "study.yaml", "--config", f"site={SITE}"),
        *("--set-resources", "train:slurm_account=other", "train:qos=devel"),
    )

    assert record.exists(), outcome.text
    (words,) = [words for words in submissions(record) if "--test-only" in words]
    assert {"--account=other", "--qos=devel", "--partition=gpu"} <= {*words}
    assert "NOT OK  Slurm refuses the largest job (1x1): " in outcome.text
    assert "Nothing was sent to the cluster." in outcome.text


UNLIKE = """\
accelerator: cuda
devices_per_node: 2
cpus_per_node: 8
memory_gb_per_node: 100
max_nodes: 2
slurm: {account: proj123}
partitions:
  plain: {}
  special: {partition: special, gpu_type: a100-sxm4-80gb, extra: ["--constraint=a&b", "--qos=high"]}
  typed: {partition: typed, gpu_type: h100}
"""
"""Partitions of which each requests what another does not."""


def test_a_run_requests_nothing_that_only_other_runs_have(login_node: LoginNode) -> None:
    login_node.write("site.yaml", UNLIKE)
    keys = "global_batch_size: 256, repeats: 1, partitions: all, runtime_minutes: 2"
    defaults = TINY.split("experiments:", maxsplit=1)[0].replace("[1]", '[1, 2, "2x2"]')
    login_node.write("study.yaml", f"{defaults}experiments: {{a: {{{keys}}}}}\n")
    place_digits_of_study(login_node.folder)
    record = recording_slurm(login_node.programs, ACCOUNT)

    outcome = login_node.snakemake(
        *("--configfile", "study.yaml", "--config", "site=site.yaml", "--retries", "0"),
        *("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "0"),
        *("--default-resources", "tasks=2", "gpus=3", "tasks_per_gpu=4"),
    )

    assert record.exists(), outcome.text
    requested = {}
    for words in submissions(record):
        line = " ".join(words)
        _, _, name = words[words.index("--comment") + 1].rpartition("_wildcards_a_")
        found = re.findall(r" (-p \S+|-C \S+|--qos=\S+|--\S*gpu\S*|--mem\S* \d+)", line)
        requested[name] = set(found)
    special = {"-p special", "-C a&b", "--qos=high"}
    assert requested == {
        "d1.plain.r1": {"--gres=gpu:1", "--mem 50000"},
        "d2.plain.r1": {"--gres=gpu:2", "--mem 100000"},
        "d2x2.plain.r1": {"--gres=gpu:2", "--mem 100000"},
        "d1.special.r1": {*special, "--gpus-per-node=a100-sxm4-80gb:1", "--mem 50000"},
        "d2.special.r1": {*special, "--gpus-per-node=a100-sxm4-80gb:2", "--mem 100000"},
        "d2x2.special.r1": {*special, "--gpus-per-node=a100-sxm4-80gb:2", "--mem 100000"},
        "d1.typed.r1": {"-p typed", "--gres=gpu:h100:1", "--mem 50000"},
        "d2.typed.r1": {"-p typed", "--gres=gpu:h100:2", "--mem 100000"},
        "d2x2.typed.r1": {"-p typed", "--gres=gpu:h100:2", "--mem 100000"},
    }
