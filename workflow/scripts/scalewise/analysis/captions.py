"""The figures of a report, in order, with what each shows. Imports nothing: the rules read it too."""

from __future__ import annotations

CAPTIONS = {
    "throughput": "Training throughput against devices. Filled marks are medians over repeats, bars their "
    "intervals, rings single runs. Warm-up, evaluation and start-up are left out.",
    "speedup": "Throughput over that of the series' fewest devices. The dotted line is ideal scaling.",
    "efficiency": "Speedup over the number of times more devices. The dashed line is what was asked for.",
    "loss": "Loss against epochs by number of devices: median over the repeats that have an epoch, bands "
    "from least to most; faded where some repeats have stopped.",
    "accuracy": "Test accuracy against epochs by number of devices: median over the repeats that have an "
    "epoch, bands from least to most; faded where some repeats have stopped. Every test sample is counted "
    "exactly once.",
    "memory": "Peak memory of the device that used most: median over repeats, bars their intervals.",
}
