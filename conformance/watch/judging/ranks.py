"""Ranks that train one model, and ranks that each train their own.

Keeps what is wrong of the former, and right of the latter, until the end. Optimizers train parts of one model if they
step on the same backward pass; ranks have parts of it for themselves, as the stages of a pipeline are, if their losses
come from other lines on each rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from conformance.watch import records
from conformance.watch.judging.case import HOOKS, LETS_APART
from conformance.watch.judging.findings import Cause, Finding, Findings, said
from conformance.watch.judging.pairing import Pairing
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window

_OF_ONE_MODEL = frozenset(("watch/same-weights", "watch/same-rates", "watch/same-steps", "watch/one-scale"))
"""Laws for ranks that train one model."""

_MOST = 1000

_FEW = 3

_SOME = 0.25
"""Of the steps of a model that ranks train together: so many are right, at least."""


class Suspicions:
    """Of the processes that train together: how their weights go on decides.

    streams: of each rank, which may become more. hooks: communication hooks. groups: how many ranks average together.
    inside: parameters of a wrapper, but for those that it leaves to each rank. exchanging: the ranks whose backward
    pass has collectives of its own.
    """

    def __init__(self, ranks: int, streams: Mapping[int, Stream], findings: Findings) -> None:
        self._ranks, self._streams, self._findings = ranks, streams, findings
        self.hooks: set[str] = set()
        self.groups: set[int] = set()
        self.inside: frozenset[int] = frozenset()
        self.exchanging: set[int] = set()
        self._waiting: list[Finding] = []
        self._apart: dict[int, list[int]] = defaultdict(list)
        self._equal: dict[int, int] = {}
        self._right, self._steps = Counter[int](), Counter[int]()
        self._unclear: set[int] = set()
        self._wrapped: dict[int, set[int]] = defaultdict(set)
        self._left: frozenset[int] = frozenset()
        self._elsewhere: set[int] = set()
        self._related = Related()

    def feed(self, rank: int, record: records.Record) -> None:
        match record:
            case records.Hooked():
                self.hooks.add(record.name)
            case records.Exchanged():
                self.exchanging.add(rank)
            case records.Grouped():
                self.groups.add(record.size)
            case records.Wrapped():
                self._wrapped[record.optimizer].add(rank)
                self._left |= frozenset(record.own)
                self.inside |= frozenset(record.inside)

    def see(self, here: Sequence[Window]) -> None:
        """A step of all ranks."""
        self._related.see(here)
        self._steps[here[0].optimizer] += 1
        self._elsewhere |= {n for one in here if one.step and one.step.is_elsewhere for n in one.step.parameters}

    def is_averaged(self, optimizer: int) -> None:
        """A step of it was right, as one of all ranks."""
        self._right[optimizer] += 1

    def is_unclear(self, optimizer: int) -> None:
        """Whose gradients a step of it used is not known."""
        self._unclear.add(optimizer)

    @property
    def _common(self) -> set[int]:
        """The optimizers of which enough steps were right. In a model of few numbers, the gradients of one rank may
        look like the average now and then, and do so the more, the smaller they become."""
        return {one for one, right in self._right.items() if right >= _SOME * self._steps[one]}

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
            if self._train_apart(finding, pairing, is_sampled=is_sampled):
                self._findings.leave_open(said("ranks.own"), step=finding.step, site=finding.site)
            else:
                self._findings.add(finding)

    def _train_apart(self, finding: Finding, pairing: Pairing, *, is_sampled: bool) -> bool:
        """Whether something shows that the ranks may train apart on purpose."""
        optimizer = finding.optimizer
        assert optimizer is not None
        apart = self._apart.get(optimizer, [])
        meets_again = bool(apart) and self._equal.get(optimizer, -1) > apart[0]
        has_own = any(one.waits and one.optimizer == optimizer for one in self._waiting)
        held = self._streams[0].held[optimizer]
        return (
            bool(finding.parameters and finding.parameters <= self._left)
            or self._are_own_modules(finding)
            or self._is_mixed(optimizer)
            or (optimizer not in self._common and self._related.are_stages(optimizer))
            or self._changes_weights(optimizer)
            or self._may_be_of_another_model(optimizer)
            or self._may_be_of_each(optimizer, is_sampled=is_sampled)
            or (LETS_APART in self.hooks and not meets_again)
            or (meets_again and (has_own or bool(self.hooks - HOOKS.keys())))
            or (has_own and bool(apart) and pairing.end_equal(held))
            # They average where it is not seen, such as within a step.
            or (finding.waits and not apart)
        )

    def _are_own_modules(self, finding: Finding) -> bool:
        """Whether it is about whole modules, of ranks without a wrapper and without collectives in their backward pass:
        each rank may have its own, as with experts. One tensor of a module was forgotten. A module with the gradients
        of all ranks is an expert without samples, and has the shapes of one with its own."""
        stream = self._streams[0]
        held = stream.held[finding.optimizer or 0]
        is_one_model = any(stream.parameters[number].shards > 1 for number in held) or bool(self.exchanging)
        if not finding.parameters or finding.optimizer in self._wrapped or is_one_model:
            return False
        found = [one.parameters for one in self._waiting if one.optimizer == finding.optimizer]
        own = frozenset().union(*found)
        alone = frozenset().union(*(one.parameters for one in self._waiting if one.waits)) & own
        modules = _modules({number: stream.parameters[number].name for number in sorted(held)})
        # It is not always seen of a few numbers whether they are averaged.
        seen = {number for number in held if prod(stream.parameters[number].shape) > _FEW}
        shared = {modules[number] for number in seen - own}
        apart = {modules[number] for number in own}
        shapes = defaultdict[object, set[tuple[int, ...]]](set)
        for number, module in modules.items():
            shapes[module].add(tuple(stream.parameters[number].shape))
        experts = [shapes[modules[number]] for number in alone]
        are_alike = not alone or all(shapes[module] in experts for module in apart)
        steps_apart = any(one.waits for one in self._waiting) or 0 in self._apart.get(finding.optimizer or 0, [])
        return all(found) and are_alike and steps_apart and bool(shared) and not (shared & apart) - {None}

    def _is_mixed(self, optimizer: int) -> bool:
        """Whether DDP wraps what some ranks step with it, and not what others do: their optimizers only look alike."""
        stepping = {rank for rank, stream in self._streams.items() if stream.steps.get(optimizer)}
        return optimizer in self._wrapped and not stepping <= self._wrapped[optimizer]

    def _may_be_of_another_model(self, optimizer: int) -> bool:
        """Whether it never averages, and the ranks train another model together: one that does average, or of which not
        enough is seen to say that it does not. That has no backward pass in common with it."""
        # One whose weights stay equal averages where it is not seen, such as within its step.
        own = {one.optimizer for one in self._waiting if one.waits and one.optimizer is not None}
        equal = {one for one in own if not self._apart.get(one)}
        others = (self._common | self._unclear | equal) - {optimizer}
        unseen = any(stream.trains_unseen for stream in self._streams.values())
        is_common = optimizer in self._common | self._wrapped.keys()
        return not is_common and not self._related.have(optimizer, others) and (bool(others) or unseen)

    def _may_be_of_each(self, optimizer: int, *, is_sampled: bool) -> bool:
        """Whether each rank may train its own model, as the members of an ensemble or the trials of a search: on its
        own gradients, and from its own start or at its own rate. A script that forgot to average looks the same, unless
        something is averaged or wrapped, or a sampler deals the data out."""
        found = [finding for finding in self._waiting if finding.optimizer == optimizer]
        has_own = 0 in self._apart.get(optimizer, []) or any(finding.law == "watch/same-rates" for finding in found)
        alone = {finding.alone for finding in found if finding.waits} == {True}
        is_common = optimizer in self._common or (optimizer in self._wrapped and self.groups <= {self._ranks})
        return has_own and alone and not is_sampled and not is_common

    def _changes_weights(self, optimizer: int) -> bool:
        """Whether the ranks step on their own gradients, and the script changes the weights between steps by what
        others have learned: all of them, as in an average now and then, some, or halfway."""
        held = next(iter(self._streams.values())).held[optimizer]
        found = {finding.alone for finding in self._waiting if finding.optimizer == optimizer and finding.waits}
        return found == {True} and bool(self._elsewhere & held)


def _modules(names: Mapping[int, str | None]) -> dict[int, tuple[str, int] | None]:
    """The module of each parameter; None if it is not known. Where a name comes again, another model begins."""
    modules: dict[int, tuple[str, int] | None] = {}
    models = Counter[str]()
    seen: dict[str, set[str]] = defaultdict(set)
    for number, name in names.items():
        module, _, own = (name or "").rpartition(".")
        if own in seen[module]:
            models[module] += 1
            seen[module].clear()
        seen[module].add(own)
        modules[number] = None if name is None else (module, models[module])
    return modules


_MOST_WINDOWS = 64
"""Of those before, whose backward passes are compared."""


class Related:
    """Of the processes that train together."""

    def __init__(self) -> None:
        self._alike: set[int] = set()
        self._pairs: set[frozenset[int]] = set()
        self._passes: deque[tuple[int, set[int]]] = deque(maxlen=_MOST_WINDOWS)

    def see(self, here: Sequence[Window]) -> None:
        """A step of all ranks."""
        window = here[0]
        if not are_stages(here):
            self._alike.add(window.optimizer)
        passes = {*window.backwards}
        for other, theirs in self._passes:
            if passes & theirs:
                self._pairs.add(frozenset((other, window.optimizer)))
        self._passes.append((window.optimizer, passes))

    def are_stages(self, optimizer: int) -> bool:
        """Whether the ranks never went backward from the same line before a step of this optimizer."""
        return optimizer not in self._alike

    def have(self, optimizer: int, others: Iterable[int]) -> bool:
        """Whether it trains a part of a model of which one of the others trains another part."""
        return any(frozenset((optimizer, other)) in self._pairs for other in others)


def are_stages(here: Sequence[Window]) -> bool:
    """Whether the losses of all ranks come from different lines."""
    calls = [{one.calls for one in each.backwards.values()} for each in here]
    return len(here) > 1 and all(calls) and not set.intersection(*calls)
