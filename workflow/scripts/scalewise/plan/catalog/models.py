"""Needs of models, which the planner must know without building them.

The training room builds them; a test holds the two together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scalewise.plan.config.errors import RefusedValueError
from scalewise.plan.config.paths import invalid_command, unexpanded

SMALLEST_TRANSFORMER, LARGEST_TRANSFORMER = 1_000_000, 100_000_000_000

_NUMBER = r"[1-9]\d{0,8}"
_WIDE_RESNET = re.compile(rf"wrn-({_NUMBER})-({_NUMBER})", re.ASCII)
_TRANSFORMER = re.compile(r"transformer-(\d{1,9}(?:\.\d{1,9})?)([MG])", re.ASCII)
_MILLIONTHS = {"M": 1, "G": 1000}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's demands on its batches.

    Args:
        batch_norm: Normalises over the batch, so a batch of one image per device cannot train. False
            where it is not known: in the user's own models.
        min_pixels: Least height and width of an image.
    """

    batch_norm: bool
    min_pixels: int


IMAGENET_STEM_PIXELS = 64
"""Least height and width of images for ResNet-18's ImageNet stem; smaller ones get one with other weights."""

MODELS = {
    "digits_cnn": ModelFacts(True, 4),
    "linear": ModelFacts(False, 1),
    "mnist_cnn": ModelFacts(False, 6),
    "resnet18": ModelFacts(True, 8),
    "wide_resnet": ModelFacts(True, 4),
}
"""Models of one size. The others carry their size in their names, or are the user's own."""


class ModelNameError(RefusedValueError):
    """A name that no model can be built from."""


def model_facts(model: str) -> ModelFacts:
    """Look up a model's demands on its batches.

    Args:
        model: A known name, ``wrn-28-10``, ``transformer-25M`` or ``path/to/file.py:build``.

    Raises:
        KeyError: unknown name.
        ModelNameError: a size that no such model has, or an own model that is not where it is said to be.
    """
    if is_own_model(model):
        _check_own_model(model)
        return ModelFacts(batch_norm=False, min_pixels=1)
    if is_wide_resnet(model):
        wide_resnet_shape(model)
        return ModelFacts(batch_norm=True, min_pixels=4)
    if is_transformer(model):
        transformer_parameters(model)
        return ModelFacts(batch_norm=False, min_pixels=1)
    return MODELS[model]


def known_models() -> list[str]:
    """Every name, for a hint to one who mistyped; models of many sizes by an example."""
    return [*MODELS, "wrn-28-10", "transformer-25M", "path/to/file.py:build"]


def takes_pretrained(model: str) -> bool:
    """Whether the model can begin from torchvision's ImageNet weights."""
    return model == "resnet18"


def is_wide_resnet(model: str) -> bool:
    """Whether the name means a wide residual network of a depth and a widening factor."""
    return model.split("-", maxsplit=1)[0] == "wrn"


def is_transformer(model: str) -> bool:
    """Whether the name means a transformer encoder with a number of parameters."""
    return model.split("-", maxsplit=1)[0] == "transformer"


def is_own_model(model: str) -> bool:
    """Whether the name is a path to the user's own model."""
    return ":" in model or "/" in model or model.endswith(".py")


def wide_resnet_shape(model: str) -> tuple[int, int]:
    """``wrn-28-10`` -> (28, 10): layers, and how many times wider than a thin one.

    Raises:
        ModelNameError: there is no such network.
    """
    match = _WIDE_RESNET.fullmatch(model)
    if match is None:
        raise ModelNameError(
            f"is {model!r}, but a wide ResNet is named by its depth and its widening factor",
            "Write for instance wrn-28-10.",
        )
    depth, widening = int(match[1]), int(match[2])
    if depth < 10 or (depth - 4) % 6:
        below = max(10, (depth - 4) // 6 * 6 + 4)
        nearest = f"wrn-{below}-{widening}"
        if depth > below:
            nearest += f" or wrn-{below + 6}-{widening}"
        raise ModelNameError(
            f"is {model!r}, but the depth of a wide ResNet is 6n + 4 and {depth} is not", f"Use {nearest}."
        )
    return depth, widening


def transformer_parameters(model: str) -> int:
    """``transformer-25M`` -> 25,000,000 parameters; ``transformer-1.5G`` -> 1,500,000,000.

    Raises:
        ModelNameError: no number, or one outside what is built.
    """
    match = _TRANSFORMER.fullmatch(model)
    if match is None:
        raise ModelNameError(
            f"is {model!r}, but a transformer is named by its number of parameters",
            "Write for instance transformer-25M or transformer-1.5G.",
        )
    parameters = round(float(match[1]) * _MILLIONTHS[match[2]] * 1_000_000)
    if not SMALLEST_TRANSFORMER <= parameters <= LARGEST_TRANSFORMER:
        raise ModelNameError(
            f"is {model!r}, {parameters:,} parameters, but transformers are built from "
            f"{SMALLEST_TRANSFORMER:,} to {LARGEST_TRANSFORMER:,}",
            "Use a number between transformer-1M and transformer-100G.",
        )
    return parameters


def own_model_file(model: str) -> Path | None:
    """The file of the user's own model, or None for a model that comes along."""
    return own_model_parts(model)[0] if is_own_model(model) else None


def own_model_parts(model: str) -> tuple[Path, str]:
    """``path/to/file.py:build`` -> the file, from the working directory, and the function; "" for none."""
    path, colon, function = model.rpartition(":")
    return (Path(path), function) if colon else (Path(model), "")


def _check_own_model(model: str) -> None:
    """Refuse what can be seen without running the user's code, on a login node, in every job."""
    path, function = own_model_parts(model)
    shown = str(path)
    if refusal := invalid_command(model):
        raise ModelNameError(*refusal)
    if not path.exists() and (refusal := unexpanded(model)):
        raise ModelNameError(*refusal)
    if path.suffix != ".py" or not function.isidentifier():
        raise ModelNameError(
            f"is {model!r}, which does not name a function of a .py file",
            "Write path/to/file.py:build.",
        )
    try:
        tree = ast.parse(path.read_bytes(), filename=shown)
    except OSError as error:
        raise ModelNameError(
            f"is {model!r}, but {shown!r} cannot be read ({error.strerror})",
            "Give the path of a .py file, from the folder snakemake runs in.",
        ) from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise ModelNameError(
            f"is {model!r}, but {shown!r} is not Python ({line})", "Correct the file."
        ) from error
    definitions = dict(_definitions(tree.body))
    if function not in definitions and "*" not in definitions:
        callables = [name for name, node in definitions.items() if isinstance(node, ast.FunctionDef)]
        raise ModelNameError(
            f"is {model!r}, but {shown!r} defines no {function!r}",
            f"Name one of {', '.join(callables)}." if callables else f"Define {function}(image, classes).",
        )
    _check_arguments(model, definitions.get(function))


def _definitions(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names bound at the top of a module, also below ``if`` and ``try``; "*" for those of a star import."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.split(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
            yield from ((name.id, node) for name in names)
        else:
            for block in ("body", "orelse", "handlers", "finalbody"):
                yield from _definitions(getattr(node, block, []))


def _check_arguments(model: str, node: ast.stmt | None) -> None:
    """A plain function must be callable with two values; of other definitions nothing is known here."""
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return
    taken = node.args
    positional = len(taken.posonlyargs) + len(taken.args)
    required = positional - len(taken.defaults)
    named_only = [default for default in taken.kw_defaults if default is None]
    if required > 2 or (positional < 2 and taken.vararg is None) or named_only:
        raise ModelNameError(
            f"is {model!r}, but {node.name}({ast.unparse(taken)}) cannot be called with two values",
            f"Define {node.name}(image, classes): the shape of an image, [channels, height, width], and the "
            "number of classes.",
        )
