"""The loader of most tutorials: torch's DataLoader, a process for each CPU, a transform for each sample."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from scalewise.builtin.data.loaders import Batch, Preprocessing
from scalewise.builtin.data.sampling import SeededBatches

LONGEST_TMPDIR = 75
"""Most characters: Python's multiprocessing adds 32 to name a socket, for which Linux takes 107."""


class WorkerLoader(DataLoader[Batch]):
    """Batches from worker processes, each sample through torchvision's transforms.

    Random draws do not depend on how many processes there are.

    Args:
        images: uint8, [samples, channels, height, width], in shared or mapped memory.
        labels: int64, [samples].
        preprocessing: Turns images into batches.
        batch_sampler: Chooses the batches.
        device: Receives the batches.
        workers: Number of processes.
        timeout_seconds: Ranks wait this long for each other. A batch may take half of it: the rank whose
            worker hangs then says so before the others complain of the rank.

    Raises:
        RuntimeError: The processes could not hand over a batch, as TMPDIR has too long a name.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        preprocessing: Preprocessing,
        batch_sampler: SeededBatches,
        device: torch.device,
        *,
        workers: int,
        timeout_seconds: float,
    ) -> None:
        if len(tmpdir := tempfile.gettempdir()) > LONGEST_TMPDIR:
            # the processes would only say so in the log, and the rank wait for them in vain
            raise RuntimeError(
                f"TMPDIR is {tmpdir}, {len(tmpdir)} characters, and the processes of the workers loader hand "
                f"over batches by sockets below it, whose names leave {LONGEST_TMPDIR} to it. Set a shorter "
                "one, such as /tmp, in the site's prelude, or use another loader."
            )
        self._device = device
        self._layout = preprocessing.memory_format
        super().__init__(
            _Samples(images, labels, _transform(tuple(images.shape[2:]), preprocessing)),
            batch_sampler=batch_sampler,
            num_workers=workers,
            # the images are read from pages that all processes share
            multiprocessing_context="fork",
            persistent_workers=True,
            pin_memory=device.type == "cuda",
            timeout=timeout_seconds / 2,
            # leaves torch's own, which dropout draws from, alone
            generator=torch.Generator(),
            worker_init_fn=_leave_signals_to_the_rank,
        )
        self._start_processes()

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch's has a class of its own
        """Yield the planned batches, on the device.

        Raises:
            RuntimeError: A process is lost or hangs, in words that no rank uses for the loss of another rank.
        """
        try:
            for images, labels in super().__iter__():
                here = images.to(self._device, non_blocking=True)
                yield (
                    here.contiguous(memory_format=self._layout),
                    labels.to(self._device, non_blocking=True),
                )
        except (OSError, EOFError) as error:
            raise RuntimeError(
                f"the workers loader lost one of its {self.num_workers} processes: killed from outside, "
                "often by the system's out-of-memory killer."
            ) from error
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
            raise RuntimeError(
                f"the workers loader had no batch within {self.timeout:g} s: one of its {self.num_workers} "
                "processes hangs. Look at the machine's disk and memory."
            ) from error

    def _start_processes(self) -> None:
        """Begin an epoch without batches, for which torch's loader starts them; born deaf to SIGTERM.

        Now, while no other thread of the rank is at work: glibc gives a process that is forked during the
        first use of a C++ static in another thread a lock (of ``atexit``) that is never released, and torch
        waits for it before it loads anything (https://github.com/pytorch/pytorch/issues/130610).
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals_to_the_rank(_worker: int) -> None:
    """Ignore a scheduler's signals, which go to all processes of a task: the rank decides what they mean.

    A SIGTERM of the rank itself ends the process: so torch, and Python at exit, end what is left.
    """
    rank = os.getppid()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def obey_the_rank() -> None:
        # blocked since the process began, and so kept with its sender
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank:
            pass
        os._exit(0)

    threading.Thread(target=obey_the_rank, name="obey the rank", daemon=True).start()


class _Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, images: torch.Tensor, labels: torch.Tensor, transform: v2.Transform) -> None:
        self._images = images
        self._labels = labels
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._transform(self._images[index]), self._labels[index]

    def __getitems__(self, seed_and_indices: list[Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Load a batch of ``SeededBatches``; the DataLoader calls this once for each."""
        seed, indices = seed_and_indices
        torch.manual_seed(seed)
        return [self[index] for index in indices.tolist()]


def _transform(size: tuple[int, ...], preprocessing: Preprocessing) -> v2.Transform:
    steps: list[v2.Transform] = []
    if preprocessing.augmentation.crop_padding:
        steps.append(v2.RandomCrop(size, padding=preprocessing.augmentation.crop_padding))
    if preprocessing.augmentation.horizontal_flip:
        steps.append(v2.RandomHorizontalFlip())
    if preprocessing.image_size is not None:
        steps.append(v2.Resize((preprocessing.image_size, preprocessing.image_size), antialias=True))
    steps += [
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((preprocessing.mean / 255).tolist(), (preprocessing.std / 255).tolist()),
    ]
    return v2.Compose(steps)
