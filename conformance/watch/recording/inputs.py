"""What models are fed while they train, and the order of a sampler."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.holdings import fingerprint, fingerprint_of_whole, is_plain, raw
from conformance.watch.recording.later import later
from conformance.watch.recording.recording import Recording

_MOST_ROWS, _MOST_ROOTS = 256, 8
_MOST_FRAMES = 8
"""Between a hook and the call of its module."""

NONE = -1
_BATCHED_BY = ("torch.", "accelerate.", "builtins")
"""What makes batches of any samples, or of lists of them."""


class Inputs:
    """The first input of the first forward after each backward, and after each step. probe: whether that input wants a
    gradient. evaluates: whether models only went forward in evaluation mode since; evaluated: the rows of the first.
    fetched: by the numbers of loaders, how many batches each gave since. dealt: the sampler of the last batch that was
    not evaluated; `NONE` if it is not dealt out to ranks; None if it is not known. samplers: those
    `DistributedSampler`s that gave batches since. draws: whether a batch sampler of the script's own made any of these
    batches, or each is one item of the data, which may be a task or a batch by itself."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._handle: RemovableHandle | None = None
        self._enter = harmless(self._entering)
        self.probe = self.evaluates = self.draws = False
        self.evaluated: Any = []
        self.fetched: dict[int, int] = {}
        self.dealt: int | None = None
        self.samplers: set[int] = set()
        recording.before_writing.append(harmless(self._begin_after_step))

    def begin(self) -> None:
        """The next forward is of another micro-batch."""
        self.probe = self.evaluates = self.draws = False
        self.evaluated = []
        self.fetched.clear()
        self.samplers.clear()
        self._wait()

    def _begin_after_step(self) -> None:
        """The next forward is one through new weights."""
        if not self._recording.is_over:
            self._wait()

    @property
    def loader(self) -> int | None:
        """The only one that gave batches since the last backward."""
        return next(iter(self.fetched)) if len(self.fetched) == 1 else None

    @property
    def batches(self) -> int:
        """How many batches loaders gave since the last backward."""
        return sum(self.fetched.values())

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
            self.dealt = NONE if self.dealt is not None else None
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or "backward" in self._recording.inside:
            return
        if not module.training:
            if not self.evaluates:
                self.evaluates, self.evaluated = True, _rows((*args, *kwargs.values()))
            return
        self.evaluates, self.evaluated = False, []
        self.end()
        if module not in self._recording.roots and len(self._recording.roots) < _MOST_ROOTS:
            self._recording.roots.add(module)
            self._recording.parameters.note_names(module)
        self.probe = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
        wrapped = hasattr(module, "require_backward_grad_sync") or type(module).__name__.startswith("FSDP")
        rows = _rows((*args, *kwargs.values()))
        self._recording.note(records.Entered(rows, wrapped, self._recording.site(), self.dealt))


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


def _tensors(inputs: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Those among them, and those in lists and dictionaries, as a batch may be one."""
    for one in inputs:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, Mapping):
            yield from _tensors(one.values())
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def _rows(inputs: Iterable[Any]) -> Any:
    """The fingerprints of the first input that is data."""
    for one in _tensors(inputs):
        if one.dim() and one.numel() and not one.requires_grad:
            return later(one[:_MOST_ROWS], fingerprints) if _has_data(one) else []
    return []


def _has_data(tensor: torch.Tensor) -> bool:
    """Whether it is a plain one, and no stand-in for several within `vmap`."""
    return is_plain(tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def fingerprints(batch: torch.Tensor) -> list[int]:
    """One for each row."""
    some = raw(batch)
    some = some.view(torch.uint8) if some.dtype != torch.bool else some
    flat = some.reshape(some.shape[0], -1)
    return [zlib.crc32(bytes(row)) for row in flat.numpy()]


def observe(recording: Recording, inputs: Inputs) -> Seams:
    """Notes `Entered` and `Epoch`."""

    holdings: dict[int, tuple[int | None, int | None]] = {}

    def go_through(original: Any, sampler: Any) -> Any:
        number = recording.numbers.of("sampler", sampler)
        if number not in holdings:
            holdings[number] = fingerprint(sampler.dataset), fingerprint_of_whole(sampler.dataset)
        shuffles, replicas = bool(sampler.shuffle), sampler.num_replicas
        recording.note(records.Epoch(number, sampler.epoch, shuffles, replicas, *holdings[number]))
        return original(sampler)

    def fetch(original: Any, iterator: Any) -> Any:
        result = original(iterator)
        source = iterator._index_sampler
        # Batches may be given as a list, of which there are no weak references.
        number = recording.numbers.of("loader", source if hasattr(type(source), "__weakref__") else iterator)
        inputs.fetched[number] = inputs.fetched.get(number, 0) + 1
        is_item = not iterator._auto_collation or getattr(source, "batch_size", None) == 1
        inputs.draws |= is_item or not type(source).__module__.startswith(_BATCHED_BY)
        sampler = getattr(source, "sampler", source)
        if isinstance(sampler, DistributedSampler):
            inputs.dealt = recording.numbers.of("sampler", sampler)
            inputs.samplers.add(inputs.dealt)
        else:
            inputs.dealt = NONE if isinstance(sampler, (RandomSampler, SequentialSampler)) else None
        return result

    def export(original: Any, *args: Any, **kwargs: Any) -> Any:
        # What is exported of a module with hooks is something else, if torch can export it at all.
        inputs.end()
        return original(*args, **kwargs)

    def convert(original: Any, converter: Any, *args: Any, **kwargs: Any) -> Any:
        if converter._export:
            inputs.end()
        return original(converter, *args, **kwargs)

    def compiling(module: ModuleType) -> Seams:
        yield replaced(module.ConvertFrameAssert, "__call__", convert)
        # torch 2.6 exports by the former.
        if hasattr(module, "get_traced_fn"):
            yield replaced(module, "get_traced_fn", export)

    def calling(module: ModuleType) -> Seams:
        yield replaced(module.OptimizedModule, "__call__", inputs.compiled)

    yield when_imported("torch._dynamo.convert_frame", compiling)
    yield when_imported("torch._dynamo.eval_frame", calling)
    yield replaced(_BaseDataLoaderIter, "__next__", fetch)
    yield inputs.waiting()
    yield replaced(DistributedSampler, "__iter__", go_through)
