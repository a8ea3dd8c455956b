"""Optimizer steps: the gradients that they use, the weights before, and what searches of L-BFGS evaluate."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import optimizer_steps
from conformance.trace.state.numbers import Stamp
from conformance.trace.state.optimizers import unwrapped
from conformance.watch import records
from conformance.watch.recording.exchanges import note_bound
from conformance.watch.recording.leaves import is_unreduced
from conformance.watch.recording.output import later
from conformance.watch.recording.parameters import Known, coarsest, sample_of
from conformance.watch.recording.recording import Recording, frames
from conformance.watch.recording.weights import Buffers, beginning, differ, have_weights_changed, remember_weights
from conformance.watch.sizes import WHOLE
from conformance.watch.sketch import own

THEN_EVERY = 10
"""Weights are compared before each step as long as all of them is looked at, and then before every tenth."""

_FEW = 64
"""Elements of each parameter, before the other steps."""

MOST_OPTIMIZERS = 2000
"""What a watch keeps of an optimizer is kept to the end, in which it may turn out that it should have stepped again."""

_MANY = f"a process makes optimizers again and again, and is watched until it has made {MOST_OPTIMIZERS:,} of them"

_TORCHS = torch.optim.Optimizer.profile_hook_step.__code__.co_filename

_Read: TypeAlias = tuple[records.Stepped | records.Passed, list[tuple[Known, Any]]]
"""A step, and the gradients of all its parameters; None if there is none."""


def observe(recording: Recording) -> Seams:
    """Notes `Stepped` for each outermost step. It is read in the innermost one: a class whose step averages, and then
    calls that of its base, uses what the base finds."""
    steps = _Steps(recording)
    recording.reduced = harmless(steps.reduce)
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


@dataclass
class _Outermost:
    """What is kept of a step until it is over. frame: of torch's function that runs it. backwards, versions, search:
    how many backward passes there were before, which weights, and what L-BFGS had evaluated. reader: the innermost
    class that has read. weights: the beginnings of all, where none had a gradient. is_reduced: a collective
    was given a gradient since they were read. hook: ours, the last before it."""

    frame: int | None = None
    backwards: int = 0
    versions: records.Versions = field(default_factory=dict)
    is_elsewhere: Any = False
    search: tuple[int, list[Stamp | None]] = (0, [])
    reader: type | None = None
    read: _Read | None = None
    weights: list[torch.Tensor] | None = None
    is_reduced: bool = False
    hook: RemovableHandle | None = None


class _Steps:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._running: list[torch.optim.Optimizer] = []
        self._occupied = ExitStack()
        self._step = _Outermost()
        self._buffers = Buffers(recording)
        self._kinds: weakref.WeakSet[type] = weakref.WeakSet()
        self.bases = ExitStack()

    @property
    def is_in_one(self) -> bool:
        return bool(self._running)

    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        frames = _frames_of_steps()
        if self._running and self._step.frame not in frames[1:]:
            # The step before raised.
            self._end()
        if self._recording.gives_up():
            return
        has_closure = _closure(args, kwargs)
        if not self._running:
            self._begin(optimizer, frames[0] if frames else None, has_closure=has_closure)
        self._running.append(optimizer)
        self._take_off()
        if optimizer is not self._running[0] or has_closure:
            return
        hooked = _hooked(optimizer)
        nested = sum(one is optimizer for one in self._running)
        if not self._is_deeper(optimizer, hooked[min(nested, len(hooked)) - 1]):
            return
        if optimizer._optimizer_step_pre_hooks:
            # The script's own come after those for all optimizers, and may change gradients.
            self._step.hook = optimizer.register_step_pre_hook(harmless(self._see))
        else:
            self._see(optimizer, args, kwargs)

    def _begin(self, optimizer: torch.optim.Optimizer, frame: int | None, *, has_closure: bool) -> None:
        recording = self._recording
        self._take_off()
        self._occupied.enter_context(recording.occupied())
        self._follow_bases(type(optimizer))
        self._step = _Outermost(
            frame,
            recording.backwards,
            recording.versions() if has_closure else {},
            have_weights_changed(recording.parameters.held(optimizer)),
            _search(optimizer),
        )

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
        kinds, reader = type(optimizer).__mro__, self._step.reader
        if reader is not None and kinds.index(kind) <= kinds.index(reader):
            return False
        self._step.reader = kind
        return True

    def _see(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._step.is_reduced = False
        self._step.read = record, _ = self._of(optimizer, closure=False)
        # An optimizer of the script's own may be given gradients in another way.
        is_without = isinstance(record, records.Stepped) and not record.used
        self._step.weights = [one.clone() for one in self._beginnings(optimizer)] if is_without else None

    def reduce(self, given: Sequence[torch.Tensor]) -> None:
        """A collective is given these: a class of the script's own averages within its step, and calls no other."""
        if self._running:
            gradients = [one.grad for _, one in self._recording.parameters.held(self._running[0])]
            self._step.is_reduced |= any(one is gradient for one in given for gradient in gradients)

    def _beginnings(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        held = self._recording.parameters.held(optimizer)
        return [beginning(parameter) for _, parameter in held if not parameter.is_sparse]

    def _take_off(self) -> None:
        if self._step.hook is not None:
            self._step.hook.remove()
            self._step.hook = None

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._running:
            self._running.pop()
        if self._running or self._recording.is_over:
            return
        self._end()
        self._take_off()
        step, self._step = self._step, _Outermost()
        read = self._after_closure(optimizer, step) if _closure(args, kwargs) else step.read
        if read is None:
            return
        recording, (record, gradients) = self._recording, read
        if isinstance(record, records.Stepped):
            self._complete(record, optimizer, step)
            if step.is_reduced:
                again, gradients = self._of(optimizer, closure=False)
                assert isinstance(again, records.Stepped)
                record.used, record.samples, record.gradients = again.used, again.samples, again.gradients
        # A backward pass that it is called in has computed some gradients.
        recording.collect()
        recording.note(record)
        for known, gradient in gradients:
            known.step(gradient, is_looked_at=isinstance(record, records.Stepped))
        remember_weights(recording.parameters.held(optimizer))
        number = recording.optimizer(optimizer)
        if number not in recording.steps:
            note_bound(recording, number, optimizer)
        recording.steps[number] += 1
        self._buffers.note(number)
        recording.flush()
        limit = recording.settings.steps
        if limit is not None and all(count >= limit for count in recording.counts()):
            recording.stop()
        elif number + 1 >= MOST_OPTIMIZERS:
            recording.note(records.Failed("", _MANY))
            recording.stop()

    def _complete(self, record: records.Stepped, optimizer: torch.optim.Optimizer, step: _Outermost) -> None:
        """What is known only after the step."""
        record.is_elsewhere = step.is_elsewhere
        if step.weights is not None:
            pairs = zip(step.weights, self._beginnings(optimizer), strict=True)
            record.moved = later(bool, differ(pairs))
        record.after = self._after(optimizer, record)
        evaluations, gradients = _search(optimizer)
        before, stale = step.search
        record.stale = evaluations - before if gradients == stale else 0

    def _after_closure(self, optimizer: torch.optim.Optimizer, step: _Outermost) -> _Read:
        """Lightning gives each step a closure, also where the script has gone backward before. Only a search calls it
        at several weights."""
        number = str(self._recording.optimizer(optimizer))
        is_inside = self._recording.backwards > step.backwards
        is_search = is_inside and self._recording.seen.get(number) != step.versions.get(number)
        is_without = all(parameter.grad is None for _, parameter in self._recording.parameters.held(optimizer))
        self._step = step
        return self._of(optimizer, closure=is_search or is_without)

    def _end(self) -> None:
        self._running.clear()
        self._occupied.close()

    def _after(self, optimizer: torch.optim.Optimizer, step: records.Stepped) -> torch.Tensor:
        """The weights that are compared between ranks, after the first steps: what becomes of them then, is for the
        script to say, unless a wrapper averages gradients."""
        recording, number = self._recording, step.optimizer
        # As long as all of them is looked at before the next step, too.
        is_first = sample_of(recording.steps[number] + 1) == WHOLE and recording.settings.every == 1
        is_shared = recording.is_with_others and not recording.wrappers
        weighed = {*step.weights} if is_first and is_shared else set()
        held = recording.parameters.held(optimizer) if weighed else []
        return recording.sketching.of([(WHOLE, one.data) for known, one in held if known.number in weighed])

    def _is_own(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the step that reads the gradients is that of a class of the script's."""
        inner = unwrapped(optimizer)
        reader = self._step.reader if inner is optimizer else None
        return not (reader or _hooked(inner)[0]).__module__.startswith("torch.")

    def _of(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> _Read:
        """May come several times before one step: what is nested in it reads again."""
        recording = self._recording
        held = recording.parameters.held(optimizer)
        number = recording.optimizer(optimizer)
        # The optimizer inside ZeRO steps one flat tensor after the other.
        count = held[0][0].steps if held and held[0][0].is_flat else recording.steps[number]
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
        which, weighed = self._compared(held, count // recording.settings.every)
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
            maximize=any(group.get("maximize", False) for group in optimizer.param_groups),
            dtype=coarsest(gradient.dtype for _, gradient in used),
            used=[known.number for known, _ in used],
            gradients=recording.sketching.of([(known.sample, gradient) for known, gradient in used if known.is_read]),
            samples=[known.sample for known, _ in used],
            weights=[known.number for known, _ in weighed],
            values=recording.sketching.of([(which, weights) for _, weights in weighed]),
            site=recording.site(),
            unreduced=[known.number for known, parameter in held if is_unreduced(parameter)],
            is_own=self._is_own(optimizer),
            within=recording.within,
        )
        return record, gradients

    def _compared(self, held: list[tuple[Known, Any]], looked: int) -> tuple[int, list[tuple[Known, torch.Tensor]]]:
        """The weights that ranks compare before the step after so many that are looked at, and the sample of them."""
        recording, which = self._recording, sample_of(looked)
        # A term along the weights may be in gradients that carry a loss scale.
        compared = held if recording.is_with_others or recording.numbers.alive("scaler") else []
        weights = [(known, own(parameter.data)) for known, parameter in compared if not parameter.is_sparse]
        if which == WHOLE or not looked % THEN_EVERY:
            return which, weights
        # Ranks may average their weights in between, where no wrapper sees to it that they are equal.
        is_alone = recording.wrappers or not recording.is_with_others
        return which, [] if is_alone else [(known, one.reshape(-1)[:_FEW]) for known, one in weights]


def _search(optimizer: torch.optim.Optimizer) -> tuple[int, list[Stamp | None]]:
    """How often torch's L-BFGS has called its closure, and the gradients that it has."""
    inner: Any = unwrapped(optimizer)
    if not isinstance(inner, torch.optim.LBFGS):
        return 0, []
    evaluations = int(inner.state[inner._params[0]].get("func_evals", 0))
    return evaluations, [None if one.grad is None else Stamp(one.grad) for one in inner._params]


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
    led = frames(sys._getframe(1))
    return [id(one) for one in led if one.f_code.co_name == "wrapper" and one.f_code.co_filename == _TORCHS]


def _is_hooked(kind: type) -> bool:
    """Whether it has a step of its own that torch calls hooks before."""
    return bool(getattr(vars(kind).get("step"), "hooked", False))


def _hooked(optimizer: torch.optim.Optimizer) -> list[type]:
    """The classes of an optimizer that have such a step, from the outermost in; of nested steps each has one."""
    return [kind for kind in type(optimizer).__mro__ if _is_hooked(kind)] or [type(optimizer)]


def _closure(args: Any, kwargs: Any) -> bool:
    return any(callable(one) for one in args[1:]) or callable(kwargs.get("closure"))
