"""A training by Hugging Face's Trainer with evaluations, as its users have it; it downloads nothing."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Sentences of random words, and whether the first word is an early one."""

    def __init__(self, number: int) -> None:
        self._words = torch.randint(0, 100, (number, 12), generator=torch.Generator().manual_seed(number))

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self._words[index]
        return {"input_ids": words, "labels": (words[0] < 50).long()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    arguments = TrainingArguments(
        output_dir=options.out,
        per_device_train_batch_size=options.batch_size,
        max_steps=1000,
        eval_strategy="steps",
        eval_steps=10,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_drop_last=True,
    )
    model = BertForSequenceClassification(config)
    Trainer(model, arguments, train_dataset=Sentences(2048), eval_dataset=Sentences(64)).train()


if __name__ == "__main__":
    main()
