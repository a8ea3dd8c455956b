"""Joins the windows of all ranks of a launch while their records come in, and hands them to the rules."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from conformance.trace.assembler import Assembler
from conformance.watch import records
from conformance.watch.judging import agreement, conservation, pairing, solver
from conformance.watch.judging.backward_passes import Passes
from conformance.watch.judging.between import Between
from conformance.watch.judging.chapter import Chapter, End, Kinds, OfEachRank
from conformance.watch.judging.clearing import Discarded, OtherPasses
from conformance.watch.judging.clipping import Clipping
from conformance.watch.judging.coverage import Coverage
from conformance.watch.judging.denominators import Losses
from conformance.watch.judging.epochs import Epochs
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Findings, Said, Shown, laws_of, said
from conformance.watch.judging.history import MOST_HISTORIES, History
from conformance.watch.judging.incoming import Hooked, Numbering
from conformance.watch.judging.loss_scale import Finite, LossScale
from conformance.watch.judging.many_steps import Steady
from conformance.watch.judging.pairing import Lacking, Pairing
from conformance.watch.judging.properties import EXPLAINED, FACTS
from conformance.watch.judging.replicas import Models
from conformance.watch.judging.same_samples import Samples
from conformance.watch.judging.schedules import Schedules
from conformance.watch.judging.stages import Stages
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.system import System
from conformance.watch.judging.windows import Key, Scene, Window, summed

_Take: TypeAlias = Callable[[int, records.Record, Stream], None]

_AHEAD = 256
"""Windows that a rank may be ahead of the others before its records must wait."""

_MOST_TAKEN = 16
"""A window with more backward passes leaves none out."""

_KNOWN = {frozenset[Shown](), frozenset([FACTS["ranks.sum"]])}
"""What correct steps show: nothing unusual, or a sum."""


class Launch:
    """Processes that train together."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self.ranks = ranks
        self.findings = findings
        self.streams: dict[int, Stream] = {}
        self._assembler: Assembler[records.Record, Window, tuple[Key, int]] = Assembler(ranks, _place, self._lacks)
        self._numbering, self._hooked = Numbering(), defaultdict[int, Hooked](Hooked)
        self._pairing, self._lacking = Pairing(ranks), Lacking(findings)
        self._models = Models(ranks, self.streams, findings)
        self._steady = Steady(findings)
        self._unsolved: dict[tuple[int, int, tuple[int, ...]], System] = {}
        self._stages = Stages(ranks, findings)
        self._clipping, self._discarded = Clipping(findings, self._steady), Discarded(findings)
        self._losses = Losses(findings, self._steady)
        self._epochs = Epochs(ranks, findings)
        # In this order: later chapters use the findings of earlier ones.
        self._chapters: Sequence[Chapter] = (
            self._discarded,
            Samples(ranks, findings),
            self._epochs,
            self._losses,
            LossScale(findings),
            OtherPasses(findings),
            Between(findings),
            Finite(findings),
            Passes(findings),
            OfEachRank(findings, Coverage),
            OfEachRank(findings, Schedules),
        )
        self._feed_to = _by_kind((one.fed, one.feed) for one in (self._models, *self._chapters, self._clipping))
        self._follow_to = _by_kind((one.followed, one.follow) for one in self._chapters)
        self._is_joined = False
        self._blind: set[int] = set()
        self._buffers = defaultdict[tuple[str, ...], dict[int, deque[records.Buffers]]](lambda: defaultdict(deque))
        self._histories: dict[Key, History] = {}
        self._some: dict[Key, Window] = {}

    def begin(self, rank: int, stream: Stream) -> None:
        self.streams[rank] = self._assembler.cuts[rank] = stream

    def feed(self, rank: int, record: records.Record) -> None:
        # With a part of the recorder off, incomplete windows would look like bugs of the script.
        if rank in self._blind and not isinstance(record, records.Failed):
            return
        for translated in self._numbering.translated(rank, record):
            for ordered in self._hooked[rank].feed(translated):
                self._feed(rank, ordered)

    def _feed(self, rank: int, record: records.Record) -> None:
        stream = self.streams[rank]
        match record:
            case records.Joined():
                self._is_joined = True
            case records.Rejoined():
                self._assembler.look_again()
            case records.Failed():
                if record.observer:
                    self.findings.lack(said("recorder-failed", observer=record.observer, error=record.error))
                elif rank not in self._blind:
                    self.findings.lack(said("recorder-ended", reason=record.error))
                self.blind(rank)
            case records.Buffers():
                # The n-th of these models on each rank.
                of_model = self._buffers[tuple(record.names)]
                of_model[rank].append(record)
                if len(of_model) == self.ranks > 1 and all(of_model.values()):
                    by_rank = {of: noted.popleft() for of, noted in of_model.items()}
                    agreement.judge_buffers(by_rank, self.findings)
            case records.Weighed():
                self._pairing.weigh(rank, stream.clock, record)
            case records.Source():
                self.findings.sources[record.file, record.line] = record.path, record.text
            case records.Ended():
                self._close(rank)
        for feed in self._feed_to[type(record)]:
            feed(rank, record, stream)
        self._see(self._assembler.feed(rank, (record,)))
        for follow in self._follow_to[type(record)]:
            follow(rank, record, stream)
        self._join()

    def _see(self, windows: Iterable[Window]) -> None:
        for window in windows:
            for chapter in (*self._chapters, self._clipping):
                chapter.see(window)

    def _close(self, rank: int) -> None:
        for record in self._hooked[rank].flush():
            self._feed(rank, record)
        self._see(self._assembler.end(rank))

    def blind(self, rank: int) -> None:
        """Ignores the rest of a rank that still runs."""
        self._blind.add(rank)
        self._close(rank)

    def end(self, rank: int) -> bool:
        """Ends the stream of a rank. Returns False if it had ended before."""
        if rank in self._assembler.over:
            return False
        self._close(rank)
        self._join()
        return True

    def is_ahead(self, rank: int) -> bool:
        """Whether the rank must wait because the others are too far behind."""
        return self._assembler.ahead(rank) > _AHEAD

    @property
    def accuses(self) -> bool:
        """Whether it would report a violation if the script ended now."""
        return bool(self.findings.causes) or self._steady.accuses or any(chapter.accuses for chapter in self._chapters)

    def finish(self, *, is_whole: bool) -> None:
        """Judges the whole run. is_whole: all processes ended by themselves, without an error."""
        for rank in range(self.ranks):
            self.end(rank)
        common, findings = self._models.common, self.findings
        self._lacking.decide(self.streams, self._pairing, common, is_whole=is_whole, is_blind=bool(self._blind))
        self._models.finish(self._pairing, is_sampled=self._epochs.is_sampled)
        for window in self._some.values() if is_whole else ():
            self._models.finish_own(window, self._pairing)
        # Ranks that compute one model together read the same samples.
        averages = self._models.averages and not self._models.is_split
        end = End(self.streams, is_whole and not self._blind, averages)
        for chapter in self._chapters:
            chapter.finish(end)
        for joined in self._stages.finish():
            self._clipping.take(joined)
        self._clipping.finish(end)
        self._steady.finish()
        for rank, optimizer, _ in self._unsolved:
            findings.leave_open(said("changed.few"))
            findings.resolve((optimizer, rank), FACTS["changed.few"])
        self._discarded.name_lines()
        self._state_facts()

    def _state_facts(self) -> None:
        """Leaves open facts about the whole run."""
        findings, ranks, groups = self.findings, self.ranks, self._models.groups
        started = max((stream.began.started for stream in self.streams.values()), default=1)
        if started > ranks == 1 and any(stream.steps for stream in self.streams.values()):
            findings.leave_open(said("ranks.no-group", started=started))
        whys = laws_of(findings.causes.values()) | {cause.first.says.code for cause in findings.causes.values()}
        for code in [code for code in findings.open if EXPLAINED.get(code, frozenset()) & whys]:
            del findings.open[code]
        if findings.idle["idle.coarse"] > findings.steps:
            findings.leave_open(said("changed.coarse"), findings.idle["idle.coarse"])
        if groups - {ranks} and ranks > 1:
            findings.leave_open(said("ranks.groups", size=min(groups), ranks=ranks))

    def _lacks(self, rank: int, window: Window) -> bool:
        """Whether a rank that came this far has no such optimizer, or no more data for it."""
        stream = self.streams[rank]
        return stream.era > window.era or (not stream.has(window.key) and stream.clock > window.clock)

    def _join(self) -> None:
        for (key, _), windows in self._assembler.joined():
            self._judge(key, summed(windows))

    def _judge(self, key: Key, windows: Sequence[Window | None]) -> None:
        here = [window for window in windows if window is not None]
        holders = [rank for rank, stream in self.streams.items() if stream.has(key)]
        self._lacking.see(here, self.ranks)
        if (says := self._unjudgeable(here, holders)) is not None:
            self._leave_open(here, says, self.ranks)
        elif len(holders) < self.ranks:
            self._judge_some(key, here, len(holders))
        elif len(here) < self.ranks and not self._is_joined:
            others = tuple(rank for rank, window in enumerate(windows) if window is None)
            self._lacking.take(here, said("some-step", stepping=len(here), ranks=self.ranks), others)
        else:
            self._judge_all(key, windows, here)

    def _unjudgeable(self, here: Sequence[Window], holders: Sequence[int]) -> Said | None:
        if len(self.streams) < self.ranks:
            return said("ranks.missing", seen=len(self.streams), ranks=self.ranks)
        if not pairing.are_numbered_alike(here, [self.streams[rank] for rank in holders]):
            return said("ranks.order")
        return said("changed.long") if any(window.is_long for window in here) else None

    def _leave_open(self, here: Sequence[Window], says: Said, of_ranks: int = 1) -> None:
        # A step of some ranks counts as one of all.
        count = sum(window.step is not None for window in here) * of_ranks // len(here)
        self.findings.judged(FACTS[says.code], count=count)
        self.findings.leave_open(says, count, here[0].index, here[0].site)

    def _judge_some(self, key: Key, here: list[Window], holders: int) -> None:
        """Judges a step of an optimizer that only some ranks have, such as that of a pipeline stage."""
        self._some.setdefault(key, here[0])
        self.findings.has_parts = True
        own = Findings()
        together = Together(here, holders, self._is_joined, frozenset(self._models.hooks))
        conservation.judge(together, own)
        is_right = own.conserved == own.steps and not own.causes
        if is_right:
            self._losses.judge_right(together)
        if is_right and holders > 1:
            self._clipping.take(together)
            self._remember(key, together, is_good=True)
            self.findings.take(own)
            return
        for window in here:
            if self._models.are_inside(window) and not is_right:
                self._leave_open([window], said("ranks.holders", type=key.type))
                continue
            for joined in self._stages.take(window, (together, own) if is_right else None):
                self._clipping.take(joined)

    def _judge_all(self, key: Key, windows: Sequence[Window | None], here: list[Window]) -> None:
        self._models.see(here)
        if any(window.step is not None and window.step.is_elsewhere for window in here):
            self.findings.leave_open(said("agreement.between"), step=here[0].index)
        together, own = self._conserved(windows)
        left_out = None
        if not _is_right(own):
            others = [(*self._conserved(of_ranks), place) for of_ranks, place in _with_taken(windows)]
            fitting = [found for found in others if _is_right(found[1])]
            fitting += [found for found in others[:1] if _explains(found[1], own)]
            together, own, left_out = next(iter(fitting), (together, own, None))
        here = together.here
        if left_out is not None:
            table = ["0" if place == left_out else "1" for place in range(len(here[0].backwards) + 1)]
            says = said("clearing.restored", table=", ".join(table))
            self.findings.leave_open(says, len(here), here[0].index, here[0].site)
        agreement.judge(together, own)
        laws = laws_of(own.causes.values())
        is_conserved = 0 < own.steps == own.conserved or "watch/cleared" in laws
        if not self._is_joined and not self._pairing.is_one_step(here, is_conserved=is_conserved):
            self._lacking.take(here, pairing.times(here), tuple(window.rank for window in here))
            return
        self._models[here[0].optimizer].steps += 1
        self._lacking.common[here[0].optimizer] |= {str(window.site) for window in here}
        self._discarded.sort(here, is_known=own.conserved == own.steps and left_out is None)
        if _is_right(own):
            self._judge_right(together)
        elif "watch/same-weights" in laws and agreement.use_the_same(here):
            # Ranks with different weights compute different gradients; equal ones must have been averaged.
            self._models[here[0].optimizer].right += 1
        elif own.conserved < own.steps and not any(cause.first.waits for cause in own.causes.values()):
            self._models[here[0].optimizer].is_unclear = True
        for chapter in (*self._chapters, self._clipping):
            chapter.judge(together)
        self._clipping.take(together)
        broken = [cause for window in here for cause in window.broken]
        for cause in broken:
            self.findings.show(cause, here)
        self._remember(key, together, is_good=0 < own.steps == own.conserved and not own.causes and not broken)
        self._take(own, here)

    def _conserved(self, windows: Sequence[Window | None]) -> tuple[Together, Findings]:
        """Judges whether a step used the gradients in these windows."""
        here, own = [window for window in windows if window is not None], Findings()
        parts, hooks = self._models.partitioned(here), frozenset(self._models.hooks)
        self.findings.has_parts |= bool(parts)
        together = Together(windows, self.ranks, self._is_joined, hooks, parts, self._models.holders)
        conservation.judge(together, own)
        return together, own

    def _judge_right(self, together: Together) -> None:
        """Judges a step that used the computed gradients and nothing else."""
        here = together.here
        if self.ranks > 1:
            self._models[here[0].optimizer].right += 1
        for chapter in self._chapters:
            chapter.judge_right(together)

    def _remember(self, key: Key, together: Together, *, is_good: bool) -> None:
        """Keeps the step for the curves of the report."""
        here = together.here
        if key not in self._histories:
            if len(self.findings.histories) == MOST_HISTORIES:
                return
            self._histories[key] = History(key.type)
            self.findings.histories.append(self._histories[key])
        history = self._histories[key]
        kappas = together.kappas.get(here[0].rank, [])
        history.add(together, kappas[0] if len({*kappas}) == 1 else None)
        if is_good and history.good is None:
            history.good = Scene.seen(here)

    def _take(self, own: Findings, here: list[Window]) -> None:
        """Adds the findings of one step. Those that depend on later weights wait."""
        self.findings.stepped[here[0].optimizer] += 1
        solved = [found for system in own.unsolved if (found := self._solve(system, own)) is not None]
        self.findings.take(own)
        for waiting, shows in solved:
            self.findings.resolve(waiting, next(iter(shows), None))
        self._steady.feed(own.factors, here)
        self._models.take([*own.causes.values()], here)

    def _solve(self, system: System, own: Findings) -> tuple[tuple[int, int], set[Shown]] | None:
        """Solves several steps together where one has too few equations, as a script treats all windows alike. Returns
        the optimizer and rank of the explained steps, and what these show."""
        window = system.case.window
        at = window.rank, window.optimizer, tuple(system.case.parameters)
        if at in self._unsolved:
            system = system.after(self._unsolved[at])
        if not system.is_enough:
            self._unsolved[at] = system
            return None
        self._unsolved.pop(at, None)
        return (window.optimizer, window.rank), solver.solve(system, own)


def _place(window: Window) -> tuple[Key, int]:
    """Equal for windows of the ranks that may belong together."""
    return window.key, window.era


def _with_taken(windows: Sequence[Window | None]) -> Iterator[tuple[Sequence[Window | None], int | None]]:
    """The same windows with the gradients that were cleared in them, if there are any, of all backward passes or of all
    but one: the script may have added them up elsewhere. Also the place of this one."""
    if not any(window is not None and window.with_taken is not None for window in windows):
        return
    taken = [one and (one.with_taken or one) for one in windows]
    yield taken, None
    passes = min(len(one.backwards) for one in taken if one is not None)
    for place in range(passes if 1 < passes <= _MOST_TAKEN else 0):
        yield [one and one.without(place) for one in taken], place


def _by_kind(takes: Iterable[tuple[Kinds, _Take]]) -> Mapping[type[records.Record], list[_Take]]:
    """By the kind of a record, what takes it."""
    found = defaultdict[type[records.Record], list[_Take]](list)
    for kinds, take in takes:
        for kind in kinds:
            found[kind].append(take)
    return found


def _explains(own: Findings, other: Findings) -> bool:
    """Whether the first findings say which gradients a step used, and the others do not."""
    are_changed = [any(code.startswith("changed") for code in of.open) or bool(of.unsolved) for of in (own, other)]
    return are_changed == [False, True] and not own.causes and own.steps > 0


def _is_right(own: Findings) -> bool:
    """Whether a step used the computed gradients and nothing else."""
    return bool(own.outcomes) and own.outcomes.keys() <= _KNOWN and not own.causes
