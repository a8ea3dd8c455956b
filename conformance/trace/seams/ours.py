"""The original functions that the recorder calls, saved before a trainer can replace them.

Trainers and libraries replace methods of tensors and functions of torch and the standard library. While the recorder
works (see `Aside`), the originals are back in place, so no replacement makes it fail or read wrong values.
"""

from __future__ import annotations

import builtins
import functools
import gc
import os
import pathlib
import posixpath
import re
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.distributed
from torch.utils._python_dispatch import _disable_current_modes

_OWNERS: tuple[Any, ...] = (
    *(torch.Tensor, torch.UntypedStorage, torch, torch.nn.functional, torch.nn.Module, torch.optim.Optimizer),
    *(torch.distributed, torch.cuda),
    *(builtins, functools, os, pathlib.Path, posixpath, re, sys, threading, time, traceback, weakref),
)
#: Python's library and torch, which the recorder calls, may use every name of these.
_OF_LIBRARIES = (builtins, re)
_ABSENT = object()
"""Marks a name that the owner inherits instead of defining it."""

# `look`, `enter` and `leave` call these while a trainer's replacements are in place.
_put, _remove, _own, _identity, _is_a, _class = setattr, delattr, vars, id, isinstance, type


class Ours:
    """The owners' original functions under the names that the recorder calls, and the trainer's `replacements`.

    Attributes:
        seams: identities of the recorder's own replacement functions.
        late: names, such as "torch.Tensor.tolist", of replacements found after a failure.
    """

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], Any, str, Any]] = []
        self.replacements: list[tuple[Any, str, Any]] = []
        self.seams: set[int] = set()
        self.late: list[str] = []
        # Across threads: an original that another thread has put back is not the trainer's function.
        self._lock = threading.Lock()
        self._inside = 0
        self._theirs: list[tuple[Any, str, Any]] = []

    def remember(self) -> None:
        """Save the originals. Call this before a trainer is imported."""
        names = {*_called(__name__.partition(".seams.")[0])}
        self._before = [
            (_own(owner), owner, name, _own(owner).get(name, _ABSENT))
            for owner in _OWNERS
            for name in dir(owner)
            if (name in names or owner in _OF_LIBRARIES) and callable(getattr(owner, name, None))
        ]

    def look(self, *, late: bool = False) -> None:
        """Find replacements since the last call; `late`: after a failure that they may have caused."""
        with self._lock:
            known = {(_identity(owner), name) for owner, name, _ in self.replacements}
            found = [
                (owner, name, before)
                for own, owner, name, before in self._before
                if (now := own.get(name, _ABSENT)) is not before
                and _identity(now) not in self.seams
                and (_identity(owner), name) not in known
            ]
            # Another thread may be in `enter`.
            self.replacements = [*self.replacements, *found]
        if late:
            self.late += [f"{_name_of(owner)}.{name}" for owner, name, _ in found]

    def enter(self) -> None:
        """Put the originals back, until `leave` has been called as often."""
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                theirs = self.replacements
                self._theirs = [(owner, name, _own(owner).get(name, _ABSENT)) for owner, name, _ in theirs]
                _set(theirs)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _set(self._theirs)


def _set(values: list[tuple[Any, str, Any]]) -> None:
    for owner, name, value in values:
        if value is not _ABSENT:
            _put(owner, name, value)
        elif name in _own(owner):
            _remove(owner, name)


def _name_of(owner: Any) -> str:
    return f"{owner.__module__}.{owner.__qualname__}" if _is_a(owner, _class) else owner.__name__


def _called(package: str) -> Iterator[str]:
    """The names that a package's imported code looks up, and those of operators."""
    yield from (name for name in dir(torch.Tensor) if name.startswith("__"))
    for thing in gc.get_objects():
        if type(thing) is FunctionType and str(thing.__module__).startswith(package):
            yield from _looked_up(thing.__code__)


def _looked_up(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _looked_up(constant)


ours = Ours()


_C: Any = torch._C
_modes, _transforms = _C._len_torch_dispatch_stack, _C._functorch.peek_interpreter_stack
_tracing_state, _set_tracing_state = _C._get_tracing_state, _C._set_tracing_state
_is_included, _PRE_DISPATCH = _C._dispatch_tls_is_dispatch_key_included, _C.DispatchKey.PreDispatch
_without_functions = _C.DisableTorchFunction


class Aside:
    """A context that suspends, in this thread, whatever of the trainer would count, forbid, record or falsify the
    recorder's reads: modes, transforms of `torch.func`, `torch.jit.trace`, `__torch_function__` of its classes, and its
    replacements of functions.

    It may be entered again after it was left.
    """

    __slots__ = ("_functions", "_has_ours", "_rest")

    def __init__(self) -> None:
        self._has_ours = False
        self._functions: Any = None
        self._rest: ExitStack | None = None

    def __enter__(self) -> None:
        if ours.replacements:
            ours.enter()
            self._has_ours = True
        # This runs dozens of times a step, mostly with nothing else to suspend.
        if _modes() or _is_included(_PRE_DISPATCH) or _transforms() is not None or _tracing_state() is not None:
            with ExitStack() as stack:
                stack.enter_context(_untraced())
                stack.enter_context(torch._C._DisableFuncTorch())
                stack.enter_context(_disable_current_modes())
                self._rest = stack.pop_all()
        self._functions = _without_functions()
        self._functions.__enter__()

    def __exit__(self, *error: object) -> None:
        self._functions.__exit__(None, None, None)
        self._functions = None
        if self._rest is not None:
            self._rest.close()
            self._rest = None
        if self._has_ours:
            self._has_ours = False
            ours.leave()


@contextmanager
def _untraced() -> Iterator[None]:
    state = _tracing_state()
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)
