"""The file of a user's program, and the words that start it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scalewise.config.paths import is_file
from scalewise.config.program import ProgramSettings


def module_of(program: str) -> str | None:
    """``-m package.train`` -> ``package.train``; None for the path of a file."""
    words = program.split()
    return words[1] if words[:1] == ["-m"] and len(words) == 2 else None


def program_words(program: str) -> list[str]:
    """The program as Python's command line takes it: a path, or ``-m`` and a module."""
    module = module_of(program)
    return [program] if module is None else ["-m", module]


def command_for_folder(command: str, folder: str | None) -> str:
    """Return a command's path so that it works in another folder; a name on PATH stays.

    Args:
        command: A path from this folder, or a name on PATH.
        folder: The folder that it runs in; None for this one.
    """
    is_path = "/" in command or command.endswith(".py")
    return str(Path(command).absolute()) if folder is not None and is_path else command


def program_command(settings: ProgramSettings, python: str, arguments: Sequence[str]) -> list[str]:
    """Return interpreter, program and arguments, for the folder that the program runs in.

    Args:
        settings: The program's.
        python: The interpreter if the settings name none.
        arguments: Those of the program, filled in.
    """
    folder = settings.working_directory
    *module, program = program_words(settings.program)
    if folder is not None and not module:
        program = str(Path(program).absolute())
    return [command_for_folder(settings.python or python, folder), *module, program, *arguments]


def program_files(settings: ProgramSettings) -> list[Path]:
    """Return the program's file; none for a module that is installed."""
    module = module_of(settings.program)
    if module is None:
        return [Path(settings.program)]
    runs_in = Path(settings.working_directory or "")
    added = str(settings.environment.get("PYTHONPATH", "")).split(":")
    places = [
        folder.joinpath(*module.split("."))
        for folder in (runs_in, *(runs_in / folder for folder in added if folder))
    ]
    files = (path for place in places for path in (place / "__main__.py", place.with_suffix(".py")))
    return [path for path in files if is_file(path)][:1]
