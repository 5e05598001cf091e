"""Train a small GPT on a file of tokens, without a DataLoader.

python nanogpt_like.py --data data/tokens --out runs/gpt
torchrun --standalone --nproc-per-node=2 nanogpt_like.py --data data/tokens --out runs/gpt
"""

import argparse
import math
import os
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Causal self-attention and a perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of the same shape, [batch, time, width]."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (
            part.view(shape).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A decoder of the GPT family with learned positions and tied weights."""

    def __init__(self, vocabulary: int, block_size: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialize)
        self.head.weight = self.tokens.weight

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy of the next tokens, of a batch [batch, time]."""
        positions = torch.arange(x.shape[1], device=x.device)
        logits = self.head(self.norm(self.blocks(self.tokens(x) + self.positions(positions))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up to the peak, then a cosine down to a tenth of it."""
    if step < args.warmup_steps:
        return args.lr * (step + 1) / args.warmup_steps
    progress = (step - args.warmup_steps) / max(args.max_steps - args.warmup_steps, 1)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(progress, 1))))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--data", type=Path, default=Path("data/tokens"), help="folder of train.bin and val.bin"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gpt"))
    parser.add_argument(
        "--batch-size", type=int, default=8, help="sequences of a forward pass of each device"
    )
    parser.add_argument("--accumulation-steps", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--eval-batches", type=int, default=4)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Train, and on rank 0 estimate the losses and save every few steps."""
    args = parse()
    is_ddp = "RANK" in os.environ
    use_cuda = torch.cuda.is_available()
    rank, world_size, device = 0, 1, "cuda" if use_cuda else "cpu"
    if is_ddp:
        dist.init_process_group("nccl" if use_cuda else "gloo")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if use_cuda:
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
    # equal weights come from rank 0 by DDP, other batches on each rank from its own seed
    torch.manual_seed(args.seed + rank)
    autocast = torch.autocast(
        device.split(":")[0], dtype=getattr(torch, args.dtype), enabled=args.dtype != "float32"
    )

    def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        data = np.memmap(args.data / f"{split}.bin", dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - args.block_size, (args.batch_size,)).tolist()
        length = args.block_size + 1
        rows = torch.stack(
            [torch.from_numpy(data[start : start + length].astype(np.int64)) for start in starts]
        )
        rows = rows.pin_memory().to(device, non_blocking=True) if use_cuda else rows
        return rows[:, :-1], rows[:, 1:]

    raw_model = GPT(args.vocabulary, args.block_size, args.width, args.layers, args.heads).to(device)
    model: nn.Module = raw_model
    if is_ddp:
        model = DistributedDataParallel(raw_model, device_ids=[device] if use_cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    @torch.no_grad()
    def estimate_losses() -> dict[str, float]:
        raw_model.eval()
        means = {}
        for split in ("train", "val"):
            losses = torch.zeros(args.eval_batches)
            for i in range(args.eval_batches):
                with autocast:
                    losses[i] = raw_model(*get_batch(split)).item()
            means[split] = losses.mean().item()
        raw_model.train()
        return means

    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        tokens = args.accumulation_steps * world_size * args.batch_size * args.block_size
        print(
            f"{sum(p.numel() for p in model.parameters()):,} parameters, {tokens:,} tokens a step", flush=True
        )
    batch = get_batch("train")
    began = time.perf_counter()
    for step in range(args.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        if step % args.eval_every == 0 and rank == 0:
            losses = estimate_losses()
            print(f"step {step}: train_loss={losses['train']:.4f} val_loss={losses['val']:.4f}", flush=True)
            torch.save({"model": raw_model.state_dict(), "step": step}, args.out / "last.pt")
        for micro_step in range(args.accumulation_steps):
            is_last = micro_step == args.accumulation_steps - 1
            # gradients are exchanged in the last backward pass of a step alone
            with nullcontext() if is_last or not is_ddp else model.no_sync():
                with autocast:
                    loss = model(*batch) / args.accumulation_steps
                # the next batch is fetched while the device computes
                batch = get_batch("train")
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0 and rank == 0:
            now = time.perf_counter()
            print(
                f"iter {step}: loss={loss.item() * args.accumulation_steps:.4f} at {now - began:.3f} s",
                flush=True,
            )
    if is_ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
