"""What several tests of the training room begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import distributed, get_num_threads, set_num_threads


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A real process group, of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def one_thread(one_rank: None) -> Iterator[None]:
    """The same, and no other thread than this one computes."""
    threads = get_num_threads()
    set_num_threads(1)
    yield
    set_num_threads(threads)
