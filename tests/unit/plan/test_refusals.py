"""Each mistake is refused with its file, line, key and value, and with nothing started."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.unit.plan.refusals import CPUS, HERE, MACHINES, StudyFolder, built_in, of_program, site_of

from scalewise.config.errors import one_line

Case = tuple[str, str, str]
"""Lines with a mistake in the last or marked one; what the message names; an input of the catalogue."""

BUILTIN: Sequence[Case] = (
    ("devices: [1, 0]", "devices[1] 0", "topology: 0 devices"),
    ("devices: [1, 6]", "devices[1] 6 4 8", "topology: 6 at 4 per node"),
    ('devices: [1, "2x1"]', "devices[1] 2x1 2", "topology: 2 nodes x 1"),
    ("devices: [1, 32]", "devices[1] 32 16", "topology: more than the partition has"),
    ("devices: [1, 2, 2]", "devices[2] 2", "topology: repeated devices"),
    ("devices: []", "devices", "topology: empty devices"),
    ("cpus_per_device: 8", "cpus_per_device 16 8 4", "topology: cpus over the node"),
    ('epochs: "4"', "epochs '4'", "types: quoted number"),
    ("epochs: 1.5", "epochs 1.5", "types: 1.5 epochs"),
    ("learning_rate: 1e-3", "learning_rate '1e-3'", "types: 1e-3 as a string"),
    ("epochs: null", "epochs", "types: null"),
    ("epoch: 4", "epoch 4 'epochs'", "types: unknown key"),
    ("min_efficiency: 0.5", "min_efficiency 0.5 'decision.min_efficiency'", "types: unknown key"),
    ("<<: {epoch: 4}", "epoch 4 'epochs'", "types: unknown key"),
    ("yes: 4", "True 'yes' bool", "types: unknown key"),
    ("decision: {min_eficiency: 0.5}", "decision.min_eficiency 0.5 'min_efficiency'", ""),
    (f"epochs: 3\nepochs: 4 {HERE}", "epochs", "types: duplicate keys"),
    ("learning_rate: .nan", "learning_rate nan", "types: nan learning rate"),
    ("learning_rate: .inf", "learning_rate inf", "types: infinite learning rate"),
    ("learning_rate: -0.1", "learning_rate 0 -0.1", "types: negative learning rate"),
    ("model: resnet19", "model resnet19 'resnet18'", "types: unknown model"),
    ("model: wrn-29-10", "model wrn-29-10 wrn-28-10", "types: unknown model"),
    ("dataset: digit", "dataset digit 'digits'", "types: unknown dataset"),
    ("dataset: synthetic-3x32", "dataset synthetic-3x32", "types: unknown dataset"),
    ("compile: 3", "compile boolean 'reduce-overhead' 3", ""),
    ("epochs: 99999999999999999999", "epochs 99999999999999999999", ""),
    ("sweep: {scaling: [weak]}", "sweep.scaling ['weak']", ""),
    ("global_batch_size: 241", "global_batch_size 241 2 240 242", "batch: not divisible"),
    ("global_batch_size: 2400", "global_batch_size 2400 1437", "batch: over the dataset"),
    ("global_batch_size: 2", "global_batch_size 1 2 digits_cnn 2", "batch: 1 with batch norm"),
    ("epochs: 1\nwarmup_steps: 5", "warmup_steps 5 5", "batch: warm-up not shorter"),
    ("compile: true\nwarmup_steps: 0", "warmup_steps 0", ""),
    ("steps: 100\nschedule: onecycle", "schedule onecycle 110", ""),
    ("batch_size_per_device: 4", "batch_size_per_device 4 global_batch_size", ""),
    ("precision: fp16", "precision fp16 CPU bf16", ""),
    ("parallelism: fsdp\ngradient_as_bucket_view: true", "gradient_as_bucket_view True fsdp", ""),
    ("parallelism: fsdp\ncompile: reduce-overhead", "compile reduce-overhead parallelism fsdp", ""),
    ("steps: 20\ntarget: {accuracy: 0.9}", "target 20", ""),
    ("steps: 20\ndecision: {deadline_minutes: 5}", "decision.deadline_minutes 5 20", ""),
    ("steps: 20\ntrainings: 8", "trainings 8 samples_per_training", ""),
    ("target: {accuracy: 0.9}\nstop_at_accuracy: 0.8", "stop_at_accuracy 0.8 0.9", ""),
    ("sweep: {momentum: [0.5, 0.5]}", "sweep momentum-0.5", ""),
    (f"sweep: {{seed: {list(range(400))}}}", "sweep 2,400 1,000", ""),
    (f"exclude: [{{devices: 2}}]\nsweep: {{seed: {list(range(400))}}}", "sweep 1,200 1,000", ""),
    ("exclude: [{momentum: 0.5}]", "exclude[0] momentum", ""),
    ("exclude: [{}]", "exclude", ""),
    ("devices: {up_to: 64}", "devices.up_to 64 16", ""),
    ("budget: {device_hours: 4}", "budget up_to", ""),
    (
        f"devices: {{up_to: 4}}\nbudget: {{device_hours: 0.1}} {HERE}\nruntime_minutes: 30",
        "budget.device_hours 0.1 2 1 runtime_minutes 30 1",
        "",
    ),
    ("repeats: {min: 9, max: 4}", "repeats 9 4", ""),
    ("partitions: [a100]", "partitions a100", ""),
    ("proposal: {centre: csc-rohu}", "proposal.centre csc-rohu 'csc-roihu'", ""),
    ("arguments: [--lr]", "arguments program: train.py", ""),
    ("title: !!python/object/apply:os.mkdir [sprung]", "python/object/apply:os.mkdir", ""),
)
PROGRAM: Sequence[Case] = (
    ("program: gone.py", "program gone.py", "names: data path missing"),
    ("program: package", "program package", ""),
    ("program: train.py --lr 0.1", "program train.py --lr 0.1 arguments", ""),
    ("files: [data/train.bin]", "files[0] data/train.bin", "names: data path missing"),
    ("files: [.]", "files[0] . results/", ""),
    ("working_directory: nowhere", "working_directory nowhere", ""),
    ("arguments: ['{batch_size}', '{folder}']", "arguments[0] batch_size", ""),
    ("arguments: ['{rank}']", "arguments[0] rank", ""),
    ("arguments: ['{batch_size_per_device * 2}']", "arguments[0] {batch_size_per_device * 2}", ""),
    ("arguments: [true]", "arguments[0] True", ""),
    ('arguments: ["a\\0b"]', "arguments[0]", ""),
    ("argument: {lr: 0.1}", "argument.lr {argument.lr}", ""),
    ("sweep: {argument.lr: [0.1, 0.2]}", "sweep.argument.lr {argument.lr}", ""),
    ("sweep: {seed: [1, 2]}", "sweep.seed {seed}", ""),
    ("samples_per_step: 5", "samples_per_step 5 16", ""),
    ("environment: {RANK: 3}", "environment.RANK 3", ""),
    ("environment: {a-b: 3}", "environment.a-b", ""),
    ("launcher: spawn", "launcher spawn itself", ""),
    ("program: -m torch.distributed.run", "program torch.distributed.run itself", ""),
    ("arguments: []\nresumes: true", "resumes {folder}", ""),
    ("metric: {pattern: 'loss=(.*)', at_most: 2}", "metric 200", ""),
    ("momentum: 0.9", "momentum built-in", ""),
)
NAMES: Sequence[Case] = (
    ("../x: {}", "../x", "names: ../x"),
    ("a b: {}", "a b", "names: spaces"),
    ("a;b: {}", "a;b", "names: semicolon"),
    ("$(touch sprung): {}", "touch sprung", "names: $()"),
    ('"a\\nb": {}', r"a\nb", "names: newline"),
    ("a'b: {}", "a'b", "names: quotes"),
    ('"": {}', "''", "names: empty"),
    ("-a: {}", "-a", "names: leading dash"),
    ("a/b: {}", "a/b", "names: slash"),
    ("a{}: {}", "a{}", "names: braces"),
    (f"{'a' * 256}: {{}}", "a" * 256, "names: over 255 bytes"),
    ("partial: {}", "partial", ""),
    (f"a: {{}}\nA: {{}} {HERE}", "A a", "names: duplicates by case"),
    (f"a: {{}}\na: {{}} {HERE}", "a", "names: duplicates"),
    ("no: {}", "no", ""),
    ("a:", "a", ""),
)
FILES: Sequence[Case] = (
    ("experiments:\n\ta: {}", r"\t", "types: tabs"),
    ("- experiments", "mapping", "types: not a mapping"),
    ("experiments", "mapping", "types: not a mapping"),
    (f"# nothing {HERE}", "mapping", ""),
    ("experiments: [a]", "experiments ['a']", "types: not a mapping"),
    ("experiments:", "experiments", ""),
    (f"defaults: 3 {HERE}\nexperiments: {{a: {{}}}}", "", ""),
    ("experiments: {a: &a [*a]}", "", ""),
    ("experiments: {a: {}}\ndefaults: {title: 2024-13-45}", "month", ""),
    ('experiments: {a: "\0"}', "", ""),
    ("a: b: c", "mapping values", ""),
    (
        "experiments: {a: {dataset: digits, model: linear, devices: [1], scaling: weak}}",
        "experiments.a.batch_size_per_device weak",
        "",
    ),
    (
        "experiments: {a: {program: train.py, devices: [1], steps: 9, global_batch_size: 64}}",
        "experiments.a.scaling strong {batch_size_per_device} samples_per_step: 64",
        "",
    ),
)
SITES: Sequence[Case] = (
    ("account: <project_number>", "slurm.account <project_number>", "slurm: placeholder left in"),
    ("account: nnXXXXk", "slurm.account nnXXXXk", "slurm: placeholder left in"),
    ("longest_walltime: 1:30", "slurm.longest_walltime", "slurm: walltime 1:30"),
    ('longest_walltime: "1:30"', "slurm.longest_walltime 1:30", "slurm: walltime 1:30"),
    ("longest_walltime: 0", "slurm.longest_walltime 0", "slurm: walltime 0"),
    ('longest_walltime: "99:99:99:99"', "slurm.longest_walltime 99:99:99:99", "slurm: walltime 99:99:99:99"),
    ("extra: [--nodes=3]", "slurm.extra[0] --nodes", "slurm: managed flag"),
    ("extra: [--exclude=node-J1]", "slurm.extra[0] --exclude=node-J1", ""),
    ('partition: "a; touch sprung"', "slurm.partition touch sprung", "security: shell in the site"),
)


def cases(table: Sequence[Case], study: Callable[[str], tuple[str, str]]) -> Iterator[object]:
    for lines, names, refuses in table:
        marks = [pytest.mark.refuses(refuses)] if refuses else []
        yield pytest.param(*study(lines), names, id=re.sub(r"\W+", "-", lines)[:60] or "empty", marks=marks)


ALL = [
    *cases(BUILTIN, lambda lines: (built_in(*lines.split("\n")), CPUS)),
    *cases(PROGRAM, lambda lines: (of_program(*lines.split("\n")), CPUS)),
    *cases(
        NAMES,
        lambda lines: (
            built_in().split("  digits")[0] + "".join(f"  {line}\n" for line in lines.split("\n")),
            CPUS,
        ),
    ),
    *cases(FILES, lambda lines: (f"{lines}\n", CPUS)),
    *cases(SITES, lambda lines: (built_in(), site_of("cluster", slurm=[lines]))),
]


def place_of(study: str, site: str) -> str:
    """Return the file and line of the mistake: marked, or the last of the site, or of the study."""
    for number, line in enumerate(study.splitlines(), 1):
        if HERE in line:
            return f"study.yaml:{number}"
    file, text = ("site.yaml", site) if site != CPUS else ("study.yaml", study)
    return f"{file}:{len(text.splitlines())}"


@pytest.mark.parametrize(("study", "site", "names"), ALL)
def test_a_mistake_is_refused_with_its_line_key_and_value(
    study: str,
    site: str,
    names: str,
    study_folder: StudyFolder,
    record_property: Callable[[str, object], None],
) -> None:
    before = sorted(study_folder.folder.rglob("*"))
    (message,) = [line.replace(f"{study_folder.folder}/", "") for line in study_folder.refuse(study, site)]
    record_property("message", message)

    place, text = message.split(": ", 1)
    assert place == place_of(study, site), message
    pattern = ".*".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names.split(" ") if name)
    assert re.search(pattern, text), message
    assert message == one_line(message)
    assert len(message) < 4000
    assert sorted(study_folder.folder.rglob("*")) == before, "something was started"


@pytest.mark.parametrize(
    ("lines", "site", "place"),
    [
        pytest.param(
            "runtime_minutes: 90",
            site_of("cluster", slurm=['longest_walltime: "00:03:00"']),
            8,
            marks=pytest.mark.refuses("slurm: walltime over the limit"),
        ),
        pytest.param("partitions: [b100]", MACHINES["partitions"], 8),
        pytest.param("partitions: all\n    memory_gb: 300", MACHINES["partitions"], 9),
    ],
)
def test_what_the_site_does_not_give_is_refused_where_it_is_asked_for(
    lines: str, site: str, place: int, study_folder: StudyFolder
) -> None:
    (message,) = study_folder.refuse(built_in(lines), site)
    assert f"study.yaml:{place}: " in message


@pytest.mark.refuses("topology: no 1-device run")
def test_a_study_without_a_run_on_one_device_is_planned_with_a_warning(study_folder: StudyFolder) -> None:
    (warning,) = study_folder.plan(built_in("devices: [2, 4]")).warnings
    assert "digits.devices has no 1-device run" in warning
    assert study_folder.plan(built_in("devices: [1, 4]")).warnings == []
