"""Observes which lines of the user's code write gradients, weights and averages, which ones divide and cast the loss,
and which ones create and restore optimizers, schedules, averages and loaders.

Only in a case that is run again because it failed: a look after each line takes longer than the training.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.graphs import is_scaling
from conformance.trace.state.optimizer_state import of_group, without_rates
from conformance.trace.state.site import Called, Site
from conformance.trace.tensor_values import own_part

_Trace: TypeAlias = Callable[[FrameType, str, Any], Any]

#: The file of the functions that import modules.
_IMPORTLIB = "<frozen importlib._bootstrap>"
#: After these the loop of a framework is no longer followed.
_MOST_LOOKS = 200_000
#: The key of a node's metadata with its line.
_LINE = "conformance: line"
#: A variable that a line divides by.
_DIVISOR = re.compile(r"/=?\s*\(?\s*(\w+)\b(?![.(\[])(?!\s*[-+*])")
_DIVISIONS = ("DivBackward0", "MulBackward0")
_CASTS = ("ToCopyBackward0",)
#: Operations between the root of a backward and the division of its loss.
_DEEPEST = 4


class Lines:
    """Looks at the model after each line of the user's code."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._now: Called = None, None
        self._seen: dict[str, list[int | None]] = {}
        self._assigned: dict[tuple[str | int, str], tuple[object, Called]] = {}
        self._noted = set[tuple[str, str, int]]()
        self._left = _MOST_LOOKS
        self._imports = 0
        self._optimizers: list[torch.optim.Optimizer] = []
        self._restored: dict[str, list[tuple[Any, str]]] = {}
        self._after, self._look = harmless(self._find), harmless(self._compare)

    def creates(self, kind: str, one: Any) -> None:
        """Something is created, by the current line. It takes the place of others of its kind that hold the same."""
        if kind == "optimizer":
            self._optimizers.append(one)
        if kind in _STATES:
            of, holds = _STATES[kind], _HOLDS[kind](one)
            others = [other for other in self._restored.get(kind, []) if not holds & _HOLDS[kind](other[0])]
            self._restored[kind] = [*others, (one, of(one))]

    def divides(self, root: Any) -> None:
        """Note the line that divides the loss of the backward that begins at the node ``root``."""
        if root is None:
            return
        if (cast := _line_of(root, _CASTS)) is not None:
            self.note("cast", cast)
        if (at := _line_of(root, _DIVISIONS)) is None:
            return
        self.note("loss", at)
        if (own := _own(at)) is None:
            return
        name = _DIVISOR.search(linecache.getline(self._recording.sites.path(str(own[0])), int(own[1])))
        if name is not None and (assigned := self._assigned.get((own[2], name[1]))) is not None:
            self.note("divisor", assigned[1])

    def begins(self, frame: FrameType, event: str, argument: Any) -> _Trace | None:
        """Python calls this at the start of each function."""
        if frame.f_back is not None and frame.f_back.f_code.co_filename == _IMPORTLIB:
            # Modules that are imported meanwhile train nothing, and have many lines.
            self._imports += 1
            frame.f_trace_lines = False
            return self._imported
        if self._left > 0 and not self._imports and self._recording.sites.is_users(frame):
            self._look()
            return self._traced
        return None

    def _imported(self, frame: FrameType, event: str, argument: Any) -> _Trace:
        self._imports -= event == "return"
        return self._imported

    def _traced(self, frame: FrameType, event: str, argument: Any) -> _Trace | None:
        self._after(frame, argument if event == "return" else None, has_ended=event == "return")
        return self._traced if self._left > 0 else None

    def _find(self, frame: FrameType, returned: Any, has_ended: bool) -> None:
        self._left -= 1
        self._compare()
        for name, value in (("", returned), *frame.f_locals.items()):
            if isinstance(value, torch.Tensor) and (node := _node(value)) is not None:
                node.metadata.setdefault(_LINE, self._now)
            elif isinstance(value, int | float):
                self._assign(name, value)
            elif type(value) is torch.Tensor and value.numel() == 1 and not value.is_meta:
                self._assign(name, value.detach().item())
        self._now = self._recording.sites.of(frame.f_back if has_ended else frame)

    def _assign(self, name: str, value: object) -> None:
        """A variable has this value, after the current line."""
        own = _own(self._now)
        if own is not None and self._assigned.get(key := (own[2], name), (None,))[0] != value:
            self._assigned[key] = value, self._now

    def _compare(self) -> None:
        watched = self._recording.watched
        with watched.reading:
            parameters = [one for one in watched.current if one is not None]
            now: dict[str, list[int | None]] = {
                "weights": [*map(_print, parameters)],
                "gradient": [None if one.grad is None else _print(one.grad) for one in parameters],
                "average": [*map(_print, self._recording.averaged)],
            }
        if self._recording.counting is not None:
            now["buffers"] = [*map(_print, self._recording.counting[1])]
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        now["rate"] = [hash(str(group.get("lr"))) for group in groups]
        now["optimizer"] = [hash(str(without_rates(of_group(group)))) for group in groups]
        now["state"] = [hash(_of_optimizer(optimizer)) for optimizer in self._optimizers]
        if not self._recording.forwards:
            for kind, of in _STATES.items():
                states = ((of(one), first) for one, first in self._restored.get(kind, []))
                now[f"restored_{kind}"] = [hash(str([state for state, first in states if state != first]))]
        for what, prints in now.items():
            before = self._seen.get(what, [])
            if len(before) == len(prints) and before != prints:
                self.note(what, self._now)
        self._seen = now

    def note(self, writes: str, at: Called) -> None:
        key = writes, str(at), self._recording.backwards
        if key not in self._noted:
            self._noted.add(key)
            self._recording.note_at(at, "line", writes=writes)


def _of_optimizer(optimizer: torch.optim.Optimizer) -> str:
    states = [
        optimizer.state[one] for group in optimizer.param_groups for one in group["params"] if one in optimizer.state
    ]
    return str([{key: _print(one) if torch.is_tensor(one) else one for key, one in of.items()} for of in states])


#: What a checkpoint restores of each kind of object, as text.
_STATES: Mapping[str, Callable[[Any], str]] = {
    "optimizer": _of_optimizer,
    "scheduler": lambda scheduler: str(scheduler.last_epoch),
    "scaler": lambda scaler: str(scaler.state_dict()),
}
#: What each kind of object is for: the ids of parameters, or of the optimizer.
_HOLDS: Mapping[str, Callable[[Any], set[int]]] = {
    "optimizer": lambda optimizer: {id(one) for group in optimizer.param_groups for one in group["params"]},
    "scheduler": lambda scheduler: {id(scheduler.optimizer)},
    "scaler": lambda scaler: {0},
}


def _print(tensor: torch.Tensor) -> int:
    return hash(own_part(tensor).cpu().reshape(-1).view(torch.uint8).numpy().tobytes())


def _node(tensor: torch.Tensor) -> Any:
    return tensor.grad_fn


def _own(called: Called) -> Site | None:
    """The trainer's own line, or else the innermost."""
    where, called_from = called
    return called_from or where


def _line_of(root: Any, kinds: Collection[str]) -> Called | None:
    """The line of the last operation of these kinds on the loss whose node of the graph is ``root``."""
    nodes = [root]
    for _ in range(_DEEPEST):
        for node in nodes:
            if type(node).__name__ in kinds and not is_scaling(node) and _LINE in node.metadata:
                found: Called = node.metadata[_LINE]
                return found
        nodes = [one for node in nodes for one, _ in node.next_functions if one is not None]
    return None


@contextmanager
def _tracing(recording: Recording) -> Iterator[None]:
    lines = Lines(recording)
    # A debugger, or a measurement of coverage, is left alone.
    if sys.gettrace() is not None:
        yield
        return
    recording.lines = lines
    sys.settrace(lines.begins)
    try:
        yield
    finally:
        sys.settrace(None)
        recording.lines = None


def observe(recording: Recording) -> Seams:
    """Records `line`."""

    def creates(kind: str) -> Callable[..., None]:
        def create(original: Callable[..., None], one: Any, *args: Any, **kwargs: Any) -> None:
            original(one, *args, **kwargs)
            recording.note("line", writes=kind)
            if recording.lines is not None:
                recording.lines.creates(kind, one)

        return create

    def restores(original: Callable[[torch.Tensor], None], state: torch.Tensor) -> None:
        original(state)
        recording.note("line", writes="restored_random")

    if not recording.goes_by_line:
        return
    yield replaced(torch.optim.Optimizer, "__init__", creates("optimizer"))
    yield replaced(LRScheduler, "__init__", creates("scheduler"))
    yield replaced(AveragedModel, "__init__", creates("averaging"))
    yield replaced(DataLoader, "__init__", creates("loader"))
    yield replaced(torch.amp.GradScaler, "__init__", creates("scaler"))
    yield replaced(torch, "set_rng_state", restores)
    yield _tracing(recording)
