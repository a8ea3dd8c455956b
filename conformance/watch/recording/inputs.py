"""Records the inputs of training models, and the samples that loaders give to each rank."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _InfiniteConstantSampler
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.seams.probes import compiling
from conformance.watch import records
from conformance.watch.recording.holdings import (
    MOST_ROWS,
    fingerprint,
    fingerprint_of_whole,
    fingerprints,
    is_plain,
    joint_fingerprints,
    settings,
    tensors,
)
from conformance.watch.recording.output import later
from conformance.watch.recording.own_rank import world
from conformance.watch.recording.recording import Recording, frames

NONE = -1
_FSDP = ("FSDP", "FullyShardedDataParallel")
_BATCHED_BY = ("torch.", "accelerate.", "builtins")
"""Origins of batch samplers that batch arbitrary samples, unlike one of the script."""

_MOST_WRAPPERS = 4
"""Limit of batch samplers around each other."""


class Loading:
    """The batches of loaders since the last backward pass.

    fetched: the number of batches by loader. dealt: the sampler of the last batch that was not evaluated; `NONE` if it
    does not deal samples to ranks; None if unknown. samplers: the `DistributedSampler`s of the batches. draws: a batch
    sampler of the script made any of the batches, or they are single items of the data, which may be tasks or batches.
    drawn: a number for each sample of the last batch, equal on all ranks with the same data; () if unknown. evaluated:
    the samplers of the last batches, if a model evaluated them. started: a loader began an epoch. ahead: the loader
    whose next batch is fetched already, as a framework does to know which one is the last.
    """

    def __init__(self) -> None:
        self.dealt: int | None = None
        self.ahead: int | None = None
        self.begin()

    def begin(self) -> None:
        """Starts the count for the next backward pass."""
        self.fetched: Counter[int] = Counter()
        self.samplers: set[int] = set()
        self.evaluated: set[int] = set()
        self.draws = False
        self.drawn: Sequence[int] = ()
        self.started = False

    def evaluate(self) -> None:
        """A model without gradients, or in evaluation mode, gets the last batch."""
        self.evaluated |= self.samplers
        self.samplers = set()

    def train(self) -> None:
        """A model trains on the last batch, also if another one has evaluated it."""
        self.samplers |= self.evaluated
        self.evaluated = set()

    def of_pass(self) -> Counter[int]:
        """The batches that belong to this backward pass, by loader."""
        fetched = self.fetched
        if self.started:
            self.ahead = next((loader for loader, number in fetched.items() if number == 2), None)
        if self.started and self.ahead is not None:
            return fetched - Counter([self.ahead])
        if not fetched and self.ahead is not None:
            fetched, self.ahead = Counter([self.ahead]), None
        return fetched

    def of(self, data: torch.Tensor | None) -> Sequence[int]:
        """The numbers of the samples in a model's input; () for a part of a batch, or with several batches."""
        if data is None or self.fetched.total() != 1:
            return ()
        return self.drawn if min(len(data), MOST_ROWS) == len(self.drawn) else ()


def _loading(recording: Recording, loading: Loading) -> Seams:
    """Notes `Epoch` and `First`."""
    held: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
    waiting: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
    starting: dict[int, int | None] = {}
    made: WeakKeyDictionary[Any, records.Site] = WeakKeyDictionary()

    def make(original: Any, sampler: Any, *args: Any, **kwargs: Any) -> None:
        made[sampler] = recording.site()
        original(sampler, *args, **kwargs)

    def go_through(original: Any, sampler: Any) -> Any:
        number, data = recording.numbers.of("sampler", sampler), sampler.dataset
        starting[number] = sampler.epoch
        shuffles, replicas = bool(sampler.shuffle), sampler.num_replicas
        of = fingerprint(data), fingerprint_of_whole(data)
        recording.note(records.Epoch(number, sampler.epoch, shuffles, replicas, *of, made.get(sampler)))
        return original(sampler)

    def choose(original: Any, iterator: Any) -> Any:
        indices = original(iterator)
        if world() > 1 and iterator._dataset_kind == _DatasetKind.Map:
            if iterator not in held:
                held[iterator] = _identity(iterator._dataset)
            # Workers get the indices of batches long before these are requested.
            waiting.setdefault(iterator, {})[getattr(iterator, "_send_idx", 0)] = indices
        return indices

    def fetch(original: Any, iterator: Any) -> Any:
        source, is_first = iterator._index_sampler, not iterator._num_yielded
        result = original(iterator)
        # The batch sampler may be a list, which has no weak references.
        number = recording.numbers.of("loader", source if hasattr(type(source), "__weakref__") else iterator)
        loading.fetched[number] += 1
        loading.started |= is_first
        loading.evaluated = set()
        is_item = not iterator._auto_collation or getattr(source, "batch_size", None) == 1
        loading.draws |= is_item or not type(source).__module__.startswith(_BATCHED_BY)
        sampler = _innermost(source)
        of_sampler = recording.numbers.of("sampler", sampler) if _has_order(sampler) else None
        if of_sampler is not None:
            loading.samplers.add(of_sampler)
            if is_first and not isinstance(sampler, DistributedSampler):
                starting[of_sampler] = _epoch(sampler)
                shuffles = getattr(sampler, "shuffle", True) is not False
                recording.note(records.Epoch(of_sampler, starting[of_sampler], shuffles))
        if isinstance(sampler, DistributedSampler):
            loading.dealt = of_sampler
        else:
            loading.dealt = NONE if isinstance(sampler, (RandomSampler, SequentialSampler)) else None
        batch = [one for one in tensors([result]) if one.dim()]
        are_plain = all(map(is_plain, batch))
        indices = waiting.get(iterator, {}).pop(getattr(iterator, "_rcvd_idx", 1) - 1, None)
        is_known = _deals_each_once(sampler) and getattr(iterator, "_in_order", True) and are_plain
        loading.drawn, is_labelled = _drawn(held.get(iterator), indices, batch) if is_known else ((), False)
        rows: Any = []
        if are_plain and batch and batch[0].numel() and (of_sampler in starting or (world() > 1 and not loading.drawn)):
            rows = later(fingerprints, batch[0][:MOST_ROWS])
        if of_sampler is not None and of_sampler in starting:
            epoch, site, is_all = starting.pop(of_sampler), recording.site(), _is_one_batch(source)
            recording.note(records.First(of_sampler, epoch, rows, [*loading.drawn], is_labelled, is_all, site))
        # What a model gets may be augmented since.
        are_rows = isinstance(rows, list) and len({*rows}) > 1
        loading.drawn = loading.drawn or (rows if are_rows else ())
        return result

    yield replaced(_BaseDataLoaderIter, "_next_index", choose)
    yield replaced(_BaseDataLoaderIter, "__next__", fetch)
    yield replaced(DistributedSampler, "__init__", make)
    yield replaced(DistributedSampler, "__iter__", go_through)


def _identity(data: Any) -> str | None:
    held = fingerprint(data)
    return None if held is None else f"{held} {settings(data)}"


def _deals_each_once(sampler: Any) -> bool:
    """Whether it is a sampler of torch that gives each sample once in an epoch. Others may give ranks the same samples
    on purpose, or by chance."""
    is_torchs = type(sampler) in (DistributedSampler, RandomSampler, SequentialSampler)
    return is_torchs and not getattr(sampler, "replacement", False)


def _innermost(sampler: Any) -> Any:
    """The sampler of single samples, of a batch sampler and of those around it."""
    for _ in range(_MOST_WRAPPERS):
        # Not by their truth: a sampler's length may raise an error.
        inside = (getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))
        inner = next((one for one in inside if one is not None), None)
        if inner is None:
            break
        sampler = inner
    return sampler


def _has_order(sampler: Any) -> bool:
    """Whether its epochs may have several orders. One of the script may; a stream has none of its own."""
    return hasattr(type(sampler), "__weakref__") and not isinstance(
        sampler, (SequentialSampler, _InfiniteConstantSampler)
    )


def _epoch(sampler: Any) -> int | None:
    """The epoch that `set_epoch` sets; None if there is no such method."""
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(sampler, "set_epoch") else None


def _is_one_batch(source: Any) -> bool:
    """Whether an epoch is a single batch, and so has no order."""
    try:
        return len(source) <= 1
    except (TypeError, NotImplementedError):
        return False


def _drawn(held: str | None, indices: Any, batch: Sequence[torch.Tensor]) -> tuple[Sequence[int], bool]:
    """A number for each sample, and whether it includes labels that differ. Samples are equal if they have the same
    index in the same data, and the same label if there is one."""
    if held is None or not isinstance(indices, (list, tuple)) or not all(type(one) is int for one in indices):
        return (), False
    if any(len(one) != len(indices) or one.device.type != "cpu" for one in batch):
        return (), False
    exact = [one for one in batch if one.numel() and not (one.is_floating_point() or one.is_complex())]
    labels = fingerprints(min(exact, key=torch.numel)[:MOST_ROWS]) if exact else [0] * len(indices)
    places = indices[:MOST_ROWS]
    texts = (f"{held} {one} {label}" for one, label in zip(places, labels, strict=False))
    drawn = [zlib.crc32(text.encode(errors="backslashreplace")) for text in texts]
    return drawn, len({*labels}) > 1


_MOST_ROOTS = 8
_MOST_FRAMES = 8
"""Limit of frames between a hook and the call of its module."""


class Inputs:
    """The first input of the first forward pass after each backward pass and each step. probe: this input requires a
    gradient. evaluates: models only ran in evaluation mode since. evaluated: the rows of the first such input."""

    def __init__(self, recording: Recording, loading: Loading) -> None:
        self._recording, self._loading = recording, loading
        self._handle: RemovableHandle | None = None
        self._enter = harmless(self._entering)
        self.probe = self.evaluates = False
        self.evaluated: Any = []
        recording.before_writing.append(harmless(self._begin_after_step))

    def begin(self) -> None:
        """Waits for the first forward pass of the next micro-batch."""
        self.probe = self.evaluates = False
        self.evaluated = []
        self._loading.begin()
        self._wait()

    def seen(self) -> dict[str, Any]:
        """The fields of `records.Backward` about its inputs."""
        fetched = self._loading.of_pass()
        return {
            "probe": self.probe,
            "loader": next(iter(fetched)) if len(fetched) == 1 else None,
            "batches": fetched.total(),
            "draws": self._loading.draws,
            "samplers": sorted(self._loading.samplers),
            "evaluates": self.evaluates,
            "evaluated": self.evaluated,
        }

    def _begin_after_step(self) -> None:
        if not self._recording.is_over:
            self._wait()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which forward passes are noted."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def _wait(self) -> None:
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._enter)

    def compiled(self, original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Calls a module from `torch.compile` without the hook, because torch warns about hooks for all modules."""
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
        """Removes the hook: the next modules are inside the first, and calls of a hook in all of them are slow."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _entering(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._entered(module, args, _keywords(module))

    def _entered(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not torch.is_grad_enabled():
            self._loading.dealt = NONE if self._loading.dealt is not None else None
            self._loading.evaluate()
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or self._recording.is_inside("backward"):
            return
        if not module.training:
            self._loading.evaluate()
            if not self.evaluates:
                self.evaluates, self.evaluated = True, _rows(_data((*args, *kwargs.values())))
            return
        self.evaluates, self.evaluated = False, []
        self._loading.train()
        self.end()
        if module not in self._recording.roots and len(self._recording.roots) < _MOST_ROOTS:
            self._recording.roots.add(module)
            self._recording.numbers.of("root", module)
            self._recording.parameters.note_names(module)
        self.probe = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
        wrapped = hasattr(module, "require_backward_grad_sync") or type(module).__name__.startswith(_FSDP)
        given, site, dealt = (*args, *kwargs.values()), self._recording.site(), self._loading.dealt
        data = _data(given)
        drawn, others = [*self._loading.of(data)], _others(data, given)
        self._recording.note(records.Entered(_rows(data), wrapped, site, dealt, drawn, others))


def _keywords(module: torch.nn.Module) -> Mapping[str, Any]:
    """The keyword arguments of a module that calls its hooks: torch passes only the others to hooks for all modules."""
    for frame in islice(frames(sys._getframe(1)), _MOST_FRAMES):
        kwargs = frame.f_locals.get("kwargs")
        if frame.f_locals.get("self") is module and isinstance(kwargs, dict):
            return kwargs
    return {}


def _data(inputs: Iterable[Any]) -> torch.Tensor | None:
    """The first input that is data."""
    return next(filter(_is_data, tensors(inputs)), None)


def _is_data(tensor: torch.Tensor) -> bool:
    return bool(tensor.dim() and tensor.numel()) and not tensor.requires_grad


def _rows(data: torch.Tensor | None) -> Any:
    """A fingerprint of each row."""
    return later(fingerprints, data[:MOST_ROWS]) if data is not None and _has_data(data) else []


def _others(data: torch.Tensor | None, inputs: Iterable[Any]) -> Any:
    """For each row, a fingerprint of all other inputs: of the same row, or of all rows if their numbers differ."""
    if data is None or not _has_data(data):
        return []
    others = [one for one in tensors(inputs) if one is not data and _has_data(one) and one.dim() and one.numel()]
    return later(joint_fingerprints, *(one.detach()[:MOST_ROWS] for one in (data, *others))) if others else []


def _has_data(tensor: torch.Tensor) -> bool:
    """Whether it is a plain tensor, not one that represents several within `vmap`."""
    return is_plain(tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _inputs(recording: Recording, inputs: Inputs) -> Seams:
    """Notes `Entered`."""

    def export(original: Any, *args: Any, **kwargs: Any) -> Any:
        # A module with hooks is exported differently, or not at all.
        inputs.end()
        return original(*args, **kwargs)

    def convert(original: Any, converter: Any, *args: Any, **kwargs: Any) -> Any:
        return original(converter, *args, **kwargs)

    def calling(module: ModuleType) -> Seams:
        yield replaced(module.OptimizedModule, "__call__", inputs.compiled)

    yield from compiling(convert, export, "get_traced_fn")
    yield when_imported("torch._dynamo.eval_frame", calling)
    yield inputs.waiting()


def observe(recording: Recording, inputs: Inputs, loading: Loading) -> Seams:
    """Notes `Entered`, `Epoch` and `First`."""
    yield from _loading(recording, loading)
    yield from _inputs(recording, inputs)
