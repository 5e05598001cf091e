"""The site file that is written from what Slurm reports, on clusters of many kinds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from tests.paths import CLI, ROOT
from tests.stand_ins import stand_ins

from scalewise.config.errors import UserError
from scalewise.config.slurm import RESOURCES_OF_OPTIONS
from scalewise.plan.allocation import sbatch_options
from scalewise.plan.planned_study import make_plan
from scalewise.plan.study import load_study
from scalewise.site.cluster import parse_gpus
from scalewise.site.commands import ask
from scalewise.site.places import find_places
from scalewise.site.site_file import write_site_file

EXPERIMENT = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1]}


def node(names: str, gres: str, partitions: str = "gpu", **facts: object) -> list[str]:
    """Lines of ``scontrol --oneliner show node``; ``g[1-3]`` stands for three nodes."""
    usual = {"CPUTot": 64, "RealMemory": 512000, "State": "IDLE", "ThreadsPerCore": 1}
    words = " ".join(f"{key}={value}" for key, value in (usual | facts).items())
    first, prefix, last, suffix = "", names, "", ""
    if match := re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", names):
        prefix, first, last, suffix = match.groups()
    return [
        f"NodeName={prefix}{number}{suffix} {words} Gres={gres} Partitions={partitions} OS=Linux 5 Reason=x"
        for number in (range(int(first), int(last) + 1) if first else [""])
    ]


def partition(name: str = "gpu", **facts: object) -> str:
    usual = {"AllowAccounts": "ALL", "AllowQos": "ALL", "MaxNodes": "UNLIMITED", "MaxTime": "1-00:00:00"}
    return " ".join([f"PartitionName={name}", *(f"{key}={value}" for key, value in (usual | facts).items())])


@dataclass
class Planted:
    """What Slurm reports, the words of the command, and what the file holds and the command says.

    Args:
        site: Facts by their path; None for a key that is not written.
        says: Texts of the file or of the terminal.
        never: Texts that stand in neither.
    """

    nodes: Sequence[str]
    partitions: Sequence[str] = (partition(),)
    associations: Sequence[str] = ("lab||normal|normal",)
    config: Sequence[str] = ()
    sbatch: str = "exit 0"
    options: Mapping[str, Any] = field(default_factory=dict)
    site: Mapping[str, object] = field(default_factory=dict)
    says: Sequence[str] = ()
    never: Sequence[str] = ("Excluded", "differ", "refuses")


def planted(*nodes: Sequence[str], **facts: Any) -> Planted:
    """A cluster; keys of the site file are keys here, those of Slurm after ``slurm_``."""
    known = {key: facts.pop(key) for key in [*facts] if key in Planted.__dataclass_fields__}
    site = {re.sub("^slurm_", "slurm.", key): value for key, value in facts.items()}
    return Planted([line for lines in nodes for line in lines], site=site, **known)


FOUR = node("g[1-4]", "gpu:a100:4")
OTHER = node("o1", "gpu:l40:8", "other", CPUTot=96)
TWO = [partition(), partition("other")]
TYPES = [*FOUR, *node("h[1-2]", "gpu:h100:4")]
SHERLOCK = [
    *node("v[1-3]", "gpu:4(S:0-1)", CPUTot=24, RealMemory=191000, ActiveFeatures="IB,SKU:V100,MEM:16GB"),
    *node("a[1-2]", "gpu:4(S:0-1)", CPUTot=32, ActiveFeatures="IB,SKU:A100,MEM:80GB"),
    *node("l[1-2]", "gpu:4(S:0-1)", CPUTot=32, ActiveFeatures="IB,SKU:L40S,MEM:48GB"),
]
QOS = 'case "$*" in *--qos=gpu*) exit 0;; esac; echo "Jobs in partition gpu need --qos=gpu" >&2; exit 1'
SILENT_QOS = QOS.replace("Jobs in partition gpu need --qos=gpu", "Unspecified error")
CLUSTERS = {
    "plain": planted(
        FOUR,
        accelerator="cuda",
        devices_per_node=4,
        cpus_per_node=64,
        memory_gb_per_node=512,
        max_nodes=4,
        slurm={"account": "lab", "partition": "gpu", "gpu_type": "a100", "longest_walltime": "1-00:00:00"},
        says=["Gres=gpu:a100:4", "4 nodes of this kind", "yours: normal; default: normal"],
    ),
    "limits of the partition": planted(
        FOUR,
        partitions=[partition(MaxNodes=2, MaxTime="02:00:00", MaxCPUsPerNode=32, MaxMemPerNode=256000)],
        max_nodes=2,
        cpus_per_node=32,
        memory_gb_per_node=256,
        slurm_longest_walltime="02:00:00",
    ),
    "memory of each CPU, of the whole cluster": planted(
        FOUR, config=["MaxMemPerCPU = 4000"], memory_gb_per_node=256
    ),
    "memory that the partition allows and the cluster does not": planted(
        FOUR,
        partitions=[partition(MaxMemPerNode=400000)],
        config=["MaxMemPerNode = 256000"],
        memory_gb_per_node=400,
    ),
    "no limit of time, whole nodes": planted(
        FOUR,
        partitions=[partition(MaxTime="UNLIMITED", OverSubscribe="EXCLUSIVE")],
        slurm_longest_walltime=None,
        slurm_exclusive=True,
    ),
    "fewest nodes": planted(
        FOUR,
        partitions=[partition(MinNodes=2)],
        sbatch='case "$*" in *--nodes=1*) echo "Node count specification invalid" >&2; exit 1;; esac',
        says=["MinNodes=2: Slurm refuses runs of fewer nodes in gpu", "device counts from 8"],
        never=["specification invalid"],
    ),
    "memory must be requested": planted(
        FOUR, sbatch='case "$*" in *--mem=*) exit 0;; esac; echo "Users must specify --mem" >&2; exit 1'
    ),
    "a QOS must be requested": planted(
        FOUR,
        associations=["lab||normal,gpu|normal"],
        sbatch=QOS,
        slurm_extra=["--qos=gpu"],
        says=["Slurm takes jobs only with --qos=gpu", "Jobs in partition gpu need --qos=gpu"],
    ),
    "a QOS must be requested, and Slurm does not say so": planted(
        FOUR, associations=["lab||normal,gpu|normal"], sbatch=SILENT_QOS, slurm_extra=["--qos=gpu"], never=[]
    ),
    "a QOS that is not the user's": planted(
        FOUR,
        sbatch=QOS,
        slurm_extra=None,
        says=["Slurm refuses a job of whole nodes: Jobs in partition gpu need --qos=gpu.", '"--qos=NAME"'],
        never=[],
    ),
    "an account for all partitions, and one row for another": planted(
        FOUR,
        associations=["lab||normal|normal", "lab|big|bigq|bigq"],
        slurm_account="lab",
        says=["yours: normal;"],
        never=["bigq"],
    ),
    "a row for each partition": planted(
        FOUR,
        node("c1", "(null)", "cpu"),
        partitions=[partition("cpu"), partition()],
        associations=["lab|cpu|cpuq|cpuq", "lab|gpu|gpuq|gpuq"],
        slurm_partition="gpu",
        says=["yours: gpuq; default: gpuq"],
        never=["cpuq"],
    ),
    "a row of the partition and that of all": planted(
        FOUR, associations=["lab|gpu|gpuq|gpuq", "lab||normal|normal"], says=["yours: gpuq;"]
    ),
    "the default of several accounts": planted(
        FOUR,
        associations=["other||normal|normal", "lab||normal|normal"],
        slurm_account="lab",
        says=["Account lab: your default; also yours: other (--account NAME)"],
    ),
    "the only account that the partition takes": planted(
        FOUR,
        partitions=[partition(AllowAccounts="other")],
        associations=["lab||normal|normal", "other||normal|normal"],
        slurm_account="other",
        says=["Account other: not your default."],
    ),
    "accounts in capitals": planted(FOUR, partitions=[partition(AllowAccounts="X,LAB")], slurm_account="lab"),
    "a partition for other accounts, which Slurm may take with their subaccounts": planted(
        FOUR,
        partitions=[partition(AllowAccounts="physics")],
        slurm_account="lab",
        says=["Account lab: your default; gpu does not allow it by name."],
    ),
    "an account by name, in capitals": planted(
        FOUR,
        associations=["lab||normal|normal", "proj1||normal|normal"],
        options={"account": "PROJ1"},
        slurm_account="proj1",
    ),
    "accounting that says nothing": planted(
        FOUR,
        associations=[],
        slurm_account=None,
        says=["Account unknown: accounting knows no account of someone on this cluster; ask the site."],
    ),
    "no accounting": planted(
        FOUR,
        config=["AccountingStorageType = accounting_storage/none"],
        slurm_account=None,
        says=["Account unknown: this cluster keeps no accounting"],
    ),
    "fewer GPUs, CPUs or less memory on some nodes": planted(
        FOUR,
        node("g5", "gpu:a100:2", CPUTot=32),
        node("old7", "gpu:a100:4", CPUTot=48),
        node("g9", "gpu:a100:4", RealMemory=250000),
        devices_per_node=4,
        cpus_per_node=64,
        memory_gb_per_node=512,
        max_nodes=4,
        slurm_extra=["--exclude=g5,g9,old7"],
        says=["Excluded from gpu (--exclude in slurm.extra):", "1 node with 2 a100, 32 CPUs, 512 GB"],
        never=["differ"],
    ),
    "names that end like an option": planted(
        FOUR, node("gpu-c", "gpu:a100:2"), slurm_extra=["--exclude=gpu-c"], never=["differ"]
    ),
    "a feature that ends like an option": planted(
        node("g1", "gpu:4", ActiveFeatures="intel-c"),
        options={"constraint": "intel-c"},
        slurm_extra=["--constraint=intel-c"],
    ),
    "another type, which a typed request does not reach": planted(
        TYPES, node("c1", "(null)"), options={"gpu_types": ["h100"]}, slurm_gpu_type="h100", slurm_extra=None
    ),
    "nodes with a type, which a request without one reaches": planted(
        node("u[1-3]", "gpu:4"),
        node("h[1-2]", "gpu:h100:4"),
        options={"gpu_types": [""]},
        max_nodes=3,
        slurm_gpu_type=None,
        slurm_extra=["--exclude=h1,h2"],
        never=["differ"],
    ),
    "features that name different GPUs": planted(
        SHERLOCK,
        cpus_per_node=32,
        max_nodes=4,
        slurm_extra=["--exclude=v1,v2,v3"],
        says=[
            "3 nodes with 4 GPUs, 24 CPUs, 191 GB, features MEM:16GB SKU:V100",
            "differ in their features. If a feature names other GPUs, give this command --constraint FEATURE",
            "2 nodes with 4 GPUs, 32 CPUs, 512 GB, features MEM:80GB SKU:A100",
            "features MEM:48GB SKU:L40S",
        ],
        never=["IB"],
    ),
    "chosen features": planted(
        SHERLOCK,
        options={"constraint": "SKU:V100&IB"},
        cpus_per_node=24,
        max_nodes=3,
        slurm_extra=["--constraint=SKU:V100&IB"],
    ),
    "parts of GPUs": planted(
        node("m1", "gpu:nvidia_h200_nvl_4g.71gb:8(S:0)"),
        slurm_gpu_type="nvidia_h200_nvl_4g.71gb",
        devices_per_node=8,
        says=["is a part of a GPU (MIG)"],
    ),
    "whole GPUs and parts": planted(
        node("m[1-2]", "gpu:a100:2,gpu:a100_1g.5gb:14"), slurm_gpu_type="a100", devices_per_node=2
    ),
    "parts of GPUs by other names": planted(
        node("m1", "gpu:A100:2,gpu:A100_1G.5GB:14,gpu:a100-mig:7,gpu:2g10gb:3,gpu:1g.10gb_me:1"),
        slurm_gpu_type="A100",
    ),
    "no GPUs": planted(
        node("c[1-8]", "(null)", "cpu"),
        partitions=[partition("cpu", MaxCPUsPerNode=60)],
        accelerator="cpu",
        devices_per_node=60,
        slurm_gpu_type=None,
        max_nodes=8,
    ),
    "a little less memory, and nodes that are planned": planted(
        FOUR,
        node("g5", "gpu:a100:4", RealMemory=510000),
        node("f6", "gpu:a100:4", State="FUTURE"),
        memory_gb_per_node=510,
        max_nodes=5,
    ),
    "CPUs for the system before CPUEfctv, unknown memory": planted(
        node("s1", "gpu:4", CPUTot=80, CoreSpecCount=2, ThreadsPerCore=2, RealMemory=1),
        cpus_per_node=76,
        memory_gb_per_node=None,
        says=["# memory_gb_per_node # RealMemory"],
    ),
    "odd names": planted(
        node("gpu-a100-n[1-3]-ib", "gpu:NVIDIA-A100-SXM4-80GB:8", "gpu.a100-q+"),
        partitions=[partition("gpu.a100-q+")],
        slurm_partition="gpu.a100-q+",
        slurm_gpu_type="NVIDIA-A100-SXM4-80GB",
    ),
    "a hidden partition": planted(
        FOUR, partitions=[], options={"partitions": ["gpu"]}, slurm_partition="gpu", slurm_gpu_type="a100"
    ),
}


def report(programs: Path, planted: Planted) -> None:
    """Write stand-ins for Slurm's commands."""
    config = ["ClusterName = c", "AccountingStorageType = accounting_storage/slurmdbd", *planted.config]
    texts = {"nodes": planted.nodes, "partitions": planted.partitions or ["PartitionName=a State=DOWN"]}
    texts |= {"config": config, "hidden": [partition()]}
    texts |= {"associations": planted.associations, "default": ["lab"]}
    for kind, lines in texts.items():
        (programs / f"{kind}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shown = f"cat '{programs}'/"
    stand_ins(
        programs,
        {
            "scontrol": f'case "$SCONTROL_ALL $*" in *config) {shown}config.txt;; 1*node) {shown}nodes.txt;;'
            f" *partition) {shown}partitions.txt;; 1*partition*gpu) {shown}hidden.txt;;"
            ' *) echo "not found" >&2; exit 1;; esac',
            "sbatch": planted.sbatch,
            "sacctmgr": f'case "$*" in *associations*user=someone*cluster=c*) {shown}associations.txt;;'
            f" *user*withassoc*cluster=c*) {shown}default.txt;; esac",
        },
    )


def write(path: Path, *, force: bool = False, **chosen: Any) -> list[str]:
    usual: dict[str, Any] = {"partitions": [], "gpu_types": [], "constraint": "", "account": None}
    return write_site_file(find_places(**usual | chosen), path, ROOT, force=force)


def value(facts: Mapping[str, Any], key: str) -> object:
    """Return the value at a path such as ``slurm.account``; None if there is none."""
    found: Any = facts
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


@pytest.mark.parametrize("name", CLUSTERS)
def test_site_file_states_what_slurm_reports(name: str, programs: Path, tmp_path: Path) -> None:
    planted, path = CLUSTERS[name], tmp_path / "site.yaml"
    report(programs, planted)

    lines = write(path, **planted.options)

    text = path.read_text(encoding="utf-8")
    facts = yaml.safe_load(text)
    assert {key: value(facts, key) for key in planted.site} == planted.site
    everything = " ".join(f"{text.replace('#', ' ')} {' '.join(lines)} {text}".split())
    assert [words for words in planted.says if words not in everything] == []
    assert [words for words in planted.never if words in everything] == []
    # every fact has a comment that names its source
    bare = [line for line in text.splitlines() if re.match(r"\s*\w+: \S", line) and "  # " not in line]
    assert bare == []
    study = load_study({"experiments": {"e": EXPERIMENT}}, (), path)
    jobs = make_plan(study)["runs"]["e"].values()
    for job in jobs:
        validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(**job["resources"])))
    (allocation,) = {shlex.join(sbatch_options(job["resources"])) for job in jobs}
    for word in facts["slurm"].get("extra", []):
        if word[2:].partition("=")[0] not in RESOURCES_OF_OPTIONS:
            assert word in allocation, "what is described is not what is requested"


REFUSED: dict[str, tuple[Planted, dict[str, Any], list[str]]] = {
    "several partitions": (
        planted(FOUR, OTHER, partitions=TWO),
        {},
        ["2 partitions to choose from", "gpu: 4 nodes with 4 a100, 64 CPUs, 512 GB; 1-00:00:00"],
    ),
    "an unknown partition": (
        planted(FOUR),
        {"partitions": ["gpus"]},
        ["no partition 'gpus' that is UP and has nodes", "Did you mean"],
    ),
    "a partition that is down": (
        planted(FOUR, partitions=[partition(State="DOWN")]),
        {"partitions": ["gpu"]},
        ["no partition 'gpu' that is UP"],
    ),
    "only such": (planted(FOUR, partitions=[partition(State="DOWN")]), {}, ["none is UP and has nodes"]),
    "several types": (planted(TYPES), {}, ["2 GPU types", "--gpu-type", "h100: 2 nodes"]),
    "an unknown type": (planted(FOUR), {"gpu_types": ["a10"]}, ["no GPUs of type a10", "'a100'"]),
    "a feature that no node has": (planted(FOUR), {"constraint": "red"}, ["no node of partition gpu", "red"]),
    "an account that is not the user's": (planted(FOUR), {"account": "x"}, ["account x cannot", ": lab."]),
    "an account of another partition": (
        planted(FOUR, associations=["lab|other||"]),
        {},
        ["account lab cannot be used in partition gpu. None of yours can"],
    ),
    "an only account that the partition refuses": (
        planted(FOUR, partitions=[partition(DenyAccounts="LAB")]),
        {},
        ["default account lab cannot be used in partition gpu. None of yours can"],
    ),
    "a default account that the partition refuses, and two others": (
        planted(FOUR, partitions=[partition(DenyAccounts="lab")], associations=["lab|||", "a|||", "b|||"]),
        {},
        ["default account lab cannot be used", "--account: a, b."],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_choice_that_is_the_users_is_refused_and_no_file_is_written(
    name: str, programs: Path, tmp_path: Path
) -> None:
    planted, chosen, says = REFUSED[name]
    report(programs, planted)

    with pytest.raises(UserError) as refused:
        write(tmp_path / "site.yaml", **chosen)

    assert [words for words in says if words not in str(refused.value)] == []
    assert not (tmp_path / "site.yaml").exists()


def test_several_partitions_and_types_are_described_to_be_compared(programs: Path, tmp_path: Path) -> None:
    cpus = node("c1", "(null)", "_Other")
    report(programs, planted(TYPES, OTHER, cpus, partitions=[*TWO, partition("_Other")]))
    path = tmp_path / "site.yaml"

    lines = write(path, partitions=["gpu", "other"], gpu_types=["a100", "h100", "l40"])

    assert any("partitions gpu-a100, gpu-h100, other" in line for line in lines)
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {name: (each["gpu_type"], each["devices_per_node"]) for name, each in facts["partitions"].items()}
    assert found == {"gpu-a100": ("a100", 4), "gpu-h100": ("h100", 4), "other": ("l40", 8)}
    study = load_study({"experiments": {"e": EXPERIMENT | {"partitions": "all"}}}, (), path)
    assert len(study.parts) == 3

    write(path, partitions=["_Other", "other"], force=True)

    # by names that folders may have
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    named = [(name, each["partition"], each["accelerator"]) for name, each in facts["partitions"].items()]
    assert named == [("Other", "_Other", "cpu"), ("other-1", "other", "cuda")]
    load_study({"experiments": {"e": EXPERIMENT | {"partitions": "all"}}}, (), path)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param("", "scontrol not on PATH. Go to a login node of the cluster", id="no Slurm"),
        pytest.param(
            "echo 'Unable to contact' >&2; exit 1",
            "`scontrol show config` failed: Unable to contact. Try",
            id="fails",
        ),
        pytest.param("exit 0", "`scontrol show config` failed: it printed nothing", id="prints nothing"),
    ],
)
def test_slurm_that_does_not_answer_is_named_with_the_fix(
    script: str, said: str, programs: Path, tmp_path: Path
) -> None:
    report(programs, CLUSTERS["plain"])
    (programs / "scontrol").unlink()
    if script:
        stand_ins(programs, {"scontrol": script})

    with pytest.raises(UserError, match=re.escape(said)):
        write(tmp_path / "site.yaml")


def test_command_that_hangs_is_ended_and_named(programs: Path) -> None:
    stand_ins(programs, {"scontrol": "read nothing < /dev/tty; while :; do :; done"})

    answer = ask("scontrol", "show", "config", seconds=0.2)

    assert answer.failure == "`scontrol show config` failed: no answer within 0.2 s"


def test_filled_in_file_is_replaced_only_by_force(programs: Path, tmp_path: Path) -> None:
    report(programs, CLUSTERS["plain"])
    path, shipped = tmp_path / "site.yaml", (ROOT / "profiles" / "slurm" / "site.yaml").read_text()

    path.write_text(shipped)
    write(path)
    assert yaml.safe_load(path.read_text())["slurm"]["account"] == "lab"

    path.write_text(filled := shipped.replace("<account>", "mine").replace("<partition>", "gpu"))
    with pytest.raises(UserError, match=r"exists\. Add --force to replace it, or --output"):
        write(path)
    assert path.read_text() == filled
    write(path, force=True)
    assert yaml.safe_load(path.read_text())["slurm"]["account"] == "lab"


@pytest.mark.slow
def test_command_line_writes_the_file_and_names_the_next_step(programs: Path, tmp_path: Path) -> None:
    report(programs, planted(FOUR, OTHER, partitions=TWO))
    command = [sys.executable, str(CLI), "site", "--output", "new/site.yaml", "--partition", "other,gpu"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "new/site.yaml describes partitions other, gpu." in done.stdout
    assert "snakemake preflight --profile profiles/slurm --config site=new/site.yaml" in done.stdout


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:4(S:0-1),nvme:1", {"h100": 4}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:2,gpu:3g.20gb:4", {"a100": 2, "3g.20gb": 4}),
        ("gpu:a100:4(S:0-1),shard:a100:16(S:0-1),mps:400", {"a100": 4}),
        ("gpu:0,shard:8", {}),
        ("gpu", {"": 1}),
        ("gpu:a100(S:0,2),gpu:h100:no_consume:2,gpumem:80", {"a100": 1, "h100": 2}),
        ("(null)", {}),
    ],
)
def test_gpus_are_read_from_gres(gres: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(gres) == gpus
