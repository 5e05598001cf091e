"""Public training scripts that nobody edits, at fixed commits, and what is known of them.

Their data are made up by public_data.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OwnLog:
    """What a script prints of its steps.

    Args:
        line: Pattern of a line, with a group ``step`` and one of ``ms`` or ``s``.
        shift: Added to the printed number, it is the step's, counted from 0.
        samples: Of a step, where these are printed and not steps; the number is divided by them first.
    """

    line: str
    shift: int = 0
    samples: int = 1


@dataclass(frozen=True)
class PublicScript:
    """One start of a public script.

    Args:
        name: Of its experiment.
        repository: On GitHub.
        commit: Of the version that is run.
        parts: Paths that are taken from it.
        folder: Where it is started, within the repository.
        program: Its path from there, or -m and a module.
        arguments: As in an experiment.
        keys: Further keys of the experiment.
        samples: Samples of a step of all devices, known from its arguments.
        samples_from: Source of their number, as a record names it.
        data: Name in public_data.py.
        packages: Modules that it imports, beyond those of Scalewise.
        times: Its own log of step times.
        note: What is special about it.
    """

    name: str
    repository: str
    commit: str
    parts: tuple[str, ...]
    folder: str
    program: str
    arguments: tuple[str, ...]
    keys: Mapping[str, Any]
    samples: int
    samples_from: str = "loader"
    data: str = ""
    packages: tuple[str, ...] = ()
    times: OwnLog | None = None
    note: str = ""
    steps: int = 40
    warmup_steps: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)


EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
NANO_GPT = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
MIN_GPT = ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
MAKEMORE = ("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4")
ACCELERATE = ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
TRL = ("huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8")
LIGHTNING = ("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
TIMM = ("huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d")
OPEN_CLIP = ("mlfoundations/open_clip", "89fb801f1e6087880e951fc8354b8a2077b79c6d")
UNET = ("milesial/Pytorch-UNet", "21d7850f2af30a9695bbeea75f3136aa538cfc4a")
X_TRANSFORMERS = ("lucidrains/x-transformers", "9252ed7838021ee61e6c5be0930b3a9a88efdf06")

BATCH = "{batch_size_per_device}"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def weak(batch: int, devices: int = 1, **more: Any) -> dict[str, Any]:
    """Keys of a weak-scaling experiment on one device count."""
    return {"scaling": "weak", "batch_size_per_device": batch, "devices": [devices], **more}


SCRIPTS = (
    PublicScript(
        "mnist",
        *EXAMPLES,
        parts=("mnist",),
        folder="mnist",
        program="main.py",
        arguments=("--no-accel", f"--batch-size={BATCH}", "--log-interval=5", "--epochs=100"),
        keys=weak(64),
        samples=64,
        data="mnist",
    ),
    PublicScript(
        "dcgan",
        *EXAMPLES,
        parts=("dcgan",),
        folder="dcgan",
        program="main.py",
        arguments=(
            "--dataset=fake",
            f"--batchSize={BATCH}",
            "--imageSize=64",
            "--ngf=8",
            "--ndf=8",
            "--workers=1",
            "--manualSeed={seed}",
            "--outf={folder}",
        ),
        keys=weak(8),
        samples=8,
        note="two optimizers",
    ),
    PublicScript(
        "time-sequence",
        *EXAMPLES,
        parts=("time_sequence_prediction",),
        folder="time_sequence_prediction",
        program="train.py",
        arguments=("--steps=100",),
        keys=weak(97, samples_per_step="planned", prepare=["generate_sine_wave.py"], files=["traindata.pt"]),
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        samples=97,
        samples_from="configuration",
        steps=2,
        warmup_steps=1,
        note="LBFGS: 20 closures a step, and an evaluation after each",
    ),
    PublicScript(
        "word-language-model-adamw",
        *EXAMPLES,
        parts=("word_language_model/*.py",),
        folder="word_language_model",
        program="main.py",
        arguments=(
            "--use-optimizer",
            f"--batch_size={BATCH}",
            "--emsize=32",
            "--nhid=32",
            "--epochs=20",
            "--log-interval=5",
            "--save={folder}/model.pt",
        ),
        keys=weak(20, samples_per_step="planned"),
        samples=20,
        samples_from="configuration",
        data="wikitext",
        note="time comes first in its batches, not samples",
    ),
    PublicScript(
        "nanogpt",
        *NANO_GPT,
        parts=(".",),
        folder=".",
        program="train.py",
        arguments=(
            "config/train_shakespeare_char.py",
            "--device=cpu",
            "--compile=False",
            f"--batch_size={BATCH}",
            "--gradient_accumulation_steps={accumulation_steps}",
            "--block_size=32",
            "--n_layer=2",
            "--n_head=2",
            "--n_embd=64",
            "--eval_interval=20",
            "--eval_iters=5",
            "--log_interval=1",
            "--out_dir={folder}",
        ),
        keys=weak(4, accumulation_steps=3, starts="itself", files=["config/train_shakespeare_char.py"]),
        samples=12,
        samples_from="forward",
        data="characters",
        times=OwnLog(r"iter (?P<step>\d+): .*time (?P<ms>[\d.]+)ms"),
        note="no DataLoader; takes CUDA for granted where RANK is set, so it starts itself",
    ),
    PublicScript(
        "mingpt-adder",
        *MIN_GPT,
        parts=(".",),
        folder=".",
        program="projects/adder/adder.py",
        arguments=(
            f"--trainer.batch_size={BATCH}",
            "--trainer.num_workers=0",
            "--system.seed={seed}",
        ),
        keys=weak(64),
        environment={"PYTHONPATH": "."},
        samples=64,
        packages=("transformers",),
        times=OwnLog(r"iter_dt (?P<ms>[\d.]+)ms; iter (?P<step>\d+)", shift=-1),
    ),
    PublicScript(
        "makemore",
        *MAKEMORE,
        parts=(".",),
        folder=".",
        program="makemore.py",
        arguments=(f"--batch-size={BATCH}", "--num-workers=0", "--work-dir={folder}", "--seed={seed}"),
        keys=weak(32),
        samples=32,
        packages=("tensorboard",),
        times=OwnLog(r"step (?P<step>\d+) .*step time (?P<ms>[\d.]+)ms"),
        note="calls next() on its loader's iterator for ever",
    ),
    PublicScript(
        "x-transformers-copy",
        *X_TRANSFORMERS,
        parts=("train_copy.py", "x_transformers"),
        folder=".",
        program="train_copy.py",
        arguments=(),
        keys=weak(32),
        samples=32,
        samples_from="forward",
        packages=("einops", "einx", "loguru", "torch_einops_utils"),
        note="takes no argument; its batch is written in it, and nothing is seeded",
    ),
    PublicScript(
        "unet",
        *UNET,
        parts=(".",),
        folder=".",
        program="train.py",
        arguments=(f"--batch-size={BATCH}", "--epochs=100", "--scale=0.5", "--classes=2"),
        keys=weak(2),
        environment={"WANDB_MODE": "disabled"},
        samples=2,
        data="images_and_masks",
        packages=("wandb", "tqdm"),
        note="GradScaler, and an evaluation every few steps",
        steps=90,
    ),
    PublicScript(
        "accelerate-accumulation",
        *ACCELERATE,
        parts=("examples",),
        folder="examples/by_feature",
        program="gradient_accumulation.py",
        arguments=("--cpu", "--gradient_accumulation_steps={accumulation_steps}"),
        keys=weak(16, 2, accumulation_steps=2),
        environment=OFFLINE,
        samples=64,
        data="paraphrases",
        packages=("accelerate", "transformers", "datasets", "evaluate"),
        note="its batch of 16 is written in it",
    ),
    PublicScript(
        "trl-sft",
        *TRL,
        parts=("trl",),
        folder=".",
        program="trl/scripts/sft.py",
        arguments=(
            "--model_name_or_path=tiny-llama",
            "--dataset_name=made-up-text",
            f"--per_device_train_batch_size={BATCH}",
            "--gradient_accumulation_steps={accumulation_steps}",
            "--max_length=32",
            "--eval_strategy=steps",
            "--eval_steps=25",
            "--save_steps=40",
            "--logging_steps=1",
            "--max_steps=400",
            "--use_cpu",
            "--report_to=none",
            "--bf16=False",
            "--seed={seed}",
            "--output_dir={folder}",
        ),
        keys=weak(4, 2, accumulation_steps=2),
        environment=OFFLINE,
        samples=16,
        data="chats",
        packages=("trl", "transformers", "datasets"),
        note="Hugging Face's Trainer",
    ),
    PublicScript(
        "lightning-backbone",
        *LIGHTNING,
        parts=("examples/pytorch/basics",),
        folder="examples/pytorch/basics",
        program="backbone_image_classifier.py",
        arguments=(
            "--trainer.accelerator=cpu",
            "--trainer.strategy=ddp",
            "--trainer.devices={devices_per_node}",
            "--trainer.num_nodes={nodes}",
            "--trainer.default_root_dir={folder}",
            "--trainer.max_epochs=2",
            "--trainer.enable_progress_bar=false",
            f"--data.batch_size={BATCH}",
        ),
        keys=weak(32, 2),
        samples=64,
        steps=100,
        environment={"PL_USE_MOCKED_MNIST": "1"},
        data="mnist_of_lightning",
        packages=("lightning", "jsonargparse", "docstring_parser", "typeshed_client"),
    ),
    PublicScript(
        "timm",
        *TIMM,
        parts=("train.py", "timm"),
        folder=".",
        program="train.py",
        arguments=(
            "--data-dir=made-up-images",
            "--model=resnet18",
            "--img-size=64",
            "--num-classes=2",
            f"--batch-size={BATCH}",
            "--grad-accum-steps={accumulation_steps}",
            "--device=cpu",
            "--amp",
            "--amp-dtype=bfloat16",
            "--workers=1",
            "--log-interval=1",
            "--epochs=20",
            "--seed={seed}",
            "--output={folder}",
        ),
        keys=weak(8, accumulation_steps=2),
        samples=16,
        data="image_folders",
        packages=("timm",),
        times=OwnLog(r"Train: 0 \[ *(?P<step>\d+)/.*Time: (?P<s>[\d.]+)s,"),
    ),
    PublicScript(
        "open-clip",
        *OPEN_CLIP,
        parts=("src",),
        folder="src",
        program="-m open_clip_train.main",
        arguments=(
            "--dataset-type=synthetic",
            "--train-num-samples=24",
            "--model=ViT-S-32-alt",
            f"--batch-size={BATCH}",
            "--workers=0",
            "--epochs=2",
            "--device=cpu",
            "--precision=fp32",
            "--log-every-n-steps=1",
            "--logs={folder}",
            "--warmup=10",
        ),
        keys=weak(2),
        samples=2,
        steps=12,
        warmup_steps=3,
        packages=("timm", "ftfy", "regex", "webdataset", "braceexpand"),
        times=OwnLog(r"Train Epoch: 0 \[ *(?P<step>\d+)/.*Batch \(t\): (?P<s>[\d.]+)", shift=-1, samples=2),
        note="started as a module; on two CPU ranks it fails by its own device_ids",
    ),
)
