"""Joins the windows of all ranks of a launch while they come in, and has each looked at."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from conformance.trace.assembler import Assembler
from conformance.watch import records
from conformance.watch.judging import (
    agreement,
    conservation,
    coverage,
    diagnosis,
    pairing,
    unsent,
)
from conformance.watch.judging.abandoned import Abandoned
from conformance.watch.judging.astray import Astray
from conformance.watch.judging.between import Between
from conformance.watch.judging.case import Together
from conformance.watch.judging.clipped_aside import ClippedAside
from conformance.watch.judging.counted import Counted
from conformance.watch.judging.dealt import Dealt
from conformance.watch.judging.ends import Ends
from conformance.watch.judging.epochs import Epochs
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.history import MOST_HISTORIES, History
from conformance.watch.judging.inputs import Inputs
from conformance.watch.judging.joined import Joined
from conformance.watch.judging.kept import Kept
from conformance.watch.judging.lacking import Lacking
from conformance.watch.judging.leftovers import Leftovers
from conformance.watch.judging.loss_scale import LossScale
from conformance.watch.judging.losses import Losses
from conformance.watch.judging.lost import Lost
from conformance.watch.judging.modes import Modes
from conformance.watch.judging.numbering import Numbering
from conformance.watch.judging.order import Order
from conformance.watch.judging.owners import Owners
from conformance.watch.judging.pairing import Pairing
from conformance.watch.judging.same_inputs import SameInputs
from conformance.watch.judging.scenes import Scene
from conformance.watch.judging.schedules import Schedules
from conformance.watch.judging.steady import Steady
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.suspicions import Suspicions
from conformance.watch.judging.system import System
from conformance.watch.judging.windows import Key, Window

_AHEAD = 256
"""A rank may be so many windows ahead of the others before the judge lets it wait."""

_LONG = "a step uses the gradients of more backward passes than are kept"

_BETWEEN = "the script changes weights between steps, as a limit of their size does, or an average that is taken over: "
_BETWEEN += "one that was only evaluated is to be given back"


class Launch:
    """Processes that train together."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self.ranks = ranks
        self.findings = findings
        self.streams: dict[int, Stream] = {}
        self._assembler: Assembler[records.Record, Window, Key] = Assembler(ranks, attrgetter("key"))
        self._unsolved: dict[tuple[int, int, tuple[int, ...]], System] = {}
        self._inputs, self._epochs = Inputs(ranks, findings), Epochs(ranks, findings)
        self._steady, self._solved = Steady(findings), Steady(findings)
        self._losses, self._counted = Losses(findings, self._steady), Counted(findings)
        self._schedules, self._loss_scale = Schedules(findings), LossScale(findings)
        self._between, self._order = Between(findings), Order(findings)
        self._modes, self._leftovers = Modes(findings), Leftovers(findings)
        self._same = SameInputs(findings)
        self._pairing, self._suspicions = Pairing(ranks), Suspicions(ranks, self.streams, findings)
        self._numbering = Numbering()
        self._is_joined = False
        self._first: Window | None = None
        self._lost = Lost(findings)
        self._kept, self._joined = Kept(ranks, findings), Joined(findings)
        self._ends: dict[int, Ends] = defaultdict(lambda: Ends(findings))
        self._astray: dict[int, Astray] = defaultdict(lambda: Astray(findings))
        self._abandoned: dict[int, Abandoned] = defaultdict(lambda: Abandoned(findings))
        self._aside: dict[int, ClippedAside] = defaultdict(lambda: ClippedAside(findings))
        self._dealt, self._owners = Dealt(ranks, findings), Owners(findings)
        self._lacking = Lacking(findings)
        self._blind: set[int] = set()
        self._buffers: dict[int, dict[int, records.Buffers]] = defaultdict(dict)
        self._histories: dict[Key, History] = {}

    def begin(self, rank: int, stream: Stream) -> None:
        self.streams[rank] = self._assembler.cuts[rank] = stream

    def feed(self, rank: int, record: records.Record) -> None:
        # What a recorder of which a part is off has left of a window would look like a mistake of the script.
        if rank in self._blind and not isinstance(record, records.Failed):
            return
        for translated in self._numbering.translated(rank, record):
            self._feed(rank, translated)

    def _feed(self, rank: int, record: records.Record) -> None:
        match record:
            case records.Joined():
                self._is_joined = True
            case records.Stale():
                coverage.judge_stale(rank, self.streams[rank], record, self.findings)
            case records.Failed():
                if record.observer:
                    self.findings.undecided(f"a part of the recorder failed: {record.observer}: {record.error}")
                elif rank not in self._blind:
                    self.findings.undecided(record.error)
                self.blind(rank)
            case records.Buffers():
                of_step = self._buffers[record.optimizer]
                of_step[rank] = record
                if len(of_step) == self.ranks > 1:
                    agreement.judge_buffers(of_step, self.findings)
            case records.Weighed():
                self._pairing.weigh(rank, self.streams[rank].clock, record)
                self._owners.weigh(rank, record)
            case records.Source():
                self.findings.sources[record.file, record.line] = record.path, record.text
            case records.Ended():
                self._close(rank)
            case records.Entered() | records.Epoch():
                self._inputs.feed(rank, record)
                self._dealt.feed(rank, record)
        self._epochs.feed(rank, record)
        self._suspicions.feed(rank, record)
        self._ends[rank].feed(record)
        self._astray[rank].feed(record)
        self._aside[rank].feed(record)
        self._see(rank, self._assembler.feed(rank, (record,)))
        for cleared in self.streams[rank].cleared:
            self._ends[rank].take(cleared)
            self._lost.take(cleared)
        self._abandoned[rank].feed(record, self.streams[rank])
        self._join()

    def _see(self, rank: int, windows: Iterable[Window]) -> None:
        for window in windows:
            self._ends[rank].take(window)
            self._order.judge(window)
            self._schedules.judge(window)
            self._loss_scale.judge(window)
            self._kept.see(window)
            self._first = self._first or window

    def _close(self, rank: int) -> None:
        self._see(rank, self._assembler.end(rank))

    def blind(self, rank: int) -> None:
        """Nothing more is seen of a rank, which goes on."""
        self._blind.add(rank)
        self._close(rank)

    def end(self, rank: int) -> bool:
        """There is nothing more to come of a rank; returns whether that is new."""
        if rank in self._assembler.over:
            return False
        self._close(rank)
        self._join()
        return True

    def is_ahead(self, rank: int) -> bool:
        """Whether the other ranks are so far behind that it has to wait."""
        return self._assembler.ahead(rank) > _AHEAD

    @property
    def accuses(self) -> bool:
        """Whether what was seen so far is enough to accuse the script."""
        found = (self._steady, self._solved, self._schedules, self._loss_scale, self._between, self._order, self._modes)
        return bool(self.findings.causes) or any(one.accuses for one in found)

    def finish(self, *, is_whole: bool) -> None:
        """All processes have ended. is_whole: of themselves, and well."""
        for rank in range(self.ranks):
            self.end(rank)
        common = self._suspicions.common
        self._lacking.decide(self.streams, self._pairing, common, is_whole=is_whole, is_blind=bool(self._blind))
        self._suspicions.finish(self._pairing, is_sampled=self._inputs.is_sampled)
        started = max((stream.began.started for stream in self.streams.values()), default=1)
        if started > self.ranks == 1 and any(stream.steps for stream in self.streams.values()):
            self.findings.undecided(f"a launcher started {started} ranks, which never formed a process group")
        self._lost.finish(sum((Counter(stream.steps) for stream in self.streams.values()), Counter[int]()))
        if self._first is not None and not self._lacking.first:
            unsent.judge(self.streams, self.ranks, self._pairing, self._first, self.findings)
        if is_whole and not self._blind:
            self._owners.finish(self.streams, self.ranks)
        self._kept.finish(self._first, self._pairing, is_sampled=self._inputs.is_sampled)
        averages = self._suspicions.averages
        self._inputs.finish(averages=averages)
        self._epochs.finish(averages=averages)
        if averages:
            self._dealt.finish()
        judges = (
            self._order,
            self._losses,
            self._counted,
            self._modes,
            self._same,
            self._leftovers,
            self._schedules,
            self._loss_scale,
            self._between,
            self._joined,
        )
        for judge in (*judges, self._steady, self._solved):
            judge.finish()
        for _ in self._unsolved:
            self.findings.undecided(diagnosis.FEW)
        for rank, stream in self.streams.items():
            coverage.judge(rank, stream, self.findings)
            coverage.judge_unstepped(stream, self.streams.values(), self.findings)
            if is_whole and rank not in self._blind:
                self._ends[rank].finish(rank, stream)
                self._astray[rank].finish(rank, stream)
                self._abandoned[rank].finish(stream)
                self._aside[rank].finish()
        if any(law == "watch/means-averaged" for law, _ in self.findings.causes):
            self.findings.notes.pop(conservation.SUMMED.format(self.ranks), None)
        groups = self._suspicions.groups
        if groups - {self.ranks} and self.ranks > 1:
            self.findings.undecided(f"gradients are averaged over groups of {min(groups)} of {self.ranks} ranks")

    def _join(self) -> None:
        for key, windows in self._assembler.joined():
            self._judge(key, windows)

    def _judge(self, key: Key, windows: Sequence[Window | None]) -> None:
        here = [window for window in windows if window is not None]
        if len(self.streams) < self.ranks:
            self.findings.steps += len(here)
            self.findings.undecided(f"only {len(self.streams)} of {self.ranks} ranks made an optimizer")
            return
        lacking = [rank for rank, stream in self.streams.items() if not stream.has(key)]
        if lacking:
            self.findings.steps += sum(window.step is not None for window in here)
            self.findings.undecided(f"an optimizer, {key.type}, of these parameters exists on some ranks alone")
            return
        if not pairing.are_numbered_alike(here, self.streams.values()):
            self.findings.steps += sum(window.step is not None for window in here)
            self.findings.undecided(pairing.NUMBERED)
            return
        if any(window.is_long for window in here):
            self.findings.steps += sum(window.step is not None for window in here)
            self.findings.undecided(_LONG)
            return
        if len(here) < self.ranks and not self._is_joined:
            others = tuple(rank for rank, window in enumerate(windows) if window is None)
            says = f"{len(here)} of {self.ranks} ranks take the step, {len(others)} do not"
            self._lacking.take(here, says, others)
            return
        self._suspicions.see(here)
        if any(window.step is not None and window.step.is_elsewhere for window in here):
            self.findings.note(_BETWEEN)
        own = Findings()
        together = Together(windows, self.ranks, self._is_joined, frozenset(self._suspicions.hooks))
        conservation.judge(together, own)
        agreement.judge(together, own)
        is_conserved = 0 < own.steps == own.conserved or any(law == "watch/cleared" for law, _ in own.causes)
        if not self._is_joined and not self._pairing.is_one_step(here, is_conserved=is_conserved):
            self._lacking.take(here, pairing.said(here), tuple(window.rank for window in here))
            return
        self._lost.sort(here, is_known=own.conserved == own.steps)
        if own.conserved and own.conserved == own.steps and not own.causes:
            if self.ranks > 1:
                self._suspicions.is_averaged(here[0].optimizer)
                self._inputs.averaged(is_alike=together.is_alike)
            self._losses.judge(together)
            self._counted.judge(together)
            self._modes.feed(here)
            self._same.feed(here)
            self._leftovers.feed(here)
        elif any(law == "watch/same-weights" for law, _ in own.causes) and agreement.use_the_same(here):
            # Gradients of different weights are different ones, until they are averaged.
            self._suspicions.is_averaged(here[0].optimizer)
        elif own.conserved < own.steps and not any(cause.first.waits for cause in own.causes.values()):
            self._suspicions.is_unclear(here[0].optimizer)
        self._between.judge(together)
        self._loss_scale.judge_step(together)
        self._joined.judge(together)
        self._steady.feed(own.factors, here)
        self._kept.judge(here, [rank for cause in own.causes.values() if cause.first.alone for rank in cause.ranks])
        broken = [cause for window in here for cause in window.broken]
        for cause in broken:
            self.findings.show(cause, here)
        is_good = 0 < own.steps == own.conserved and not own.causes and not broken
        self._remember(key, together, is_good=is_good)
        self._take(own, here)

    def _remember(self, key: Key, together: Together, *, is_good: bool) -> None:
        """For the report."""
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
        """Add what was found in one window; what depends on how the weights go on waits."""
        findings = self.findings
        findings.steps += own.steps
        findings.conserved += own.conserved
        for system in own.unsolved:
            self._solve(system, here)
        for why, count in own.open.items():
            findings.undecided(why, count)
        for what in own.notes:
            findings.note(what)
        self._suspicions.take([*own.causes.values()], here)

    def _solve(self, system: System, here: list[Window]) -> None:
        """A script does the same in each window, so that several steps say together what one is too small for."""
        window = system.case.window
        at = window.rank, window.optimizer, tuple(system.case.parameters)
        if at in self._unsolved:
            system = system.after(self._unsolved[at])
        if not system.is_enough:
            self._unsolved[at] = system
            return
        self._unsolved.pop(at, None)
        found = diagnosis.solved(system)
        if isinstance(found, str):
            self._solved.feed([(window.rank, None, False)], here)
            self.findings.undecided(found)
        elif found.waits:
            self._suspicions.wait(found, here)
        elif system.is_ample and not found.is_of_all_steps:
            self.findings.add(found, here)
        else:
            self._solved.feed([(window.rank, found, False)], here)
