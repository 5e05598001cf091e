"""A training with Megatron's tensor-parallel layers, divided among all ranks."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch.nn.functional import cross_entropy


class Divided(torch.nn.Module):
    def __init__(self, config: ModelParallelConfig) -> None:
        super().__init__()
        init = torch.nn.init.xavier_normal_
        self.up = ColumnParallelLinear(64, 128, config=config, init_method=init, gather_output=False)
        self.down = RowParallelLinear(
            *(128, 4),
            config=config,
            init_method=init,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=False,
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inner, _ = self.up(inputs)
        outputs: torch.Tensor = self.down(inner.relu())[0]
        return outputs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    config = ModelParallelConfig(tensor_model_parallel_size=ranks, use_cpu_initialization=True)
    model = Divided(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    while True:
        optimizer.zero_grad()
        labels = torch.randint(0, 4, (options.batch_size,))
        cross_entropy(model(torch.randn(options.batch_size, 64)), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
