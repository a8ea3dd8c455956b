"""Takes the recorder out of what the trainer is in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from conformance.trace.seams.ours import ours

_C: Any = torch._C
_modes, _transforms = _C._len_torch_dispatch_stack, _C._functorch.peek_interpreter_stack
_tracing, _trace = _C._get_tracing_state, _C._set_tracing_state
_is_included, _PRE_DISPATCH = _C._dispatch_tls_is_dispatch_key_included, _C.DispatchKey.PreDispatch
_without_functions = _C.DisableTorchFunction


class Aside:
    """A context in which this thread is in nothing that the trainer entered and that would count, forbid, record or
    make up what we read: modes, transforms of `torch.func`, `torch.jit.trace`, `__torch_function__` of its classes, and
    its replacements of functions that we call.

    It may be entered again once it was left.
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
        # This runs dozens of times a step, and mostly there is nothing else to step out of.
        if _modes() or _is_included(_PRE_DISPATCH) or _transforms() is not None or _tracing() is not None:
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
    state = _tracing()
    _trace(None)
    try:
        yield
    finally:
        _trace(state)
