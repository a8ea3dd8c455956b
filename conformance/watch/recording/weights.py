"""Records weights between steps: to compare ranks, to detect changes by the script, and without training."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.output import later
from conformance.watch.recording.parameters import Known, plain
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE
from conformance.watch.sketch import own


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
"""Steps of an optimizer before buffers are read."""

_SAMPLE = 0
"""The sample to read of large tensors, such as those of a frozen model."""


class Buffers:
    """Reads the buffers and frozen parameters of each model once. Later optimizers may train other models."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def note(self, optimizer: int) -> None:
        """Notes `Buffers` after the third step of an optimizer, for models that were not seen yet."""
        if self._recording.steps[optimizer] != _LOOKED_AFTER:
            return
        roots = [root for root in list(self._recording.roots) if root not in self._seen]
        self._seen.update(roots)
        # DDP overwrites buffers, such as BatchNorm statistics, with those of rank 0 before each forward pass.
        wrappers = [one for one in list(self._recording.wrappers) if getattr(one, "broadcast_buffers", False)]
        overwritten = {id(buffer) for wrapper in wrappers for buffer in wrapper.buffers()}
        buffers, frozen = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for root in roots:
            model = type(getattr(root, "module", root)).__name__
            of = f"{model} {self._recording.numbers.of('root', root)}." if len(roots) > 1 else ""
            buffers |= {of + plain(name): one for name, one in root.named_buffers() if id(one) not in overwritten}
            # Sharded parameters differ between ranks.
            whole = [pair for pair in root.named_parameters() if not hasattr(pair[1], "placements")]
            frozen |= {of + plain(name): one for name, one in whole if not one.requires_grad}
        kept = {name: one for name, one in (buffers | frozen).items() if own(one).numel() and not one.is_meta}
        if kept:
            sketches = self._recording.sketching.of([(_SAMPLE, one) for one in kept.values()])
            self._recording.note(records.Buffers([*kept], sketches, len(frozen.keys() & kept), optimizer))
