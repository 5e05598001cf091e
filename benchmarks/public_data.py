"""Made-up data under the names that public scripts need: ``python public_data.py NAME``, in their folder.

Run by the interpreter that runs the scripts, which may have other packages than Scalewise's.
"""

from __future__ import annotations

import csv
import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(1)
WORDS = [f"word{number}" for number in range(200)]


def folder(path: str) -> Path:
    """Create a folder."""
    place = Path(path)
    place.mkdir(parents=True, exist_ok=True)
    return place


def mnist() -> None:
    """Random images in the four files of MNIST, which torchvision takes as downloaded."""
    raw = folder("../data/MNIST/raw")
    for name, count in (("train", 1200), ("t10k", 256)):
        images = RANDOM.integers(256, size=(count, 28, 28), dtype=np.uint8)
        labels = RANDOM.integers(10, size=count, dtype=np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, count, 28, 28) + images.tobytes()
        )
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels.tobytes())


def mnist_of_lightning() -> None:
    """As many images as Lightning's examples split, in the files of its own class."""
    import torch  # noqa: PLC0415  which others do without

    place = folder("../../Datasets/MNIST/complete")
    for name, count in (("training", 60_000), ("test", 256)):
        images = RANDOM.integers(256, size=(count, 28, 28), dtype=np.uint8)
        labels = RANDOM.integers(10, size=count)
        torch.save((torch.from_numpy(images), torch.from_numpy(labels)), place / f"{name}.pt")


def image_folders() -> None:
    """Two classes of random images, as ImageNet is laid out."""
    for part, count in (("train", 200), ("validation", 16)):
        for label in ("n01", "n02"):
            place = folder(f"made-up-images/{part}/{label}")
            for number in range(count):
                _image((64, 64, 3)).save(place / f"{number}.jpg")


def images_and_masks() -> None:
    """Images and their segmentation, as in Carvana's challenge."""
    for part, shape, ending in (("imgs", (64, 64, 3), ""), ("masks", (64, 64), "_mask")):
        place = folder(f"data/{part}")
        for number in range(200):
            pixels = _image(shape)
            if part == "masks":
                pixels = pixels.point(lambda value: 255 * (value > 127))
            pixels.save(place / f"{number:03}{ending}.{'gif' if ending else 'jpg'}")


def characters() -> None:
    """Tokens of nanoGPT's characters of Shakespeare."""
    place = folder("data/shakespeare_char")
    for name in ("train", "val"):
        RANDOM.integers(65, size=50_000, dtype=np.uint16).tofile(place / f"{name}.bin")
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "stoi": {}, "itos": {}}))


def wikitext() -> None:
    """Sentences of made-up words."""
    place = folder("data/wikitext-2")
    for name, lines in (("train", 4000), ("valid", 100), ("test", 100)):
        (place / f"{name}.txt").write_text("\n".join(_sentence() for _ in range(lines)) + "\n")


def chats() -> None:
    """A tiny language model with its tokenizer, and sentences to fine-tune it on."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  which others do without

    tokenizer = _tokenizer(["<unk>", "<pad>", "<eos>"])
    tokenizer.unk_token, tokenizer.pad_token, tokenizer.eos_token = "<unk>", "<pad>", "<eos>"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), pad_token_id=1, eos_token_id=2, bos_token_id=2, **sizes)
    LlamaForCausalLM(config).save_pretrained("tiny-llama")
    tokenizer.save_pretrained("tiny-llama")
    place = folder("made-up-text")
    for name, count in (("train", 2000), ("test", 32)):
        lines = [json.dumps({"text": _sentence()}) for _ in range(count)]
        (place / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def paraphrases() -> None:
    """A tiny BERT with its tokenizer, and pairs of sentences as in MRPC."""
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415  as above

    tokenizer = _tokenizer(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.unk_token, tokenizer.pad_token = "[UNK]", "[PAD]"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=len(tokenizer), pad_token_id=1, **sizes)
    BertForSequenceClassification(config).save_pretrained("bert-base-cased")
    tokenizer.save_pretrained("bert-base-cased")
    place = folder("nyu-mll/glue")
    for name, count in (("train", 1200), ("validation", 64), ("test", 16)):
        with (place / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["sentence1", "sentence2", "label", "idx"])
            for number in range(count):
                rows.writerow([_sentence(), _sentence(), int(RANDOM.integers(2)), number])
    files = [{"split": name, "path": f"{name}.csv"} for name in ("train", "validation", "test")]
    header = {"configs": [{"config_name": "mrpc", "data_files": files}]}
    (place / "README.md").write_text(f"---\n{json.dumps(header)}\n---\n")
    # the accuracy of predictions, under the name of GLUE's metric
    (folder("glue") / "glue.py").write_text(METRIC)


METRIC = """\
import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, map(int, predictions), map(int, references))) / len(predictions)}
"""  # noqa: E501  a file of its own


def _tokenizer(special: list[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415  as above
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  as above

    words = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=special[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _sentence() -> str:
    return " ".join(RANDOM.choice(WORDS, size=int(RANDOM.integers(8, 24))))


def _image(shape: tuple[int, ...]) -> Image.Image:
    return Image.fromarray(RANDOM.integers(256, size=shape, dtype=np.uint8))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
