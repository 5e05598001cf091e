"""What `compile: true` compiles: the whole network, for each size of a batch by itself."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from scalewise.builtin.models.builders import BUILDERS, blocks, build
from scalewise.builtin.parallel_model import ParallelModel
from scalewise.plan.config.settings import Settings

CPU = torch.device("cpu")
FULL, REST = 16, 5
NETWORKS = [*BUILDERS, "wrn-10-1", "transformer-1M"]


@dataclass
class Counted:
    """A backend of torch.compile that compiles nothing and counts what it is given.

    Args:
        operations: of all graphs so far.
    """

    operations: int = 0

    def __call__(self, graph: GraphModule, _inputs: list[torch.Tensor]) -> Any:
        self.operations += sum(
            node.op.startswith("call_") and node.target is not operator.getitem for node in graph.graph.nodes
        )
        return graph.forward


@pytest.fixture(autouse=True)
def nothing_compiled_yet(one_rank: None) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_network_is_compiled_once_for_each_size_of_a_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = torch.Size([1, 8, 8])
    network = build(name, image, 10)
    whole = Counted()
    torch.compile(network, fullgraph=True, backend=whole)(torch.randn(FULL, *image))
    torch._dynamo.reset()

    counted = Counted()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    settings = Settings(dataset="digits", model=name, compile=True)
    parallel_model = ParallelModel.build(network, blocks(network), settings, CPU)
    found: list[int] = []
    # an epoch of two batches and what is left, twice; then gradients that are not exchanged
    for size in (FULL, FULL, REST, FULL, FULL, REST, FULL):
        with parallel_model.gradient_sync(now=len(found) < 6):
            parallel_model.compiled(torch.randn(size, *image)).sum().backward()
        found.append(counted.operations)
    assert found[0] == found[1] == whole.operations
    assert found[2:] == [2 * whole.operations] * 5
