"""Records weights between steps: to compare ranks, to detect changes by the script, and without training."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.output import later
from conformance.watch.recording.parameters import Known, outermost, plain
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE
from conformance.watch.sketch import has_values, own


def note_weights(recording: Recording, calls: int) -> None:
    """Notes `Weighed`, if there are other ranks, after 0 to 8 backward passes, and after 10, 12, 14, 16, 20, 24 ..., of
    all passes or of those with this call site."""
    if not recording.is_with_others:
        return
    done = recording.passes[calls]
    recording.passes[calls] += 1
    if _is_time(recording.backwards) or _is_time(done):
        _note_weighed(recording, last=False)


def _is_time(done: int) -> bool:
    return not done & ((1 << max(0, done.bit_length() - 3)) - 1)


def observe(recording: Recording) -> Seams:
    """Notes the last `Weighed` before a process leaves its group."""

    def destroy(original: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.is_with_others:
            _note_weighed(recording, last=True)
        return original(*args, **kwargs)

    if torch.distributed.is_available():
        yield replaced(torch.distributed, "destroy_process_group", destroy)


def _note_weighed(recording: Recording, *, last: bool) -> None:
    weighed = [(known.number, one.data) for known, one in recording.parameters.all() if not one.is_sparse]
    if weighed:
        values = recording.sketching.of([(WHOLE, weights) for _, weights in weighed])
        recording.note(records.Weighed([number for number, _ in weighed], values, last))


_LOOKED_AT, _FEW = 8, 64
"""Parameters to check, spread over all, and elements of each: restoring weights changes all that a step changed."""


def remember_weights(held: Sequence[tuple[Known, Any]]) -> None:
    """Keeps weights after a step, because changes through `data` do not change versions."""
    for known, _ in held:
        known.left = None
    for known, parameter in _some(held):
        known.left = beginning(parameter).clone()


def have_weights_changed(held: Sequence[tuple[Known, Any]]) -> Any:
    """Whether weights changed since the last step of any optimizer: known now or `later`."""
    some = [(known.left, beginning(parameter)) for known, parameter in _some(held)]
    return later(bool, differ((left, now) for left, now in some if left is not None))


def _some(held: Sequence[tuple[Known, Any]]) -> Sequence[tuple[Known, Any]]:
    """Some of the trained parameters; others, such as a momentum encoder, change without a step."""
    trained = [(known, one) for known, one in held if known.since is not None or one.requires_grad]
    return trained[:: -(-len(trained) // _LOOKED_AT) or 1]


def beginning(parameter: Any) -> torch.Tensor:
    """A view of the first elements of a weight, for any memory layout."""
    weight = own(parameter.data)
    while weight.dim() > 1 and weight.numel():
        weight = weight[0]
    return weight.reshape(-1)[:_FEW]


def differ(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Whether the values before and now differ in any of these pairs."""
    alike: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for before, now in pairs:
        # A model may have moved to another device or format in between.
        if (before.device, before.dtype, before.shape) == (now.device, now.dtype, now.shape):
            alike[now.device, now.dtype].append((before, now))
    found = [torch.ne(*map(torch.cat, zip(*several, strict=True))).any() for several in alike.values()]
    if len({one.device for one in found}) == 1:
        return torch.stack(found).any()
    return torch.tensor(any(map(bool, found)))


_OFTEN = 16
"""Limit of comparisons: a script does the same in each window."""


class Moving:
    """Detects changes of weights through `data` before unused gradients are cleared, as in sharpness-aware
    minimization. Versions do not show these, so weights are read before the first passes, and later if unused gradients
    are cleared."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._is_armed = self._moves = False
        self._passes = self._compared = 0
        self._before: dict[int, tuple[int, torch.Tensor]] | None = None

    def begin(self) -> None:
        """Reads weights at the start of a backward pass."""
        self._passes += 1
        is_read = self._is_armed or self._passes <= _OFTEN
        if is_read and not self._moves and self._compared < _OFTEN:
            held = [(known, one) for known, one in self._recording.parameters.all() if not one.is_sparse]
            self._before = {known.number: (one._version, beginning(one).clone()) for known, one in held}

    def has_moved(self, parameters: Iterable[Any]) -> bool:
        """Whether these changed since the last backward pass without a change of version, or may have done so."""
        if self._moves or self._compared >= _OFTEN:
            return self._moves
        self._is_armed = True
        if self._before is None:
            return True
        held = self._recording.parameters.among(parameters)
        known = [(*self._before[one.number], parameter) for one, parameter in held if one.number in self._before]
        if any(version != parameter._version for version, _, parameter in known):
            return False
        self._compared += 1
        self._moves = bool(differ((before, beginning(parameter)) for _, before, parameter in known))
        return self._moves


_LOOKED_AFTER = 3
"""Steps of an optimizer before buffers are read: as the next one begins, when the script may have sent weights."""

_SAMPLE = 0
"""The sample to read of large tensors, such as those of a frozen model."""

_MOST_BESIDE = 8
"""Limit of models that are followed besides those that train."""


class Buffers:
    """Reads the buffers of each model once, and its parameters in no optimizer. Later optimizers may train other
    models. beside: hooks in other models with such parameters, such as teachers. run: those of them that ran."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._run: dict[torch.nn.Module, None] = {}
        self._beside: list[RemovableHandle] = []
        self._has_waited = False

    def wait(self, optimizer: int) -> None:
        """Waits once for forward passes of other models, before the last step that does not count."""
        recording = self._recording
        if recording.steps[optimizer] != _LOOKED_AFTER - 1 or not recording.is_with_others or self._has_waited:
            return
        self._has_waited = True
        known = {id(one) for root in list(recording.roots) for one in root.modules()}
        others = [one for one in outermost() if id(one) not in known and self._unheld(one)]
        for module in others[:_MOST_BESIDE]:
            self._beside.append(
                module.register_forward_pre_hook(harmless(lambda one, _: self._run.update({one: None})))
            )

    def note(self, optimizer: int) -> None:
        """Notes `Buffers` as the fourth step of an optimizer begins, for models that were not seen yet."""
        if self._recording.steps[optimizer] != _LOOKED_AFTER:
            return
        for handle in self._beside:
            handle.remove()
        number = partial(self._recording.numbers.of, "root")
        roots = [root for root in [*sorted(self._recording.roots, key=number), *self._run] if root not in self._seen]
        self._seen.update(roots)
        self._run.clear()
        # DDP overwrites buffers, such as BatchNorm statistics, with those of rank 0 before each forward pass.
        wrappers = [one for one in list(self._recording.wrappers) if getattr(one, "broadcast_buffers", False)]
        overwritten = {id(buffer) for wrapper in wrappers for buffer in wrapper.buffers()}
        for root in roots:
            of = f"{type(getattr(root, 'module', root)).__name__}." if len(roots) > 1 else ""
            buffers = {of + plain(name): one for name, one in root.named_buffers() if id(one) not in overwritten}
            unheld = {of + plain(name): one for name, one in self._unheld(root).items()}
            kept = {name: one for name, one in (buffers | unheld).items() if own(one).numel() and has_values(one)}
            if kept:
                sketches = self._recording.sketching.of([(_SAMPLE, one) for one in kept.values()])
                self._recording.note(records.Buffers([*kept], sketches, len(unheld.keys() & kept)))

    def _unheld(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """By name, the whole parameters that are frozen, or all if some are in no optimizer of this rank, and perhaps
        in one of another rank. Sharded parameters differ between ranks."""
        parts = ("placements", "_fsdp_flattened")
        whole = {name: one for name, one in model.named_parameters() if not any(hasattr(one, part) for part in parts)}
        is_all = any(one.requires_grad and self._recording.parameters.find(one) is None for one in whole.values())
        return {name: one for name, one in whole.items() if is_all or not one.requires_grad}
