"""Weights between steps: those that ranks compare, that a script changes, and that no optimizer trains."""

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
    """Note `Weighed` after 0 to 8 backward passes, after 10, 12, 14, 16, 20, 24 ..., of all that there are or of those
    with these calls, if there are other ranks."""
    if not recording.is_with_others:
        return
    done = recording.passes[calls]
    recording.passes[calls] += 1
    if _is_time(recording.backwards) or _is_time(done):
        _note_weighed(recording, last=False)


def _is_time(done: int) -> bool:
    return not done & ((1 << max(0, done.bit_length() - 3)) - 1)


def observe(recording: Recording) -> Seams:
    """Notes them for the last time before a process leaves its group."""

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
"""Of so many parameters, spread over them all, so many elements: going back changes all that a step has changed."""


def remember_weights(held: Sequence[tuple[Known, Any]]) -> None:
    """A step is over. Weights may be changed by their `data`, which their versions do not show."""
    for known, _ in held:
        known.left = None
    for known, parameter in _some(held):
        known.left = beginning(parameter).clone()


def have_weights_changed(held: Sequence[tuple[Known, Any]]) -> Any:
    """Whether they have, since the last step of whatever optimizer: known now or `later`."""
    some = [(known.left, beginning(parameter)) for known, parameter in _some(held)]
    return later(bool, differ((left, now) for left, now in some if left is not None))


def _some(held: Sequence[tuple[Known, Any]]) -> Sequence[tuple[Known, Any]]:
    """Of those that are trained: a momentum encoder moves by itself."""
    trained = [(known, one) for known, one in held if known.since is not None or one.requires_grad]
    return trained[:: -(-len(trained) // _LOOKED_AT) or 1]


def beginning(parameter: Any) -> torch.Tensor:
    """The first elements of a weight, however they lie in memory: a view."""
    weight = own(parameter.data)
    while weight.dim() > 1 and weight.numel():
        weight = weight[0]
    return weight.reshape(-1)[:_FEW]


def differ(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Whether what weights were and are differs in any of these pairs."""
    alike: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for before, now in pairs:
        # A model may be moved to another device in between, or be made of another format.
        if (before.device, before.dtype, before.shape) == (now.device, now.dtype, now.shape):
            alike[now.device, now.dtype].append((before, now))
    found = [torch.ne(*map(torch.cat, zip(*several, strict=True))).any() for several in alike.values()]
    if len({one.device for one in found}) == 1:
        return torch.stack(found).any()
    return torch.tensor(any(map(bool, found)))


_OFTEN = 16
"""Times that weights are compared: a script does the same in each window."""


class Moving:
    """Whether the script changes weights by their `data` before it clears gradients that no step has used, as one that
    looks for sharp minima does. Their versions do not show that, so they are read before the first passes, and later
    once there is reason to."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._is_armed = self._moves = False
        self._begun = self._compared = 0
        self._before: dict[int, tuple[int, torch.Tensor]] | None = None

    def begin(self) -> None:
        """A backward pass begins."""
        self._begun += 1
        is_read = self._is_armed or self._begun <= _OFTEN
        if is_read and not self._moves and self._compared < _OFTEN:
            held = [(known, one) for known, one in self._recording.parameters.all() if not one.is_sparse]
            self._before = {known.number: (one._version, beginning(one).clone()) for known, one in held}

    def has_moved(self, parameters: Iterable[Any]) -> bool:
        """Whether these have since the last backward pass, other than by their versions; or it is not known."""
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
"""Steps of an optimizer after which to look."""

_SAMPLE = 0
"""Of what is large, as a frozen model may be."""


class Buffers:
    """Looks at each model once. An optimizer that begins later may train other models."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def note(self, optimizer: int) -> None:
        """Note `Buffers` after the third step of an optimizer, if models have any that were not seen yet."""
        if self._recording.steps[optimizer] != _LOOKED_AFTER:
            return
        roots = [root for root in list(self._recording.roots) if root not in self._seen]
        self._seen.update(roots)
        # DDP overwrites them by those of rank 0 before each forward, as the statistics of BatchNorm.
        wrappers = [one for one in list(self._recording.wrappers) if getattr(one, "broadcast_buffers", False)]
        overwritten = {id(buffer) for wrapper in wrappers for buffer in wrapper.buffers()}
        buffers, frozen = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for root in roots:
            model = type(getattr(root, "module", root)).__name__
            of = f"{model} {self._recording.numbers.of('root', root)}." if len(roots) > 1 else ""
            buffers |= {of + plain(name): one for name, one in root.named_buffers() if id(one) not in overwritten}
            # Of those that are split over ranks, each has a part of its own.
            whole = [pair for pair in root.named_parameters() if not hasattr(pair[1], "placements")]
            frozen |= {of + plain(name): one for name, one in whole if not one.requires_grad}
        kept = {name: one for name, one in (buffers | frozen).items() if own(one).numel() and not one.is_meta}
        if kept:
            sketches = self._recording.sketching.of([(_SAMPLE, one) for one in kept.values()])
            self._recording.note(records.Buffers([*kept], sketches, len(frozen.keys() & kept), optimizer))
