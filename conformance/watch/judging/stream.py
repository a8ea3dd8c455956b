"""Cuts the stream of a rank into windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from conformance.watch import records
from conformance.watch.judging.log import Log
from conformance.watch.judging.rounding import COARSEST, ROUNDOFF
from conformance.watch.judging.windows import Cleared, Contribution, Key, Sketch, Window
from conformance.watch.sizes import UNREAD, WHOLE, WIDTH

_MOST_PASSES, _MOST_DONE = 4096, 64
"""Backward passes that are remembered, and those of them that are done."""

_MOST_USES = 64
"""Gradients that steps have used, of each parameter those that came last."""

_MOST_PENDING = 1024
"""Backward passes that a parameter has gradients of, and that are told apart."""


@dataclass(slots=True)
class _Pass:
    """A backward pass. rows: what went into its model. forward: when that began. has_arrived: a parameter got a
    gradient of it. is_done: a step or skip came, or it was cleared. through: the optimizers whose parameters have got
    gradients of it. users: those that have stepped with them."""

    record: records.Backward
    rows: tuple[int, ...] | None
    forward: int
    has_arrived: bool = False
    is_done: bool = False
    through: set[str] = field(default_factory=set)
    users: set[int] = field(default_factory=set)


class Stream:
    """Cuts the records of one process into windows. Keeps only what the next windows need.

    cleared: the backward passes that the last record has cleared before any step used them.
    """

    def __init__(self, began: records.Began) -> None:
        self.began = began
        self.cleared: list[Cleared] = []
        self.parameters: dict[int, records.Parameter] = {}
        self.unheld: records.Unheld | None = None
        self.unheld_then: dict[int, records.Unheld | None] = {}
        self.steps: dict[int, int] = {}
        self.skips: dict[int, int] = {}
        self.ever: set[int] = set()
        self.sparse: set[int] = set()
        self.used_ever: set[int] = set()
        self._keys: dict[int, Key] = {}
        self._alike: dict[tuple[str, tuple[tuple[int, ...], ...]], int] = {}
        self.made: set[int] = set()
        self.held: dict[int, set[int]] = defaultdict(set)
        self.last_used: dict[int, int] = {}
        self.stepped_last: dict[int, frozenset[int]] = {}
        self._user: dict[int, int] = {}
        self.frozen: set[int] = set()
        self._at = 0
        self.clock = 0
        self._before: dict[int, Sketch] = {}
        self._entries: dict[int, Sketch] = {}
        self._pending: dict[int, list[Contribution]] = defaultdict(list)
        self._old: dict[int, list[Contribution]] = defaultdict(list)
        self._since: dict[int, int] = {}
        self._overfull: set[int] = set()
        self._last: dict[int, int] = {}
        self._earlier: dict[int, int] = {}
        self._log = Log()
        self._passes: dict[int, _Pass] = {}
        self._rows: tuple[int, ...] | None = None
        self._entered = 0
        self._stepped: dict[int, int] = {}
        self._by_hand = 0
        self._uses: dict[int, dict[bytes, int]] = defaultdict(dict)
        self._holders: dict[int, set[str]] = defaultdict(set)

    @property
    def trains_unseen(self) -> bool:
        """Whether parameters get gradients, or were given to an optimizer, that no step has as far as is seen: they may
        be stepped by hand."""
        stepped = {number for held in self.held.values() for number in held}
        return self.unheld is not None or bool((self.ever | self.made) - stepped)

    def pending(self, parameters: Set[int]) -> dict[int, bool]:
        """The backward passes whose gradients of these parameters no step has used and nobody has cleared, each with
        whether they are finite."""
        found: dict[int, bool] = {}
        for number in parameters:
            for one in self._pending.get(number, []):
                found[one.backward] = found.get(one.backward, True) and one.is_finite
        return dict(sorted(found.items()))

    def calls(self, backwards: Iterable[int]) -> set[int]:
        """The calls that the losses of these backward passes came from, of those that are still known."""
        return {self._passes[number].record.calls for number in backwards if number in self._passes}

    def through(self, backward: int) -> set[int]:
        """The optimizers whose parameters a backward pass has given gradients so far."""
        return {int(optimizer) for optimizer in self._passes[backward].through} if backward in self._passes else set()

    def is_last_user(self, optimizer: int) -> bool:
        """Whether no other one has stepped any of its parameters since."""
        return all(self._user.get(number, optimizer) == optimizer for number in self.held[optimizer])

    def has(self, key: Key) -> bool:
        return key.number < self._alike.get((key.type, key.shapes), 0)

    def feed(self, record: records.Record) -> Iterator[Window]:
        """The window that a step or skip ends."""
        self.cleared = []
        self._at += 1
        self._log.keep(self._at, record)
        match record:
            case records.Parameter():
                self.parameters[record.parameter] = record
            case records.Named():
                for number, name in record.names.items():
                    self.parameters[int(number)].name = name
            case records.Optimizer():
                self.made |= {*record.parameters}
                self._hold(record.optimizer, record.parameters)
                self._name(record)
            case records.Unheld():
                self.unheld = record if record.names else None
            case records.Backward():
                self.clock += 1
                self._passes[record.backward] = _Pass(record, self._rows, self._entered or self._at)
                self._rows, self._entered = None, 0
                if len(self._passes) > _MOST_PASSES:
                    del self._passes[next(iter(self._passes))]
            case records.Entered():
                self._rows = tuple(record.rows) or None
                self._entered = self._at
            case records.Hooks():
                self._before = _sketches(record.parameters, record.sketches)
            case records.Entries():
                self._entries = _sketches(record.parameters, record.sketches)
            case records.Local():
                self._add(record)
            case records.Left():
                self._begin(record)
            case records.Cleared():
                self._clear(record.parameters, record.versions, record.site, moved=record.moved)
            case records.Clipped():
                if not any(self._pending.get(number) for number in record.parameters):
                    self._log.keep_idle(self._at, record)
            case records.Stepped():
                yield self._window(record.optimizer, record, record.site)
            case records.Passed():
                self._pass(record)
            case records.Skipped():
                yield self._window(record.optimizer, None, record.site)

    def end(self) -> tuple[Window, ...]:
        """None: what no step has used is no window."""
        return ()

    def _hold(self, optimizer: int, parameters: Iterable[int]) -> None:
        for number in parameters:
            self._holders[number].add(str(optimizer))

    def _name(self, optimizer: records.Optimizer) -> None:
        shapes = tuple(tuple(self.parameters[number].shape) for number in optimizer.parameters)
        alike = self._alike.get((optimizer.type, shapes), 0)
        self._alike[optimizer.type, shapes] = alike + 1
        self._keys[optimizer.optimizer] = Key(optimizer.type, shapes, alike)

    def _add(self, record: records.Local) -> None:
        # What is None by now was set so by hand.
        one = self._passes.get(record.backward)
        self._clear(record.fresh, {} if one is None else one.record.versions, None, but=record.backward)
        if one is not None:
            one.has_arrived = True
            one.through.update(*(self._holders[number] for number in record.parameters))
        values = np.array(record.sketches, dtype=np.float64).reshape(-1, WIDTH)
        are_finite = bool(np.isfinite(values).all())
        at = 0
        self.sparse |= {*record.sparse}
        samples = record.samples or [WHOLE] * len(record.parameters)
        for number, which in zip(record.parameters, samples, strict=True):
            shards = max(1, self.parameters[number].shards)
            if which == UNREAD:
                sketch = np.zeros((shards, WIDTH))
            else:
                sketch = values[at : at + shards]
                at += shards
            self.ever.add(number)
            self._since.setdefault(number, self._at)
            earlier = self._pending[number]
            if earlier and earlier[-1].backward == record.backward:
                last = earlier[-1]
                total = last.sketch + sketch
                total[:, 2] = last.sketch[:, 2] + sketch[:, 2]
                is_finite = last.is_finite and (are_finite or bool(np.isfinite(sketch).all()))
                earlier[-1] = replace(last, sketch=total, sums=last.sums + 1, before=None, is_finite=is_finite)
                self._entries.pop(number, None)
                earlier[-1].entries = None
            else:
                roundoff = ROUNDOFF.get(record.dtype, COARSEST)
                before, entries = self._before.pop(number, None), self._entries.pop(number, None)
                is_finite = are_finite or bool(np.isfinite(sketch).all())
                found = Contribution(record.backward, sketch, roundoff, self._at, which, is_finite=is_finite)
                is_sparse = number in record.sparse
                earlier.append(replace(found, before=before, entries=entries, is_sparse=is_sparse))
                self._limit(number, earlier)

    def _limit(self, number: int, found: list[Contribution]) -> None:
        if len(found) > _MOST_PENDING:
            del found[:-_MOST_PENDING]
            self._overfull.add(number)

    def _begin(self, record: records.Left) -> None:
        """What is in `.grad` now is known again, and is of the sample that the window looks at."""
        for number in record.parameters:
            self._old.pop(number, None)
        left = {number for number, sketch in _sketches(record.held, record.sketches).items() if sketch.any()}
        for number in {*record.parameters} - left:
            self._since.pop(number, None)
        self._keep_old(record.held, record.sketches, record.samples, record.dtype, {*record.changed})

    def _keep_old(
        self,
        numbers: list[int],
        sketches: records.Sketches,
        samples: list[int],
        dtype: str,
        changed: Collection[int] = (),
    ) -> None:
        roundoff = ROUNDOFF.get(dtype, COARSEST)
        for (number, sketch), which in zip(
            _sketches(numbers, sketches).items(), samples or [WHOLE] * len(numbers), strict=True
        ):
            is_changed = number in changed
            is_finite = bool(np.isfinite(sketch).all())
            left = Contribution(
                -1, sketch[None, :], roundoff, self._at, which, is_changed=is_changed, is_finite=is_finite
            )
            self._old[number] = [left]

    def _clear(
        self,
        parameters: list[int],
        versions: records.Versions,
        site: records.Site,
        but: int | None = None,
        *,
        moved: bool = False,
    ) -> None:
        """but: a backward that is still at it, and may hand a leaf gradients in parts."""
        lost: set[int] = set()
        for number in parameters:
            pending = self._pending.pop(number, [])
            if pending and pending[-1].backward == but:
                self._pending[number] = pending
                continue
            self._overfull.discard(number)
            read = [one for one in pending if one.sample != UNREAD]
            lost |= {one.backward for one in read if one.is_finite}
            self._old.pop(number, None)
            self._since.pop(number, None)
        if not lost:
            return
        still = {one.backward for rest in self._pending.values() for one in rest}
        for backward in sorted(lost - still):
            one = self._passes.get(backward)
            if one is not None and one.has_arrived and not one.is_done:
                one.is_done = True
                # A weight that has changed since may have used it, without an optimizer, and so may a step that was
                # given its gradients by hand.
                is_used = moved or backward <= self._by_hand or self._has_changed(parameters, backward, versions)
                if not is_used and not one.record.probe:
                    steps, held = sum(self.steps.values()), frozenset(parameters)
                    self.cleared.append(Cleared(self.began.rank, self._at, held, one.record, site, steps, one.rows))

    def _has_changed(self, parameters: list[int], backward: int, versions: records.Versions) -> bool:
        """Whether weights have, since a backward pass, that are those of an optimizer of these parameters."""
        before = self._passes[backward].record.versions
        holders = set[str]().union(*(self._holders[number] for number in parameters))
        return any(before.get(number) != versions.get(number) for number in holders or versions)

    def _window(self, optimizer: int, step: records.Stepped | None, site: records.Site) -> Window:
        begin = self._last.get(optimizer, 0)
        index = self.steps.get(optimizer, 0) + self.skips.get(optimizer, 0)
        parameters = self._left_out(optimizer) if step is None else step.parameters
        new = {number: self._pending[number] for number in parameters if self._pending.get(number)}
        old = {number: self._old[number] for number in parameters if self._old.get(number)}
        reached = {one.backward for contributions in new.values() for one in contributions}
        passes = {number: self._passes[number] for number in sorted(reached) if number in self._passes}
        concerned = set(parameters)
        moments, cut = self._log.moments(begin)
        window = Window(
            rank=self.began.rank,
            optimizer=optimizer,
            key=self._keys[optimizer],
            index=index,
            step=step,
            site=site,
            begin=begin,
            at=self._at,
            new=new,
            old=old,
            used={} if step is None else _sketches(_read(step), step.gradients),
            weights={} if step is None else _weights(step.weights, step.values),
            backwards={number: one.record for number, one in passes.items()},
            clips=self._log.clips(begin, concerned),
            idle=self._log.idle(begin, concerned),
            unscales=self._log.unscales(begin, optimizer),
            schedules=self._log.schedules(begin, optimizer),
            limits=self._log.limits(begin, concerned),
            is_computed=bool(self.ever & concerned),
            captured=self._log.captures(begin, concerned),
            shards={number: self.parameters[number].shards for number in parameters if number in self.parameters},
            shard={number: self.parameters[number].shard for number in parameters if number in self.parameters},
            sizes={number: prod(self.parameters[number].shape) for number in parameters if number in self.parameters},
            names={number: _name(self.parameters[number]) for number in parameters if number in self.parameters},
            moments=moments,
            cut=cut,
            samples={} if step is None else dict(zip(step.used, step.samples, strict=False)),
            clock=self.clock,
            inputs=[one.rows for one in passes.values() if one.rows is not None],
            is_of_other=step is not None and self._is_of_other(optimizer, step),
            of_others={number for number in old if self._is_used_by_other(number, optimizer, begin)},
            is_late=self._is_late(new),
            is_long=not self._overfull.isdisjoint(new),
            reached={number: one.through for number, one in passes.items()},
            users={number: {*one.users} for number, one in passes.items()},
        )
        window.again = self._used_before(window.used)
        for one in passes.values():
            one.is_done = True
            if step is not None:
                one.users.add(optimizer)
        counts = self.skips if step is None else self.steps
        counts[optimizer] = counts.get(optimizer, 0) + 1
        if step is not None:
            self._stepped |= dict.fromkeys(step.used, self._at)
            self.used_ever |= set(step.used)
            if step.used:
                self.unheld_then[optimizer] = self.unheld
            self._user |= dict.fromkeys(step.used, optimizer)
            if step.used and not new:
                self._by_hand = self.clock
            self.last_used |= dict.fromkeys(step.used, counts[optimizer])
            self.stepped_last[optimizer] = frozenset(step.parameters)
            if not self.held[optimizer].issuperset(step.parameters):
                self.held[optimizer] |= set(step.parameters)
                self._hold(optimizer, step.parameters)
            self.frozen = (self.frozen - set(step.parameters)) | set(step.frozen)
            # It stays in `.grad`, as it is, until somebody clears it.
            read = _read(step)
            samples = [which for which in step.samples if which != UNREAD]
            self._keep_old(read, step.gradients, samples, step.dtype)
            self._overfull.difference_update(new)
            for number in new:
                self._pending.pop(number)
        else:
            # GradScaler leaves out a step; what it would have used stays until it is cleared, if only by hand.
            for number in new:
                self._old[number] = [*self._old.get(number, []), *self._pending.pop(number)]
                self._limit(number, self._old[number])
            for one in self._passes.values():
                one.is_done |= one.has_arrived
        self._earlier[optimizer], self._last[optimizer] = begin, self._at
        self._forget()
        return window

    def _used_before(self, used: Mapping[int, Sketch]) -> dict[int, int]:
        """By parameters whose gradient a step has used before, the place of the last such step."""
        found = {}
        for number, sketch in used.items():
            known, key = self._uses[number], sketch.tobytes()
            if key in known and sketch[2]:
                found[number] = known.pop(key)
            known[key] = self._at
            if len(known) > _MOST_USES:
                del known[next(iter(known))]
        return found

    def _left_out(self, optimizer: int) -> list[int]:
        """What would have been stepped: all that other optimizers do not hold alone."""
        held = ((number, self._holders[number]) for number in self._pending)
        return [number for number, holders in held if not holders or str(optimizer) in holders]

    def _is_late(self, new: Mapping[int, list[Contribution]]) -> bool:
        """Whether a parameter was stepped since the forward of one of its backward passes."""
        stepped = {(one.backward, self._stepped.get(number, 0)) for number, found in new.items() for one in found}
        return any(number in self._passes and self._passes[number].forward < at for number, at in stepped)

    def _is_of_other(self, optimizer: int, step: records.Stepped) -> bool:
        users = {self._user.get(number, optimizer) for number in step.used} - {optimizer}
        return any(self.held[user] == {*step.parameters} for user in users)

    def _is_used_by_other(self, number: int, optimizer: int, begin: int) -> bool:
        """Whether all of a gradient that a step of another optimizer has used came since this one's last step."""
        return self._user.get(number, optimizer) != optimizer and self._since.get(number, 0) > begin

    def _pass(self, step: records.Passed) -> None:
        """A window that is not looked at. What it leaves shows when the next one begins."""
        self.steps[step.optimizer] = self.steps.get(step.optimizer, 0) + 1
        for number in self.held.get(step.optimizer, ()):
            self._overfull.discard(number)
            for one in self._pending.pop(number, []):
                if one.backward in self._passes:
                    self._passes[one.backward].is_done = True
                    self._passes[one.backward].users.add(step.optimizer)
            self._old.pop(number, None)
        self._earlier[step.optimizer] = self._last.get(step.optimizer, 0)
        self._last[step.optimizer] = self._at
        self._forget()

    def _forget(self) -> None:
        """What all optimizers that step have behind them, but for the window before: the first one of an optimizer may
        end only after a step of another one, which followed the same clip."""
        self._log.forget(min(self._earlier.values(), default=0))
        for number in [number for number, one in self._passes.items() if one.is_done][:-_MOST_DONE]:
            del self._passes[number]


def _read(step: records.Stepped) -> list[int]:
    """The parameters whose turn it is. Of the others it is only known that they have gradients."""
    samples = step.samples or [WHOLE] * len(step.used)
    return [number for number, which in zip(step.used, samples, strict=True) if which != UNREAD]


def _sketches(numbers: list[int], flat: records.Sketches) -> dict[int, Sketch]:
    return dict(zip(numbers, np.array(flat, dtype=np.float64).reshape(-1, WIDTH), strict=True)) if numbers else {}


def _weights(numbers: list[int], flat: records.Sketches) -> dict[int, tuple[float, ...]]:
    return {number: tuple(value) for number, value in _sketches(numbers, flat).items()}


def _name(parameter: records.Parameter) -> str:
    return parameter.name or f"parameter {parameter.parameter} of shape {tuple(parameter.shape)}"
