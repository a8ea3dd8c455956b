"""Compares the parameters that get gradients with those that optimizers step, and detects clip calls on other
tensors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeAlias

from conformance.watch import records
from conformance.watch.judging.chapter import End, OneRank
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window

_SEVERAL = 2
_OFTEN = 3
_LONG = 3
"""An optimizer stopped if the passes after its last step exceed this many times the most between two steps."""
_WINDOWS = 2


@dataclass
class _Optimizer:
    """The parameters and backward passes of one optimizer.

    made: its initial parameters. at: the line that made it. passes: backward passes with gradients for it since its
    last step. most: the most such passes before a step. last: the last of them. first: the line of its first step.
    unheld: parameters without an optimizer at its last step with gradients.
    sites: the lines of its steps, starting with one before any backward pass; none if the first step has gradients.
    behind: the last pass before which copies were not written back. times: the number of such passes. zeros: how often
    the gradient of a parameter was read as a whole and exactly 0. moved: parameters that had another gradient.
    """

    made: frozenset[int] = frozenset()
    at: records.Site = None
    passes: int = 0
    most: int = 0
    last: int = -1
    first: records.Site = None
    unheld: records.Unheld | None = None
    sites: set[str] = field(default_factory=set)
    behind: records.Behind | None = None
    times: int = 0
    zeros: Counter[int] = field(default_factory=Counter)
    moved: set[int] = field(default_factory=set)


_Named: TypeAlias = tuple[str | None, tuple[int, ...]]
"""A parameter's name and shape."""


class Coverage(OneRank):
    """Judges one process. frozen: parameters that required no gradients in the last steps. copies: the first clip calls
    on parameters without gradients or an optimizer. clipped: all other clipped parameters. cut_off: losses that do not
    depend on a model. site: the line of the last backward pass. has_gradients: whether any step may have had
    gradients."""

    fed = (records.Clipped, records.Backward, records.Captured, records.Stateless)
    followed = (
        records.Optimizer,
        records.Wrapped,
        records.Shared,
        records.Unheld,
        records.Local,
        records.Stepped,
        records.Passed,
        records.Behind,
        records.Stale,
    )

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._of: dict[int, _Optimizer] = defaultdict(_Optimizer)
        self._unheld: records.Unheld | None = None
        self._frozen: set[int] = set()
        self._copies: list[records.Clipped] = []
        self._clipped: set[int] = set()
        self._cut_off = 0
        self._site: records.Site = None
        self._has_gradients = False

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        match record:
            case records.Clipped():
                self._clipped |= {*record.parameters}
                if record.strange and isfinite(record.limit) and len(self._copies) < _OFTEN:
                    self._copies.append(record)
            case records.Backward():
                self._cut_off += record.is_cut_off
                self._site = record.site
            case records.Captured():
                self._has_gradients = True
            case records.Stateless():
                self._findings.leave_open(said("coverage.without-state"), site=record.site)

    def follow(self, rank: int, record: records.Record, stream: Stream) -> None:
        match record:
            case records.Optimizer():
                of = self._of[record.optimizer]
                of.made, of.at = frozenset(record.parameters), record.site
                self._findings.made.setdefault(record.optimizer, record.site)
                self._findings.types.setdefault(record.optimizer, record.type)
            case records.Wrapped():
                self._findings.wrapped.add(record.optimizer)
            case records.Shared():
                self._findings.shared_at.setdefault(record.optimizer, record.site)
            case records.Unheld():
                self._unheld = stream.unheld
            case records.Local():
                for optimizer in stream.through(record.backward):
                    of = self._of[optimizer]
                    of.passes += record.backward != of.last
                    of.last = record.backward
            case records.Stepped() | records.Passed():
                of = self._of[record.optimizer]
                of.most, of.passes = max(of.most, of.passes), 0
            case records.Behind():
                of = self._of[record.optimizer]
                of.behind, of.times = record, of.times + 1
            case records.Stale():
                self._judge_stale(rank, stream, record)

    def see(self, window: Window) -> None:
        of, step = self._of[window.optimizer], window.step
        if step is not None:
            self._findings.steps_at[window.optimizer] = window.site
            is_early = of.first is None and not step.used and not window.is_computed
            of.sites |= {str(window.site)} if is_early or of.sites else set()
            of.first = of.first or window.site
            of.unheld = self._unheld if step.used else of.unheld
            still = [n for n in window.used.keys() | window.new.keys() if n not in of.moved]
            of.moved |= {n for n in still if window.moves(n)}
            # A rank may have an empty shard of a parameter.
            still = [n for n in still if n not in of.moved and n in window.used and n in window.new]
            of.zeros.update(n for n in still if window.is_whole(n) and window.shards.get(n, 1) == 1)
            self._frozen = (self._frozen - {*step.parameters}) | {*step.frozen}
            self._has_gradients |= bool(step.used) or step.moved or step.closure

    def finish_rank(self, rank: int, stream: Stream, end: End) -> None:
        used = set[int]().union(*(one.last_used.keys() for one in end.streams.values()))
        of_others = _held(one for one in end.streams.values() if one is not stream) - _held([stream])
        unheld = _names(stream.unheld, of_others)
        if stream is next(iter(end.streams.values())):
            self._findings.seen[Property.COVERAGE] += _used_of_all(end.streams.values())
        for optimizer in [*stream.held]:
            unheld = self._judge_idle(rank, stream, optimizer, unheld)
            self._judge_replaced(rank, stream, optimizer)
        known = _of_optimizers(stream)
        for optimizer, of in [*self._of.items()]:
            added, steps = stream.added_to_infinite(of.made), stream.steps.get(optimizer, 0)
            if added >= _WINDOWS * max(of.most, 1):
                says, effect = said("infinite-kept", passes=added), said("moves-no-more", steps=steps)
                self._findings.add(Finding("watch/cleared", says, steps, (rank,), self._site, effect, optimizer))
            elif len(of.sites) == 1 and 0 < of.passes == of.most and steps > _SEVERAL and end.is_whole:
                says, effect = said("step-first", steps=steps), said("moves-late", passes=of.passes)
                self._findings.add(Finding("watch/has-gradient", says, 0, (rank,), of.first, effect, optimizer))
            elif of.passes > _LONG * max(of.most, _LONG) and _is_abandoned(stream, optimizer, of, used):
                says = said("coverage.no-more-steps", steps=steps, passes=of.passes)
                self._findings.leave_open(says, of.passes, steps, of.first)
                known |= of.made
        # Of an optimizer that never steps because others step its parameters.
        self._open("coverage.of-no-step", stream, stream.ever - used - known, None)
        if stream.unheld is not None and (unfrozen := stream.unheld.unfrozen):
            self._stays(rank, said("held.unfrozen", count=len(unfrozen), names=unfrozen), self._main(stream))
        if unheld:
            # Other optimizers trained another model before.
            late = [number for number, of in self._of.items() if of.unheld is not None]
            trained = set[int]().union(*(stream.held[number] for number in late or stream.held))
            trained &= stream.last_used.keys()
            says = said("coverage.unheld", count=len(unheld), all=len(unheld) + len(trained), names=unheld)
            self._findings.leave_open(says, len(unheld), site=self._main(stream))
        if end.is_whole:
            self._open_behind(stream)
            self._judge_detached(rank, stream)

    def _main(self, stream: Stream) -> records.Site:
        """The line that made the optimizer with the most steps, which may lack parameters."""
        made = [number for number, of in self._of.items() if of.at is not None]
        return self._of[max(made, key=lambda number: stream.steps.get(number, 0))].at if made else None

    def _stays(
        self, rank: int, says: Said, site: records.Site, step: int | None = None, optimizer: int | None = None
    ) -> None:
        """Reports parameters of the model that no step updates."""
        effect = said("held.stays", count=says.values["count"])
        self._findings.add(Finding("watch/held", says, step, (rank,), site, effect, optimizer))

    def _judge_stale(self, rank: int, stream: Stream, stale: records.Stale) -> None:
        """Reports gradients at old weights: FSDP2 does not gather again while the gathered parameters still exist."""
        says, effect = said("held.stale", count=len(stale.parameters)), said("held.old", steps=stale.steps)
        step = max(stream.steps.values(), default=0)
        self._findings.add(Finding("watch/held", says, step, (rank,), stale.site, effect))

    def _open_behind(self, stream: Stream) -> None:
        """Leaves open copies of parameters that are stepped but not written back before any pass, up to the last one: a
        model may stay at its first weights on purpose, as in linearized fine-tuning."""
        for optimizer, of in self._of.items():
            if of.behind is not None and of.times >= _OFTEN and of.behind.steps >= stream.steps[optimizer] - 1:
                names = [stream.parameters[number].name or f"parameter {number}" for number in of.behind.parameters]
                says = said("coverage.copies", count=len(names), names=names)
                self._findings.leave_open(says, len(names), site=of.first)

    def _judge_replaced(self, rank: int, stream: Stream, optimizer: int) -> None:
        """Reports an optimizer whose parameters get no gradients while equal numbers of the same shapes, in no
        optimizer, do: all its parameters from some step on, or some of them in every step. Parameters that already got
        gradients before, such as those of a teacher without detach, are no replacement."""
        held, steps = stream.held[optimizer] - self._frozen, stream.steps.get(optimizer, 0)
        computed = stream.ever - stream.last_used.keys()
        idle = {n for n in held - computed if steps - stream.last_used.get(n, 0) >= _SEVERAL}
        last = max((stream.last_used.get(number, 0) for number in idle), default=0)
        shapes = Counter(tuple(stream.parameters[number].shape) for number in idle)
        others = _shapes(stream.unheld) - (_shapes(self._of[optimizer].unheld) if last else Counter())
        # An optimizer may be kept only for its schedule: a scalar parameter that it steps can match a bias by chance.
        are_replaced = idle == held and not shapes - others if last else shapes == others
        is_told = ("watch/held", str(self._of[optimizer].at)) in self._findings.causes
        if stream.unheld is not None and shapes and are_replaced and not is_told:
            says = said("held.replaced", count=len(idle), steps=steps - last, names=stream.unheld.names)
            self._stays(rank, says, self._of[optimizer].first, last or None, optimizer)

    def _judge_idle(self, rank: int, stream: Stream, optimizer: int, unheld: list[str]) -> list[str]:
        """Leaves open parameters of an optimizer that have no gradients at its steps. unheld: the names of those with
        gradients that are in no optimizer; returns those that remain to be told. Where no model that ran has the idle
        ones, these have taken their place: a violation if they did so in the same modules."""
        held = stream.held[optimizer]
        unused = held - self._frozen - stream.last_used.keys()
        # Gradients that were gathered, or copied to other tensors, may be used there.
        elsewhere = {n for n in unused & stream.ever if unused == held or stream.parameters[n].shards != 1}
        idle = unused - stream.ever
        if stream.unheld is not None:
            pairs = zip(stream.unheld.replacing, stream.unheld.replaced, strict=True)
            new = {name: number for name, number in pairs if number in idle and name in unheld}
            if new:
                says = said("coverage.outdated", count=len(new), names=[*new], idle=len(new))
                self._stays(rank, says, self._of[optimizer].at, optimizer=optimizer)
                unheld, idle = [name for name in unheld if name not in new], idle - {*new.values()}
        is_outdated = bool(idle and unheld) and all(stream.parameters[number].name is None for number in idle)
        if is_outdated:
            says = said("coverage.outdated", count=len(unheld), names=unheld, idle=len(idle))
            self._findings.leave_open(says, len(unheld), site=self._of[optimizer].at)
        else:
            self._open("coverage.no-gradient", stream, idle, optimizer)
        self._open("coverage.left-out", stream, unused & stream.ever - elsewhere, optimizer)
        of = self._of[optimizer]
        zeros = {number for number, times in of.zeros.items() if times >= _OFTEN and number not in of.moved}
        # Gradients of a bias are a sum over samples, which may cancel.
        zeros = zeros if any(len(stream.parameters[number].shape) > 1 for number in zeros) else set()
        self._open("coverage.zero-gradient", stream, zeros, optimizer, min((of.zeros[one] for one in zeros), default=0))
        return [] if is_outdated else unheld

    def _open(self, code: str, stream: Stream, some: Set[int], optimizer: int | None, step: int | None = None) -> None:
        if some:
            names = [stream.parameters[number].name or f"parameter {number}" for number in sorted(some)]
            every = stream.parameters if optimizer is None else stream.held[optimizer]
            site = self._main(stream) if optimizer is None else self._of[optimizer].at
            self._findings.leave_open(
                said(code, count=len(some), all=len(every), names=names, step=step), len(some), step, site
            )

    def _judge_detached(self, rank: int, stream: Stream) -> None:
        for optimizer in stream.steps:
            self._judge_clips(rank, stream, optimizer)
        steps = sum(stream.steps.values())
        if self._cut_off == stream.clock >= _OFTEN and not self._has_gradients and steps >= _OFTEN:
            says, effect = said("from-the-model.cut-off", passes=stream.clock), said("from-the-model.idle", steps=steps)
            self._findings.add(Finding("watch/from-the-model", says, 0, (rank,), self._site, effect))

    def _judge_clips(self, rank: int, stream: Stream, optimizer: int) -> None:
        """Reports clipping of tensors that never have gradients but the shapes of the optimizer's parameters, while
        nothing clips these. Correct scripts have no such call: the parameters of a teacher require no gradients."""
        held = stream.held[optimizer]
        shapes = Counter(tuple(stream.parameters[number].shape) for number in held)
        alike = [one for one in self._copies if Counter(map(tuple, one.strange)) == shapes]
        if len(alike) >= _OFTEN and not held & self._clipped and held & stream.last_used.keys():
            says = said("clip-something.copies", count=len(held))
            effect = said("clip-something.nothing", limit=alike[0].limit)
            law, site = "watch/clip-something", alike[0].site
            self._findings.add(Finding(law, says, 0, (rank,), site, effect, optimizer))


def _used_of_all(streams: Iterable[Stream]) -> int:
    """The number of parameters that optimizers stepped with a gradient, each once for all ranks."""
    some = [(one.parameters, number) for one in streams for number in _of_optimizers(one) & one.last_used.keys()]
    return len({(of[number].name or number, *of[number].shape) for of, number in some})


def _of_optimizers(stream: Stream) -> set[int]:
    return set[int]().union(*stream.held.values())


def _held(streams: Iterable[Stream]) -> set[_Named]:
    """The parameters of these ranks' optimizers."""
    held = [(one.parameters[number] for number in _of_optimizers(one)) for one in streams]
    return {(one.name, tuple(one.shape)) for of_rank in held for one in of_rank}


def _names(unheld: records.Unheld | None, of_others: Set[_Named]) -> list[str]:
    """Parameters without an optimizer on any rank. of_others: stepped only by other ranks."""
    named = () if unheld is None else zip(unheld.names, map(tuple, unheld.shapes), strict=True)
    return [name for name, shape in named if (name, shape) not in of_others]


def _is_abandoned(stream: Stream, optimizer: int, of: _Optimizer, used: Set[int]) -> bool:
    """Whether no other optimizer stepped its parameters since; on no rank at all if it never stepped itself."""
    if stream.steps.get(optimizer):
        return stream.is_last_user(optimizer)
    return bool((of.made & stream.ever) - used - _of_optimizers(stream))


def _shapes(unheld: records.Unheld | None) -> Counter[tuple[int, ...]]:
    return Counter() if unheld is None else Counter(tuple(shape) for shape in unheld.shapes)
