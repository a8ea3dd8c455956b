"""Parameters that get gradients, and that no optimizer holds."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from conformance.watch import records
from conformance.watch.recording.parameters import names_of, own
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE

_MOST_NODES = 200_000
_NEAR = 1e-2
"""Relative: what weights are rounded by to bfloat16."""
_AGAIN, _AT_FIRST = 8, 64
"""After so many steps it is looked again whether what nobody holds stays as it is, in the first steps."""


class Coverage:
    """Looks through the graphs of backward passes now and then: optimizers that are made later hold more, and what is
    frozen at first may be unfrozen."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._unheld: dict[int, torch.nn.Parameter] = {}
        self._frozen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._unfrozen: dict[int, tuple[int, torch.Tensor, torch.nn.Parameter]] = {}
        self._names: dict[int, str] = {}
        self._windows: dict[int, tuple[int, int]] = {}
        self._left: dict[int, list[str]] = {}
        self._first: dict[int, tuple[int, torch.Tensor]] = {}
        self._constant = 0
        self._start: dict[int, tuple[torch.Size, torch.Tensor]] = {}
        self._still: list[str] = []

    def look(self, root: Any, calls: int) -> None:
        """root: the node where a backward begins. calls: the same for all passes that come from the same lines. It is
        looked through in the windows 2, 4, 8 ... that have such passes, so losses that take turns are all seen. What
        is frozen in the first is remembered."""
        for key in [key for key, (_, _, one) in self._unfrozen.items() if not one.requires_grad]:
            # It was looked at in between, and not trained.
            del self._unfrozen[key]
        steps = sum(self._recording.steps.values())
        is_time = self._constant and steps <= _AT_FIRST and not steps % _AGAIN
        if is_time and not self._constant_for(self._unheld, steps):
            self._constant = 0
            self._note()
        if not steps:
            self._see_start()
        windows = self._windows_of(calls, steps)
        if not windows or windows & (windows - 1):
            return
        if windows == 1:
            self._see_frozen()
            return
        known = self._recording.parameters.knows
        found = {id(one): one for one in _leaves(root) if not known(one)}
        held = [key for key, one in self._unheld.items() if known(one)]
        for key in held:
            del self._unheld[key]
        self._name_all(found)
        before, self._left[calls] = self._left.get(calls, []), self._left_behind(found, steps)
        is_known = found.keys() <= self._unheld.keys() and not held
        self._unheld |= found
        was, self._constant = (self._constant, self._still), self._constant_for(self._unheld, steps)
        is_same = {*self._left[calls]} <= {*before} and was == (self._constant, self._still)
        if not is_known or not is_same:
            self._note()

    def _windows_of(self, calls: int, steps: int) -> int:
        """How many windows after the first step have had passes from these lines."""
        windows, last = self._windows.get(calls, (0, 0))
        if steps != last:
            self._windows[calls] = windows, last = windows + 1, steps
        return windows

    def _note(self) -> None:
        unheld = self._unheld.values()
        names = [self._name(one) for one in unheld]
        shapes = [list(one.shape) for one in unheld]
        here = [list(own(one).shape) for one in unheld]
        left = [*dict.fromkeys(name for names in self._left.values() for name in names)]
        self._recording.note(records.Unheld(names, shapes, left, here, self._constant, self._are_copies(), self._still))

    def _see_start(self) -> None:
        for known, one in self._recording.parameters.all():
            if known.number not in self._start and not one.is_sparse and _has_values(one):
                value = self._value(one)
                self._start[known.number] = own(one).shape, value

    def _are_copies(self) -> bool:
        return all(
            any(
                shape == own(one).shape and bool(((first - value).abs() <= _NEAR * value[2]).all())
                for shape, value in self._start.values()
            )
            for key, one in self._unheld.items()
            if (first := self._first.get(key, (0, None))[1]) is not None
        )

    def _constant_for(self, found: dict[int, torch.nn.Parameter], steps: int) -> int:
        """For how many steps, at least, none of these has changed."""
        self._still = []
        if not all(_has_values(one) for one in found.values()):
            return 0
        values = {key: self._value(one) for key, one in found.items()}
        first = {key: self._first.setdefault(key, (steps, value)) for key, value in values.items()}
        equal = [key for key, value in values.items() if torch.equal(first[key][1], value)]
        self._still = sorted(self._name(found[key]) for key in equal if first[key][0] < steps)
        return steps - max(begin for begin, _ in first.values()) if first and len(equal) == len(values) else 0

    def _left_behind(self, found: dict[int, torch.nn.Parameter], steps: int) -> list[str]:
        """Those that were frozen while others trained, have been unfrozen since it was looked before, get gradients
        still, and are what they were. Where an optimizer was given some of those that were frozen, it was not given the
        others on purpose."""
        left = []
        for key, one in found.items():
            if self._frozen.get(key, lambda: None)() is not one or not _has_values(one):
                continue
            value = self._value(one)
            first, before, _ = self._unfrozen.setdefault(key, (steps, value, one))
            if not torch.equal(before, value):
                # They are stepped by hand.
                del self._unfrozen[key], self._frozen[key]
            elif first < steps:
                left.append(self._name(one))
        unfrozen = [given for of in self._frozen.values() if (given := of()) is not None and given.requires_grad]
        self._see_frozen()
        return [] if any(self._recording.parameters.knows(given) for given in unfrozen) else left

    def _see_frozen(self) -> None:
        for root in list(self._recording.roots):
            for one in root.parameters():
                if not one.requires_grad:
                    self._frozen[id(one)] = weakref.ref(one)

    def _value(self, parameter: torch.Tensor) -> torch.Tensor:
        """(3,): of what this rank has of it, wherever it is moved in between."""
        return self._recording.parameters.sketches([(WHOLE, parameter.data)])[0].cpu()

    def _name_all(self, found: dict[int, torch.nn.Parameter]) -> None:
        """Of models that never go forward by themselves, or not first, no names are known yet."""
        for key in self._names.keys() - self._unheld.keys() - found.keys():
            del self._names[key]
        nameless = [one for key, one in found.items() if key not in self._names and self._known_name(one) is None]
        if nameless:
            # One that no module holds is looked for once.
            self._names |= {id(one): _by_shape(one) for one in nameless} | names_of(nameless)

    def _name(self, parameter: torch.nn.Parameter) -> str:
        return self._known_name(parameter) or self._names.get(id(parameter)) or _by_shape(parameter)

    def _known_name(self, parameter: torch.nn.Parameter) -> str | None:
        # While FSDP2 has gathered it, the model holds another one in its place.
        whole = getattr(parameter, "_conformance_whole", lambda: None)()
        return self._recording.parameters.name(parameter) or getattr(whole, "_param_fqn", None)


def _by_shape(parameter: torch.Tensor) -> str:
    return f"a parameter of shape {tuple(parameter.shape)}"


def _has_values(parameter: torch.Tensor) -> bool:
    """Not if a model is only walked through, for its shapes; nested ones are none that a sketch is made of."""
    return not (parameter.is_meta or parameter.is_nested or isinstance(own(parameter.data), FakeTensor))


def _leaves(root: Any) -> Iterator[torch.nn.Parameter]:
    """The parameters that a backward from this node computes gradients for."""
    waiting, seen = [root], {root}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        # What FSDP2 gathers is a parameter, too, in place of the one that an optimizer holds.
        shards = getattr(variable, "_conformance_shards", None)
        parameter = variable if shards is None else shards()
        if isinstance(parameter, torch.nn.Parameter):
            yield parameter
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
