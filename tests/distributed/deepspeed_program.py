"""A training by DeepSpeed's engine, as its tutorials have it."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from torch.nn.functional import cross_entropy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    options = parser.parse_args()
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    config = {
        "train_micro_batch_size_per_gpu": options.batch_size,
        # DeepSpeed's own optimizer for CPUs is compiled first
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    deepspeed.init_distributed("gloo")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    while True:
        labels = torch.randint(0, 4, (options.batch_size,))
        engine.backward(cross_entropy(engine(torch.randn(options.batch_size, 64)), labels))
        engine.step()


if __name__ == "__main__":
    main()
