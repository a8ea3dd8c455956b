"""Records optimizers that start without the state in the checkpoint of their weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.optimizer_state import held_by, unwrapped
from conformance.watch import records
from conformance.watch.recording.recording import Recording

_DEEP, _LONG = 3, 64
"""Limits of the search in a checkpoint: containers in containers, and elements of a list."""

_STATE = {"state", "param_groups"}


class Resumed:
    """Knows the modules whose weights come from a checkpoint with an optimizer's state, and the lines that load them.

    has_state: whether the last loaded file has such a state.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._has_state = False
        self._loaded = weakref.WeakKeyDictionary[torch.nn.Module, records.Site]()

    def load(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self._has_state = _has_state(result)
        return result

    def take(self, original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        if self._has_state:
            self._loaded[module] = self._recording.site()
        return result

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a step: notes `Stateless` once if it is the first one, and the optimizer has no state."""
        if not self._loaded or any(unwrapped(optimizer).state.values()):
            return
        number, held = self._recording.optimizer(optimizer), {id(one) for one in held_by(optimizer)}
        sites = [site for module, site in self._loaded.items() if any(id(one) in held for one in module.parameters())]
        if sites and not self._recording.steps[number]:
            self._recording.once(records.Stateless(number, sites[0]))


def _has_state(value: Any, deep: int = _DEEP) -> bool:
    """Whether it contains the state of an optimizer that has stepped."""
    if isinstance(value, Mapping):
        if value.keys() >= _STATE:
            return bool(value["state"])
        inner: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple)) and len(value) <= _LONG:
        inner = value
    else:
        return False
    return deep > 0 and any(_has_state(one, deep - 1) for one in inner)


def observe(recording: Recording, resumed: Resumed) -> Seams:
    """Follows checkpoints from files into modules."""
    yield replaced(torch, "load", resumed.load)
    yield replaced(torch.nn.Module, "load_state_dict", resumed.take)
