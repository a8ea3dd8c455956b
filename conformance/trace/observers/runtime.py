"""Observes the runtime of training: autocast, compiled code and forked processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, originals, replaced, when_imported
from conformance.trace.seams.probes import compiling


def _autocast(recording: Recording) -> Seams:
    """Records entry and exit of enabled autocasts, except where checkpointing repeats them in a backward."""

    def noting(event: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], autocast: torch.autocast, *args: Any) -> Any:
            result = original(autocast, *args)
            if autocast._enabled and not recording.is_inside("backward"):
                dtype = str(autocast.fast_dtype).removeprefix("torch.")
                caches = {} if autocast._cache_enabled or event == "autocast_exit" else {"caches": False}
                recording.note(event, device=autocast.device, dtype=dtype, enabled=True, **caches)
            return result

        return around

    yield replaced(torch.autocast, "__enter__", noting("autocast_enter"))
    yield replaced(torch.autocast, "__exit__", noting("autocast_exit"))


def _compiling(recording: Recording) -> Seams:
    """Lets the compiler break its graph at the recorder. Compiling the recorder too takes ten times as long as the
    model alone, and `fullgraph`, which forbids breaks, would raise.

    An export must not break, so there the compiler sees the original functions."""

    def convert(original: Callable[..., Any], converter: Any, *args: Any, **kwargs: Any) -> Any:
        # The trainer may have decorated functions with `torch.compile` on import, before `convert` was in place.
        converter._one_graph = False
        return original(converter, *args, **kwargs)

    def export(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with originals():
            return original(*args, **kwargs)

    yield from compiling(convert, export, "_fullgraph_capture_frame")
    yield when_imported("torch._dynamo.trace_rules", lambda module: [_left_out(module)])


@contextmanager
def _left_out(rules: ModuleType) -> Iterator[None]:
    before = list(rules.SKIP_DIRS)
    rules.add("conformance.trace")
    try:
        yield
    finally:
        rules.SKIP_DIRS[:] = before
        rules._recompile_re()


def _forks(recording: Recording) -> Seams:
    """Records `os.fork`, which Python's multiprocessing uses too."""

    def fork(original: Callable[[], int]) -> int:
        process = original()
        if process:
            recording.note("fork")
        return process

    yield replaced(os, "fork", fork)


def observe(recording: Recording) -> Seams:
    """Records autocast and forks, and keeps the recorder out of compiled code."""
    yield from _autocast(recording)
    yield from _compiling(recording)
    yield from _forks(recording)
