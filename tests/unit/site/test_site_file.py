"""The site file that is written from what Slurm reports, on clusters of many kinds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.paths import ROOT
from tests.stand_ins import stand_ins

from scalewise.config.slurm import RESOURCES_OF_OPTIONS
from scalewise.plan.runs.allocation import sbatch_options
from scalewise.plan.study import load_study
from scalewise.site.cluster import ClusterError, parse_gpus
from scalewise.site.commands import ask
from scalewise.site.places import SiteOptions
from scalewise.site.site_file import compressed, write_site_file

EXPERIMENT = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1]}


def node(names: str, gres: str, partitions: str = "gpu", **facts: object) -> list[str]:
    """Lines of ``scontrol --oneliner show node``; ``g[1-3]`` stands for three nodes."""
    usual = {"CPUTot": 64, "RealMemory": 512000, "State": "IDLE", "ThreadsPerCore": 1}
    words = " ".join(f"{key}={value}" for key, value in (usual | facts).items())
    match = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", names)
    numbers = range(int(match[2]), int(match[3]) + 1) if match else []
    listed = [f"{match[1]}{number}{match[4]}" for number in numbers] if match else [names]
    return [
        f"NodeName={name} Arch=x86_64 {words} Gres={gres} Partitions={partitions} OS=Linux 5 #1 SMP Reason=x"
        for name in listed
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
    associations: Sequence[str] | None = ("lab||normal|normal",)
    default: str = "lab"
    config: Sequence[str] = ()
    sbatch: str = "exit 0"
    options: Mapping[str, Any] = field(default_factory=dict)
    site: Mapping[str, object] = field(default_factory=dict)
    says: Sequence[str] = ()
    never: Sequence[str] = ()


FOUR = node("g[1-4]", "gpu:a100:4")
SHERLOCK = [
    *node(
        "v[1-3]",
        "gpu:4(S:0-1)",
        CPUTot=24,
        RealMemory=191000,
        ActiveFeatures="IB:EDR,GPU_SKU:V100,GPU_MEM:16GB",
    ),
    *node("a[1-2]", "gpu:4(S:0-1)", CPUTot=32, ActiveFeatures="IB:EDR,GPU_SKU:A100,GPU_MEM:80GB"),
    *node("l[1-2]", "gpu:4(S:0-1)", CPUTot=32, ActiveFeatures="IB:EDR,GPU_SKU:L40S,GPU_MEM:48GB"),
]
QOS = 'case "$*" in *--qos=gpu*) exit 0;; esac; echo "Jobs in partition gpu need --qos=gpu" >&2; exit 1'
CLUSTERS = {
    "plain": Planted(
        FOUR,
        site={
            "accelerator": "cuda",
            "devices_per_node": 4,
            "cpus_per_node": 64,
            "memory_gb_per_node": 512,
            "max_nodes": 4,
            "slurm.account": "lab",
            "slurm.partition": "gpu",
            "slurm.gpu_type": "a100",
            "slurm.longest_walltime": "1-00:00:00",
            "slurm.exclusive": None,
            "slurm.extra": None,
        },
        says=["Gres=gpu:a100:4 of 4 nodes", "QOS: normal by default"],
        never=["Excluded", "differ", "refuses"],
    ),
    "limits of the partition": Planted(
        FOUR,
        [partition(MaxNodes=2, MaxTime="02:00:00", MaxCPUsPerNode=32, MaxMemPerNode=256000)],
        site={
            "max_nodes": 2,
            "cpus_per_node": 32,
            "memory_gb_per_node": 256,
            "slurm.longest_walltime": "02:00:00",
        },
    ),
    "memory of each CPU, of the whole cluster": Planted(
        FOUR, config=["MaxMemPerCPU = 4000"], site={"memory_gb_per_node": 256}
    ),
    "no limit of time, whole nodes": Planted(
        FOUR,
        [partition(MaxTime="UNLIMITED", OverSubscribe="EXCLUSIVE")],
        site={"slurm.longest_walltime": None, "slurm.exclusive": True},
    ),
    "fewest nodes": Planted(
        FOUR,
        [partition(MinNodes=2)],
        sbatch='case "$*" in *--nodes=1*) echo "Node count specification invalid" >&2; exit 1;; esac',
        site={"max_nodes": 4},
        says=["MinNodes=2: Slurm refuses runs of fewer nodes in gpu, such as those of one node", "from 8"],
        never=["specification invalid"],
    ),
    "memory must be requested": Planted(
        FOUR,
        sbatch='case "$*" in *--mem=*) exit 0;; esac; echo "Users must specify --mem" >&2; exit 1',
        never=["specify", "refuses"],
    ),
    "a QOS must be requested": Planted(
        FOUR,
        associations=["lab||normal,gpu|normal"],
        sbatch=QOS,
        site={"slurm.extra": ["--qos=gpu"]},
        says=["Slurm takes jobs only with --qos=gpu", "Jobs in partition gpu need --qos=gpu"],
        never=["refuses"],
    ),
    "a QOS that is not the user's": Planted(
        FOUR,
        sbatch=QOS,
        site={"slurm.extra": None},
        says=[
            "Slurm refuses `sbatch --account=lab --partition=gpu",
            "Jobs in partition gpu need --qos=gpu",
            'Add the QOS to slurm.extra, as ["--qos=NAME"]. Yours are normal.',
        ],
    ),
    "a QOS that only the partition's list names": Planted(
        FOUR,
        [partition(AllowQos="gpu,long")],
        ["lab||normal,gpu|normal"],
        sbatch=QOS,
        site={"slurm.extra": ["--qos=gpu"]},
        never=["refuses"],
    ),
    "an account for all partitions, and one row for another": Planted(
        [*FOUR, *node("h1", "gpu:h100:4", "big")],
        [partition(), partition("big")],
        ["lab||normal|normal", "lab|big|bigq|bigq"],
        options={"partitions": ["gpu"]},
        site={"slurm.account": "lab", "max_nodes": 4},
        says=["QOS: normal by default, yours are normal"],
    ),
    "a row for each partition": Planted(
        [*FOUR, *node("c1", "(null)", "cpu")],
        [partition("cpu"), partition()],
        ["lab|cpu|cpuq|cpuq", "lab|gpu|gpuq|gpuq"],
        site={"slurm.account": "lab", "slurm.partition": "gpu"},
        says=["QOS: gpuq by default, yours are gpuq"],
        never=["cpuq"],
    ),
    "a row of the partition and that of all": Planted(
        FOUR,
        associations=["lab||normal|normal", "lab|gpu|gpuq|gpuq"],
        says=["QOS: gpuq by default, yours are gpuq"],
    ),
    "the default of several accounts": Planted(
        FOUR,
        associations=["other||normal|normal", "lab||normal|normal"],
        site={"slurm.account": "lab"},
        says=["Account lab pays in gpu. Also yours: other"],
    ),
    "the only account that the partition takes": Planted(
        FOUR,
        [partition(AllowAccounts="other")],
        ["lab||normal|normal", "other||normal|normal"],
        site={"slurm.account": "other"},
        says=["not your default"],
    ),
    "an account by name, in capitals": Planted(
        FOUR,
        associations=["lab||normal|normal", "proj1||normal|normal"],
        options={"account": "PROJ1"},
        site={"slurm.account": "proj1"},
    ),
    "accounting that says nothing": Planted(
        FOUR,
        associations=[],
        site={"slurm.account": None},
        says=["The account was not found: accounting knows no account of someone on this cluster"],
    ),
    "no accounting": Planted(
        FOUR,
        associations=None,
        config=["AccountingStorageType = accounting_storage/none"],
        site={"slurm.account": None},
        says=["# account: this cluster keeps no accounting"],
        never=["was not found"],
    ),
    "fewer GPUs on some nodes": Planted(
        [*FOUR, *node("g[05-06]", "gpu:a100:2", CPUTot=32)],
        site={"devices_per_node": 4, "max_nodes": 4, "slurm.extra": ["--exclude=g[5-6]"]},
        says=["Excluded from gpu (--exclude in slurm.extra): 2 nodes with 2 a100, 32 CPUs, 512 GB"],
    ),
    "fewer CPUs or less memory on some nodes": Planted(
        [*FOUR, *node("old7", "gpu:a100:4", CPUTot=48), *node("g9", "gpu:a100:4", RealMemory=250000)],
        site={"cpus_per_node": 64, "memory_gb_per_node": 512, "slurm.extra": ["--exclude=g9,old7"]},
    ),
    "a little less memory": Planted(
        [*node("g[1-3]", "gpu:a100:4"), *node("g4", "gpu:a100:4", RealMemory=510000)],
        site={"memory_gb_per_node": 510, "max_nodes": 4, "slurm.extra": None},
    ),
    "another type, which a typed request does not reach": Planted(
        [*FOUR, *node("h[1-2]", "gpu:h100:4"), *node("c[1-2]", "(null)")],
        options={"gpu_types": ["h100"]},
        site={"slurm.gpu_type": "h100", "max_nodes": 2, "slurm.extra": None},
    ),
    "nodes with a type, which a request without one reaches": Planted(
        [*node("u[1-3]", "gpu:4"), *node("h[1-2]", "gpu:h100:4"), *node("c1", "(null)")],
        options={"gpu_types": [""]},
        site={"slurm.gpu_type": None, "max_nodes": 3, "slurm.extra": ["--exclude=h[1-2]"]},
    ),
    "features that name different GPUs": Planted(
        SHERLOCK,
        site={"cpus_per_node": 32, "max_nodes": 4, "slurm.extra": ["--exclude=v[1-3]"]},
        says=[
            "3 nodes with 4 GPUs, 24 CPUs, 191 GB, features GPU_MEM:16GB,GPU_SKU:V100",
            "differ in their features",
            "2 nodes with 4 GPUs, 32 CPUs, 512 GB, features GPU_MEM:80GB,GPU_SKU:A100",
            "features GPU_MEM:48GB,GPU_SKU:L40S",
            'slurm.extra: ["--constraint=GPU_MEM:80GB"]',
        ],
        never=["IB:EDR"],
    ),
    "a chosen feature": Planted(
        SHERLOCK,
        options={"constraint": "GPU_SKU:V100&IB:EDR"},
        site={"cpus_per_node": 24, "max_nodes": 3, "slurm.extra": ["--constraint=GPU_SKU:V100&IB:EDR"]},
        never=["differ", "Excluded"],
    ),
    "features of any name": Planted(
        [*node("a1", "gpu:4", ActiveFeatures="blue"), *node("a2", "gpu:4", ActiveFeatures="blue,40gb")],
        says=["1 node with 4 GPUs, 64 CPUs, 512 GB, features 40gb"],
    ),
    "parts of GPUs": Planted(
        node("m[1-2]", "gpu:nvidia_h200_nvl_4g.71gb:8"),
        site={"slurm.gpu_type": "nvidia_h200_nvl_4g.71gb", "devices_per_node": 8},
        says=["is a part of a GPU (MIG)"],
    ),
    "whole GPUs and parts": Planted(
        node("m[1-2]", "gpu:a100:2,gpu:a100_1g.5gb:14"),
        site={"slurm.gpu_type": "a100", "devices_per_node": 2},
    ),
    "shards and sockets": Planted(
        node("s1", "gpu:a100:4(S:0-1),shard:a100:16(S:0-1),mps:400,nvme:1"), site={"devices_per_node": 4}
    ),
    "CPUs reserved for the system, before CPUEfctv": Planted(
        node("s1", "gpu:4", CPUTot=80, CoreSpecCount=2, ThreadsPerCore=2), site={"cpus_per_node": 76}
    ),
    "no GPUs": Planted(
        node("c[1-8]", "(null)", "cpu"),
        [partition("cpu")],
        site={"accelerator": "cpu", "devices_per_node": 64, "slurm.gpu_type": None, "max_nodes": 8},
    ),
    "memory that Slurm does not know": Planted(
        node("g1", "gpu:4", RealMemory=1), site={"memory_gb_per_node": None}, says=["set memory_gb_per_node"]
    ),
    "odd names": Planted(
        node("gpu-a100-n[1-3]-ib", "gpu:NVIDIA-A100-SXM4-80GB:8", "gpu.a100-q+"),
        [partition("gpu.a100-q+")],
        site={"slurm.partition": "gpu.a100-q+", "slurm.gpu_type": "NVIDIA-A100-SXM4-80GB"},
    ),
    "a reservation": Planted(
        FOUR, [partition(ReqResv="YES")], says=["add --reservation=NAME to slurm.extra"]
    ),
    "nodes that are planned": Planted(
        [*FOUR, *node("f[5-9]", "gpu:a100:4", State="FUTURE")], site={"max_nodes": 4}
    ),
}


def report(programs: Path, planted: Planted) -> None:
    """Write stand-ins for Slurm's commands."""
    config = ["ClusterName = c", "AccountingStorageType = accounting_storage/slurmdbd", *planted.config]
    texts = {"nodes": planted.nodes, "partitions": planted.partitions, "config": config}
    texts |= {"associations": planted.associations or [], "default": [planted.default]}
    for kind, lines in texts.items():
        (programs / f"{kind}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shown = f"cat '{programs}'/"
    stand_ins(
        programs,
        {
            "sinfo": "echo slurm 23.11.10",
            "scontrol": f'case "$*" in *config) {shown}config.txt;; *node) {shown}nodes.txt;;'
            f' *partition) {shown}partitions.txt;; *) echo "not found" >&2; exit 1;; esac',
            "sbatch": planted.sbatch,
            "sacctmgr": f'case "$*" in *associations*user=someone*cluster=c*) {shown}associations.txt;;'
            f" *user*) {shown}default.txt;; esac",
        },
    )


def options(folder: Path, **changes: Any) -> SiteOptions:
    return SiteOptions(folder / "site.yaml", **changes)


def value(facts: Mapping[str, Any], key: str) -> object:
    """Return the value at a path such as ``slurm.account``; None if there is none."""
    found: Any = facts
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


@pytest.mark.parametrize("name", CLUSTERS)
def test_site_file_states_what_slurm_reports(name: str, programs: Path, tmp_path: Path) -> None:
    planted = CLUSTERS[name]
    report(programs, planted)

    lines = write_site_file(options(tmp_path, **planted.options), ROOT)

    text = (tmp_path / "site.yaml").read_text(encoding="utf-8")
    facts = yaml.safe_load(text)
    assert {key: value(facts, key) for key in planted.site} == planted.site
    everything = text + "\n".join(lines)
    for said in planted.says:
        assert said in everything
    for said in planted.never:
        assert said not in everything
    # every fact has a comment that names its source
    bare = [line for line in text.splitlines() if re.match(r"\s*\w+: \S", line) and "  # " not in line]
    assert bare == []
    study = load_study({"experiments": {"e": EXPERIMENT}}, (), tmp_path / "site.yaml")
    (allocation,) = {shlex.join(sbatch_options(each.resources)) for each in study.allocations.values()}
    for word in facts["slurm"].get("extra", []):
        if word[2:].partition("=")[0] not in RESOURCES_OF_OPTIONS:
            assert word.partition("[")[0] in allocation, "what is described is not what is requested"


TWO = [partition(), partition("other")]
TYPES = [*FOUR, *node("h[1-2]", "gpu:h100:4")]
REFUSED: dict[str, tuple[Planted, dict[str, Any], list[str]]] = {
    "several partitions": (
        Planted([*FOUR, *node("o1", "gpu:4", "other")], TWO),
        {},
        ["2 partitions to choose from", "gpu: 4 nodes with 4 a100, 64 CPUs, 512 GB"],
    ),
    "an unknown partition": (
        Planted(FOUR),
        {"partitions": ["gpus"]},
        ["no partition 'gpus'", "Did you mean"],
    ),
    "a partition that is down": (
        Planted(FOUR, [partition(State="DOWN")]),
        {"partitions": ["gpu"]},
        ["is DOWN"],
    ),
    "several types": (Planted(TYPES), {}, ["2 GPU types", "--gpu-type", "h100: 2 nodes"]),
    "an unknown type": (Planted(FOUR), {"gpu_types": ["a10"]}, ["no GPUs of type a10"]),
    "a feature that no node has": (Planted(FOUR), {"constraint": "red"}, ["no node of partition gpu", "red"]),
    "an account that is not the user's": (
        Planted(FOUR),
        {"account": "x"},
        ["account x cannot", "Yours are lab."],
    ),
    "an account of another partition": (
        Planted(FOUR, associations=["lab|other||"]),
        {},
        ["none of your accounts can be used in partition gpu"],
    ),
    "a default account that the partition refuses, and two others": (
        Planted(FOUR, [partition(DenyAccounts="lab")], ["lab|||", "a|||", "b|||"]),
        {},
        ["default account lab cannot be used", "--account NAME", "a, b"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_choice_that_is_the_users_is_refused_and_no_file_is_written(
    name: str, programs: Path, tmp_path: Path
) -> None:
    planted, given, says = REFUSED[name]
    report(programs, planted)

    with pytest.raises(ClusterError) as refused:
        write_site_file(options(tmp_path, **given), ROOT)

    for said in says:
        assert said in str(refused.value)
    assert not (tmp_path / "site.yaml").exists()


def test_several_partitions_and_types_are_described_to_be_compared(programs: Path, tmp_path: Path) -> None:
    report(programs, Planted([*TYPES, *node("o1", "gpu:l40:8", "other", CPUTot=96)], TWO))
    given = {"partitions": ["gpu", "other"], "gpu_types": ["a100", "h100", "l40"]}

    lines = write_site_file(options(tmp_path, **given), ROOT)

    assert any("partitions gpu-a100, gpu-h100, other" in line for line in lines)
    facts = yaml.safe_load((tmp_path / "site.yaml").read_text(encoding="utf-8"))
    found = {name: (each["gpu_type"], each["devices_per_node"]) for name, each in facts["partitions"].items()}
    assert found == {"gpu-a100": ("a100", 4), "gpu-h100": ("h100", 4), "other": ("l40", 8)}
    study = load_study({"experiments": {"e": EXPERIMENT | {"partitions": "all"}}}, (), tmp_path / "site.yaml")
    assert len(study.parts) == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param("", "scontrol not on PATH. Go to a login node of the cluster", id="no Slurm"),
        pytest.param(
            "echo 'Unable to contact slurm controller' >&2; exit 1",
            "`scontrol show config` failed: Unable to contact slurm controller. Try the",
            id="fails",
        ),
        pytest.param("exit 0", "`scontrol show config` printed nothing", id="prints nothing"),
    ],
)
def test_slurm_that_does_not_answer_is_named_with_the_fix(
    script: str, said: str, programs: Path, tmp_path: Path
) -> None:
    report(programs, CLUSTERS["plain"])
    (programs / "scontrol").unlink()
    if script:
        stand_ins(programs, {"scontrol": script})

    with pytest.raises(ClusterError, match=re.escape(said)):
        write_site_file(options(tmp_path), ROOT)


def test_command_that_hangs_is_ended_and_named(programs: Path) -> None:
    stand_ins(programs, {"scontrol": "read nothing < /dev/tty; while :; do :; done"})

    answer = ask("scontrol", "show", "config", seconds=0.2)

    assert answer.failure == "`scontrol show config` failed: no answer within 0.2 s"


def test_filled_in_file_is_replaced_only_by_force(programs: Path, tmp_path: Path) -> None:
    report(programs, CLUSTERS["plain"])
    path, shipped = tmp_path / "site.yaml", (ROOT / "profiles" / "slurm" / "site.yaml").read_text()
    path.write_text(shipped.replace("<account>", "mine").replace("<partition>", "gpu"))

    with pytest.raises(ClusterError, match=r"exists\. Add --force to replace it, or --output"):
        write_site_file(options(tmp_path), ROOT)
    assert "account: mine" in path.read_text()

    write_site_file(options(tmp_path, force=True), ROOT)
    assert yaml.safe_load(path.read_text())["slurm"]["account"] == "lab"

    path.write_text(shipped)
    write_site_file(options(tmp_path), ROOT)
    assert yaml.safe_load(path.read_text())["slurm"]["account"] == "lab"


@pytest.mark.slow
def test_command_line_writes_the_file_and_names_the_next_step(programs: Path, tmp_path: Path) -> None:
    report(programs, Planted([*FOUR, *node("o1", "gpu:4", "other")], TWO))
    command = [
        sys.executable,
        str(ROOT / "workflow" / "scripts" / "cli.py"),
        "site",
        "--output",
        "new/site.yaml",
    ]

    first, second = (
        subprocess.run(
            [*command, "--partition", "other,gpu"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        for _ in range(2)
    )

    assert first.returncode == 0, first.stderr
    assert "new/site.yaml describes partitions other, gpu." in first.stdout
    assert "snakemake preflight --profile profiles/slurm --config site=new/site.yaml" in first.stdout
    assert second.returncode == 1
    assert second.stderr.startswith("scalewise: new/site.yaml exists.")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n3", "n1", "n2", "login", "n7"], "n[1-3,7],login"),
        (["g09", "g10", "g011"], "g011,g[09-10]"),
        (["rack1-n1", "rack1-n2", "rack2-n1"], "rack1-n[1-2],rack2-n1"),
        # Slurm reads a number in brackets at the end of a name only
        (["g1-ib", "g2-ib"], "g1-ib,g2-ib"),
    ],
)
def test_names_of_nodes_are_written_as_slurm_reads_them(names: list[str], text: str) -> None:
    assert compressed(names) == text


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:4(S:0-1),nvme:1", {"h100": 4}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:2,gpu:3g.20gb:4", {"a100": 2, "3g.20gb": 4}),
        ("gpu:0,shard:8", {}),
        ("(null)", {}),
    ],
)
def test_gpus_are_read_from_gres(gres: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(gres) == gpus
