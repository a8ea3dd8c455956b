"""Replaces functions temporarily."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from types import CellType, FunctionType
from typing import Any, TypeAlias

from conformance.trace.seams.guarding import Function, guarded

Seams: TypeAlias = Iterable[AbstractContextManager[object]]
"""Contexts to enter, one after the other, to replace several functions."""


class Seam:
    """Replaces a function, and calls it or its current wrapper."""

    def __init__(self, original: Function) -> None:
        self._call = original

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(*args, **kwargs)

        # TorchScript compiles the source of the original, and looks up its names where the function says that it is.
        home = getattr(original, "__globals__", function.__globals__)
        self.function: Function = wraps(original)(
            FunctionType(function.__code__, home, None, None, function.__closure__)
        )

    @contextmanager
    def calling(self, around: Function) -> Iterator[None]:
        """Within this, a call with `*args` calls `around(original, *args)`.

        Copies of the function made in the meantime, such as those in the classes that Horovod creates, call the
        original afterwards.
        """
        before = self._call
        self._call = guarded(around, before)
        try:
            yield
        finally:
            self._call = before


class Leaving:
    """Whether seams are left where they are, and which have been."""

    def __init__(self) -> None:
        self.is_on = False
        # By the identity of its function, as methods of C++ have no hash.
        self.left: dict[int, Seam] = {}


leaving = Leaving()


@contextmanager
def leaving_seams() -> Iterator[None]:
    """Within this, the seam of a replaced function stays in place, idle, for the next replacement.

    Changing a class makes Python discard its method caches and specialised code, for it and all its subclasses. That
    costs too much in a process that lives for a tenth of a second; the process that forks it can pay this once.
    """
    leaving.is_on = True
    try:
        yield
    finally:
        leaving.is_on = False


def replaced(owner: Any, name: str, around: Function) -> AbstractContextManager[None]:
    """Within this, `owner.name(*args)` calls `around(original, *args)`. The original is put back as it was."""
    return _replaced(vars(owner)[name], partial(setattr, owner, name), around)


def replaced_inside(decorated: Function, around: Function) -> AbstractContextManager[None]:
    """Within this, the function that `decorated` was made from, and calls, is called as `around(original, *args)`.

    `decorated` itself stays unchanged, so that modules that imported it by name earlier are covered too. Raises
    ValueError if it does not keep the original in its closure.
    """
    cell = _cell(decorated)
    return _replaced(cell.cell_contents, partial(setattr, cell, "cell_contents"), around)


def with_subclasses(owner: type[Any]) -> Iterator[type[Any]]:
    """A class and all its subclasses so far."""
    yield owner
    for subclass in owner.__subclasses__():
        yield from with_subclasses(subclass)


def _replaced(found: Function, put: Callable[[Function], None], around: Function) -> AbstractContextManager[None]:
    """`put` puts another function where `found` is."""
    seam = leaving.left.get(id(found))
    return _put_in_place(found, put, around) if seam is None else seam.calling(around)


@contextmanager
def _put_in_place(found: Function, put: Callable[[Function], None], around: Function) -> Iterator[None]:
    seam = Seam(found)
    put(seam.function)
    try:
        with seam.calling(around):
            yield
    finally:
        if leaving.is_on:
            leaving.left[id(seam.function)] = seam
        else:
            put(found)


def _cell(decorated: Function) -> CellType:
    original = getattr(decorated, "__wrapped__", None)
    cells = decorated.__closure__ or () if isinstance(decorated, FunctionType) else ()
    for cell in cells:
        # There may be a seam in it.
        if original is not None and original in (cell.cell_contents, getattr(cell.cell_contents, "__wrapped__", None)):
            return cell
    raise ValueError(f"{decorated!r} keeps no original in its closure")
