"""The user's own model: a function of a Python file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from scalewise.plan.catalog.models import own_model_parts

TRIED_SAMPLES = 2
_CURE = (
    "Return a torch.nn.Module that takes [batch, channels, height, width] and gives [batch, classes] logits."
)


class OwnModelError(ValueError):
    """An own model that cannot be built or trained; the message names the file, the function and the fix."""


def own_model(model: str, image: torch.Size, classes: int, device: torch.device | None = None) -> nn.Module:
    """Build the user's model, and try it on two images where it will train.

    Args:
        model: ``path/to/file.py:build``; ``build(image, classes)`` returns the model.
        image: [channels, height, width].
        classes: Number of classes.
        device: Receives the model, which may compute on no other; None to leave it where it was built.

    Raises:
        OwnModelError: The file, its function or what it returns is not what is needed.
    """
    path, function = own_model_parts(model)
    with _importable_folder(path.resolve().parent):
        module = _import(model, path)
        build = getattr(module, function, None)
        if not callable(build):
            raise OwnModelError(
                f"{model}: {path} has no function {function!r}. Define {function}(image, classes) there."
            )
        try:
            network = build(image, classes)
        except torch.OutOfMemoryError:
            raise  # a result of the run, not a mistake in the file
        except Exception as error:
            raise OwnModelError(
                f"{model}: {function}(image={list(image)}, classes={classes}) raised {_told(error)}. "
                "Correct it. The traceback shows the line."
            ) from error
        if not isinstance(network, nn.Module):
            raise OwnModelError(f"{model}: {function} returned {type(network).__name__}. {_CURE}")
        if device is not None:
            network = network.to(device)
        _try(model, network, image, classes)
    return network


def _import(model: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise OwnModelError(
            f"{model}: there is no file {path}, seen from {Path.cwd()}. Give a path from the folder "
            "snakemake runs in that every node can read."
        )
    # a name of its own: a file called random.py must not stand in for Python's
    name = f"own_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OwnModelError(f"{model}: {path} is not a Python file. Write path/to/file.py:build.")
    module = importlib.util.module_from_spec(spec)
    # dataclasses and torch.compile look a class's module up there
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise OwnModelError(
            f"{model}: importing {path} raised {_told(error)}. Correct it. The traceback shows the line."
        ) from error
    return module


@contextmanager
def _importable_folder(folder: Path) -> Iterator[None]:
    """Let a file import those beside it, while it is imported and builds; nobody else does."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _try(model: str, network: nn.Module, image: torch.Size, classes: int) -> None:
    """Make a forward pass that leaves neither the model's statistics nor the random numbers changed."""
    expected = [TRIED_SAMPLES, classes]
    parameter = next(network.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    training = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            logits = network(torch.zeros(TRIED_SAMPLES, *image, device=device))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise OwnModelError(
            f"{model}: a batch of shape {[TRIED_SAMPLES, *image]} raised {_told(error)}. {_CURE}"
        ) from error
    for module, mode in training.items():
        module.training = mode
    if not isinstance(logits, torch.Tensor):
        raise OwnModelError(
            f"{model}: a batch of shape {[TRIED_SAMPLES, *image]} gave {type(logits).__name__}, not a tensor "
            f"of shape {expected}. {_CURE}"
        )
    if list(logits.shape) != expected:
        raise OwnModelError(
            f"{model}: a batch of shape {[TRIED_SAMPLES, *image]} gave {list(logits.shape)}, not {expected}. "
            f"{_CURE}"
        )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise OwnModelError(
            f"{model}: has no parameter that can be trained. Leave requires_grad on for some."
        )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
