"""The activities in progress, one inside the other, in each thread; DDP's forwards are among them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from threading import _DummyThread, current_thread, get_ident
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Nested(Generic[T]):
    """The activities of this thread that have begun and not ended. Iterates from the innermost.

    A thread that Python did not start, such as those of autograd's engine on a GPU, works for others: it is inside the
    activities of all threads.
    """

    def __init__(self) -> None:
        self._entered: list[_Entered[T]] = []

    def inside(self, what: T) -> AbstractContextManager[None]:
        """Within this, `what` is being done."""
        return _Entered(what, self._entered)

    def __iter__(self) -> Iterator[T]:
        return iter([entered.what for entered in reversed(self._own())])

    def __contains__(self, what: object) -> bool:
        # Asked often, and mostly of what nobody is doing.
        for entered in self._entered:
            if entered.what == what:
                return any(own.what == what for own in self._own())
        return False

    def _own(self) -> list[_Entered[T]]:
        if not self._entered:
            return self._entered
        me = get_ident()
        own = [entered for entered in self._entered if entered.thread == me]
        if len(own) == len(self._entered) or not isinstance(current_thread(), _DummyThread):
            return own
        return list(self._entered)


class _Entered(Generic[T]):
    """Contexts of several threads, or of steps that were interrupted, need not end in order: each removes itself."""

    __slots__ = ("_all", "thread", "what")

    def __init__(self, what: T, all_: list[_Entered[T]]) -> None:
        self.what = what
        self.thread = get_ident()
        self._all = all_

    def __enter__(self) -> None:
        self._all.append(self)

    def __exit__(self, *error: object) -> None:
        self._all.remove(self)


class Wrappers:
    """Knows the wrappers whose forward is running, and the one that the model's last forward came through."""

    def __init__(self) -> None:
        self._running = Nested[torch.nn.Module]()
        self.inside = self._running.inside
        self._last: weakref.ref[torch.nn.Module] | None = None

    def enter_model(self) -> torch.nn.Module | None:
        """A training forward of the model begins; the result is the wrapper that called it, if any."""
        wrapper = next(iter(self._running), None)
        self._last = None if wrapper is None else weakref.ref(wrapper)
        return wrapper

    @property
    def syncs(self) -> bool | None:
        """Whether DDP would average in a backward: the flag of the last forward's wrapper, as it is now."""
        flag = getattr(None if self._last is None else self._last(), "require_backward_grad_sync", None)
        return flag if isinstance(flag, bool) else None
