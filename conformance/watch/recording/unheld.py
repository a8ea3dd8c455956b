"""Parameters that get gradients, and that no optimizer holds."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from conformance.watch import records
from conformance.watch.recording.losses import nodes
from conformance.watch.recording.parameters import names_of
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE
from conformance.watch.sketch import own

_MOST_NODES = 200_000


class Coverage:
    """Looks through the graphs of backward passes now and then: optimizers that are made later hold more, and what is
    frozen at first may be unfrozen.

    unheld, by identities: what was found. frozen: what was frozen at some look. first: of what was unfrozen since,
    after how many steps it was found, and its value then. left: by calls, those of them that have never changed.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._unheld: dict[int, torch.nn.Parameter] = {}
        self._frozen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._first: dict[int, tuple[int, torch.Tensor]] = {}
        self._names: dict[int, str] = {}
        self._windows: dict[int, tuple[int, int]] = {}
        self._left: dict[int, list[torch.nn.Parameter]] = {}
        self._noted: records.Unheld | None = None

    def look(self, root: Any, calls: int) -> None:
        """root: the node where a backward begins. calls: the same for all passes that come from the same lines. It is
        looked through in the windows 2, 4, 8 ... that have such passes, so losses that take turns are all seen. What
        is frozen in the first is remembered."""
        for key, one in self._unheld.items():
            if not one.requires_grad:
                # It was looked at in between, and not trained.
                self._first.pop(key, None)
        steps = sum(self._recording.steps.values())
        windows = self._windows_of(calls, steps)
        if windows == 1:
            self._see_frozen()
        elif windows and not windows & (windows - 1):
            self._look_through(root, calls, steps)

    def _look_through(self, root: Any, calls: int, steps: int) -> None:
        knows = self._recording.parameters.find
        found = {id(one): one for one in _leaves(root) if knows(one) is None}
        for key in [key for key, one in self._unheld.items() if knows(one) is not None]:
            del self._unheld[key]
        self._unheld |= found
        self._left[calls] = self._left_behind(found, steps)
        self._note()

    def _windows_of(self, calls: int, steps: int) -> int:
        """How many windows after the first step have had passes from these lines."""
        windows, last = self._windows.get(calls, (0, 0))
        if steps != last:
            self._windows[calls] = windows, last = windows + 1, steps
        return windows

    def _note(self) -> None:
        self._name_all()
        unheld, names = [*self._unheld.values()], self._names
        left = dict.fromkeys(id(one) for several in self._left.values() for one in several)
        record = records.Unheld(
            [names[id(one)] for one in unheld],
            [list(one.shape) for one in unheld],
            [names[key] for key in left if key in names],
        )
        if record != self._noted and (unheld or self._noted is not None):
            self._recording.note(record)
            self._noted = record

    def _name_all(self) -> None:
        """Of models that never go forward by themselves, or not first, no names are known yet."""
        found = {key: name for key, name in self._names.items() if key in self._unheld}
        nameless = {}
        for key, one in self._unheld.items():
            # While FSDP2 has gathered it, the model holds another one in its place.
            whole = getattr(one, "_conformance_whole", lambda: None)()
            if name := self._recording.parameters.name(one) or getattr(whole, "_param_fqn", None):
                found[key] = name
            elif key not in found:
                nameless[key] = one
        if nameless:
            # One that no module holds is looked for once.
            found |= {key: f"a parameter of shape {tuple(one.shape)}" for key, one in nameless.items()}
            found |= names_of(nameless.values())
        self._names = found

    def _left_behind(self, found: dict[int, torch.nn.Parameter], steps: int) -> list[torch.nn.Parameter]:
        """Those that were frozen while others trained, have been unfrozen since it was looked before, get gradients
        still, and are what they were. Where an optimizer was given some of those that were frozen, it was not given the
        others on purpose."""
        left = [
            one
            for key, one in found.items()
            if self._frozen.get(key, lambda: None)() is one and self._stays(one, steps)
        ]
        unfrozen = [given for of in self._frozen.values() if (given := of()) is not None and given.requires_grad]
        self._see_frozen()
        return [] if self._recording.parameters.among(unfrozen) else left

    def _see_frozen(self) -> None:
        for root in list(self._recording.roots):
            for one in root.parameters():
                if not one.requires_grad:
                    self._frozen[id(one)] = weakref.ref(one)

    def _stays(self, parameter: torch.Tensor, steps: int) -> bool:
        """Whether it has had one value for a while. Not if a model is only walked through, for its shapes; nested ones
        are none that a sketch is made of."""
        if parameter.is_meta or parameter.is_nested or isinstance(own(parameter.data), FakeTensor):
            return False
        # It may be moved to another device in between.
        value = self._recording.sketching.of([(WHOLE, parameter.data)])[0].cpu()
        first, before = self._first.setdefault(id(parameter), (steps, value))
        return first < steps and torch.equal(before, value)


def _leaves(root: Any) -> list[torch.nn.Parameter]:
    """The parameters that a backward from this node computes gradients for."""
    variables = [getattr(node, "variable", None) for node in nodes(root, _MOST_NODES)]
    # What FSDP2 gathers is a parameter, too, in place of the one that an optimizer holds.
    shards = [getattr(one, "_conformance_shards", lambda one=one: one)() for one in variables]
    return [one for one in shards if isinstance(one, torch.nn.Parameter)]
