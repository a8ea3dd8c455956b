"""Replacing functions for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CellType, FunctionType
from typing import Any

Wrapper = Callable[..., Any]


@contextmanager
def replaced(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Within this, `owner.name(*args)` calls `around(original, *args)`. The original is put back as it was.

    Whoever took the replacement elsewhere meanwhile, as Horovod takes its optimizer's functions into classes that it
    makes, calls the original by it from then on.
    """
    original = vars(owner)[name]
    is_on = True

    def while_on(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs) if is_on else original(*args, **kwargs)

    setattr(owner, name, _calling(while_on, original))
    try:
        yield
    finally:
        setattr(owner, name, original)
        is_on = False


@contextmanager
def replaced_inside(decorated: Callable[..., Any], around: Callable[..., Any]) -> Iterator[None]:
    """Within this, the function that `decorated` was made from, and calls, is called as `around(original, *args)`.

    `decorated` itself stays what it is, so that those are seen too who imported it by its name long before. Raises
    ValueError when it is no function that keeps the original in its closure.
    """
    cell = _cell(decorated)
    original = cell.cell_contents
    cell.cell_contents = _calling(around, original)
    try:
        yield
    finally:
        cell.cell_contents = original


def with_subclasses(owner: type[Any]) -> Iterator[type[Any]]:
    """A class, and all that are derived from it so far."""
    yield owner
    for subclass in owner.__subclasses__():
        yield from with_subclasses(subclass)


def _calling(around: Callable[..., Any], original: Callable[..., Any]) -> Wrapper:
    @wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return wrapper


def _cell(decorated: Callable[..., Any]) -> CellType:
    original = getattr(decorated, "__wrapped__", None)
    cells = decorated.__closure__ or () if isinstance(decorated, FunctionType) else ()
    for cell in cells:
        if original is not None and cell.cell_contents is original:
            return cell
    raise ValueError(f"{decorated!r} keeps no original in its closure")
