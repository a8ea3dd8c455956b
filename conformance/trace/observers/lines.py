"""Observes which lines of the user's code write gradients, weights and averages, which ones divide and cast the loss,
and which ones create, restore, iterate over and set up optimizers, schedules, averages, loaders and wrappers.

Only in a case that is run again because it failed: a look after each line takes longer than the training.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.state.graphs import LINEAR, is_scaling
from conformance.trace.state.optimizer_state import of_group, without_rates
from conformance.trace.state.site import Called
from conformance.trace.tensor_values import own_part

_Trace: TypeAlias = Callable[[FrameType, str, Any], Any]

_FSDP = "torch.distributed.fsdp._fully_shard._fully_shard"
#: The file of the functions that import modules.
_IMPORTLIB = "<frozen importlib._bootstrap>"
#: After these the loop of a framework is no longer followed.
_MOST_LOOKS = 200_000
#: The key of a node's metadata with its line.
_LINE = "conformance: line"
#: By exact class: other objects may run code of the trainer when they are asked for theirs.
_NUMBERS = (bool, int, float)
_DIVISIONS = ("DivBackward0", "MulBackward0")
#: Functions of torch, without underscores at their ends.
_SCALINGS = {
    *("div", "truediv", "itruediv", "rtruediv", "divide", "true_divide", "foreach_div"),
    *("mul", "imul", "rmul", "multiply", "foreach_mul"),
}
_ROUNDINGS = {"to", "half", "bfloat16", "type", "type_as"}
_CASTS = ("ToCopyBackward0",)
#: Operations between the root of a backward and the division of its loss.
_DEEPEST = 4


class _Made(NamedTuple):
    """An object that the trainer made. first: its state then. holds: the ids of what it is for. at: the line."""

    itself: weakref.ref[Any]
    first: str
    holds: set[int]
    at: Called


class _Operations(TorchFunctionMode):
    """Notes the lines that scale and round tensors which need no gradient."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._computed = harmless(lines.computed)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "").strip("_")
        if name in _SCALINGS or name in _ROUNDINGS:
            self._computed(sys._getframe(1), args[0], result, name in _ROUNDINGS)
        return result


class Lines:
    """Looks at the model after each line of the user's code."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._now: Called = None, None
        self._seen: dict[str, list[int | None]] = {}
        self._assigned: dict[tuple[str | int, str | int, str], tuple[object, Called]] = {}
        # What the last function returned, with the line that assigned it there.
        self._returned: tuple[object, Called] | None = None
        # The parameters that each generator has yielded, and what shares memory with weights or gradients.
        self._yielded: dict[int, set[int]] = {}
        self._shared = set[tuple[object, ...]]()
        self._noted = set[tuple[str, str, int]]()
        self._left = _MOST_LOOKS
        self._imports = 0
        # Those that the trainer deletes are not kept alive.
        self._made: dict[str, list[_Made]] = {kind: [] for kind in _STATES}
        # Whether another thread may have run code of the trainer's since the last look.
        self._had_others = False
        self._after, self._before = harmless(self._find), harmless(self._enter)

    def creates(self, kind: str, one: Any) -> None:
        """Something is created, by the current line."""
        if kind in _STATES:
            at = self._recording.sites.of(sys._getframe())
            self._made[kind].append(_Made(weakref.ref(one), _STATES[kind](one), _HOLDS[kind](one), at))

    def divides(self, root: Any) -> None:
        """Note the line that divides the loss of the backward that begins at the node ``root``."""
        if root is None:
            return
        if (cast := _line_of(root, _CASTS, is_linear=False)) is not None:
            self.note("cast", cast)
        if (at := _line_of(root, _DIVISIONS)) is None:
            return
        self.note("loss", at)
        if (where := at[0]) is None:
            return
        file, line, function = where
        name = _divisor(linecache.getline(self._recording.sites.path(str(file)), int(line)))
        if name is not None and (assigned := self._assigned.get((file, function, name))) is not None:
            self.note("divisor", assigned[1])

    def computed(self, frame: FrameType, given: Any, result: Any, is_rounding: bool) -> None:
        """An operation scaled a tensor, or converted it to another type."""
        one = result if torch.is_tensor(result) else next(_flat(given, 1), None)
        if not torch.is_tensor(one) or one.requires_grad or not one.is_floating_point() or self._left <= 0:
            return
        if not is_rounding and one.numel() > 1:
            self.note("scaling", self._recording.sites.of(frame))
        elif is_rounding and torch.is_tensor(given) and one.element_size() < given.element_size():
            states = (_address(one) for optimizer in self._optimizers() for one in _tensors(optimizer))
            if _address(given) in [*states]:
                self.note("rounding", self._recording.sites.of(frame))

    def ends(self) -> None:
        """What is written from here on may be written by lines that are not seen."""
        self._left = 0

    def begins(self, frame: FrameType, event: str, argument: Any) -> _Trace | None:
        """Python calls this at the start of each function."""
        if frame.f_back is not None and frame.f_back.f_code.co_filename == _IMPORTLIB:
            # Modules that are imported meanwhile train nothing, and have many lines.
            self._imports += 1
            frame.f_trace_lines = False
            return self._imported
        # Libraries also run inside the dispatch of torch, which does not bear to have its modes set aside.
        is_followed = self._left > 0 and not self._imports and self._recording.sites.is_users(frame)
        return self._before(frame) if is_followed else None

    def _imported(self, frame: FrameType, event: str, argument: Any) -> _Trace:
        self._imports -= event == "return"
        return self._imported

    def other_begins(self, frame: FrameType, event: str, argument: Any) -> None:
        """Python calls this at the start of each function in another thread."""
        self._had_others = self._had_others or bool(self._recording.sites.own(frame))

    def _enter(self, frame: FrameType) -> _Trace | None:
        self._compare()
        # The caller gives the arguments, but a generator that continues has what its last line assigned.
        is_new = frame.f_lineno == frame.f_code.co_firstlineno
        last = self._now if is_new else self._recording.sites.of(frame)
        if is_new:
            self._yielded.pop(id(frame), None)
            self._take(frame)

        def traced(frame: FrameType, event: str, argument: Any) -> _Trace | None:
            nonlocal last
            # Python calls this even if the trainer has set another tracer.
            if self._left <= 0:
                return None
            last = self._after(frame, argument if event == "return" else None, last, has_ended=event == "return")
            return traced

        return traced

    def _find(self, frame: FrameType, returned: Any, last: Called, has_ended: bool) -> Called:
        """See what the line before has done; ``last`` is the last line of this function. Returns the current one."""
        self._left -= 1
        self._compare()
        here = self._recording.sites.of(frame)
        if self._leaves_with(frame, last):
            # A `with` block ends at its first line, but what is returned is from the last.
            here = last
        for name, value in (("", returned), *frame.f_locals.items()):
            if issubclass(type(value), torch.Tensor) and (node := _node(value)) is not None:
                node.metadata.setdefault(_LINE, self._now)
            elif (number := _number(value)) is not None:
                came = self._returned
                self._assign(here, name, number, last if came is None or came[0] is not value else came[1])
        self._collections(frame, returned)
        assigned = self._line_of(frame, returned) if has_ended and _number(returned) is not None else None
        self._returned = None if assigned is None else (returned, assigned)
        self._now = self._recording.sites.of(frame.f_back) if has_ended else here
        return here

    def _leaves_with(self, frame: FrameType, last: Called) -> bool:
        """Whether a frame is at the first line of a `with` block because of a `return` in it."""
        if last[0] is None or frame.f_lineno >= int(last[0][1]):
            return False
        now, before = (linecache.getline(frame.f_code.co_filename, at) for at in (frame.f_lineno, int(last[0][1])))
        return now.lstrip().startswith("with ") and before.lstrip().startswith("return ")

    def _take(self, frame: FrameType) -> None:
        """The arguments of a function have the lines of the caller's variables that are given."""
        if frame.f_back is not None and self._recording.sites.is_users(frame.f_back):
            here = self._recording.sites.of(frame)
            for name, value in frame.f_locals.items():
                if (number := _number(value)) is not None:
                    self._assign(here, name, number, self._line_of(frame.f_back, value) or self._now)

    def _line_of(self, frame: FrameType, value: object) -> Called | None:
        """The line that assigned the variable of a function that has this value."""
        site = self._recording.sites.of(frame)[0]
        if site is None:
            return None
        names = (name for name, one in frame.f_locals.items() if one is value)
        return next((at[1] for name in names if (at := self._assigned.get((site[0], site[2], name)))), None)

    def _collections(self, frame: FrameType, returned: Any) -> None:
        """Parameters that a function returns twice or only in part; weights that are kept without a copy."""
        watched = self._recording.watched
        with watched.reading:
            parameters = [one for one in watched.current if one is not None]
            storages = {_address(one) for one in parameters}
        numbers = {id(one): number for number, one in enumerate(parameters)}
        if frame.f_code.co_flags & inspect.CO_GENERATOR and id(returned) in numbers:
            before = self._yielded.setdefault(id(frame), set())
            if id(returned) in before:
                self.note("twice", self._now)
            before.add(id(returned))
        found = [id(one) for one in _flat(returned, 2) if id(one) in numbers] if _is_nested(returned) else []
        trained = {id(one) for one in parameters if one.requires_grad}
        if found and not trained <= {*found}:
            self.note("part", self._now)
        if len(found) > len({*found}):
            self.note("twice", self._now)
        if not self._recording.forwards:
            return
        kept = {**frame.f_locals, **_attributes(frame.f_locals.get("self"))}
        for name, value in kept.items():
            # Parameters themselves, and views of all weights in one tensor, are made before the training.
            tensors = [*_flat(value, 1)] if type(value) in (list, tuple, dict, OrderedDict) else []
            is_shared = tensors and all(type(one) is torch.Tensor and _address(one) in storages for one in tensors)
            if is_shared and (key := ("weights", name, id(value))) not in self._shared:
                self._shared.add(key)
                self.note("kept", self._now)

    def _assign(self, here: Called, name: str, value: Any, line: Called) -> None:
        """A variable of the function at ``here`` has this value, after ``line``."""
        if here[0] is None:
            return
        key = here[0][0], here[0][2], name
        before = self._assigned.get(key, (None,))[0]
        # No NaN is equal to itself.
        if before != value and (before == before or value == value):
            self._assigned[key] = value, line

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
        optimizers = self._optimizers()
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        now["rate"] = [hash(str(group.get("lr"))) for group in groups]
        now["optimizer"] = [hash(str(without_rates(of_group(group)))) for group in groups]
        now["state"] = [hash(_of_optimizer(optimizer)) for optimizer in optimizers]
        if not self._recording.forwards:
            used = [kind for kind, of in self._made.items() if any(made.itself() is not None for made in of)]
            now |= {f"restored_{kind}": [hash(str([*self._restored(kind)]))] for kind in used}
        gradients = {_address(one.grad) for one in parameters if one.grad is not None}
        states = (one for optimizer in optimizers for one in _tensors(optimizer))
        shared = {("state", id(one)) for one in states if _address(one) in gradients}
        if not shared <= self._shared:
            self._shared |= shared
            self.note("alias", self._now)
        for at in self._stepped_for_nothing():
            self.note("unused", at)
        for what, prints in now.items():
            before = self._seen.get(what, [])
            if len(before) == len(prints) and before != prints and not self._had_others:
                self.note(what, self._now)
        self._seen = now
        self._had_others = self._had_others and self._has_others()

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [one for made in self._made["optimizer"] if (one := made.itself()) is not None]

    def _stepped_for_nothing(self) -> Iterator[Called]:
        """The lines that made schedulers which step, but whose optimizers never did."""
        for made in self._made["scheduler"]:
            # After its first step, a schedule of a correct loop has seen one of the optimizer.
            if (one := made.itself()) is not None and one.last_epoch > 1 and not _has_stepped(one.optimizer):
                yield made.at

    def _restored(self, kind: str) -> Iterator[str]:
        """The states that differ from the first ones. A later object takes the place of those that hold the same."""
        held = set[int]()
        for made in reversed(self._made[kind]):
            one = made.itself()
            if one is not None and not held & made.holds and (state := _STATES[kind](one)) != made.first:
                yield state
            held |= made.holds

    def _has_others(self) -> bool:
        """Whether another thread runs code of the trainer's."""
        others = (frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident())
        return any(self._recording.sites.own(frame) for frame in others)

    def note(self, writes: str, at: Called) -> None:
        key = writes, str(at), self._recording.backwards
        if key not in self._noted:
            self._noted.add(key)
            self._recording.note_at(at, "line", writes=writes)


def _number(value: object) -> bool | int | float | complex | None:
    if type(value) in _NUMBERS:
        return value  # type: ignore[return-value]
    is_one = type(value) is torch.Tensor and value.numel() == 1 and own_part(value).numel() == 1
    return own_part(value).item() if is_one else None  # type: ignore[arg-type]


def _attributes(one: object) -> dict[str, Any]:
    try:
        found: dict[str, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if type(found) is dict else {}


def _address(tensor: torch.Tensor) -> int | torch.Tensor:
    """Where the elements of a tensor are; the tensor itself if it has no such place."""
    try:
        return own_part(tensor).data_ptr() or tensor
    except (RuntimeError, NotImplementedError):
        return tensor


def _flat(value: Any, depth: int) -> Iterator[Any]:
    """What is in a list, a tuple or a dictionary, down to this depth."""
    kind = type(value)
    if depth and kind in (list, tuple, dict, OrderedDict):
        for one in [*value.values()] if issubclass(kind, dict) else value:
            yield from _flat(one, depth - 1)
    else:
        yield value


def _tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of an optimizer's state."""
    return [one for of in optimizer.state.values() for one in _flat(of, 1) if torch.is_tensor(one)]


def _is_nested(value: Any) -> bool:
    return type(value) in (list, tuple) and any(type(one) in (list, tuple) for one in value)


def _has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    # Torch marks the optimizers of schedules. Some steps go past the mark, but leave state.
    return bool(getattr(optimizer, "_opt_called", False) or optimizer.state)


def _of_optimizer(optimizer: torch.optim.Optimizer) -> str:
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    states = (optimizer.state[one] for one in parameters if one in optimizer.state)
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
    try:
        return tensor.grad_fn
    except RuntimeError:
        # A view from `no_grad` that was changed later.
        return None


def _divisor(line: str) -> str | None:
    """The variable that a line divides by, if it divides once by a variable, besides divisions inside the dividend."""
    try:
        found = [*_divisors(ast.parse(line.strip()))]
    except (SyntaxError, ValueError):
        return None
    one = found[0] if len(found) == 1 else None
    # As in `loss / (samples / len(batch))`.
    while isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div):
        one = one.left
    return one.id if isinstance(one, ast.Name) else None


def _divisors(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield node.right
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        yield node.value
    else:
        for inner in ast.iter_child_nodes(node):
            yield from _divisors(inner)


def _line_of(root: Any, kinds: Collection[str], *, is_linear: bool = True) -> Called | None:
    """The line of the last operation of these kinds on the loss whose node of the graph is ``root``; ``is_linear``: not
    on what the loss is computed from."""
    nodes = [root]
    for _ in range(_DEEPEST):
        for node in nodes:
            if type(node).__name__ in kinds and not is_scaling(node) and _LINE in node.metadata:
                found: Called = node.metadata[_LINE]
                return found
        before = [node for node in nodes if not is_linear or type(node).__name__ in LINEAR]
        nodes = [one for node in before for one, _ in node.next_functions if one is not None]
    return None


@contextmanager
def _tracing(recording: Recording) -> Iterator[None]:
    lines = Lines(recording)
    # A debugger, or a measurement of coverage, is left alone.
    if sys.gettrace() is not None:
        yield
        return
    recording.lines = lines
    begins, other_begins, of_threads = lines.begins, lines.other_begins, threading.gettrace()
    threading.settrace(other_begins if of_threads is None else of_threads)
    with _Operations(lines):
        sys.settrace(begins)
        try:
            yield
        finally:
            # The trainer may have set its own meanwhile.
            if sys.gettrace() == begins:
                sys.settrace(None)
            if threading.gettrace() == other_begins:
                threading.settrace(None)
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

    def notes(kind: str) -> Callable[..., Any]:
        def note(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            recording.note("line", writes=kind)
            return original(*args, **kwargs)

        return note

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
    yield replaced(DataLoader, "__iter__", notes("epoch"))
    yield replaced(DistributedDataParallel, "register_comm_hook", notes("hook"))
    yield when_imported(
        _FSDP, lambda module: [replaced(module.FSDPModule, "set_requires_gradient_sync", notes("sync"))]
    )
    yield replaced(torch, "set_rng_state", restores)
    yield _tracing(recording)
    thread = threading.get_ident()

    def set_trace(original: Callable[..., None], function: Any) -> None:
        if recording.lines is not None and threading.get_ident() == thread:
            recording.lines.ends()
        original(function)

    yield replaced(sys, "settrace", set_trace)
