"""The probe's first code in a process: it waits for torch, and imports next to nothing before.

The interpreter runs a copy of this file as ``sitecustomize``, in every Python process of a user's program,
those that never import torch among them. Whatever it imports would cost all of them.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

BEGAN = time.perf_counter()

SPEC = "SCALEWISE_PROBE"
"""Environment variable with the path of the file that says what to measure."""

PRIVATE_NAME = "_scalewise_probe"
"""Name of the probe's package among the modules of the process; it lies in no folder of ``sys.path``."""

COMPILER_PROCESS = "torch._inductor.compile_worker"
"""Module that torch.compile starts processes with: they import torch and never train."""


class AfterImport:
    """A finder that acts on a module once it has been imported, and leaves all finding to the others.

    It stays after ``find_spec``: libraries call that for torch first, to see whether it is there.
    """

    def __init__(self) -> None:
        self.actions: dict[str, Callable[[ModuleType], None]] = {}
        self._searching: str | None = None

    def watch(self, name: str, action: Callable[[ModuleType], None]) -> None:
        """Act on a module after its import, or now if it has been imported already."""
        if name in sys.modules:
            action(sys.modules[name])
        else:
            self.actions[name] = action

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that acts after it has loaded."""
        if name not in self.actions or self._searching == name:
            return None
        self._searching = name
        try:
            specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
            spec = next((found for found in specs if found is not None), None)
        finally:
            self._searching = None
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_then_act(module: ModuleType) -> None:
            execute(module)
            action = self.actions.pop(name, None)
            if action is not None:
                action(module)

        spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]  # of this loader alone
        return spec


def begin(probe: str, folder: str) -> None:
    """Wait for torch, then hand over to the ``sitecustomize`` that this one hides.

    Args:
        probe: The folder of the probe's package.
        folder: The folder on PYTHONPATH that holds the copy of this file.
    """
    if os.environ.get(SPEC) and COMPILER_PROCESS not in sys.orig_argv:
        after_import = AfterImport()
        sys.meta_path.insert(0, after_import)
        after_import.watch("torch", lambda _torch: load(probe, after_import))
    run_hidden(folder)


def load(probe: str, after_import: AfterImport) -> None:
    """Load the probe's package under a private name and start it; on an error the training continues."""
    # torch has imported it long ago; before torch it would have been the greatest of the costs
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415

    try:
        spec = spec_from_file_location(
            PRIVATE_NAME, f"{probe}/__init__.py", submodule_search_locations=[probe]
        )
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[PRIVATE_NAME] = module
        spec.loader.exec_module(module)
        module.start(os.environ[SPEC], BEGAN, after_import.watch)
    except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
        print(f"scalewise: nothing is measured in this process: {error!r}", file=sys.stderr)


def run_hidden(folder: str) -> None:
    """Import the ``sitecustomize`` that would have run without this one, which then takes its place."""
    own = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != os.path.realpath(folder)]
    try:
        # found now where it is; no type checker can know it
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)
