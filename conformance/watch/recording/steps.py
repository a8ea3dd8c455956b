"""Optimizer steps: the gradients that they use, the weights before, and what searches of L-BFGS evaluate."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import optimizer_steps
from conformance.trace.state.numbers import Stamp
from conformance.trace.state.optimizers import unwrapped
from conformance.watch import records
from conformance.watch.recording.exchanges import note_wrapped
from conformance.watch.recording.leaves import is_unreduced
from conformance.watch.recording.parameters import Known, coarsest, own, sample_of
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.weights import Buffers, have_weights_changed, remember_weights
from conformance.watch.sizes import WHOLE


class Search:
    """What one step of `torch.optim.LBFGS` evaluates."""

    def __init__(self) -> None:
        self._gradients: list[Stamp | None] = []
        self._evaluated = 0

    def begin(self, optimizer: Any) -> None:
        self._gradients, self._evaluated = _gradients(optimizer), _evaluations(optimizer)

    def stale(self, optimizer: Any) -> int:
        """How many times the closure was called, if no gradient was written meanwhile."""
        return 0 if _gradients(optimizer) != self._gradients else _evaluations(optimizer) - self._evaluated


def _gradients(optimizer: Any) -> list[Stamp | None]:
    if not isinstance(optimizer, torch.optim.LBFGS):
        return []
    return [None if one.grad is None else Stamp(one.grad) for one in optimizer._params]


def _evaluations(optimizer: Any) -> int:
    if not isinstance(optimizer, torch.optim.LBFGS):
        return 0
    return int(optimizer.state[optimizer._params[0]].get("func_evals", 0))


THEN_EVERY = 10
"""Weights are compared before each step as long as all of them is looked at, and then before every tenth."""

_FEW = 64
"""Elements of each parameter, before the other steps."""

MOST_OPTIMIZERS = 2000
"""What a watch keeps of an optimizer is kept to the end, in which it may turn out that it should have stepped again."""

_MANY = f"a process makes optimizers again and again, and is watched until it has made {MOST_OPTIMIZERS:,} of them"

_TORCHS = torch.optim.Optimizer.profile_hook_step.__code__.co_filename

_Read: TypeAlias = tuple[records.Record, list[tuple[Known, Any]]]
"""A step, and the gradients of all its parameters; None if there is none."""


def observe(recording: Recording) -> Seams:
    """Notes `Stepped` for each outermost step. It is read in the innermost one: a class whose step averages, and then
    calls that of its base, uses what the base finds."""
    steps = _Steps(recording)
    hooks = optimizer_steps(steps.before, steps.after)
    yield from hooks
    yield steps.bases

    yield _seen(recording, hooks)

    def add_group(original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        if not steps.is_in_one:
            recording.optimizer(optimizer)
            for parameter in optimizer.param_groups[-1]["params"]:
                recording.parameters.of(parameter)
        return result

    yield replaced(torch.optim.Optimizer, "add_param_group", add_group)


class _Steps:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._running: list[torch.optim.Optimizer] = []
        self._frame: int | None = None
        self._occupied = ExitStack()
        self._read: _Read | None = None
        self._weights: torch.Tensor | None = None
        self._last: Any = None
        self._backwards = 0
        self._versions: records.Versions = {}
        self._is_elsewhere = False
        self._search = Search()
        self._buffers = Buffers(recording)
        self._reader: type | None = None
        self._kinds: weakref.WeakSet[type] = weakref.WeakSet()
        self.bases = ExitStack()

    @property
    def is_in_one(self) -> bool:
        return bool(self._running)

    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        frames = _frames_of_steps()
        is_over = self._frame is not None and self._frame not in frames[1:]
        if self._running and (is_over or (optimizer is self._running[0] and self._is_new_call(optimizer))):
            # The step before raised.
            self._end()
        if self._recording.gives_up():
            return
        if not self._running:
            self._occupied.enter_context(self._recording.occupied())
            self._frame = frames[0] if frames else None
        self._running.append(optimizer)
        self._take_off()
        if len(self._running) == 1:
            self._reader = None
            self._follow_bases(type(optimizer))
            self._backwards = self._recording.backwards
            self._versions = self._recording.versions() if _closure(args, kwargs) else {}
            self._is_elsewhere = have_weights_changed(self._recording.parameters.held(optimizer))
            self._search.begin(unwrapped(optimizer))
        if optimizer is not self._running[0] or _closure(args, kwargs):
            return
        hooked = _hooked(optimizer)
        nested = sum(one is optimizer for one in self._running)
        if not self._is_deeper(optimizer, hooked[min(nested, len(hooked)) - 1]):
            return
        if optimizer._optimizer_step_pre_hooks:
            # The script's own come after those for all optimizers, and may change gradients.
            self._last = optimizer.register_step_pre_hook(harmless(self._see))
        else:
            self._see(optimizer, args, kwargs)

    def _follow_bases(self, kind: type) -> None:
        """Of classes that torch has made no optimizer of, it calls no hooks."""
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        for base in kind.__mro__[1:]:
            if "step" in vars(base) and base is not torch.optim.Optimizer and base not in self._kinds:
                self._kinds.add(base)
                if not _is_hooked(base):
                    self.bases.enter_context(replaced_step(base, partial(self._in_base, base)))

    def _in_base(self, base: type, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        is_running = bool(self._running) and optimizer is self._running[0] and not self._recording.is_over
        is_read = is_running and not _is_hooked(base) and not _closure((optimizer, *args), kwargs)
        if is_read and self._is_deeper(optimizer, base):
            self._see(optimizer, args, kwargs)
        return original(optimizer, *args, **kwargs)

    def _is_deeper(self, optimizer: torch.optim.Optimizer, kind: type) -> bool:
        """Whether the step of this class is further in than what was read. One that is called again comes after an
        update."""
        kinds = type(optimizer).__mro__
        if self._reader is not None and kinds.index(kind) <= kinds.index(self._reader):
            return False
        self._reader = kind
        return True

    def _see(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._read = self._of(optimizer, closure=False)
        record, _ = self._read
        # An optimizer of the script's own may be given gradients in another way.
        is_without = isinstance(record, records.Stepped) and not record.used
        self._weights = self._weighed(optimizer) if is_without else None

    def _take_off(self) -> None:
        if self._last is not None:
            self._last.remove()
            self._last = None

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._running:
            self._running.pop()
        if self._running or self._recording.is_over:
            return
        self._end()
        self._take_off()
        read = self._after_closure(optimizer) if _closure(args, kwargs) else self._read
        self._read = None
        if read is not None:
            record, gradients = read
            if self._weights is not None and isinstance(record, records.Stepped):
                record.moved = not torch.equal(self._weights, self._weighed(optimizer))
                self._weights = None
            if isinstance(record, records.Stepped):
                record.after = self._after(optimizer, record)
                record.stale = self._search.stale(unwrapped(optimizer))
            # A backward pass that it is called in has computed some gradients.
            self._recording.collect()
            self._recording.note(record)
            for known, gradient in gradients:
                known.step(gradient, is_looked_at=isinstance(record, records.Stepped))
            remember_weights(self._recording.parameters.held(optimizer))
            number = self._recording.optimizer(optimizer)
            if number not in self._recording.steps:
                note_wrapped(self._recording, number, optimizer)
            self._recording.steps[number] = self._recording.steps.get(number, 0) + 1
            self._buffers.note(number)
            self._recording.flush()
            limit = self._recording.settings.steps
            if limit is not None and all(count >= limit for count in self._recording.counts()):
                self._recording.stop()
            elif number + 1 >= MOST_OPTIMIZERS:
                self._recording.note(records.Failed("", _MANY))
                self._recording.stop()

    def _after_closure(self, optimizer: torch.optim.Optimizer) -> _Read:
        """Lightning gives each step a closure, also where the script has gone backward before. Only a search calls it
        at several weights."""
        number = str(self._recording.optimizer(optimizer))
        is_inside = self._recording.backwards > self._backwards
        is_search = is_inside and self._recording.seen.get(number) != self._versions.get(number)
        is_without = all(parameter.grad is None for _, parameter in self._recording.parameters.held(optimizer))
        return self._of(optimizer, closure=is_search or is_without)

    def _end(self) -> None:
        self._running.clear()
        self._occupied.close()

    def _weighed(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        held = self._recording.parameters.held(optimizer)
        return self._recording.parameters.sketches([(WHOLE, one.data) for _, one in held if not one.is_sparse])

    def _after(self, optimizer: torch.optim.Optimizer, step: records.Stepped) -> torch.Tensor:
        """The weights that are compared between ranks, after the first steps: what becomes of them then, is for the
        script to say, unless a wrapper averages gradients."""
        recording, number = self._recording, step.optimizer
        # As long as all of them is looked at before the next step, too.
        is_first = sample_of(recording.steps.get(number, 0) + 1) == WHOLE and recording.settings.every == 1
        is_shared = recording.is_with_others and not recording.wrappers
        weighed = {*step.weights} if is_first and is_shared else set()
        held = recording.parameters.held(optimizer) if weighed else []
        return recording.parameters.sketches(
            [(WHOLE, own(parameter.data)) for known, parameter in held if known.number in weighed]
        )

    def _is_new_call(self, optimizer: torch.optim.Optimizer) -> bool:
        """Nested steps of one optimizer come from classes of its own, at most one each."""
        return sum(one is optimizer for one in self._running) >= len(_hooked(optimizer))

    def _is_own(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the step that reads the gradients is that of a class of the script's."""
        inner = unwrapped(optimizer)
        reader = self._reader if inner is optimizer else None
        return not (reader or _hooked(inner)[0]).__module__.startswith("torch.")

    def _of(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> _Read:
        """May come several times before one step: what is nested in it reads again."""
        recording, groups = self._recording, optimizer.param_groups
        held = recording.parameters.held(optimizer)
        number = recording.optimizer(optimizer)
        # The optimizer inside ZeRO steps one flat tensor after the other.
        count = held[0][0].steps if held and held[0][0].is_flat else recording.steps.get(number, 0)
        gradients = [(known, parameter.grad) for known, parameter in held]
        if not recording.settings.looks_at(count):
            return records.Passed(number), gradients
        used = [(known, gradient) for known, gradient in gradients if gradient is not None]
        for known, _ in held:
            known.beside = len(held)
        for known, gradient in used:
            # Without a backward pass there is no new sample yet. What the last step has left is compared as it was.
            if not known.is_in_window and not known.has_used(gradient):
                known.advance()
        sketches = recording.parameters.sketches
        looked = count // recording.settings.every
        which = sample_of(looked)
        # A term along the weights may be in gradients that carry a loss scale.
        weighed = held if recording.is_with_others or recording.numbers.alive("scaler") else []
        weighed = [(known, own(parameter.data)) for known, parameter in weighed if not parameter.is_sparse]
        if which != WHOLE and looked % THEN_EVERY:
            # Ranks may average their weights in between, where no wrapper sees to it that they are equal.
            is_alone = recording.wrappers or not recording.is_with_others
            weighed = [] if is_alone else [(known, one.reshape(-1)[:_FEW]) for known, one in weighed]
        scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        record = records.Stepped(
            optimizer=number,
            type=type(optimizer).__name__,
            rates=rates(optimizer),
            parameters=[known.number for known, _ in held],
            frozen=[known.number for known, parameter in held if not parameter.requires_grad],
            closure=closure,
            grad_scale=None if scale is None else float(scale),
            found_inf=overflow is not None and bool(overflow),
            maximize=any(group.get("maximize", False) for group in groups),
            dtype=coarsest(gradient.dtype for _, gradient in used),
            used=[known.number for known, _ in used],
            gradients=sketches([(known.sample, gradient) for known, gradient in used if known.is_read]),
            samples=[known.sample for known, _ in used],
            weights=[known.number for known, _ in weighed],
            values=sketches([(which, weights) for _, weights in weighed]),
            site=recording.site(),
            unreduced=[known.number for known, parameter in held if is_unreduced(parameter)],
            is_own=self._is_own(optimizer),
            is_elsewhere=self._is_elsewhere,
            within=recording.within,
        )
        return record, gradients


@contextmanager
def replaced_step(kind: type, around: Any) -> Iterator[None]:
    """Within this, `kind.step(*args)` calls `around(original, *args)`. A wrapper that torch puts around it meanwhile
    stays."""
    with ExitStack() as stack:
        stack.enter_context(replaced(kind, "step", around))
        ours = vars(kind)["step"]
        try:
            yield
        finally:
            now = vars(kind)["step"]
            stack.close()
            if now is not ours:
                kind.step = now  # type: ignore[attr-defined]


@contextmanager
def _seen(recording: Recording, hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    """Within this, hooks that the script removes are noticed when something is written."""

    def see() -> None:
        if any(hook.id not in (hook.hooks_dict_ref() or ()) for hook in hooks):
            recording.before_writing.remove(see)
            recording.note(records.Failed("", "the script removed hooks of the recorder, so later steps were not seen"))

    recording.before_writing.append(see)
    yield
    with suppress(ValueError):
        recording.before_writing.remove(see)


def rates(optimizer: torch.optim.Optimizer, name: str = "lr") -> list[float | None]:
    """Of each of its groups; a rate may be a tensor."""
    return [None if (rate := group.get(name)) is None else float(rate) for group in optimizer.param_groups]


def _frames_of_steps() -> list[int]:
    """The frames of the steps that led here, from the innermost out."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_code.co_filename == _TORCHS:
            found.append(id(frame))
        frame = frame.f_back
    return found


def _is_hooked(kind: type) -> bool:
    """Whether it has a step of its own that torch calls hooks before."""
    return bool(getattr(vars(kind).get("step"), "hooked", False))


def _hooked(optimizer: torch.optim.Optimizer) -> list[type]:
    """The classes of an optimizer that have such a step, from the outermost in; of nested steps each has one."""
    return [kind for kind in type(optimizer).__mro__ if _is_hooked(kind)] or [type(optimizer)]


def _closure(args: Any, kwargs: Any) -> bool:
    return any(callable(one) for one in args[1:]) or callable(kwargs.get("closure"))
