"""Tell where this rank waits for the others, for a run that its time limit ends before the first step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

GROUP, BARRIER = "init_process_group", "barrier"
"""Functions of torch.distributed in which each rank waits for all others."""

_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank", "store")
"""First parameters of ``init_process_group``, which programs may give by their place."""


def group_place(args: Sequence[Any], kwargs: Mapping[str, Any], rank: int) -> tuple[int, str]:
    """Return the rank and the address of rank 0 that ``init_process_group`` uses.

    Args:
        args: Arguments of the call by place.
        kwargs: Arguments of the call by name.
        rank: The launcher's, if the arguments name none.

    Returns:
        The rank, and host and port; empty for a store that the program has opened itself.
    """
    given = dict(zip(_ARGUMENTS, args, strict=False)) | dict(kwargs)
    if isinstance(number := given.get("rank"), int) and number >= 0:
        rank = number
    method = given.get("init_method") or "env://"
    if given.get("store") is not None:
        return rank, ""
    if method.startswith("env://"):
        return rank, f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return rank, urlsplit(method).netloc or method
