"""Communication that DDP itself times, read from its counters of single exchanges."""

from __future__ import annotations

from typing import Any

NANOSECONDS = 1e9


class CommunicationSamples:
    """Seconds of exchanges that the backward pass did not hide, of one DistributedDataParallel.

    Args:
        data_parallel: Exchanges the gradients.
        every: DDP times one exchange in so many, and the first ten.
        warmup_steps: Number of first steps whose exchanges are not kept.
    """

    def __init__(self, data_parallel: Any, every: int, warmup_steps: int) -> None:
        data_parallel._set_ddp_runtime_logging_sample_rate(every)
        self._logger = data_parallel.logger
        self._seconds: dict[int, float] = {}
        """Seconds of timed exchanges, by DDP's number of the exchange."""
        self._first: tuple[int, int] | None = None
        """Steps and exchanges at the first reading, whose seconds are those of the warm-up."""
        self._last: tuple[int, int] | None = None
        self._next_reading = warmup_steps + 1

    def after_step(self, done: int) -> None:
        """Keep the last exchange that DDP has timed, if it is a new one.

        DDP counts an exchange as the next begins: after a step it reports the step before.

        Args:
            done: Number of steps that have ended.
        """
        if done < self._next_reading:
            return
        counters = self._logger._get_ddp_logging_data().ints_map
        exchange = int(counters.get("iteration", 0))
        self._next_reading = done + 1
        if self._last is not None and self._last[1] == exchange:
            return
        if self._last is not None:
            # the next one comes after as many steps as the last; from there on each step is read
            self._next_reading = done + max(done - self._last[0], 1)
            total, overlap = (
                float(counters.get(f"backward_{part}_time", 0)) for part in ("comm", "compute_comm_overlap")
            )
            self._seconds[exchange] = max(total - overlap, 0.0) / NANOSECONDS
        else:
            self._first = done, exchange
        self._last = done, exchange

    def column(self, steps: int) -> list[float | None]:
        """Return the seconds of communication of each step, over all its exchanges; None if DDP timed none.

        Args:
            steps: Number of steps.
        """
        column: list[float | None] = [None] * steps
        if self._first is None or self._last is None or self._last == self._first:
            return column
        (first_done, first), (last_done, last) = self._first, self._last
        exchanges_of_a_step = max(round((last - first) / (last_done - first_done)), 1)
        for exchange, seconds in self._seconds.items():
            # DDP reported the first one after the step that followed it
            index = first_done - 2 + (exchange - first) // exchanges_of_a_step
            if index < steps:
                column[index] = exchanges_of_a_step * seconds
        return column
