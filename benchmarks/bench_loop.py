"""The loop of train.py against a bare one: same network, same optimizer, same batches, in one process.

What the probe costs a step of either is another benchmark, own-cost.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from scalewise.training.data import read
from scalewise.training.prepare import prepare

from .measure import Row, compare, each, interleave
from .one_rank import bare_loop, epochs_of, one_rank, training_of

MOST = 1.02
# Short passes: the two of a pair are so close in time that they meet the same machine. What an epoch costs
# once weighs more in them than in a whole one, which counts against us.
ROUNDS, STEPS = 100, 12
SMALL = {"ROUNDS": 1}
# the smallest batch of the study that ships: the fewer samples, the more a step's own cost shows
BATCH = 128


def rows() -> list[Row]:
    """Train epochs of both loops in turn, on one core."""
    with one_rank() as device, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.safetensors"
        prepare("digits", file)
        data = read(file)
        chosen = torch.arange(STEPS * BATCH) % len(data["train_labels"])
        part = {name: data[name][chosen] for name in ("train_images", "train_labels")}
        training = training_of({"batch_size_per_device": BATCH}, data | part, device)
        ours, bare = epochs_of(training), bare_loop(training)
        interleave(ours, bare, rounds=5)
        pairs = interleave(ours, bare, ROUNDS)
    milliseconds = each(pairs, lambda seconds: 1e3 * seconds / STEPS)
    what = f"loop: cpu time of a step, digits_cnn, batch {BATCH}"
    return [compare(what, milliseconds, "ms", digits=1, ratio_digits=3, most=MOST)]
