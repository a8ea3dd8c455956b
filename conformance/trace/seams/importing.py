"""Seams of modules that may be imported at any time: in the trainer's file, or only in its function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams


@contextmanager
def when_imported(name: str, seams: Callable[[ModuleType], Seams]) -> Iterator[None]:
    """Within this, the `seams` of this module are entered: now if it has been imported, else right after."""
    with ExitStack() as stack:

        def enter(module: ModuleType) -> None:
            for seam in seams(module):
                stack.enter_context(seam)

        act = harmless(enter, seams.__module__)
        if name in sys.modules:
            act(sys.modules[name])
        finder = _Finder(name, act)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Wraps the loader that another finder returns, so that it acts after the module is loaded."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._act)
        return spec


class _Loader(Loader):
    """Loads with `loader`, and leaves the module as if `loader` had loaded it."""

    def __init__(self, loader: Loader, act: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act(module)
