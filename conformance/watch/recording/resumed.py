"""Records optimizers that start without the state in the checkpoint of their weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.optimizer_state import held_by, unwrapped
from conformance.watch import records
from conformance.watch.recording.recording import Recording

_DEEP, _LONG = 3, 64
"""Limits of the search in a checkpoint: containers in containers, and elements of a list."""

_STATE = {"state", "param_groups"}


class Resumed:
    """Knows the modules whose weights come from a checkpoint with an optimizer's state, and the lines that load them.

    beside: the tensors of files with such a state.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._beside = WeakIdKeyDictionary()
        self._loaded = weakref.WeakKeyDictionary[torch.nn.Module, records.Site]()

    def load(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        found = [*_within(result)]
        if any(isinstance(one, Mapping) and one.keys() >= _STATE and one["state"] for one in found):
            self._beside.update((one, True) for one in found if isinstance(one, torch.Tensor))
        return result

    def take(self, original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        given = args[0] if args else kwargs["state_dict"]
        if any(isinstance(one, torch.Tensor) and one in self._beside for one in given.values()):
            self._loaded[module] = self._recording.site()
        else:
            self._loaded.pop(module, None)
        return result

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a step: notes `Stateless` once if it is the first one, and the optimizer has no state."""
        if not self._loaded or any(unwrapped(optimizer).state.values()):
            return
        number, held = self._recording.optimizer(optimizer), {id(one) for one in held_by(optimizer)}
        sites = [site for module, site in self._loaded.items() if any(id(one) in held for one in module.parameters())]
        if sites and not self._recording.steps[number]:
            self._recording.once(records.Stateless(number, sites[0]))


def _within(value: Any, deep: int = _DEEP) -> Iterator[Any]:
    """A value, and those in its containers."""
    yield value
    inner: Iterable[Any] = value.values() if isinstance(value, Mapping) else ()
    if isinstance(value, (list, tuple)) and len(value) <= _LONG:
        inner = value
    for one in inner if deep else ():
        yield from _within(one, deep - 1)


def observe(recording: Recording, resumed: Resumed) -> Seams:
    """Follows checkpoints from files into modules."""
    yield replaced(torch, "load", resumed.load)
    yield replaced(torch.nn.Module, "load_state_dict", resumed.take)
