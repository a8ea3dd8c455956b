"""What is wrong if the ranks are to train one model together, and may be meant if each trains one of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

from conformance.watch import records
from conformance.watch.judging import experts
from conformance.watch.judging.case import HOOKS, LETS_APART
from conformance.watch.judging.findings import Cause, Finding, Findings
from conformance.watch.judging.pairing import Pairing
from conformance.watch.judging.related import Related
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window

_OF_ONE_MODEL = frozenset(("watch/same-weights", "watch/same-rates", "watch/same-steps", "watch/one-scale"))
"""Laws for ranks that train one model."""

_MOST = 1000

_MOSTLY = 0.5
"""Of the steps of an optimizer: if so many are right, its parameters are averaged."""
_SOME = 0.25
"""Of the steps of a model that ranks train together: so many look so, at least."""


class Suspicions:
    """Of the processes that train together. They wait until all is over: how the weights go on decides.

    streams: of each rank, which may become more. hooks: communication hooks. groups: how many ranks average together.
    """

    def __init__(self, ranks: int, streams: Mapping[int, Stream], findings: Findings) -> None:
        self._ranks, self._streams, self._findings = ranks, streams, findings
        self.hooks: set[str] = set()
        self.groups: set[int] = set()
        self._waiting: list[Finding] = []
        self._apart: dict[int, list[int]] = defaultdict(list)
        self._equal: dict[int, int] = {}
        self._right, self._steps = Counter[int](), Counter[int]()
        self._unclear: set[int] = set()
        self._wrapped: dict[int, set[int]] = defaultdict(set)
        self._left: frozenset[int] = frozenset()
        self._inside: frozenset[int] = frozenset()
        self._before_exchanges: dict[int, set[int]] = defaultdict(set)
        self._elsewhere: set[int] = set()
        self._related = Related()

    def feed(self, rank: int, record: records.Record) -> None:
        match record:
            case records.Hooked():
                self.hooks.add(record.name)
            case records.Exchanged():
                self._before_exchanges[rank] |= {*record.parameters}
            case records.Grouped():
                self.groups.add(record.size)
            case records.Wrapped():
                self._wrapped[record.optimizer].add(rank)
                self._left |= frozenset(record.own)
                self._inside |= frozenset(record.inside)

    def see(self, here: Sequence[Window]) -> None:
        """A step of all ranks."""
        self._related.see(here)
        self._steps[here[0].optimizer] += 1
        self._elsewhere |= {n for one in here if one.step and one.step.is_elsewhere for n in one.step.parameters}

    def is_averaged(self, optimizer: int) -> None:
        """A step of it was right, as one of all ranks."""
        self._right[optimizer] += 1

    @property
    def _common(self) -> set[int]:
        """The optimizers of which enough steps were right. In a model of few numbers, the gradients of one rank may
        look like the average now and then, and does so the more, the smaller they become."""
        return {one for one, right in self._right.items() if right >= _SOME * self._steps[one]}

    def _are_split(self, parameters: Set[int]) -> bool:
        """Whether a layer may be split over the ranks, as that of many classes is, outside of DDP: what it is fed is
        exchanged by them, so that its gradients are of all ranks' data."""
        fed = [self._before_exchanges[rank] for rank in range(self._ranks)]
        return (
            bool(parameters) and parameters.isdisjoint(self._inside) and all(parameters <= of_rank for of_rank in fed)
        )

    def is_unclear(self, optimizer: int) -> None:
        """Of a step of it, it is not known whose gradients it used."""
        self._unclear.add(optimizer)

    @property
    def averages(self) -> bool:
        """Whether the ranks average gradients at all."""
        return bool(self._common)

    @property
    def common(self) -> set[int]:
        """The optimizers of models that the ranks train together."""
        return {one for one in self._common | self._wrapped.keys() if not self._is_mixed(one)}

    def take(self, causes: Sequence[Cause], here: Sequence[Window]) -> None:
        """What was found in a step of all ranks: it waits, or is added."""
        window = here[0]
        is_common = window.optimizer in self._common | self._wrapped.keys()
        for cause in causes:
            law = cause.first.law
            cause.first.ranks = tuple(sorted(cause.ranks))
            if cause.first.waits or (law in _OF_ONE_MODEL and not (is_common and law != "watch/same-weights")):
                self.wait(cause.first, here)
            else:
                self._findings.add(cause.first, here)
        if len(here) == self._ranks and window.weights:
            if any(cause.first.law == "watch/same-weights" for cause in causes):
                self._apart[window.optimizer].append(window.index)
                del self._apart[window.optimizer][_MOST:]
            else:
                self._equal[window.optimizer] = window.index

    def wait(self, finding: Finding, here: Sequence[Window]) -> None:
        self._findings.show(finding.key, here)
        if len(self._waiting) < _MOST:
            self._waiting.append(finding)

    def finish(self, pairing: Pairing, *, is_sampled: bool) -> None:
        """is_sampled: whether a sampler deals the data out."""
        for finding in self._waiting:
            why = self._excuse(finding, pairing, is_sampled=is_sampled)
            if why is None:
                self._findings.add(finding)
            else:
                self._findings.undecided(why)

    def _excuse(self, finding: Finding, pairing: Pairing, *, is_sampled: bool) -> str | None:
        """How it may be meant; None if it cannot be."""
        optimizer = finding.optimizer
        assert optimizer is not None
        if finding.parameters and finding.parameters <= self._own(optimizer):
            return "some parameters are each rank's own, as those of experts are"
        if self._is_mixed(optimizer):
            return "optimizers that look alike are of other models on other ranks"
        if optimizer not in self._common and self._related.are_stages(optimizer):
            return "ranks go backward from different lines, as the stages of a pipeline do"
        if self._meets(optimizer):
            return "ranks step on their own gradients, and change their weights between steps"
        if self._may_train_apart(optimizer):
            return "a model is trained by each rank alone, beside one that all ranks train"
        if self._may_be_of_each(optimizer, is_sampled=is_sampled):
            return "each rank trains a model, or a layer, of its own, as it seems"
        apart = self._apart.get(optimizer, [])
        has_own = any(one.waits and one.optimizer == optimizer for one in self._waiting)
        meets_again = bool(apart) and self._equal.get(optimizer, -1) > apart[0]
        if LETS_APART in self.hooks and not meets_again:
            return "a communication hook lets ranks step on their own gradients, and no average of weights is seen"
        if meets_again and (has_own or bool(self.hooks - HOOKS.keys())):
            return "ranks step on their own gradients, and average their weights now and then"
        if has_own and apart and pairing.end_equal(self._streams[0].held[optimizer]):
            return "ranks step on their own gradients, and end with the same weights"
        if finding.waits and not apart:
            return "ranks step on their own gradients, yet their weights stay equal"
        return None

    def _is_mixed(self, optimizer: int) -> bool:
        """Whether DDP wraps what some ranks step with it, and not what others do: their optimizers only look alike."""
        stepping = {rank for rank, stream in self._streams.items() if stream.steps.get(optimizer)}
        return optimizer in self._wrapped and not stepping <= self._wrapped[optimizer]

    def _may_train_apart(self, optimizer: int) -> bool:
        """Whether it never averages, and what the ranks train together may be another model: one that does average, or
        of which not enough is seen to say that it does not. That has no backward pass in common with it."""
        # Whose weights stay equal all the same, averages where it is not seen, as within its step.
        own = {one.optimizer for one in self._waiting if one.waits and one.optimizer is not None}
        equal = {one for one in own if not self._apart.get(one)}
        others = (self._common | self._unclear | equal) - {optimizer}
        unseen = any(stream.trains_unseen for stream in self._streams.values())
        is_common = optimizer in self._common | self._wrapped.keys()
        return not is_common and not self._related.have(optimizer, others) and (bool(others) or unseen)

    def _may_be_of_each(self, optimizer: int, *, is_sampled: bool) -> bool:
        """Whether each rank may train a model of its own, as the members of an ensemble or the trials of a search, or
        a layer that is split over the ranks: on its own gradients alone, and from a start or at a rate of its own. A
        script that forgot to average looks the same, unless something is averaged or wrapped, or a sampler deals the
        data out."""
        found = [finding for finding in self._waiting if finding.optimizer == optimizer]
        has_own = 0 in self._apart.get(optimizer, []) or any(finding.law == "watch/same-rates" for finding in found)
        alone = {finding.alone for finding in found if finding.waits} == {True}
        is_common = optimizer in self._common or (optimizer in self._wrapped and self.groups <= {self._ranks})
        is_split = self._are_split(self._streams[0].held[optimizer])
        return has_own and alone and (is_split or not is_sampled) and not is_common

    def _own(self, optimizer: int) -> frozenset[int]:
        # A step that is right uses the average of all its parameters.
        if self._right[optimizer] > _MOSTLY * self._steps[optimizer]:
            return self._left
        own = experts.from_start(self._waiting, optimizer, self._streams[0])
        return self._left | (own if optimizer not in self._wrapped or self._are_split(own) else frozenset())

    def _meets(self, optimizer: int) -> bool:
        """Whether the ranks step on their own gradients, and the script changes the weights between steps, by what
        others have learned: all of them, as in an average now and then, some, or halfway."""
        held = next(iter(self._streams.values())).held[optimizer]
        found = {finding.alone for finding in self._waiting if finding.optimizer == optimizer and finding.waits}
        return found == {True} and bool(self._elsewhere & held)
