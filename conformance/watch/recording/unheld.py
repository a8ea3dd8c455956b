"""Records parameters that get gradients but are in no optimizer."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from conformance.watch import records
from conformance.watch.recording.losses import leaves
from conformance.watch.recording.parameters import names_of
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE
from conformance.watch.sketch import has_values

_MOST_BEFORE = 4
"""Parameters that had the place of another one, at most."""


class Coverage:
    """Walks the graphs of some backward passes, again from time to time: optimizers may be made later, and frozen
    parameters may be unfrozen.

    unheld: parameters found, by `id`. frozen: parameters that were frozen at some time. first: for those unfrozen
    since, or that replace others, the number of steps and the value when found. left: by call site, those of the
    unfrozen ones that never changed. before: by parameter, those whose place it took, the last one first. stay: by
    `id`, those that never changed although an optimizer has one whose place they took, with its number.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._unheld: dict[int, torch.nn.Parameter] = {}
        self._frozen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._first: dict[int, tuple[int, torch.Tensor]] = {}
        self._names: dict[int, str] = {}
        self._windows: dict[int, tuple[int, int]] = {}
        self._left: dict[int, list[torch.nn.Parameter]] = {}
        self._before = WeakIdKeyDictionary()
        self._stay: dict[int, int] = {}
        self._noted: records.Unheld | None = None

    def see_replaced(self, module: torch.nn.Module, name: str, now: Any) -> None:
        """Takes a parameter or module that comes to the place of another one."""
        old = module._modules.get(name) if isinstance(now, torch.nn.Module) else module._parameters.get(name)
        if old is None or now is old or now is None:
            return
        new = _named(now)
        for of, one in _named(old).items():
            if of in new and new[of] is not one:
                alive = [before for before in self._before.get(one, ()) if before() is not None]
                self._before[new[of]] = [weakref.ref(one), *alive][:_MOST_BEFORE]

    def look(self, root: Any, calls: int) -> None:
        """Takes a backward pass. root: the node where it begins. calls: equal for passes with the same call site. Walks
        the graph in windows 2, 4, 8 ... with such passes, so losses that take turns are all seen. Keeps the parameters
        that are frozen in the first window."""
        for key, one in self._unheld.items():
            if not one.requires_grad:
                # Frozen again: it was only used in between, not trained.
                self._first.pop(key, None)
        steps = sum(self._recording.steps.values())
        windows = self._windows_of(calls, steps)
        if windows == 1:
            self._see_frozen()
        elif windows and not windows & (windows - 1):
            self._look_through(root, calls, steps)

    def _look_through(self, root: Any, calls: int, steps: int) -> None:
        knows = self._recording.parameters.find
        parameters = (one for one in leaves(root) if isinstance(one, torch.nn.Parameter))
        found = {id(one): one for one in parameters if knows(one) is None}
        for key in [key for key, one in self._unheld.items() if knows(one) is not None]:
            del self._unheld[key]
        self._unheld |= found
        self._left[calls] = self._left_behind(found, steps)
        before = {key: map(knows, (of() for of in self._before.get(one, ()))) for key, one in found.items()}
        held = {key: known for key, of in before.items() if (known := next(filter(None, of), None)) is not None}
        stay = {key: known.number for key, known in held.items() if self._stays(found[key], steps)}
        self._stay = {key: number for key, number in self._stay.items() if key not in found} | stay
        self._note()

    def _windows_of(self, calls: int, steps: int) -> int:
        """The number of windows after the first step with passes from this call site."""
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
            [names[key] for key in self._stay if key in names],
            [number for key, number in self._stay.items() if key in names],
        )
        if record != self._noted and (unheld or self._noted is not None):
            self._recording.note(record)
            self._noted = record

    def _name_all(self) -> None:
        """Finds names, also in models that are never called as the outermost module."""
        found = {key: name for key, name in self._names.items() if key in self._unheld}
        nameless = {}
        for key, one in self._unheld.items():
            # While FSDP2 has gathered it, the model has another parameter instead.
            whole = getattr(one, "_conformance_whole", lambda: None)()
            if name := self._recording.parameters.name(one) or getattr(whole, "_param_fqn", None):
                found[key] = name
            elif key not in found:
                nameless[key] = one
        if nameless:
            # Parameters without a module are searched only once.
            found |= {key: f"a parameter of shape {tuple(one.shape)}" for key, one in nameless.items()}
            found |= names_of(nameless.values())
        self._names = found

    def _left_behind(self, found: dict[int, torch.nn.Parameter], steps: int) -> list[torch.nn.Parameter]:
        """Parameters that were frozen while others trained, were unfrozen, get gradients, and never changed. None if an
        optimizer has some unfrozen parameters: then the others were left out on purpose."""
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
        """Whether it has kept one value for some steps."""
        if not has_values(parameter):
            return False
        # On the CPU, because it may move to another device in between.
        value = self._recording.sketching.of([(WHOLE, parameter.data)])[0].cpu()
        first, before = self._first.setdefault(id(parameter), (steps, value))
        return first < steps and torch.equal(before, value)


def _named(one: torch.nn.Module | torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(one.named_parameters()) if isinstance(one, torch.nn.Module) else {"": one}
