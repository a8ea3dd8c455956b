"""What shows when a process has ended: steps that never came, came too soon, or could do nothing any more."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Cleared, Window

_SEVERAL = 2
_MANY = 10
"""Backward passes. Whoever looks at gradients after a training does so more rarely, or in another line."""
_WINDOWS = 3
"""A window may be longer than another one. It is not so much longer."""


@dataclass
class _Optimizer:
    """without: how many steps found no gradients. is_first: whether the very first one was among them. first: where the
    first step was made. sites: of all. length: the most backward
    passes of a window. calls: those that their losses came from. early: how many steps came between a forward and the
    backward pass after it. clock: how many backward passes there were before the last step. schedules: how often its
    schedule went on after a backward pass. zero: how many steps used gradients that are zero, and were computed
    so; other: all others. stuck: how many steps were skipped, one after the other, on gradients that were finite, added
    to some that were not; most: the most of these. skipped: where."""

    is_first: bool = False
    first: records.Site = None
    without: int = 0
    sites: set[str] = field(default_factory=set)
    length: int = 0
    calls: set[int] = field(default_factory=set)
    early: int = 0
    clock: int = 0
    schedules: int = 0
    zero: int = 0
    other: int = 0
    stuck: int = 0
    skipped: records.Site = None
    most: int = 0


class Ends:
    """Of one process. lost: the first backward pass whose gradients were cleared, though no step had used them.
    changes: whether others saw other weights. by_hand: whether any was cleared by hand. counted: the optimizers
    whose schedule went on since the last backward pass; before the first, all: a schedule may be gone through to draw a
    picture of it."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[int, _Optimizer] = defaultdict(_Optimizer)
        self._lost: Cleared | None = None
        self._count = 0
        self._changes = False
        self._by_hand = False
        self._counted: set[int] = set()
        self._has_computed = False
        self._is_sampled = False

    def feed(self, record: records.Record) -> None:
        match record:
            case records.Backward():
                self._has_computed = True
                self._counted.clear()
            case records.Scheduled() if self._has_computed and record.optimizer not in self._counted:
                self._of[record.optimizer].schedules += 1
                self._counted.add(record.optimizer)
            case records.Passed():
                self._is_sampled = True

    def take(self, found: Window | Cleared) -> None:
        if isinstance(found, Cleared):
            self._lost, self._count = self._lost or found, self._count + 1
            self._changes |= found.backward.versions != self._lost.backward.versions
            self._by_hand |= found.site is None
        elif found.step is None:
            of = self._of[found.optimizer]
            # What was cleared by hand is not known to be until the next step. What this window computed shows.
            is_left = not all(one.is_finite for several in found.old.values() for one in several)
            is_computed = not all(one.is_finite for several in found.new.values() for one in several)
            of.stuck = of.stuck + 1 if is_left and not is_computed else 0
            of.most, of.skipped = max(of.most, of.stuck), of.skipped or found.site
        else:
            of = self._of[found.optimizer]
            of.stuck = 0
            of.is_first |= found.index == 0 and not found.step.used
            of.first = of.first or found.site
            of.without += not found.step.used
            of.sites.add(str(found.site))
            of.length = max(of.length, len(found.backwards))
            of.calls |= {one.calls for one in found.backwards.values()}
            of.early += _is_early(found)
            of.clock = found.clock
            computed = [one.sketch[..., 2].any() for every in found.new.values() for one in every]
            is_zero = bool(computed) and not any(computed) and not any(sketch[2] for sketch in found.used.values())
            of.zero += is_zero
            of.other += not is_zero or any(shards != 1 for shards in found.shards.values())

    def finish(self, rank: int, stream: Stream) -> None:
        if self._is_sampled:
            return
        self._judge_never(rank, stream)
        for optimizer, of in self._of.items():
            if of.zero > _SEVERAL and not of.other:
                # Rewards that never come make such gradients, too.
                self._findings.undecided("all gradients of an optimizer are zero in all steps", of.zero)
            if of.most >= _WINDOWS and stream.steps.get(optimizer):
                says = f"gradients that are not finite were never cleared: {of.most} steps were skipped since"
                effect = f"{stream.skips[optimizer]} steps are in no update"
                self._findings.add(Finding("watch/cleared", says, 0, (rank,), of.skipped, effect, optimizer))
            elif of.length:
                self._judge_before(rank, stream, optimizer, of)
                self._judge_infinite(rank, stream, optimizer, of)
                self._judge_left(stream, optimizer, of)

    def _judge_never(self, rank: int, stream: Stream) -> None:
        """Gradients may be computed for their own sake, as for a Fisher information, also of one checkpoint after the
        other. A schedule that goes on between the backward passes of one model is one of a training, whose steps are
        missing, unless the script steps by hand. Then it clears by hand, too, or weights are seen to change."""
        schedules = [(count.schedules, optimizer) for optimizer, count in self._of.items()]
        most, optimizer = max(schedules, default=(0, 0))
        if stream.steps or stream.skips or most < _SEVERAL or self._count < _SEVERAL or self._lost is None:
            return
        if self._changes or self._by_hand:
            return
        # Of what is cleared at first, it is not known yet whether weights have moved by hand before.
        known = stream.clock - self._lost.backward.backward + 1
        if known > self._count + len(stream.pending(stream.ever)):
            return
        site = self._lost.site or self._lost.backward.site
        says = f"the optimizer never takes a step, and its schedule goes on {most} times"
        effect = f"the gradients of {stream.clock} backward passes are in no update"
        self._findings.add(Finding("watch/used", says, 0, (rank,), site, effect, optimizer))

    def _judge_left(self, stream: Stream, optimizer: int, of: _Optimizer) -> None:
        """Were many more backward passes gone through after the last step of all than windows have?"""
        last = max(other.clock for other in self._of.values())
        left = [number for number in stream.pending(stream.held[optimizer]) if number > last]
        if len(left) > max(_MANY, _WINDOWS * of.length) and stream.calls(left) <= of.calls:
            self._findings.undecided(f"the gradients of the last {len(left)} backward passes reach no step")

    def _judge_before(self, rank: int, stream: Stream, optimizer: int, of: _Optimizer) -> None:
        """Does each step come before the backward pass of its window? Then the first has no gradients, and those of the
        last window are left over.

        A first step may be made for the sake of an optimizer's state, or before there are data, and what is left at
        the end may be less than a window, or be looked at. Only a step that comes too soon is taken between a forward
        and its backward pass."""
        pending = stream.pending(stream.held[optimizer])
        left = len(pending)
        begins_without = of.is_first and of.without == 1
        is_early = of.early >= stream.steps[optimizer] - 1 and stream.calls(pending) <= of.calls
        if (
            begins_without
            and is_early
            and len(of.sites) == 1
            and left >= of.length
            and stream.steps[optimizer] > _SEVERAL
        ):
            says = f"the first step has no gradients, and those of the last {left} backward passes reach none"
            effect = f"{stream.steps[optimizer] - 1} of {stream.steps[optimizer]} steps change the weights"
            self._findings.add(Finding("watch/used", says, 0, (rank,), of.first, effect, optimizer))

    def _judge_infinite(self, rank: int, stream: Stream, optimizer: int, of: _Optimizer) -> None:
        """Was a gradient that is not finite never cleared? Whatever is added to it, it is no step's any more.

        Nobody minds what is in `.grad` of a model that is not trained any more, but asked for the gradients of its
        inputs, or gone through on the way to those of another one: by losses of other lines, or for other steps."""
        pending = stream.pending(stream.held[optimizer])
        infinite = max((number for number, is_finite in pending.items() if not is_finite), default=None)
        if infinite is None or any(other.clock >= infinite for other in self._of.values()):
            return
        finite = sum(number > infinite for number in pending)
        if finite >= _WINDOWS * of.length and stream.calls(pending) <= of.calls:
            says = f"gradients that are not finite were never cleared: {finite} backward passes were added to them"
            effect = f"there is no step after step {stream.steps[optimizer] - 1} any more"
            step = stream.steps[optimizer]
            self._findings.add(Finding("watch/cleared", says, step, (rank,), of.first, effect, optimizer))


def _is_early(window: Window) -> bool:
    """Whether a model goes forward between the last backward pass and the step."""
    calls = [one for one in window.moments if isinstance(one, (records.Entered, records.Backward))]
    return bool(calls) and isinstance(calls[-1], records.Entered)
