"""A least-squares fit of a line, as somebody might have it; "--fail" makes it fail at its third step."""

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(4096, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler: torch.utils.data.Sampler[int] = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=options.batch_size, sampler=sampler)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step = 0
for _epoch in range(4):
    for batch, truth in loader:
        loss = nn.functional.mse_loss(model(batch), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if options.fail and step == 3:
            raise RuntimeError("on purpose")
    print(f"val_loss={loss.item():.4f}", flush=True)
torch.distributed.destroy_process_group()
