"""Joins the windows of all ranks of a launch while they come in, and has each looked at."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from conformance.trace.joining import Joining
from conformance.watch import records
from conformance.watch.judging import (
    agreement,
    conservation,
    coverage,
    diagnosis,
    experts,
    pairing,
    unsent,
)
from conformance.watch.judging.astray import Astray
from conformance.watch.judging.between import Between
from conformance.watch.judging.case import HOOKS, LETS_APART, Together
from conformance.watch.judging.dealt import Dealt
from conformance.watch.judging.diagnosis import System
from conformance.watch.judging.ends import Ends
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.history import History
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
from conformance.watch.judging.related import Related
from conformance.watch.judging.scenes import Scene
from conformance.watch.judging.schedules import Schedules
from conformance.watch.judging.steady import Steady
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Cleared, Key, Window

_OF_ONE_MODEL = frozenset(("watch/same-weights", "watch/same-rates", "watch/same-steps", "watch/one-scale"))
"""Laws for ranks that train one model."""

_AHEAD = 256
"""A rank may be so many windows ahead of the others before the judge lets it wait."""

_BETWEEN = "the script changes weights between steps, as a limit of their size does, or an average that is taken over: "
_BETWEEN += "one that was only evaluated is to be given back"


class Launch:
    """Processes that train together."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self.ranks = ranks
        self.findings = findings
        self.streams: dict[int, Stream] = {}
        self._over: set[int] = set()
        self._joining: dict[Key, Joining[Window]] = defaultdict(lambda: Joining(ranks, self._over))
        self._unsolved: dict[tuple[int, int, tuple[int, ...]], System] = {}
        self._inputs = Inputs(ranks, findings)
        self._steady, self._solved = Steady(findings), Steady(findings)
        self._losses = Losses(findings, self._steady)
        self._schedules, self._loss_scale = Schedules(findings), LossScale(findings)
        self._between, self._order = Between(findings), Order(findings)
        self._modes, self._leftovers = Modes(findings), Leftovers(findings)
        self._pairing = Pairing(ranks)
        self._numbering = Numbering()
        self._averages = False
        self._hooks: set[str] = set()
        self._is_joined = False
        self._groups: set[int] = set()
        self._waiting: list[Finding] = []
        self._first: Window | None = None
        self._apart: dict[int, list[int]] = defaultdict(list)
        self._equal: dict[int, int] = {}
        self._common: set[int] = set()
        self._unclear: set[int] = set()
        self._wrapped: dict[int, set[int]] = defaultdict(set)
        self._left: frozenset[int] = frozenset()
        self._elsewhere: set[int] = set()
        self._related = Related()
        self._lost = Lost(findings)
        self._kept, self._joined = Kept(ranks, findings), Joined(findings)
        self._ends: dict[int, Ends] = defaultdict(lambda: Ends(findings))
        self._astray: dict[int, Astray] = defaultdict(lambda: Astray(findings))
        self._dealt, self._owners = Dealt(ranks, findings), Owners(findings)
        self._lacking = Lacking(findings)
        self._is_over = False
        self._blind: set[int] = set()
        self._buffers: dict[int, records.Buffers] = {}

    def feed(self, rank: int, record: records.Record) -> None:
        # What a recorder of which a part is off has left of a window would look like a mistake of the script.
        if rank in self._blind and not isinstance(record, records.Failed):
            return
        for translated in self._numbering.translated(rank, record):
            self._feed(rank, translated)

    def _feed(self, rank: int, record: records.Record) -> None:
        match record:
            case records.Hooked():
                self._hooks.add(record.name)
            case records.Joined():
                self._is_joined = True
            case records.Grouped():
                self._groups.add(record.size)
            case records.Stale():
                coverage.judge_stale(rank, self.streams[rank], record, self.findings)
            case records.Wrapped():
                self._wrapped[record.optimizer].add(rank)
                self._left |= frozenset(record.own)
            case records.Failed():
                if record.observer:
                    self.findings.undecided(f"a part of the recorder failed: {record.observer}: {record.error}")
                elif rank not in self._blind:
                    self.findings.undecided(record.error)
                self._blind.add(rank)
                self._over.add(rank)
            case records.Buffers():
                self._buffers[rank] = record
                if len(self._buffers) == self.ranks > 1:
                    agreement.judge_buffers(self._buffers, self.findings)
            case records.Weighed():
                self._pairing.weigh(rank, self.streams[rank].clock, record)
                self._owners.weigh(rank, record)
            case records.Source():
                self.findings.sources[record.file, record.line] = record.path, record.text
            case records.Ended():
                self._over.add(rank)
            case records.Entered() | records.Epoch():
                self._inputs.feed(rank, record)
                self._dealt.feed(rank, record)
        self._ends[rank].feed(record)
        self._astray[rank].feed(record)
        is_more = isinstance(record, records.Ended)
        for found in self.streams[rank].feed(record):
            self._ends[rank].take(found)
            if isinstance(found, Cleared):
                self._lost.take(found)
            else:
                self._order.judge(found)
                self._schedules.judge(found)
                self._loss_scale.judge(found)
                self._kept.see(found)
                self._first = self._first or found
                self._joining[self.streams[rank].key(found.optimizer)].put(rank, [found])
                is_more = True
        if is_more:
            self._join()

    def end(self, rank: int) -> bool:
        """There is nothing more to come of a rank; returns whether that is new."""
        is_new = rank not in self._over
        self._over.add(rank)
        if is_new:
            self._join()
        return is_new

    def is_ahead(self, rank: int) -> bool:
        """Whether the other ranks are so far behind that it has to wait."""
        return any(joining.ahead(rank) > _AHEAD for joining in self._joining.values())

    @property
    def accuses(self) -> bool:
        """Whether what was seen so far is enough to accuse the script."""
        found = (self._steady, self._solved, self._schedules, self._loss_scale, self._between, self._order, self._modes)
        return bool(self.findings.causes) or any(one.accuses for one in found)

    def finish(self, *, is_whole: bool) -> None:
        """All processes have ended. is_whole: of themselves, and well."""
        self._is_over = True
        self._over |= {*range(self.ranks)}
        self._join()
        common = {o for o in self._common | self._wrapped.keys() if not self._is_mixed(o)}
        self._lacking.decide(self.streams, self._pairing, common, is_whole=is_whole, is_blind=bool(self._blind))
        self._decide_waiting()
        started = max((stream.began.started for stream in self.streams.values()), default=1)
        if started > self.ranks == 1 and any(stream.steps for stream in self.streams.values()):
            self.findings.undecided(f"a launcher started {started} ranks, which never formed a process group")
        self._lost.finish(sum((Counter(stream.steps) for stream in self.streams.values()), Counter[int]()))
        if self._first is not None and not self._lacking.first:
            unsent.judge(self.streams, self.ranks, self._pairing, self._first, self.findings)
        if is_whole and not self._blind:
            self._owners.finish(self.streams, self.ranks)
        self._kept.finish(self._first, self._pairing, is_sampled=self._inputs.is_sampled)
        self._inputs.finish(averages=self._averages)
        if self._averages:
            self._dealt.finish()
        judges = (
            self._order,
            self._losses,
            self._modes,
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
        if self._groups - {self.ranks} and self.ranks > 1:
            self.findings.undecided(f"gradients are averaged over groups of {min(self._groups)} of {self.ranks} ranks")

    def _join(self) -> None:
        if len(self.streams) < self.ranks and not self._is_over:
            return
        for key, joining in self._joining.items():
            for windows in joining.joined():
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
            self.findings.undecided(f"an optimizer, {key.type}, exists on some ranks alone")
            return
        if not pairing.are_numbered_alike(here, self.streams.values()):
            self.findings.steps += sum(window.step is not None for window in here)
            self.findings.undecided(pairing.NUMBERED)
            return
        if len(here) < self.ranks and not self._is_joined:
            others = tuple(rank for rank, window in enumerate(windows) if window is None)
            says = f"{len(here)} of {self.ranks} ranks take the step, {len(others)} do not"
            self._lacking.take(here, says, others)
            return
        self._related.see(here)
        self._elsewhere |= {n for one in here if one.step and one.step.is_elsewhere for n in one.step.parameters}
        if self.ranks == 1 and here[0].step is not None and here[0].step.is_elsewhere:
            self.findings.note(_BETWEEN)
        own = Findings()
        together = Together(windows, self.ranks, self._is_joined, frozenset(self._hooks))
        conservation.judge(together, own)
        agreement.judge(together, own)
        is_conserved = 0 < own.steps == own.conserved or any(law == "watch/cleared" for law, _ in own.causes)
        if not self._is_joined and not self._pairing.is_one_step(here, is_conserved=is_conserved):
            self._lacking.take(here, pairing.said(here), tuple(window.rank for window in here))
            return
        self._lost.sort(here, is_known=own.conserved == own.steps)
        if own.conserved and own.conserved == own.steps and not own.causes:
            self._averages |= self.ranks > 1
            if self.ranks > 1:
                self._common.add(here[0].optimizer)
                self._inputs.averaged(is_alike=together.is_alike)
            self._losses.judge(together)
            self._modes.feed(here)
            self._leftovers.feed(here)
        elif any(law == "watch/same-weights" for law, _ in own.causes) and agreement.use_the_same(here):
            # Gradients of different weights are different ones, until they are averaged.
            self._common.add(here[0].optimizer)
        elif own.conserved < own.steps and not any(cause.first.waits for cause in own.causes.values()):
            self._unclear.add(here[0].optimizer)
        self._between.judge(together)
        self._loss_scale.judge_step(together)
        self._joined.judge(together)
        self._steady.feed(own.factors, here)
        self._kept.judge(here, [rank for cause in own.causes.values() if cause.first.alone for rank in cause.ranks])
        kappas = together.kappas.get(here[0].rank, [])
        history = self.findings.histories.setdefault(key, History(key.type))
        history.add(together, kappas[0] if len({*kappas}) == 1 else None)
        broken = [cause for window in here for cause in window.broken]
        for cause in broken:
            self.findings.show(cause, here)
        if history.good is None and 0 < own.steps == own.conserved and not own.causes and not broken:
            history.good = Scene.seen(here)
        self._take(own, here)

    def _take(self, own: Findings, here: list[Window]) -> None:
        """Add what was found in one window; what depends on how the weights go on waits."""
        findings, window = self.findings, here[0]
        findings.steps += own.steps
        findings.conserved += own.conserved
        for system in own.unsolved:
            self._solve(system, here)
        for why, count in own.open.items():
            findings.undecided(why, count)
        for what in own.notes:
            findings.note(what)
        apart = False
        for cause in own.causes.values():
            if cause.first.law == "watch/same-weights":
                apart = True
            is_common = window.optimizer in self._common | self._wrapped.keys()
            is_of_one = is_common and cause.first.law != "watch/same-weights"
            cause.first.ranks = tuple(sorted(cause.ranks))
            if cause.first.waits or (cause.first.law in _OF_ONE_MODEL and not is_of_one):
                self._wait(cause.first, here)
            else:
                findings.add(cause.first, here)
        if len(here) == self.ranks and window.weights:
            if apart:
                self._apart[window.optimizer].append(window.index)
                del self._apart[window.optimizer][1000:]
            else:
                self._equal[window.optimizer] = window.index

    def _wait(self, finding: Finding, here: list[Window]) -> None:
        self.findings.show(finding.key, here)
        if len(self._waiting) < 1000:
            self._waiting.append(finding)

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
            self._wait(found, here)
        elif system.is_ample and not found.is_of_all_steps:
            self.findings.add(found, here)
        else:
            self._solved.feed([(window.rank, found, False)], here)

    def _is_mixed(self, optimizer: int) -> bool:
        """Whether DDP wraps what some ranks step with it, and not what others do: their optimizers only look alike."""
        stepping = {rank for rank, stream in self.streams.items() if stream.steps.get(optimizer)}
        return optimizer in self._wrapped and not stepping <= self._wrapped[optimizer]

    def _may_train_apart(self, optimizer: int) -> bool:
        """Whether it never averages, and what the ranks train together may be another model: one that does average, or
        of which not enough is seen to say that it does not. That has no backward pass in common with it."""
        others = (self._common | self._unclear) - {optimizer}
        unseen = any(stream.trains_unseen for stream in self.streams.values())
        is_common = optimizer in self._common | self._wrapped.keys()
        return not is_common and not self._related.have(optimizer, others) and (bool(others) or unseen)

    def _may_be_of_each(self, optimizer: int) -> bool:
        """Whether each rank may train a model of its own, as the members of an ensemble or the trials of a search: on
        its own gradients alone, and from a start or at a rate of its own. A script that forgot to average looks the
        same, unless something is averaged or wrapped, or a sampler deals the data out."""
        found = [finding for finding in self._waiting if finding.optimizer == optimizer]
        has_own = 0 in self._apart.get(optimizer, []) or any(finding.law == "watch/same-rates" for finding in found)
        alone = {finding.alone for finding in found if finding.waits} == {True}
        is_common = optimizer in self._common or (optimizer in self._wrapped and self._groups <= {self.ranks})
        return has_own and alone and not self._inputs.is_sampled and not is_common

    def _own(self, optimizer: int) -> frozenset[int]:
        if optimizer in self._wrapped:
            return self._left
        return self._left | experts.from_start(self._waiting, optimizer, self.streams[0])

    def _meets(self, optimizer: int) -> bool:
        """Whether the ranks step on their own gradients, and the script changes the weights between steps, by what
        others have learned: all of them, as in an average now and then, some, or halfway."""
        held = next(iter(self.streams.values())).held[optimizer]
        found = {finding.alone for finding in self._waiting if finding.optimizer == optimizer and finding.waits}
        return found == {True} and bool(self._elsewhere & held)

    def _decide_waiting(self) -> None:
        for finding in self._waiting:
            assert finding.optimizer is not None and finding.step is not None
            if finding.parameters and finding.parameters <= self._own(finding.optimizer):
                self.findings.undecided("some parameters are each rank's own, as those of experts are")
                continue
            if self._is_mixed(finding.optimizer):
                self.findings.undecided("optimizers that look alike are of other models on other ranks")
                continue
            if finding.optimizer not in self._common and self._related.are_stages(finding.optimizer):
                self.findings.undecided("ranks go backward from different lines, as the stages of a pipeline do")
                continue
            apart = self._apart.get(finding.optimizer, [])
            own_weights = [f.step for f in self._waiting if f.waits and f.optimizer == finding.optimizer]
            if self._meets(finding.optimizer):
                self.findings.undecided("ranks step on their own gradients, and change their weights between steps")
            elif self._may_train_apart(finding.optimizer):
                self.findings.undecided("a model is trained by each rank alone, beside one that all ranks train")
            elif self._may_be_of_each(finding.optimizer):
                self.findings.undecided("each rank trains a model of its own, as it seems")
            elif LETS_APART in self._hooks or (
                (own_weights or self._hooks - HOOKS.keys())
                and apart
                and self._equal.get(finding.optimizer, -1) > apart[0]
            ):
                self.findings.undecided("ranks step on their own gradients, and average their weights now and then")
            elif own_weights and apart and self._pairing.end_equal(self.streams[0].held[finding.optimizer]):
                self.findings.undecided("ranks step on their own gradients, and end with the same weights")
            elif finding.waits and not apart:
                self.findings.undecided("ranks step on their own gradients, yet their weights stay equal")
            else:
                self.findings.add(finding)
