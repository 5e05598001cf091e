"""Classify generated texts by topic with Hugging Face Accelerate.

accelerate launch accelerate_text.py --batch-size 16 --accumulation-steps 2 --out runs/text
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

TOPICS, VOCABULARY, PADDING = 4, 512, 0


def write_texts(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Generate texts of 16 to 48 tokens; one token in four belongs to the text's topic."""
    random = torch.Generator().manual_seed(seed)
    own = (VOCABULARY - 1) // TOPICS
    texts = []
    for _ in range(count):
        topic = int(torch.randint(TOPICS, (1,), generator=random))
        length = int(torch.randint(16, 49, (1,), generator=random))
        any_word = torch.randint(1, VOCABULARY, (length,), generator=random)
        own_word = torch.randint(1 + topic * own, 1 + (topic + 1) * own, (length,), generator=random)
        is_own = torch.rand(length, generator=random) < 0.25
        texts.append({"input_ids": torch.where(is_own, own_word, any_word), "labels": torch.tensor(topic)})
    return texts


def collate(texts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pad the texts of a batch to the longest of them."""
    ids = nn.utils.rnn.pad_sequence(
        [text["input_ids"] for text in texts], batch_first=True, padding_value=PADDING
    )
    return {"input_ids": ids, "labels": torch.stack([text["labels"] for text in texts])}


class TextClassifier(nn.Module):
    """A transformer encoder whose mean output is classified."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.1, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOPICS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and logits of a batch."""
        is_padding = input_ids == PADDING
        encoded = self.encoder(self.words(input_ids), src_key_padding_mask=is_padding)
        is_word = (~is_padding).unsqueeze(-1)
        logits = self.head((encoded * is_word).sum(1) / is_word.sum(1))
        return nn.functional.cross_entropy(logits.float(), labels), logits


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy over the evaluation texts of all processes."""
    model.eval()
    losses, correct = [], []
    for batch in loader:
        with torch.no_grad():
            loss, logits = model(**batch)
        predicted, labels = accelerator.gather_for_metrics((logits.argmax(-1), batch["labels"]))
        correct.append((predicted == labels).float())
        losses.append(accelerator.gather(loss.reshape(1)))
    return torch.cat(losses).mean().item(), torch.cat(correct).mean().item()


def main() -> None:
    """Train for all epochs, evaluate after each, and save at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16, help="texts of a forward pass of each process")
    parser.add_argument("--accumulation-steps", type=int, default=1)
    parser.add_argument("--mixed-precision", choices=["no", "fp16", "bf16"], default="no")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/text"))
    args = parser.parse_args()

    accelerator = Accelerator(
        # without a GPU, ranks of torchrun form a group only where this asks for CPUs
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=args.accumulation_steps,
        mixed_precision=args.mixed_precision,
    )
    set_seed(args.seed)
    train_texts, eval_texts = write_texts(4096, args.seed), write_texts(256, args.seed + 1)
    loader = DataLoader(train_texts, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    eval_loader = DataLoader(eval_texts, batch_size=64, collate_fn=collate)
    model = TextClassifier(args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=50)
    model, optimizer, loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, loader, eval_loader, scheduler
    )

    for epoch in range(args.epochs):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss, _ = model(**batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        eval_loss, accuracy = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch} eval_loss={eval_loss:.4f} accuracy={accuracy:.3f}", flush=True)

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        args.out.mkdir(parents=True, exist_ok=True)
        accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "model.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
