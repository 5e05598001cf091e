"""A program of the user's own: the files that it consists of, found without running any of it."""

from __future__ import annotations

import ast
import difflib
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from scalewise.plan.catalog.imported_files import module_files, with_imports
from scalewise.plan.config.errors import RefusedValueError
from scalewise.plan.config.paths import invalid_command, kind_of, missing
from scalewise.plan.config.program import ProgramSettings

ANSWER_SECONDS = 30.0
"""Longest wait for another Python's word on a file."""

_WRITERS = re.compile(
    r"\b(?:torch|np|numpy)\.save\w*\(|\bsave_(?:pretrained|checkpoint|state|model|weights|file|image)\("
    r"|\b(?:savefig|imwrite|SummaryWriter|FileHandler|copyfile)\(|\bos\.makedirs\(|\.mkdir\("
    r"|\b\w*Trainer\(|\bTrainingArguments\(|\.fit\(|\bwandb\.init\(|\.to_(?:csv|json|parquet)\("
    r"|\.write_(?:text|bytes)\(|open\([^)]*['\"][wax]b?\+?['\"]"
)
"""Calls that write files, as PyTorch and its frameworks name them."""


def module_of(program: str) -> str | None:
    """``-m package.train`` -> ``package.train``; None for the path of a file."""
    words = program.split()
    return words[1] if words[:1] == ["-m"] and len(words) == 2 else None


def program_words(program: str) -> list[str]:
    """The program as Python's command line takes it: a path, or ``-m`` and a module."""
    module = module_of(program)
    return [program] if module is None else ["-m", module]


def for_folder(command: str, folder: str | None) -> str:
    """A command's path as it is seen from the folder that it runs in; a name on PATH stays.

    Args:
        command: A path from this folder, or a name on PATH.
        folder: None for this folder.
    """
    is_path = "/" in command or command.endswith(".py")
    return str(Path(command).absolute()) if folder is not None and is_path else command


def program_files(settings: ProgramSettings) -> list[Path]:
    """The program's own file first, then every file outside the installed packages that it imports.

    Imports are found by reading; what is imported in another way is not seen. Empty for a module that is
    installed.

    Args:
        settings: The program's. Modules, and a relative PYTHONPATH, are seen from the folder that it runs in.
    """
    runs_in = Path(settings.working_directory or "")
    added = str(settings.environment.get("PYTHONPATH", "")).split(":")
    folders = [runs_in / folder for folder in added if folder]
    module = module_of(settings.program)
    if module is not None:
        folders = [runs_in, *folders]
        own = module_files(folders, module)
        # the module itself comes last of the files that running it runs
        return with_imports(own[::-1], folders)
    path = Path(settings.program)
    # where the file itself lies, which is what Python looks through first
    folder = path.resolve().parent if path.is_symlink() else path.parent
    return with_imports([path], [folder, *folders])


def check_program(settings: ProgramSettings, interpreter: str | None = None) -> None:
    """Refuse what can be seen to be no program, without running it.

    Args:
        settings: The program's.
        interpreter: The ranks' Python where it is another than this one, which may have other modules and
            know another syntax; empty where it cannot be asked here.

    Raises:
        RefusedValueError: It is not there, or no Python.
    """
    program = settings.program
    if not program.startswith("-"):
        _check_path(program)
        _check_names(settings)
        _check_syntax(program, Path(program), interpreter)
        return
    module = module_of(program)
    if module is None or not all(part.isidentifier() for part in module.split(".")):
        raise RefusedValueError(
            f"is {program!r}, but -m takes the name of one module and nothing else",
            "Write `-m package.train`, and the rest in `arguments`.",
        )
    files = program_files(settings)
    if not files and interpreter is None and not _is_installed(module):
        folder = Path(settings.working_directory or "").absolute()
        raise RefusedValueError(
            f"is {program!r}, but no module {module} that can be run is in {folder} or installed",
            "Name a module as Python does, from the folder that the program runs in (working_directory), or "
            "the path of a file.",
        )
    _check_names(settings)
    for path in files[:1]:
        _check_syntax(program, path, interpreter)


def _check_path(program: str) -> None:
    path, words = Path(program), program.split()
    if refusal := invalid_command(program):
        raise RefusedValueError(*refusal)
    kind = kind_of(path)
    if kind == "file":
        return
    if kind == "folder":
        raise RefusedValueError(
            f"is {program!r}, which is a folder",
            "Give the path of a Python file in it, or `-m package.train`.",
        )
    if kind is not None:
        raise RefusedValueError(f"is {program!r}, which is no file", "Give the path of a Python file.")
    what = f"is {program!r}, {missing(program)}"
    if len(words) > 1:
        script = next((word for word in words if word.endswith(".py")), "train.py")
        raise RefusedValueError(
            what,
            f"Write `program: {script}` only, and its arguments under `arguments`. Scalewise starts it.",
        )
    there = path.parent.glob("*.py") if kind_of(path.parent) == "folder" else ()
    near = difflib.get_close_matches(path.name, [file.name for file in there if file.is_file()], n=1)
    if near:
        raise RefusedValueError(what, f"Did you mean {str(path.with_name(near[0]))!r}?")
    raise RefusedValueError(what, "Give the path of a Python file, from the folder snakemake runs in.")


def _check_names(settings: ProgramSettings) -> None:
    """Refuse files that could not stand in the command line of a job, in which Snakemake names them."""
    for path in program_files(settings):
        if refusal := invalid_command(str(path)):
            what, fix = refusal
            raise RefusedValueError(f"is {settings.program!r}, of which a file {what}", fix)


def _is_installed(module: str) -> bool:
    """Whether an installed package holds the module, found by the names of files; nothing is imported."""
    try:
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.submodule_search_locations is None:
        return spec is not None
    return bool(module_files([Path(folder).parent for folder in spec.submodule_search_locations], module))


def _check_syntax(program: str, path: Path, interpreter: str | None) -> None:
    try:
        stat = path.stat()
        wrong = _syntax_error(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise RefusedValueError(
            f"is {program!r}, but {str(path)!r} cannot be read ({error.strerror})",
            "Make it readable, or give the path of another Python file.",
        ) from error
    if not wrong or (interpreter is not None and not _is_refused_by(interpreter, path)):
        return
    raise RefusedValueError(
        f"is {program!r}, but {str(path)!r} is not Python ({wrong})",
        "Correct the file, or name the Python file that it starts.",
    )


@lru_cache(maxsize=64)
def _syntax_error(path: Path, _changed: int, _size: int) -> str:
    """Line and message; empty where there is no error. Looked for again once the file has changed."""
    try:
        ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        return line + str(error.msg if isinstance(error, SyntaxError) else error)
    return ""


def _is_refused_by(interpreter: str, path: Path) -> bool:
    """Whether another Python finds an error in the syntax, too; false where it cannot be asked."""
    program = shutil.which(interpreter)
    if program is None:
        return False
    code = "import ast, sys; ast.parse(sys.stdin.buffer.read())"
    try:
        with path.open("rb") as file:
            asked = subprocess.run(
                [program, "-I", "-c", code],
                stdin=file,
                capture_output=True,
                timeout=ANSWER_SECONDS,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"SyntaxError" in asked.stderr


def writes(settings: ProgramSettings) -> Iterator[str]:
    """Calls in the program's files that look as if they wrote a file, such as ``torch.save``."""
    for path in program_files(settings):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        for call in _WRITERS.finditer(text):
            yield call[0].rstrip("(").lstrip(".").partition("(")[0]
