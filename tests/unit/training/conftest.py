"""What several tests of the training room begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import distributed


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A real process group, of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
