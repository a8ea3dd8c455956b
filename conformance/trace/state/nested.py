"""Tracks nested activities in progress in each thread, such as DDP's forwards."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from threading import _DummyThread, current_thread, get_ident
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Nested(Generic[T]):
    """The activities in progress in this thread. Iterates from the innermost.

    Threads that Python did not start, such as the autograd engine's on a GPU, work for others, so they are inside the
    activities of all threads.
    """

    def __init__(self) -> None:
        self._entered: list[_Entered[T]] = []

    def inside(self, what: T) -> AbstractContextManager[None]:
        """A context in which `what` is active."""
        return _Entered(what, self._entered)

    def __iter__(self) -> Iterator[T]:
        return iter([entered.what for entered in reversed(self._own())])

    def __contains__(self, what: object) -> bool:
        # The first comparison is cheap: mostly no thread is in this activity.
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
    """An activity. It removes itself, because contexts of several threads or interrupted steps may end unordered."""

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
    """Knows the wrappers whose forward is running, and the wrapper of the model's last forward."""

    def __init__(self) -> None:
        self._running = Nested[torch.nn.Module]()
        self.inside = self._running.inside
        self._last: weakref.ref[torch.nn.Module] | None = None

    def enter_model(self) -> torch.nn.Module | None:
        """Start a training forward of the model; returns the wrapper that called it, if any."""
        wrapper = next(iter(self._running), None)
        self._last = None if wrapper is None else weakref.ref(wrapper)
        return wrapper

    @property
    def syncs(self) -> bool | None:
        """Whether DDP would average in a backward: the current flag of the last forward's wrapper; None without DDP."""
        flag = getattr(None if self._last is None else self._last(), "require_backward_grad_sync", None)
        return flag if isinstance(flag, bool) else None
