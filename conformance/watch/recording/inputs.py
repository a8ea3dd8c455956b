"""What models are fed while they train."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import compiling
from conformance.watch import records
from conformance.watch.recording.holdings import MOST_ROWS, fingerprints, fingerprints_beside, is_plain, tensors
from conformance.watch.recording.later import later
from conformance.watch.recording.loading import NONE, Loading
from conformance.watch.recording.recording import Recording

_MOST_ROOTS = 8
_MOST_FRAMES = 8
"""Between a hook and the call of its module."""


class Inputs:
    """The first input of the first forward after each backward, and after each step. probe: whether that input wants a
    gradient. evaluates: whether models only went forward in evaluation mode since; evaluated: the rows of the first."""

    def __init__(self, recording: Recording, loading: Loading) -> None:
        self._recording, self._loading = recording, loading
        self._handle: RemovableHandle | None = None
        self._enter = harmless(self._entering)
        self.probe = self.evaluates = False
        self.evaluated: Any = []
        recording.before_writing.append(harmless(self._begin_after_step))

    def begin(self) -> None:
        """The next forward is of another micro-batch."""
        self.probe = self.evaluates = False
        self.evaluated = []
        self._loading.begin()
        self._wait()

    def _begin_after_step(self) -> None:
        """The next forward is one through new weights."""
        if not self._recording.is_over:
            self._wait()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this, forwards are noted."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def _wait(self) -> None:
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._enter)

    def compiled(self, original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """A forward of what `torch.compile` made of a module: torch warns where there is a hook for all modules."""
        if self._handle is None:
            return original(module, *args, **kwargs)
        self._entered(module, args, kwargs)
        waits = self._handle is not None
        self.end()
        try:
            return original(module, *args, **kwargs)
        finally:
            if waits:
                self._wait()

    def end(self) -> None:
        """Modules that come now are inside the first. A hook that all of them call costs more than what it does."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _entering(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._entered(module, args, _keywords(module))

    def _entered(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not torch.is_grad_enabled():
            self._loading.dealt = NONE if self._loading.dealt is not None else None
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or self._recording.is_inside("backward"):
            return
        if not module.training:
            if not self.evaluates:
                self.evaluates, self.evaluated = True, _rows(_data((*args, *kwargs.values())))
            return
        self.evaluates, self.evaluated = False, []
        self.end()
        if module not in self._recording.roots and len(self._recording.roots) < _MOST_ROOTS:
            self._recording.roots.add(module)
            self._recording.numbers.of("root", module)
            self._recording.parameters.note_names(module)
        self.probe = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
        wrapped = hasattr(module, "require_backward_grad_sync") or type(module).__name__.startswith("FSDP")
        given, loading = (*args, *kwargs.values()), self._loading
        data = _data(given)
        # Of a part of a batch it is not known which, nor of one of several batches.
        is_whole = data is not None and data.numel() in loading.sizes and loading.batches == 1
        drawn = (
            [*loading.drawn]
            if data is not None and is_whole and min(len(data), MOST_ROWS) == len(loading.drawn)
            else []
        )
        self._recording.note(
            records.Entered(_rows(data), wrapped, self._recording.site(), loading.dealt, drawn, _beside(data, given))
        )


def _keywords(module: torch.nn.Module) -> Mapping[str, Any]:
    """What a module that calls its hooks was given by name: torch tells hooks for all modules the rest alone."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        found = frame.f_locals
        kwargs = found.get("kwargs")
        if found.get("self") is module and isinstance(kwargs, dict):
            return kwargs
        frame = frame.f_back
    return {}


def _data(inputs: Iterable[Any]) -> torch.Tensor | None:
    """The first input that is data."""
    return next(filter(_is_data, tensors(inputs)), None)


def _is_data(tensor: torch.Tensor) -> bool:
    return bool(tensor.dim() and tensor.numel()) and not tensor.requires_grad


def _rows(data: torch.Tensor | None) -> Any:
    """A fingerprint of each row."""
    return later(fingerprints, data[:MOST_ROWS]) if data is not None and _has_data(data) else []


def _beside(data: torch.Tensor | None, inputs: Iterable[Any]) -> Any:
    """For each row a fingerprint of all other inputs: of its own, where they have as many rows, and else of all."""
    if data is None or not _has_data(data):
        return []
    others = [one for one in tensors(inputs) if one is not data and _has_data(one) and one.dim() and one.numel()]
    return later(fingerprints_beside, *(one.detach()[:MOST_ROWS] for one in (data, *others))) if others else []


def _has_data(tensor: torch.Tensor) -> bool:
    """Whether it is a plain one, and no stand-in for several within `vmap`."""
    return is_plain(tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def observe(recording: Recording, inputs: Inputs) -> Seams:
    """Notes `Entered`."""

    def export(original: Any, *args: Any, **kwargs: Any) -> Any:
        # What is exported of a module with hooks is something else, if torch can export it at all.
        inputs.end()
        return original(*args, **kwargs)

    def convert(original: Any, converter: Any, *args: Any, **kwargs: Any) -> Any:
        return original(converter, *args, **kwargs)

    def calling(module: ModuleType) -> Seams:
        yield replaced(module.OptimizedModule, "__call__", inputs.compiled)

    yield from compiling(convert, export, "get_traced_fn")
    yield when_imported("torch._dynamo.eval_frame", calling)
    yield inputs.waiting()
