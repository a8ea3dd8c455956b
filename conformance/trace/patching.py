"""Replacing a function for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

Wrapper = Callable[..., Any]


@contextmanager
def replaced(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Within this, `owner.name(*args)` calls `around(original, *args)`. The original is put back as it
    was."""
    original = vars(owner)[name]

    @wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapper)
    try:
        yield
    finally:
        setattr(owner, name, original)
