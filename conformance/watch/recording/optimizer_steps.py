"""Records optimizer steps: the gradients they use, and the weights before."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
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
from conformance.trace.state.optimizer_state import held_by, unwrapped
from conformance.watch import records
from conformance.watch.recording import masters
from conformance.watch.recording.exchanges import MOST_STATISTICS, note_bound
from conformance.watch.recording.leaves import is_unreduced
from conformance.watch.recording.output import later
from conformance.watch.recording.parameters import Known, coarsest, is_partial, sample_of
from conformance.watch.recording.recording import Recording, frames
from conformance.watch.recording.resumed import Resumed
from conformance.watch.recording.weights import Buffers, beginning, differ, have_weights_changed, remember_weights
from conformance.watch.sizes import WHOLE
from conformance.watch.sketch import own

THEN_EVERY = 10
"""Ranks compare sampled weights before every tenth step; before each step while weights are read as a whole."""

_FEW = 64
"""Elements of each parameter to compare before the other steps."""

_MOST_SENT = 64
"""Steps of all optimizers in which gradients are looked for among the tensors of collectives."""

MOST_OPTIMIZERS = 2000
"""Limit of watched optimizers, because each one's data is kept until the end: it might have had to step again."""

_MANY = f"the process creates many optimizers; only the first {MOST_OPTIMIZERS:,} were watched"

_TORCHS = torch.optim.Optimizer.profile_hook_step.__code__.co_filename

_Read: TypeAlias = tuple[records.Stepped | records.Passed, list[tuple[Known, Any]]]
"""A step and the gradients of all its parameters, None for those without."""


def observe(recording: Recording, resumed: Resumed) -> Seams:
    """Notes `Stepped` for each outermost step. Reads the gradients in the innermost one, because a class may average
    before it calls the step of its base."""
    steps = _Steps(recording, resumed)
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
    """The state of a running step. frame: of torch's wrapper around it. backwards, versions: backward passes and
    weights before it. reader: the innermost class whose step read gradients. weights: their first elements, if none had
    a gradient. is_reduced: a collective got a gradient after the read. hook: our last pre-hook. place, passes: where to
    note the step if another optimizer with the same parameters steps inside, and the backward passes before that. sent:
    the sizes of large tensors that were broadcast in it."""

    frame: int | None = None
    backwards: int = 0
    versions: records.Versions = field(default_factory=dict)
    is_elsewhere: Any = False
    reader: type | None = None
    read: _Read | None = None
    weights: list[torch.Tensor] | None = None
    is_reduced: bool = False
    hook: RemovableHandle | None = None
    place: int | None = None
    passes: int = 0
    sent: Counter[int] = field(default_factory=Counter)


class _Steps:
    """Reads the steps of all optimizers, also nested ones. bases: patches of base classes. others: the number of
    collectives on large tensors, except reductions of `.grad` to all ranks and broadcasts within steps; before: by
    optimizer, at its last step."""

    def __init__(self, recording: Recording, resumed: Resumed) -> None:
        self._recording, self._resumed = recording, resumed
        self._running: list[torch.optim.Optimizer] = []
        self._occupied = ExitStack()
        self._step = _Outermost()
        self._buffers = Buffers(recording)
        self._kinds: weakref.WeakSet[type] = weakref.WeakSet()
        self._others, self._before = 0, Counter[int]()
        self.bases = ExitStack()

    @property
    def is_in_one(self) -> bool:
        return bool(self._running)

    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        frames = _frames_of_steps()
        if self._running and self._step.frame not in frames[1:]:
            # The previous step raised an error.
            self._end()
        if self._recording.gives_up():
            return
        has_closure = _closure(args, kwargs)
        if not self._running:
            masters.check(self._recording, optimizer)
            self._resumed.check(optimizer)
            self._begin(optimizer, frames[0] if frames else None, has_closure=has_closure)
        self._running.append(optimizer)
        self._take_off()
        if has_closure:
            self._remember(optimizer)
        if optimizer is not self._running[0] and not has_closure:
            self._see_inner(optimizer)
        if optimizer is not self._running[0] or has_closure:
            return
        hooked = _hooked(optimizer)
        nested = sum(one is optimizer for one in self._running)
        if not self._is_deeper(optimizer, hooked[min(nested, len(hooked)) - 1]):
            return
        if optimizer._optimizer_step_pre_hooks:
            # The script's hooks run after those for all optimizers, and may change gradients.
            self._step.hook = optimizer.register_step_pre_hook(harmless(self._see))
        else:
            self._see(optimizer, args, kwargs)

    def _begin(self, optimizer: torch.optim.Optimizer, frame: int | None, *, has_closure: bool) -> None:
        recording = self._recording
        self._take_off()
        self._occupied.enter_context(recording.occupied())
        self._follow_bases(type(optimizer))
        self._buffers.note(recording.optimizer(optimizer))
        self._step = _Outermost(
            frame,
            recording.backwards,
            recording.versions() if has_closure else {},
            have_weights_changed(recording.parameters.held(optimizer)),
        )

    def _follow_bases(self, kind: type) -> None:
        """Patches the steps of base classes without instances, in which torch calls no hooks."""
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
        """Whether the step of this class is nested deeper than the one that was read. A second call of the same class
        comes after an update, so it does not count."""
        kinds, reader = type(optimizer).__mro__, self._step.reader
        if reader is not None and kinds.index(kind) <= kinds.index(reader):
            return False
        self._step.reader = kind
        return True

    def _see(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._step.is_reduced = False
        self._step.read = record, _ = self._of(optimizer, closure=False)
        if isinstance(record, records.Stepped) and not record.used:
            self._remember(optimizer)

    def _see_inner(self, inner: torch.optim.Optimizer) -> None:
        """Reads the gradients where another optimizer with all parameters steps: the outer step, as in SAM, may call a
        closure before and clear them afterwards."""
        outer, step, recording = self._running[0], self._step, self._recording
        is_read = step.place is not None and step.passes == recording.backwards
        if not is_read and {*map(id, held_by(inner))} == {*map(id, held_by(outer))}:
            recording.collect()
            self._see(outer, (), {})
            step.place, step.passes = recording.place(), recording.backwards

    def _remember(self, optimizer: torch.optim.Optimizer) -> None:
        """Keeps weights: an optimizer class of the script, or a closure, may get gradients in another way."""
        if self._step.weights is None:
            self._step.weights = [one.clone() for one in self._beginnings(optimizer)]

    def reduce(self, name: str, given: Sequence[torch.Tensor]) -> None:
        """Takes the tensors of a collective: an optimizer class of the script may average gradients within its step."""
        if self._running and not self._recording.is_inside("backward"):
            gradients = [one.grad for _, one in self._recording.parameters.held(self._running[0])]
            self._step.is_reduced |= any(one is gradient for one in given for gradient in gradients)
        large = [one for one in given if one.numel() > MOST_STATISTICS]
        if large and name.startswith("allreduce") and sum(self._recording.steps.values()) < _MOST_SENT:
            in_place = {id(one.grad) for _, one in self._recording.parameters.all()}
            large = [one for one in large if id(one) not in in_place]
        if self._running and name == "broadcast":
            self._step.sent.update(one.numel() for one in large)
        else:
            self._others += bool(large)

    def _sends(self, optimizer: torch.optim.Optimizer, sent: Counter[int]) -> bool:
        """Whether the ranks have exchanged nothing large since its last step but a broadcast for each parameter."""
        number, held = self._recording.optimizer(optimizer), held_by(optimizer)
        before, self._before[number] = self._before[number], self._others
        large = Counter(n for one in held if (n := one.numel()) > MOST_STATISTICS)
        return bool(large) and before == self._others and sent == large

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
        self._recording.given.since()
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
        number = recording.optimizer(optimizer)
        if number not in recording.steps:
            note_bound(recording, number, optimizer)
        # If a backward pass calls the step, it has already computed some gradients.
        recording.collect()
        recording.note(record, None if step.passes < recording.backwards else step.place)
        for known, gradient in gradients:
            known.step(gradient, is_looked_at=isinstance(record, records.Stepped))
        remember_weights(recording.parameters.held(optimizer))
        recording.steps[number] += 1
        self._buffers.wait(number)
        recording.flush()
        limit = recording.settings.steps
        if limit is not None and all(count >= limit for count in recording.counts()):
            recording.stop()
        elif number + 1 >= MOST_OPTIMIZERS:
            recording.note(records.Failed("", _MANY))
            recording.stop()

    def _complete(self, record: records.Stepped, optimizer: torch.optim.Optimizer, step: _Outermost) -> None:
        """Adds the fields that are known only after the step."""
        record.is_elsewhere = step.is_elsewhere
        if step.weights is not None and not record.used:
            pairs = zip(step.weights, self._beginnings(optimizer), strict=True)
            record.moved = later(bool, differ(pairs))
        record.after = self._after(optimizer, record)
        record.sends = self._sends(optimizer, step.sent)

    def _after_closure(self, optimizer: torch.optim.Optimizer, step: _Outermost) -> _Read:
        """Reads a step with a closure. Lightning passes one to each step, even after the backward pass; only a search
        calls it at several weights."""
        number = str(self._recording.optimizer(optimizer))
        is_inside = self._recording.backwards > step.backwards
        is_search = is_inside and self._recording.seen.get(number) != step.versions.get(number)
        is_without = all(parameter.grad is None for _, parameter in self._recording.parameters.held(optimizer))
        self._step = step
        if step.read is not None and step.passes == self._recording.backwards:
            record, _ = step.read
            if isinstance(record, records.Stepped):
                record.closure = is_search
            return step.read
        return self._of(optimizer, closure=is_search or is_without)

    def _end(self) -> None:
        self._running.clear()
        self._occupied.close()

    def _after(self, optimizer: torch.optim.Optimizer, step: records.Stepped) -> torch.Tensor:
        """The compared weights after a step, to detect changes by the script between steps. Empty with a wrapper, which
        keeps ranks equal."""
        recording, number = self._recording, step.optimizer
        # While weights are also read as a whole before the next step.
        is_first = sample_of(recording.compared(number) + 1) == WHOLE and recording.settings.every == 1
        is_shared = recording.is_with_others and not recording.wrappers
        weighed = {*step.weights} if is_first and is_shared else set()
        held = recording.parameters.held(optimizer) if weighed else []
        return recording.sketching.of([(WHOLE, one.data) for known, one in held if known.number in weighed])

    def _is_own(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the class whose step reads the gradients is not torch's."""
        inner = unwrapped(optimizer)
        reader = self._step.reader if inner is optimizer else None
        return not (reader or _hooked(inner)[0]).__module__.startswith("torch.")

    def _of(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> _Read:
        """Reads a step. Called again for each nested step."""
        recording = self._recording
        held = recording.parameters.held(optimizer)
        number = recording.optimizer(optimizer)
        # The optimizer in ZeRO steps its flat tensors one by one.
        count = held[0][0].steps if held and held[0][0].is_flat else recording.compared(number)
        # FSDP1 leaves no gradient where this rank has no element.
        gradients = [(known, parameter.data if known.is_empty else parameter.grad) for known, parameter in held]
        if not recording.settings.looks_at(count):
            return records.Passed(number), gradients
        used = [(known, gradient) for known, gradient in gradients if gradient is not None]
        for known, _ in held:
            known.among = len(held)
        for known, gradient in used:
            # Without a backward pass, no new sample was chosen; an unchanged old gradient is read in the old sample.
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
            partial=[known.number for known, gradient in used if is_partial(gradient)],
        )
        return record, gradients

    def _compared(self, held: list[tuple[Known, Any]], looked: int) -> tuple[int, list[tuple[Known, torch.Tensor]]]:
        """The sample and the weights that ranks compare before a step. looked: the number of watched steps before."""
        recording, which = self._recording, sample_of(looked)
        # With a loss scale, gradients may include a multiple of the weights.
        compared = held if recording.is_with_others or recording.numbers.alive("scaler") else []
        weights = [(known, own(parameter.data)) for known, parameter in compared if not parameter.is_sparse]
        if which == WHOLE or not looked % THEN_EVERY:
            return which, weights
        # Without a wrapper that keeps weights equal, ranks may average them in between.
        is_alone = recording.wrappers or not recording.is_with_others
        return which, [] if is_alone else [(known, one.reshape(-1)[:_FEW]) for known, one in weights]


@contextmanager
def replaced_step(kind: type, around: Any) -> Iterator[None]:
    """Context in which `kind.step(*args)` calls `around(original, *args)`. Keeps a wrapper that torch adds
    meanwhile."""
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
    """Context that detects hooks removed by the script, at each write."""

    def see() -> None:
        if any(hook.id not in (hook.hooks_dict_ref() or ()) for hook in hooks):
            recording.before_writing.remove(see)
            recording.note(records.Failed("", "the script removed hooks of the recorder, so later steps were not seen"))

    recording.before_writing.append(see)
    yield
    with suppress(ValueError):
        recording.before_writing.remove(see)


def rates(optimizer: torch.optim.Optimizer, name: str = "lr") -> list[float | None]:
    """The rates of an optimizer's groups; a rate may be a tensor."""
    return [None if (rate := group.get(name)) is None else float(rate) for group in optimizer.param_groups]


def _frames_of_steps() -> list[int]:
    """The frames of all running steps, from the innermost out."""
    led = frames(sys._getframe(1))
    return [id(one) for one in led if one.f_code.co_name == "wrapper" and one.f_code.co_filename == _TORCHS]


def _is_hooked(kind: type) -> bool:
    """Whether the class defines a step that torch calls with hooks."""
    return bool(getattr(vars(kind).get("step"), "hooked", False))


def _hooked(optimizer: torch.optim.Optimizer) -> list[type]:
    """The classes of an optimizer with such a step, one for each nested step, from the outermost in."""
    return [kind for kind in type(optimizer).__mro__ if _is_hooked(kind)] or [type(optimizer)]


def _closure(args: Any, kwargs: Any) -> bool:
    return any(callable(one) for one in args[1:]) or callable(kwargs.get("closure"))
