"""Replaces functions temporarily: functions of modules, now or on import, and the operators of c10d, which
torch.distributed calls for all communication of ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CellType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch

from conformance.trace.seams.guarding import Function, guarded, harmless, marked
from conformance.trace.seams.ours import ours

Seams: TypeAlias = Iterable[AbstractContextManager[object]]
"""Contexts to enter, one after the other, to replace several functions."""


class Seam:
    """The replacement of a function: it calls the original or its current wrapper."""

    def __init__(self, original: Function) -> None:
        self._call = original

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(*args, **kwargs)

        # TorchScript compiles the source of the original, and looks up names in the globals of this function.
        home = getattr(original, "__globals__", function.__globals__)
        self.function: Function = wraps(original)(
            FunctionType(marked(function.__code__), home, None, None, function.__closure__)
        )

    @contextmanager
    def calling(self, around: Function) -> Iterator[None]:
        """A context in which a call with `*args` calls `around(original, *args)`.

        Copies of the function made meanwhile, as in the classes that Horovod creates, call the original afterwards.
        """
        before = self._call
        self._call = guarded(around, before)
        try:
            yield
        finally:
            self._call = before


class Leaving:
    """Whether seams stay in place when their context ends, and the seams that did."""

    def __init__(self) -> None:
        self.is_on = False
        # By identity of the function, because methods of C++ have no hash.
        self.left: dict[int, Seam] = {}


leaving = Leaving()


@contextmanager
def leaving_seams() -> Iterator[None]:
    """A context in which the seam of a replaced function stays in place, idle, for the next replacement.

    Changing a class makes Python discard the method caches and specialised code of the class and its subclasses. That
    is too slow for a process that lives a tenth of a second; the process that forks it pays only once.
    """
    leaving.is_on = True
    try:
        yield
    finally:
        leaving.is_on = False


@dataclass(frozen=True, eq=False)
class _Place:
    """The place of a function: the function `found` there, the one there `now`, and how to `put` another one there."""

    found: Function
    now: Callable[[], Any]
    put: Callable[[Function], None]


_seams: list[tuple[_Place, Function]] = []
"""The functions currently in the place of another one, oldest first."""


@contextmanager
def originals() -> Iterator[None]:
    """A context in which all originals are back in place, except where the trainer has replaced the seam."""
    present = [(place, function) for place, function in reversed(_seams) if place.now() is function]
    for place, _ in present:
        place.put(place.found)
    try:
        yield
    finally:
        for place, function in reversed(present):
            place.put(function)


def replaced(owner: Any, name: str, around: Function) -> AbstractContextManager[None]:
    """A context in which `owner.name(*args)` calls `around(original, *args)`. Its end puts the original back."""
    place = _Place(vars(owner)[name], lambda: vars(owner).get(name), partial(setattr, owner, name))
    return _replaced(place, around)


def replaced_inside(decorated: Function, around: Function) -> AbstractContextManager[None]:
    """A context in which `decorated` calls `around(original, *args)` instead of the function that it decorates.

    `decorated` itself stays unchanged, so modules that imported it by name earlier are covered too. Raises ValueError
    if it does not keep the original in its closure.
    """
    cell = _cell(decorated)
    place = _Place(cell.cell_contents, lambda: cell.cell_contents, partial(setattr, cell, "cell_contents"))
    return _replaced(place, around)


def with_subclasses(owner: type[Any]) -> Iterator[type[Any]]:
    """A class and all its subclasses so far."""
    yield owner
    for subclass in owner.__subclasses__():
        yield from with_subclasses(subclass)


def _replaced(place: _Place, around: Function) -> AbstractContextManager[None]:
    seam = leaving.left.get(id(place.found))
    return _put_in_place(place, around) if seam is None else seam.calling(around)


@contextmanager
def _put_in_place(place: _Place, around: Function) -> Iterator[None]:
    seam = Seam(place.found)
    place.put(seam.function)
    _seams.append(entry := (place, seam.function))
    ours.seams.add(id(seam.function))
    try:
        with seam.calling(around):
            yield
    finally:
        if leaving.is_on:
            leaving.left[id(seam.function)] = seam
        else:
            _seams.remove(entry)
            ours.seams.discard(id(seam.function))
            place.put(place.found)


def _cell(decorated: Function) -> CellType:
    original = getattr(decorated, "__wrapped__", None)
    cells = decorated.__closure__ or () if isinstance(decorated, FunctionType) else ()
    for cell in cells:
        # The cell may contain a seam.
        if original is not None and original in (cell.cell_contents, getattr(cell.cell_contents, "__wrapped__", None)):
            return cell
    raise ValueError(f"{decorated!r} keeps no original in its closure")


@contextmanager
def when_imported(name: str, seams: Callable[[ModuleType], Seams]) -> Iterator[None]:
    """A context in which the `seams` of this module are entered: now if it is imported already, else right after."""
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
    """Wraps the loader that another finder returns, to act after the module is loaded."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        # Finders before it have been asked already, and one of them may be asking now.
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._act)
        return spec


class _Loader(Loader):
    """Loads with `loader`, which other modules may share. The module looks as if `loader` had loaded it."""

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


_KEY = torch._C.DispatchKey.BackendSelect

_BELOW = torch._C._dispatch_keyset_full().remove(_KEY)

_left_operators: dict[tuple[str, str], Seam] = {}
_libraries: list[torch.library.Library] = []
"""The operators' seams that stayed in place (`leaving_seams`), and the libraries that keep them there."""


@contextmanager
def intercepted(arounds: Mapping[str, Callable[..., Any]], namespace: str = "c10d") -> Iterator[None]:
    """A context in which a call of one of these operators, by name, calls `around(original, keys, *args)`; `keys` are
    the dispatch keys, for the original.

    Intercepts at the one dispatch key that every call passes, also from C++, for all tensors and in inference mode.
    """
    with ExitStack() as stack:
        known = {name: seam for (where, name), seam in _left_operators.items() if where == namespace}
        seams = known | stack.enter_context(_operators(namespace, arounds.keys() - known.keys()))
        for name, around in arounds.items():
            stack.enter_context(seams[name].calling(around))
        yield


@contextmanager
def _operators(namespace: str, names: Iterable[str]) -> Iterator[dict[str, Seam]]:
    seams = {name: Seam(_below(namespace, name)) for name in names}
    library = torch.library.Library(namespace, "IMPL")
    try:
        for name, seam in seams.items():
            library.impl(name, seam.function, _KEY.name, with_keyset=True)
        yield seams
    finally:
        if leaving.is_on:
            _left_operators.update({(namespace, name): seam for name, seam in seams.items()})
            _libraries.append(library)
        else:
            library._destroy()


def _below(namespace: str, name: str) -> Callable[..., Any]:
    """The operator as it runs without interception."""
    operator = getattr(getattr(torch.ops, namespace), name).default

    def redispatch(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        return operator.redispatch(keys & _BELOW, *args, **kwargs)

    return redispatch
