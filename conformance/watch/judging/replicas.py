"""Tells ranks that train one model from ranks that each train their own.

Weights that start equal on all ranks are replicas and must stay equal, so violations of one model wait until the end,
when the later weights are known. Weights that start different may be parts of one model, or separate models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from conformance.watch import records
from conformance.watch.judging.equations import HOOKS
from conformance.watch.judging.findings import Cause, Finding, Findings, Said, said
from conformance.watch.judging.pairing import Pairing, held_by
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.targets import is_of_all_ranks
from conformance.watch.judging.windows import Window, are_equal, are_stages

_WEIGHTS = "watch/same-weights"
_OF_ONE_MODEL = frozenset((_WEIGHTS, "watch/same-rates", "watch/same-steps", "watch/one-scale"))
"""Laws for ranks that train one model."""

_LETS_APART = "post_localSGD_hook"
"""The communication hook with which ranks train separately and average their weights from time to time."""

_MOST = 1000

_FEW = 3

_MATRIX = 2

_SOME = 0.25
"""Share of correct steps above which ranks train a model together. In a tiny model, one rank's gradients may look like
the average by chance, and more often the smaller they are."""


@dataclass
class _Optimizer:
    """The steps of an optimizer. right: the number that used the gradients of all ranks. is_unclear: some steps used
    unknown gradients. apart: the first step with different weights on the ranks. equal: the last with equal ones.
    related: optimizers that step on the same backward passes. is_alike: some ranks' losses come from the same line.
    wrapped: the ranks where DDP wraps its parameters. is_shared: ranks exchanged its parameters. has_parts: some
    parameters are partitioned. sends_since: the first of the last steps that got each parameter from one rank, with
    only its own gradients; None if the last one did not. waiting: violations if the ranks train one model."""

    steps: int = 0
    right: int = 0
    is_unclear: bool = False
    apart: int | None = None
    equal: int = -1
    related: set[int] = field(default_factory=set)
    is_alike: bool = False
    wrapped: set[int] = field(default_factory=set)
    is_shared: bool = False
    has_parts: bool = False
    sends_since: int | None = None
    waiting: list[Finding] = field(default_factory=list)

    @property
    def averages(self) -> bool:
        return 0 < self.right >= _SOME * self.steps

    @property
    def own(self) -> list[Finding]:
        """Steps on other gradients than those of all ranks."""
        return [one for one in self.waiting if one.waits]

    @property
    def is_alone(self) -> bool:
        """Whether most of these use this rank's gradients only: in some step, a few numbers may look averaged."""
        return 2 * sum(one.alone for one in self.own) > len(self.own)

    @property
    def meets_again(self) -> bool:
        return self.apart is not None and self.equal > self.apart


class Models:
    """Decides which optimizers train one model on all ranks, and settles the violations that depend on it.

    streams: by rank; grows. hooks: communication hooks. groups: sizes of groups that average. inside: parameters that
    a wrapper synchronizes. holders: by parameter that starts different, and by rank, the ranks with equal
    weights. exchanging: ranks whose model has collectives in its backward pass. before: parameters that
    get gradients before these.
    """

    fed = (records.Hooked, records.Exchanged, records.Grouped, records.Wrapped, records.Shared)

    def __init__(self, ranks: int, streams: Mapping[int, Stream], findings: Findings) -> None:
        self._ranks, self._streams, self._findings = ranks, streams, findings
        self.hooks: set[str] = set()
        self.groups: set[int] = set()
        self.inside: set[int] = set()
        self._exchanging: set[int] = set()
        self._before: set[int] = set()
        self._of: dict[int, _Optimizer] = defaultdict(_Optimizer)
        self._left: set[int] = set()
        self._elsewhere: set[int] = set()
        self._starts: dict[int, bool] = {}
        self.holders: dict[int, dict[int, frozenset[int]]] = {}
        self._constant: set[int] = set()
        self._zeros: set[int] = set()
        self.is_split = False

    def __getitem__(self, optimizer: int) -> _Optimizer:
        return self._of[optimizer]

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        match record:
            case records.Hooked():
                self.hooks.add(record.name)
            case records.Exchanged():
                self._exchanging.add(rank)
                self._before.update(record.parameters)
            case records.Grouped():
                self.groups.add(record.size)
            case records.Wrapped():
                self._of[record.optimizer].wrapped.add(rank)
                self._left.update(record.own)
                self.inside.update(record.inside)
            case records.Shared():
                self._of[record.optimizer].is_shared = True

    def see(self, here: Sequence[Window]) -> None:
        """Takes a step of all ranks."""
        window, of = here[0], self._of[here[0].optimizer]
        of.is_alike |= not are_stages(here)
        sends = len(here) == self._ranks and all(one.step is not None and one.step.sends for one in here)
        of.sends_since = (window.index if of.sends_since is None else of.sends_since) if sends else None
        of.related |= {int(other) for through in window.reached.values() for other in through}
        self._elsewhere |= {n for one in here if one.step and one.step.is_elsewhere for n in one.step.parameters}
        if len(here) == self._ranks > 1:
            for number in window.weights.keys() - self._starts.keys():
                if all(number in other.weights for other in here):
                    self._starts[number] = self._is_replica(here, number) or window.shards.get(number, 1) > 1
                    if len({*(groups := _with_equal(here, number)).values()}) > 1:
                        self.holders[number] = groups

    def partitioned(self, here: Sequence[Window]) -> frozenset[int]:
        """Partitioned parameters: each rank has a part.

        These are shards of one tensor, as in tensor parallelism; parameters that a wrapper does not synchronize; and
        those that start different, outside of a wrapper, in a model that the ranks compute together. In such a model,
        the backward pass has collectives, the ranks compute one loss, or each rank's loss has a different line, as in
        pipeline stages."""
        parts = {number for number, one in self._streams[here[0].rank].parameters.items() if one.is_part}
        # Without a replica, each rank may train a separate model.
        is_one = any(self._starts.values()) and (len(self._exchanging) == self._ranks > 1 or is_of_all_ranks(here))
        if is_one or are_stages(here):
            parts |= {number for number, is_equal in self._starts.items() if not is_equal} - self.inside
        self.is_split |= bool(parts)
        self._of[here[0].optimizer].has_parts |= bool(parts & here[0].used.keys() - self._constant)
        return frozenset(parts | self._left)

    def _is_replica(self, here: Sequence[Window], number: int) -> bool:
        """Whether a parameter starts equal on all ranks. Vectors and zeros, such as biases and norm weights, start as
        the same constants on different stages too, so there their gradients must also be equal."""
        is_vector = sum(size > 1 for size in self._streams[here[0].rank].parameters[number].shape) < _MATRIX
        if not here[0].weights[number][2]:
            self._zeros.add(number)
        if is_vector or number in self._zeros:
            self._constant.add(number)
        values = [one.weights for one in here], [one.used for one in here if number in one.used]
        return all(are_equal(each, number) for each in values[: 1 + (number in self._constant and are_stages(here))])

    @property
    def averages(self) -> bool:
        """Whether the ranks average gradients at all."""
        return any(of.averages for of in self._of.values())

    @property
    def common(self) -> set[int]:
        """The optimizers of models that the ranks train together."""
        return {number for number in self._of if self._is_common(number) and not self._is_mixed(number)}

    def take(self, causes: Sequence[Cause], here: Sequence[Window]) -> None:
        """Takes the violations in a step of all ranks: adds them, or lets them wait."""
        window, of = here[0], self._of[here[0].optimizer]
        for cause in causes:
            found = cause.first
            found.ranks = tuple(sorted(cause.ranks))
            of_one_model = found.law == _WEIGHTS or (
                found.law in _OF_ONE_MODEL and not self._is_common(window.optimizer)
            )
            if found.waits or found.is_bare or of_one_model:
                self._findings.show(found.key, here)
                of.waiting += [found][: _MOST - len(of.waiting)]
            else:
                self._findings.add(found, here)
        if len(here) == self._ranks and window.weights:
            if not any(cause.first.law == _WEIGHTS for cause in causes):
                of.equal = window.index
            elif of.apart is None:
                of.apart = window.index

    def finish(self, pairing: Pairing, *, is_sampled: bool) -> None:
        """Settles waiting violations. is_sampled: whether a sampler deals out the data."""
        for number, of in self._of.items():
            may_be_apart = bool(of.waiting) and self._may_be_apart(number, pairing, is_sampled=is_sampled)
            for found in of.waiting:
                # If the weights stay equal, ranks average out of sight, such as within a step, unless they only send
                # weights there, while other parameters of the model are averaged.
                averages = any(self._of[one].averages for one in of.related & self._of.keys())
                is_sent = averages and found.step is not None and of.sends_since in range(found.step + 1)
                is_seen = not (found.waits or found.is_bare) or of.apart is not None or is_sent
                # Replicas in a model with other, partitioned parameters.
                is_of_parts = of.has_parts and bool(found.parameters - self._constant)
                # Parts of a tensor that starts as zeros start equal, too.
                may_be_parts = of.has_parts and bool(found.parameters) and found.parameters <= self._zeros
                is_open = (may_be_apart and not is_of_parts) or not is_seen or may_be_parts
                if is_open or self._are_own_modules(found):
                    self._findings.leave_open(_as_fact(found), len(found.ranks), found.step, found.site)
                else:
                    self._findings.add(found)

    def are_inside(self, window: Window) -> bool:
        """Whether a wrapper has all parameters that it steps."""
        return bool(held := held_by(window)) and held <= self.inside

    def finish_own(self, window: Window, pairing: Pairing) -> None:
        """Judges an optimizer that only some ranks have. If it steps parameters of a wrapper, all ranks need them for
        the next gradients."""
        held = held_by(window)
        if self.are_inside(window) and _LETS_APART not in self.hooks and pairing.are_apart(window):
            says = said("not-sent", count=len(held), rank=window.rank, names=window.named(held))
            self._findings.add(Finding.of(window, _WEIGHTS, says))

    def _may_be_apart(self, number: int, pairing: Pairing, *, is_sampled: bool) -> bool:
        """Whether the ranks may intentionally train separate models."""
        of, held = self._of[number], self._streams[0].held[number]
        meets = of.meets_again and (bool(of.own) or not self.hooks <= HOOKS.keys())
        return (
            self._is_mixed(number)
            or meets
            or _LETS_APART in self.hooks
            # The script mixes in other ranks' weights between steps: in some parameters, or halfway.
            or (of.is_alone and bool(self._elsewhere & held))
            or (bool(of.own) and of.apart is not None and pairing.end_equal(held))
            or (not of.averages and not of.is_alike)
            or self._may_be_of_another_model(number)
            or self._may_be_of_each(number, is_sampled=is_sampled)
        )

    def _is_common(self, number: int) -> bool:
        return self._of[number].averages or self._is_wrapped(number)

    def _is_wrapped(self, number: int) -> bool:
        """Whether DDP wraps its parameters. A wrapper that another optimizer trained them with is that optimizer's."""
        held = self._streams[0].held
        others = [one for one, of in self._of.items() if one != number and of.averages]
        return bool(self._of[number].wrapped) and not any(held[number] & held[one] for one in others)

    def _is_mixed(self, number: int) -> bool:
        """Whether DDP wraps its parameters on some ranks only, so the ranks' optimizers only look alike."""
        wrapped = self._of[number].wrapped
        stepping = {rank for rank, stream in self._streams.items() if stream.steps.get(number)}
        return bool(wrapped) and not stepping <= wrapped

    def _may_be_of_another_model(self, number: int) -> bool:
        """Whether the ranks train another model together, while this one never averages.

        The other model averages or may do so unseen, and shares no backward pass with this one."""
        # If its weights stay equal, it averages out of sight, such as within its step.
        others = {
            other
            for other, of in self._of.items()
            if other != number and (of.averages or of.is_unclear or (of.own and of.apart is None))
        }
        unseen = any(stream.trains_unseen for stream in self._streams.values())
        is_own = not self._is_common(number) and not self._of[number].related & others
        return is_own and (bool(others) or unseen)

    def _may_be_of_each(self, number: int, *, is_sampled: bool) -> bool:
        """Whether each rank may train its own model, such as in an ensemble, a cross validation or a hyperparameter
        search: on its own gradients, with its own initial weights or rate, or without any exchange. A script that
        forgot to average looks the same, unless it averages, wraps or samples anything for all ranks."""
        of = self._of[number]
        is_shared = any(one.is_shared for one in (of, *(self._of[other] for other in of.related & self._of.keys())))
        has_own = of.apart == 0 or not is_shared or any(one.law == "watch/same-rates" for one in of.waiting)
        is_common = of.averages or (self._is_wrapped(number) and self.groups <= {self._ranks})
        return has_own and of.is_alone and not is_sampled and not is_common

    def _are_own_modules(self, finding: Finding) -> bool:
        """Whether the finding is about whole modules that each rank may have for itself, such as experts and heads.

        Ranks with a wrapper or partitioned parameters have no such modules. If ranks exchange activations, an expert
        gets its gradients through these collectives. If only some tensors of a module are not averaged, they were
        forgotten. A module with the gradients of all ranks may be an expert that got no samples; then it has the shapes
        of another expert."""
        of, parameters = self._of[finding.optimizer or 0], self._streams[0].parameters
        held = self._streams[0].held[finding.optimizer or 0]
        is_one_model = of.wrapped or of.has_parts or any(parameters[number].shards > 1 for number in held)
        if is_one_model or not (of.own or of.apart == 0) or not all(one.parameters for one in of.waiting):
            return False
        own = frozenset().union(*(one.parameters for one in of.waiting))
        if own & self._before:
            return False
        # A tensor of a few numbers may look averaged by chance.
        shared = {number for number in held - own if prod(parameters[number].shape) > _FEW}
        names = {number: name for number in held if (name := parameters[number].name) is not None}
        if len({*names.values()}) < len(names):
            # With equal names, it is unknown which model a parameter belongs to.
            return bool(shared)
        modules = {number: name.rpartition(".")[0] for number, name in names.items()}
        shapes = defaultdict[str, set[tuple[int, ...]]](set)
        for number, module in modules.items():
            shapes[module].add(tuple(parameters[number].shape))
        experts = [shapes[modules[n]] for one in of.own for n in one.parameters & modules.keys()]
        apart = {modules[number] for number in own & modules.keys()}
        are_alike = not experts or all(shapes[module] in experts for module in apart)
        return are_alike and bool(shared) and apart.isdisjoint(modules[n] for n in shared & modules.keys())


def _as_fact(found: Finding) -> Said:
    """The finding as a fact that may be intended."""
    values = found.says.values
    if found.law == _WEIGHTS:
        return said("agreement.weights", apart=values["apart"], all=values["all"], names=values["names"])
    return said("ranks.own-some", **values) if found.parameters and "names" in values else said("ranks.own")


def _with_equal(here: Sequence[Window], number: int) -> dict[int, frozenset[int]]:
    """By rank, the ranks with the same weights of a parameter."""
    weights = {window.rank: window.weights[number] for window in here}
    return {rank: frozenset(one for one, others in weights.items() if others == own) for rank, own in weights.items()}
