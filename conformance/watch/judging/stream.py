"""Cuts the records of a rank into windows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from conformance.watch import records
from conformance.watch.judging.log import Log
from conformance.watch.judging.sketch_bounds import COARSEST, ROUNDOFF
from conformance.watch.judging.windows import Cleared, Contribution, Key, Sketch, Window
from conformance.watch.sizes import UNREAD, WHOLE, WIDTH

_MOST_PASSES, _MOST_DONE = 4096, 64
"""Limits of backward passes that are kept, and of those that are done."""

_MOST_USES = 64
"""Limit of used gradients that are kept for each parameter: the latest."""

_MOST_PENDING = 1024
"""Limit of backward passes with unused gradients that are kept for each parameter."""


@dataclass(slots=True)
class _Pass:
    """A backward pass. rows: the inputs of its model. forward: the place of the forward pass. has_arrived: a parameter
    got a gradient. is_done: a step or skip used the gradients, or they were cleared. through: optimizers whose
    parameters got gradients. users: optimizers that stepped on them."""

    record: records.Backward
    rows: tuple[int, ...] | None
    forward: int
    has_arrived: bool = False
    is_done: bool = False
    through: set[str] = field(default_factory=set)
    users: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Leaf:
    """The `.grad` of a parameter. new: contributions that no step used yet. old: those that a step used. taken: those
    that were cleared since the last step. since: the place of the first contribution, 0 for none. is_long: some were
    dropped. before: the next gradient before hooks.

    holders: optimizers with the parameter. user, stepped: the last one to step it, and the place. uses: by gradient,
    the place of the last step that used it."""

    new: list[Contribution] = field(default_factory=list)
    old: list[Contribution] = field(default_factory=list)
    taken: list[Contribution] = field(default_factory=list)
    since: int = 0
    is_long: bool = False
    before: Sketch | None = None
    holders: set[str] = field(default_factory=set)
    user: int | None = None
    stepped: int = 0
    uses: dict[bytes, int] = field(default_factory=dict)

    def add(self, found: Contribution) -> None:
        last = self.new[-1] if self.new else None
        if last is not None and last.backward == found.backward:
            is_finite = last.is_finite and found.is_finite
            total = last.sketch + found.sketch
            self.new[-1] = replace(last, sketch=total, sums=last.sums + 1, before=None, is_finite=is_finite)
        else:
            found.before = self.before
            self.new.append(found)
        self.before = None
        self.new, self.since = self._limited(self.new), self.since or found.at

    def keep(self, old: list[Contribution]) -> None:
        """Keeps all contributions as old: they stay in `.grad` until something clears it."""
        self.old, self.new = self._limited(old), []

    def empty(self) -> None:
        if self.new:
            self.taken = [*self.taken, *self.new][-_MOST_PENDING:]
        self.new, self.old, self.since, self.is_long = [], [], 0, False

    def was_used(self, sketch: Sketch, at: int) -> int | None:
        """Notes that a step uses the gradient. Returns the place of the last step that used a bit-identical one."""
        key = sketch.tobytes()
        before = self.uses.pop(key, None) if sketch[2] else None
        self.uses[key] = at
        if len(self.uses) > _MOST_USES:
            del self.uses[next(iter(self.uses))]
        return before

    def _limited(self, found: list[Contribution]) -> list[Contribution]:
        if len(found) <= _MOST_PENDING:
            return found
        self.is_long = True
        return found[-_MOST_PENDING:]


@dataclass(slots=True)
class _Optimizer:
    """An optimizer. made: the number of backward passes before. tries: steps and skips. last, earlier: the ends of its
    last two windows. parameters: of its last window. known: what is known of these, as fields of a window."""

    key: Key
    made: int
    tries: int = 0
    last: int = 0
    earlier: int = 0
    parameters: list[int] | None = None
    known: dict[str, Any] = field(default_factory=dict)

    def end(self, at: int) -> None:
        self.tries, self.earlier, self.last = self.tries + 1, self.last, at


class Stream:
    """Cuts the records of one process into windows. Keeps only what later windows need.

    clock: the number of backward passes. era: that of its windows. cleared: passes that the last record cleared before
    any step used them. unheld: parameters with gradients but no optimizer. steps, held: by optimizer, the number of
    steps, and the parameters stepped. ever: parameters that got gradients. last_used: by parameter, the number of its
    optimizer's last step that used a gradient of it.
    """

    def __init__(self, began: records.Began) -> None:
        self.began = began
        self.clock = self.era = 0
        self.cleared: list[Cleared] = []
        self.parameters: dict[int, records.Parameter] = {}
        self.unheld: records.Unheld | None = None
        self.steps: dict[int, int] = {}
        self.held: dict[int, set[int]] = defaultdict(set)
        self.ever: set[int] = set()
        self.last_used: dict[int, int] = {}
        self._at = 0
        self._log = Log()
        self._leaves: dict[int, _Leaf] = defaultdict(_Leaf)
        self._optimizers: dict[int, _Optimizer] = {}
        self._alike: dict[tuple[str, tuple[tuple[int, ...], ...]], int] = {}
        self._passes: dict[int, _Pass] = {}
        self._rows: tuple[int, ...] | None = None
        self._entered = 0
        self._is_wrapped = False
        self._idle: deque[int] = deque(maxlen=_MOST_PASSES)
        self._by_hand = 0

    @property
    def trains_unseen(self) -> bool:
        """Whether some parameters get gradients or are in an optimizer, but no step was seen: the script may update
        them by hand."""
        stepped = {number for held in self.held.values() for number in held}
        made = {number for number, leaf in self._leaves.items() if leaf.holders}
        return self.unheld is not None or bool((self.ever | made) - stepped)

    def has_pending(self, number: int) -> bool:
        """Whether a parameter has gradients that were neither used nor cleared."""
        return number in self._leaves and bool(self._leaves[number].new)

    def added_to_infinite(self, numbers: Set[int]) -> int:
        """The number of backward passes since a gradient of these parameters is infinite or NaN, and not cleared."""
        pending = [[one.is_finite for one in self._leaves[number].new] for number in numbers]
        return max((len(are) - 1 - are.index(False) for are in pending if False in are), default=0)

    def through(self, backward: int) -> set[int]:
        """The optimizers whose parameters got gradients of a backward pass so far."""
        return {int(optimizer) for optimizer in self._passes[backward].through} if backward in self._passes else set()

    def is_last_user(self, optimizer: int) -> bool:
        """Whether no other optimizer stepped any of its parameters since."""
        return {self._leaves[number].user for number in self.held[optimizer]} <= {optimizer, None}

    def has(self, key: Key) -> bool:
        return key.number < self._alike.get((key.type, key.shapes), 0)

    def feed(self, record: records.Record) -> tuple[Window, ...]:
        """Takes a record. Returns the window that it ends, if it is a step or skip."""
        self.cleared = []
        self._at += 1
        self._log.keep(self._at, record)
        # The most frequent ones first.
        match record:
            case records.Local():
                self._add(record)
            case records.Entered():
                self._rows, self._entered = tuple(record.rows) or None, self._at
            case records.Backward():
                self._go_backward(record.as_mean())
            case records.Cleared():
                self._clear(record.parameters, record.versions, record.site, moved=record.moved)
            case records.Clipped():
                if not any(self._leaves[number].new for number in record.parameters):
                    self._idle.append(self._at)
            case records.Stepped():
                return (self._end(record.optimizer, record, record.site),)
            case records.Left():
                self._begin(record)
            case records.Parameter():
                self.parameters[record.parameter] = record
                self._forget_known()
            case records.Named():
                for number, name in record.names.items():
                    self.parameters[int(number)].name = name
                self._forget_known()
            case records.Optimizer():
                self._make(record)
            case records.Masters():
                for leaf in self._leaves.values():
                    leaf.holders.discard(str(record.optimizer))
                for followed in record.parameters:
                    self._leaves[followed].holders.add(str(record.optimizer))
            case records.Grouped():
                self._is_wrapped = True
            case records.Unheld():
                self.unheld = record if record.names else None
            case records.Hooks():
                for hooked, sketch in _sketches(record.parameters, record.sketches).items():
                    self._leaves[hooked].before = sketch
            case records.Skipped():
                return (self._end(record.optimizer, None, record.site),)
            case records.Passed():
                self._pass(record.optimizer)
            case records.Rejoined():
                self.era += 1
        return ()

    def end(self) -> tuple[Window, ...]:
        """No window: a last one without a step does not count."""
        return ()

    def _make(self, optimizer: records.Optimizer) -> None:
        for number in optimizer.parameters:
            self._leaves[number].holders.add(str(optimizer.optimizer))
        shapes = tuple(tuple(self.parameters[number].shape) for number in optimizer.parameters)
        alike = self._alike.get((optimizer.type, shapes), 0)
        self._alike[optimizer.type, shapes] = alike + 1
        self._optimizers[optimizer.optimizer] = _Optimizer(Key(optimizer.type, shapes, alike), self.clock)

    def _go_backward(self, record: records.Backward) -> None:
        self.clock += 1
        self._passes[record.backward] = _Pass(record, self._rows, self._entered or self._at)
        self._rows, self._entered = None, 0
        if len(self._passes) > _MOST_PASSES:
            del self._passes[next(iter(self._passes))]

    def _add(self, record: records.Local) -> None:
        # The script itself set the `.grad` of fresh parameters to None.
        one = self._passes.get(record.backward)
        self._clear(record.fresh, {} if one is None else one.record.versions, None, but=record.backward)
        if one is not None:
            one.has_arrived = True
            one.through.update(*(self._leaves[number].holders for number in record.parameters))
        self.ever |= {*record.parameters}
        roundoff = ROUNDOFF.get(record.dtype, COARSEST)
        values = np.array(record.sketches, dtype=np.float64).reshape(-1, WIDTH)
        samples = record.samples or [WHOLE] * len(record.parameters)
        are_finite, at = bool(np.isfinite(values).all()), 0
        for number, which in zip(record.parameters, samples, strict=True):
            shards = max(1, self.parameters[number].shards)
            sketch = np.zeros((shards, WIDTH)) if which == UNREAD else values[at : at + shards]
            at += 0 if which == UNREAD else shards
            found = Contribution(record.backward, sketch, roundoff, self._at, which)
            found.is_finite = are_finite or bool(np.isfinite(sketch).all())
            self._leaves[number].add(found)

    def _begin(self, record: records.Left) -> None:
        """Takes the contents of `.grad`, for the elements that the new window samples."""
        left = _sketches(record.held, record.sketches)
        for number in record.parameters:
            leaf = self._leaves[number]
            leaf.old = []
            if number not in left or not left[number].any():
                leaf.since = 0
        self._keep_old(left, record.sketches, record.samples, record.dtype, {*record.changed})

    def _keep_old(
        self,
        left: Mapping[int, Sketch],
        flat: records.Sketches,
        samples: list[int],
        dtype: str,
        changed: Set[int] = frozenset(),
    ) -> None:
        roundoff, are_finite = ROUNDOFF.get(dtype, COARSEST), bool(np.isfinite(flat).all())
        for (number, sketch), which in zip(left.items(), samples or [WHOLE] * len(left), strict=True):
            old = Contribution(-1, sketch[None, :], roundoff, self._at, which, is_changed=number in changed)
            old.is_finite = are_finite or bool(np.isfinite(sketch).all())
            self._leaves[number].old = [old]

    def _clear(
        self,
        parameters: list[int],
        versions: records.Versions,
        site: records.Site,
        but: int | None = None,
        *,
        moved: bool = False,
    ) -> None:
        """Clears parameters. but: a running backward pass, which may give a parameter gradients in parts."""
        lost: dict[int, set[int]] = defaultdict(set)
        for number, leaf in ((number, self._leaves[number]) for number in parameters):
            if not leaf.new or leaf.new[-1].backward != but:
                for found in leaf.new:
                    if found.sample != UNREAD and found.is_finite:
                        lost[found.backward].add(number)
                leaf.empty()
        still = {one.backward for leaf in self._leaves.values() for one in leaf.new} if lost else set()
        for backward in sorted(lost):
            one, is_part = self._passes.get(backward), backward in still
            if one is not None and one.has_arrived and not one.is_done and backward != but:
                one.is_done = not is_part
                # If the weights changed since, a hand-written update may have used the gradients; so may a step on
                # gradients that the script assigned.
                is_used = moved or backward <= self._by_hand or self._has_changed(parameters, one.record, versions)
                if not is_used and not one.record.probe:
                    steps, held = sum(self.steps.values()), frozenset(lost[backward] if is_part else parameters)
                    cleared = Cleared(self.began.rank, self._at, held, one.record, site, steps, one.rows, is_part)
                    self.cleared.append(cleared)

    def _has_changed(self, parameters: list[int], backward: records.Backward, versions: records.Versions) -> bool:
        """Whether the weights of these parameters' optimizers changed since a backward pass."""
        holders = set[str]().union(*(self._leaves[number].holders for number in parameters))
        return any(backward.versions.get(number) != versions.get(number) for number in holders or versions)

    def _end(self, optimizer: int, step: records.Stepped | None, site: records.Site) -> Window:
        window = self._window(optimizer, step, site)
        for number in window.backwards:
            self._passes[number].is_done = True
        for number in window.sizes:
            self._leaves[number].taken = []
        if step is None:
            # GradScaler skipped the step; its gradients stay until they are cleared, if only by hand.
            for number in window.new:
                leaf = self._leaves[number]
                leaf.keep([*leaf.old, *leaf.new])
            for one in self._passes.values():
                one.is_done |= one.has_arrived
        else:
            self._step(window, step)
        self._optimizers[optimizer].end(self._at)
        self._forget()
        return window

    def _window(self, optimizer: int, step: records.Stepped | None, site: records.Site) -> Window:
        of = self._optimizers[optimizer]
        parameters = self._left_out(optimizer) if step is None else step.parameters
        leaves = {number: self._leaves[number] for number in parameters}
        new = {number: leaf.new for number, leaf in leaves.items() if leaf.new}
        old = {number: leaf.old for number, leaf in leaves.items() if leaf.old}
        calls, concerned = self._log.since(of.last), set(parameters)
        clips = calls.of(records.Clipped, lambda one: not one.given or not concerned.isdisjoint(one.parameters))
        moments, cut = calls.moments()
        window = Window(
            rank=self.began.rank,
            optimizer=optimizer,
            key=of.key,
            index=of.tries,
            step=step,
            site=site,
            begin=of.last,
            at=self._at,
            old=old,
            used={} if step is None else _sketches(_read(step), step.gradients),
            weights={} if step is None else _weights(step.weights, step.values),
            clips=clips,
            idle=[one for at, one in clips if at in self._idle and one.parameters],
            unscales=calls.of(records.Unscaled, lambda one: one.optimizer == optimizer),
            schedules=calls.of(records.Scheduled, lambda one: one.optimizer == optimizer),
            limits=calls.of(records.Limited, lambda one: not concerned.isdisjoint(one.parameters)),
            is_computed=bool(self.ever & concerned),
            is_made_last=0 < self.clock == of.made,
            captured=bool(calls.of(records.Captured, lambda one: not concerned.isdisjoint(one.parameters))),
            moments=moments,
            cut=cut,
            samples={} if step is None else dict(zip(step.used, step.samples, strict=False)),
            clock=self.clock,
            era=self.era,
            is_of_other=step is not None and self._is_of_other(optimizer, step),
            of_others={n for n in old if leaves[n].user not in (optimizer, None) and leaves[n].since > of.last},
            is_long=any(leaves[number].is_long for number in new),
            is_wrapped=self._is_wrapped,
            **self._known(of, parameters),
            **self._of_passes(new),
        )
        taken = {number: [*leaf.taken, *leaf.new] for number, leaf in leaves.items() if leaf.taken}
        window.with_taken = replace(window, **self._of_passes({**new, **taken})) if taken else None
        return window

    def _known(self, of: _Optimizer, parameters: list[int]) -> dict[str, Any]:
        """The fields of a window with what is known of its parameters: in most steps, the same as in the last one."""
        if of.parameters != parameters:
            known = {number: self.parameters[number] for number in parameters if number in self.parameters}
            of.parameters = parameters
            of.known = {
                "shards": {number: one.shards for number, one in known.items()},
                "shard": {number: one.shard for number, one in known.items()},
                "sizes": {number: prod(one.shape) for number, one in known.items()},
                "names": {number: _name(one) for number, one in known.items()},
            }
        return of.known

    def _forget_known(self) -> None:
        for of in self._optimizers.values():
            of.parameters = None

    def _of_passes(self, new: dict[int, list[Contribution]]) -> dict[str, Any]:
        """The fields of a window with these gradients."""
        reached = {one.backward for contributions in new.values() for one in contributions}
        passes = {number: self._passes[number] for number in sorted(reached) if number in self._passes}
        return {
            "new": new,
            "backwards": {number: one.record for number, one in passes.items()},
            "fed": {one.rows for one in passes.values() if one.rows is not None},
            "is_late": any(
                one.forward < self._leaves[number].stepped
                for number, found in new.items()
                for backward in {one.backward for one in found}
                if (one := passes.get(backward)) is not None
            ),
            "reached": {number: one.through for number, one in passes.items()},
            "users": {number: {*one.users} for number, one in passes.items()},
        }

    def _step(self, window: Window, step: records.Stepped) -> None:
        """Takes a step. The used gradients stay in `.grad`."""
        optimizer, count = step.optimizer, self.steps.get(step.optimizer, 0) + 1
        self.steps[optimizer] = count
        self.held[optimizer] |= {*step.parameters}
        for number in window.backwards:
            self._passes[number].users.add(optimizer)
        for number, sketch in window.used.items():
            before = self._leaves[number].was_used(sketch, self._at)
            if before is not None:
                window.again[number] = before
        holder = str(optimizer)
        for number in step.parameters:
            self._leaves[number].holders.add(holder)
        for number in step.used:
            leaf = self._leaves[number]
            leaf.user, leaf.stepped = optimizer, self._at
            self.last_used[number] = count
        if step.used and not window.new:
            self._by_hand = self.clock
        read = [which for which in step.samples if which != UNREAD]
        self._keep_old(window.used, step.gradients, read, step.dtype)
        for number in window.new:
            leaf = self._leaves[number]
            leaf.new, leaf.is_long = [], False

    def _left_out(self, optimizer: int) -> list[int]:
        """The parameters of a skipped step: all with gradients but those that only other optimizers have."""
        found = ((number, leaf.holders) for number, leaf in self._leaves.items() if leaf.new)
        return [number for number, holders in found if not holders or str(optimizer) in holders]

    def _is_of_other(self, optimizer: int, step: records.Stepped) -> bool:
        users = {self._leaves[number].user for number in step.used} - {optimizer, None}
        return any(user is not None and self.held[user] == {*step.parameters} for user in users)

    def _pass(self, optimizer: int) -> None:
        """Takes a step of a window that was not watched. Its gradients are known when the next watched one begins."""
        self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        for number in self.held.get(optimizer, ()):
            leaf = self._leaves[number]
            for one in leaf.new:
                if one.backward in self._passes:
                    self._passes[one.backward].is_done = True
                    self._passes[one.backward].users.add(optimizer)
            leaf.new, leaf.old, leaf.taken, leaf.is_long = [], [], [], False
        self._optimizers[optimizer].end(self._at)
        self._forget()

    def _forget(self) -> None:
        """Drops what no window needs any longer. Keeps the last two windows of each optimizer that steps: the first
        window of another one may end only after a step that followed the same clip."""
        self._log.forget(min(of.earlier for of in self._optimizers.values() if of.tries))
        for number in [number for number, one in self._passes.items() if one.is_done][:-_MOST_DONE]:
            del self._passes[number]


def _read(step: records.Stepped) -> list[int]:
    """The used parameters that were sampled in this step. The others have gradients of unknown value."""
    samples = step.samples or [WHOLE] * len(step.used)
    return [number for number, which in zip(step.used, samples, strict=True) if which != UNREAD]


def _sketches(numbers: list[int], flat: records.Sketches) -> dict[int, Sketch]:
    return dict(zip(numbers, np.array(flat, dtype=np.float64).reshape(-1, WIDTH), strict=True)) if numbers else {}


def _weights(numbers: list[int], flat: records.Sketches) -> dict[int, tuple[float, ...]]:
    return {number: tuple(value) for number, value in _sketches(numbers, flat).items()}


def _name(parameter: records.Parameter) -> str:
    return parameter.name or f"parameter {parameter.parameter} of shape {tuple(parameter.shape)}"
