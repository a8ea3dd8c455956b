"""Do ranks read data of their own?"""

from __future__ import annotations

from conformance.watch import records
from conformance.watch.judging.compared import Alike, Compared
from conformance.watch.judging.findings import Finding, Findings

_SHARED = 0.4
_DEALT = 0.1
"""Of what samplers deal out, which is no more than they pad with."""

_OTHERS = "and made other inputs of them, as augmentation does: a `DistributedSampler` gives each its own, unless each "
_OTHERS += "is to make something of all"


class Inputs:
    """Of the processes that train together. is_sampled: whether a sampler deals the data out to the ranks."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._begin()
        self._gradients = Alike()
        self._is_wrapped = False
        self._site: records.Site = None
        self.is_sampled = self._is_dealt = False

    def _begin(self) -> None:
        """first: the first input of models; read: all of them; dealt: where a sampler deals them out to the ranks.
        drawn: the samples that they are made of. undealt: both, of batches that no sampler deals out."""
        self._first, self._read, self._drawn, self._dealt, self._undealt = (Compared(self._ranks) for _ in range(5))

    def feed(self, rank: int, record: records.Record) -> None:
        self.is_sampled |= isinstance(record, records.Epoch)
        if isinstance(record, records.Entered) and record.rows:
            if record.wrapped and not self._is_wrapped:
                # What went through no wrapper until now was no shared training.
                self._is_wrapped = True
                self._begin()
            if record.wrapped or not self._is_wrapped:
                self._site = record.site
                self._first.enter(rank, tuple(record.rows))
                self._read.enter(rank, record.whole)
                self._drawn.enter(rank, tuple(record.drawn))
                if record.sampler is not None and record.sampler < 0:
                    self._undealt.enter(rank, tuple(record.drawn) or record.whole)
                elif record.sampler is not None:
                    self._is_dealt = True
                    self._dealt.enter(rank, record.whole)

    def averaged(self, *, is_alike: bool) -> None:
        """A step that uses the average of the ranks' gradients. is_alike: whether these are equal, as those of equal
        inputs are, unless it is the targets, the loss or what is drawn at random that differs."""
        self._gradients.add(is_alike=is_alike)

    def finish(self, *, averages: bool) -> None:
        """averages: whether the ranks are known to average gradients, so that they train one model."""
        if self._ranks == 1 or not averages:
            return
        read, drawn, undealt = self._read, self._drawn, self._undealt
        if self._first.are_the_same:
            self._judge_same(self._first)
        elif (found := read.shared())[0] > _SHARED:
            says = f"before any sample came twice on a rank, {found[0]:.0%} of its samples came on another rank, too"
            effect = f"about {found[0]:.0%} of the samples count more than once in what should be one epoch"
            self._findings.add(Finding("watch/own-data", says, None, found[1], self._site, effect))
        elif drawn.are_the_same and not drawn.are_few:
            self._findings.undecided(f"all ranks drew the same samples {drawn.said()}, {_OTHERS}")
        elif (share := drawn.shared()[0]) > _SHARED:
            self._findings.undecided(f"{share:.0%} of the samples that a rank drew were drawn on another, {_OTHERS}")
        elif (share := self._dealt.shared()[0]) > _DEALT:
            self._findings.undecided(
                f"samplers dealt {share:.0%} of a rank's samples out to another rank, too: the ranks' datasets may not "
                "be the same"
            )
        elif undealt.are_the_same and not undealt.are_few:
            self._findings.undecided(
                f"a loader without a `DistributedSampler` gave all ranks the same {undealt.said()}"
            )
        elif not self._is_dealt and (share := self._first.shared()[0]) > _SHARED:
            self._findings.undecided(
                f"{share:.0%} of the rows of a rank's first input came on another rank, too, with other inputs beside "
                "them"
            )

    def _judge_same(self, read: Compared) -> None:
        if read.are_few:
            self._findings.note("all ranks were fed the same few batches, again and again")
        elif not read.alike.are_most:
            self._findings.undecided(
                f"all ranks were fed the same inputs {read.said()}: a phase of its own, or a mistake"
            )
        elif not self._read.are_the_same:
            self._findings.undecided(
                f"the first input of models was the same on all ranks {read.said()}, and the others were not"
            )
        elif not self._gradients.are_most:
            self._findings.undecided("ranks were fed the same inputs, and computed other gradients of them")
        else:
            says = f"all ranks were fed the same inputs {read.said()}"
            effect = f"the ranks together train on 1/{self._ranks} of the samples that they would each on its own"
            everyone = tuple(range(self._ranks))
            self._findings.add(Finding("watch/own-data", says, None, everyone, self._site, effect))
