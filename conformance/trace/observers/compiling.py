"""Keeps the recorder out of what `torch.compile` compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from conformance.trace.emit import Recording
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import Seams, originals
from conformance.trace.seams.probes import compiling


def observe(recording: Recording) -> Seams:
    """Lets the compiler break its graph where the recorder begins. It would compile the recorder too, which takes ten
    times as long as the model; and `fullgraph`, which forbids breaks, would make it raise.

    An export must not break: there the compiler sees what it would see without the recorder."""

    def convert(original: Callable[..., Any], converter: Any, *args: Any, **kwargs: Any) -> Any:
        # Functions may have been compiled, in this sense, when the trainer was imported.
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
