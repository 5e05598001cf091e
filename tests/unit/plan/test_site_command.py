"""The site file that is written from what Slurm reports."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.paths import ROOT
from tests.stand_ins import stand_ins, system_programs

from scalewise.plan.study import load_study
from scalewise.site.choices import ChoiceError
from scalewise.site.commands import ask
from scalewise.site.reported import ClusterError, parse_qos
from scalewise.site.site_command import SiteOptions, write_site_file

CLUSTERS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("recorded_clusters.yaml").read_text(encoding="utf-8")
)
ANSWERS = ("slurm", "nodes", "partitions", "config", "associations", "qos", "default_account", "test_only")
"""Keys of a cluster that Slurm's commands print."""
REFUSAL = "allocation failure: Requested node configuration is not available"
EXPERIMENT = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1]}


def expanded(lines: list[str]) -> Iterator[str]:
    """Yield the lines of nodes, one for each number in brackets of the name."""
    for line in lines:
        name = re.match(r"NodeName=(\S*)\[(\d+)-(\d+)\]", line)
        if name is None:
            yield line
            continue
        for number in range(int(name[2]), int(name[3]) + 1):
            yield f"NodeName={name[1]}{number}{line[name.end() :]}"


def report(programs: Path, name: str, **scripts: str | None) -> None:
    """Write stand-ins for Slurm's commands that print what the cluster reported; None leaves one out."""
    cluster = CLUSTERS[name]
    if like := CLUSTERS.get(cluster.get("like", "")):
        cluster = {key: like[key] for key in ANSWERS if key in like} | cluster

    def replaced(lines: list[str]) -> list[str]:
        for old, new in cluster.get("replaced", {}).items():
            lines = [line.replace(old, new) for line in lines]
        return lines

    texts = {
        "partitions": replaced(cluster["partitions"]),
        "nodes": list(expanded(replaced(cluster["nodes"]))),
        "config": ["Configuration data as of 2026-11-27T05:13:37", *cluster["config"]],
        "associations": cluster.get("associations", []),
        "qos": cluster.get("qos", []),
        "default": [cluster.get("default_account", "")],
    }
    for kind, lines in texts.items():
        (programs / f"{kind}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shown = f"cat '{programs}'/"
    accounting = f"""case "$*" in
        *associations*user=someone*) {shown}associations.txt;; *qos*) {shown}qos.txt;;
        *) {shown}default.txt;; esac"""
    written: dict[str, str | None] = {
        "sinfo": f"echo '{cluster['slurm']}'",
        "scontrol": f"""case "$*" in *config) {shown}config.txt;; *node) {shown}nodes.txt;;
            *partition) {shown}partitions.txt;; *) echo "Partition $4 not found" >&2; exit 1;; esac""",
        "sbatch": f"""case "$*" in {cluster.get("test_only", "*")}) ;;
            *) echo '{REFUSAL}' >&2; exit 1;; esac""",
        "sacctmgr": accounting if "associations" in cluster else "echo 'no slurmdbd' >&2; exit 1",
    }
    stand_ins(programs, {name: script for name, script in (written | scripts).items() if script is not None})


def options(folder: Path, *words: str, force: bool = False) -> SiteOptions:
    given = dict(zip(words[::2], words[1::2], strict=True))
    partitions, gpu_types = (
        given[name].split(",") if name in given else [] for name in ("--partition", "--gpu-type")
    )
    return SiteOptions(
        partitions,
        given.get("--account"),
        gpu_types,
        folder / "site.yaml",
        force,
        "python workflow/scripts/cli.py site",
    )


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of PATH, on a machine of another kind than AWS's and CSC's nodes."""
    folder = system_programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("LOGNAME", "someone")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return folder


def value(facts: Mapping[str, Any], key: str) -> object:
    """Return the value at a path such as ``slurm.account``; None if there is none."""
    found: Any = facts
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


@pytest.mark.parametrize("name", [name for name, cluster in CLUSTERS.items() if "site" in cluster])
def test_site_file_states_what_slurm_reports(name: str, programs: Path, tmp_path: Path) -> None:
    cluster = CLUSTERS[name]
    report(programs, name)

    lines = write_site_file(options(tmp_path, *cluster.get("options", [])), ROOT)

    text = (tmp_path / "site.yaml").read_text(encoding="utf-8")
    facts = yaml.safe_load(text)
    found = {key: value(facts, key) for key in cluster["site"]}
    tests = found.get("slurm.test_partition")
    if isinstance(tests, dict):
        found["slurm.test_partition"] = {
            key: tests.get(key) for key in cluster["site"]["slurm.test_partition"]
        }
    assert found == cluster["site"]
    for said in cluster.get("says", []):
        assert said in text + "\n".join(lines)
    # every fact has a comment that names its source
    bare = [line for line in text.splitlines() if re.match(r"\s*\w+: \S", line) and "  # " not in line]
    assert bare == []
    # and the file is accepted as it is
    compared = {"partitions": "all"} if "partitions" in facts else {}
    study = load_study({"experiments": {"e": EXPERIMENT | compared}}, (), tmp_path / "site.yaml")
    assert len(study.experiments) == len(facts.get("partitions", ["only"]))


REFUSED = [
    pytest.param(name, refused["options"], refused["says"], id=" ".join([name, *refused["options"]]))
    for name, cluster in CLUSTERS.items()
    for refused in cluster.get("refused", [])
]


@pytest.mark.parametrize(("name", "words", "says"), REFUSED)
def test_choice_that_slurm_does_not_have_or_that_is_the_users_is_refused_and_no_file_is_written(
    name: str, words: list[str], says: list[str], programs: Path, tmp_path: Path
) -> None:
    report(programs, name)

    with pytest.raises(ChoiceError) as refused:
        write_site_file(options(tmp_path, *words), ROOT)

    for said in says:
        assert said in str(refused.value)
    assert not (tmp_path / "site.yaml").exists()


@pytest.mark.parametrize(
    ("scripts", "said"),
    [
        pytest.param(
            {"scontrol": None}, "scontrol not on PATH. Go to a login node of the cluster", id="no Slurm"
        ),
        pytest.param(
            {"scontrol": "echo 'Unable to contact slurm controller' >&2; exit 1"},
            "`scontrol show config` ended with exit status 1: Unable to contact slurm controller. Try the",
            id="fails",
        ),
        pytest.param({"scontrol": "exit 0"}, "`scontrol show config` printed nothing", id="prints nothing"),
    ],
)
def test_slurm_that_does_not_answer_is_named_with_the_fix(
    scripts: dict[str, str | None], said: str, programs: Path, tmp_path: Path
) -> None:
    report(programs, "typed-gres-22.05", **scripts)

    with pytest.raises(ClusterError, match=re.escape(said)):
        write_site_file(options(tmp_path), ROOT)


def test_command_that_hangs_is_ended_and_named(programs: Path) -> None:
    stand_ins(programs, {"scontrol": "read nothing < /dev/tty; while :; do :; done"})

    answer = ask("scontrol", "show", "config", seconds=0.2)

    assert answer.failure == "`scontrol show config` did not end: no answer within 0.2 s"


def test_filled_in_file_is_replaced_only_by_force(programs: Path, tmp_path: Path) -> None:
    report(programs, "whole-nodes-23.11")
    path, shipped = tmp_path / "site.yaml", (ROOT / "profiles" / "slurm" / "site.yaml").read_text()
    path.write_text(shipped.replace("<account>", "mine").replace("<partition>", "gpu"))

    with pytest.raises(ClusterError, match=r"exists\. Add --force to replace it, or --output"):
        write_site_file(options(tmp_path), ROOT)
    assert "account: mine" in path.read_text()

    write_site_file(options(tmp_path, force=True), ROOT)
    assert yaml.safe_load(path.read_text())["slurm"]["partition"] == "a3"

    path.write_text(shipped)
    write_site_file(options(tmp_path), ROOT)
    assert yaml.safe_load(path.read_text())["slurm"]["partition"] == "a3"


@pytest.mark.slow
def test_command_line_writes_the_file_and_names_the_next_step(programs: Path, tmp_path: Path) -> None:
    report(programs, "whole-nodes-23.11")
    python = sys.executable
    command = [python, str(ROOT / "workflow" / "scripts" / "cli.py"), "site", "--output", "new/site.yaml"]
    several = [*command, "--force", "--partition", "gpu_h100", "--partition", "gpu_mixed,gpu_a100"]

    first, second = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False) for _ in range(2)
    )

    assert first.returncode == 0, first.stderr
    assert "snakemake preflight --profile profiles/slurm --config site=new/site.yaml" in first.stdout
    assert second.returncode == 1
    assert second.stderr.startswith("scalewise: new/site.yaml exists.")

    report(programs, "several-partitions-24.05")
    done = subprocess.run(several, cwd=tmp_path, capture_output=True, text=True, check=False)
    names = "gpu_h100, gpu_mixed-l40s, gpu_mixed-nvidia_rtx-6000, gpu_a100"
    assert f"new/site.yaml describes 4 partitions: {names}." in done.stdout, done.stderr


def test_limits_of_qos_are_read_as_jean_zay_prints_them() -> None:
    """As published in https://github.com/bigscience-workshop/bigscience/issues/37."""
    lines = ["qos_gpu-dev|02:00:00||cpu=640,gres/gpu=32|10", "qos_gpu-t3|20:00:00||cpu=10240|10000"]

    found = parse_qos(lines)

    assert found["qos_gpu-dev"].longest_seconds == 7200
    assert found["qos_gpu-dev"].most == {"cpu": 640, "gres/gpu": 32}
    assert found["qos_gpu-dev"].submitted == 10
