"""The correct answer: the trajectory of weights and gradients that every correct trainer must produce.

:class:`Recurrence` is the textbook: one gradient per accumulation window, averaged over the global batch, clipped,
applied once. Each method is one decision of a trainer; correct or wrong deviations override some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, reduce
from itertools import combinations
from typing import TypeVar

from conformance.oracle.affine import Affine, Enclosure, Symbols
from conformance.oracle.gradient import gradient
from conformance.oracle.normal_form import NormalForm
from conformance.oracle.optimizers import Rule, clipped, update_rule
from conformance.oracle.overflow import Overflow, Scaler, overflow
from conformance.oracle.rounding import Ledger, StageProof
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Optimizer, Vector

ONE = Fraction(1)


@dataclass(frozen=True)
class Step:
    """One optimizer step: its window, the gradient that the optimizer saw, the weights after it."""

    window: int
    gradient: Enclosure
    weights: Enclosure


@dataclass(frozen=True)
class Certificate:
    """The proof that a run is exact, stage by stage, or the reason why it cannot be proved."""

    proofs: tuple[StageProof, ...]

    @property
    def exact(self) -> bool:
        return all(proof.exact for proof in self.proofs)

    @property
    def reason(self) -> str | None:
        """The first refusal, in words."""
        refusal = next((proof for proof in self.proofs if not proof.exact), None)
        return None if refusal is None else f"{refusal.stage}, window {refusal.window}: {refusal.reason}"

    def tightest(self) -> tuple[StageProof, ...]:
        """The first refusal of each stage, else its proof with the fewest spare bits."""
        stages: dict[str, list[StageProof]] = {}
        for proof in self.proofs:
            stages.setdefault(proof.stage, []).append(proof)
        # A refusal sorts before any proof.
        return tuple(
            min(proofs, key=lambda one: (one.exact, one.exact and one.available - one.bits))
            for proofs in stages.values()
        )


@dataclass(frozen=True)
class ScalerHistory:
    """The history of a loss scaler: the windows that it skipped, and its scale in each window.

    After the last of ``scales``, the scale is that of the workload's own scaler.
    """

    skips: frozenset[int]
    scales: tuple[Fraction, ...] = ()


@dataclass(frozen=True)
class Trajectory:
    """A whole run. ``scales[window]``: the loss scale during that window; the last entry is the scale at the end.

    ``overflows[window]``: whether the window overflows at that scale. Both are empty without loss scaling.
    """

    steps: tuple[Step, ...] = field(hash=False)
    skips: frozenset[int]
    scales: tuple[Fraction, ...]
    overflows: tuple[Overflow, ...]
    certificate: Certificate = field(hash=False)

    @property
    def history(self) -> ScalerHistory | None:
        """The loss scaler's history, for another recurrence to follow; None without loss scaling."""
        return ScalerHistory(self.skips, self.scales) if self.scales else None


class Recurrence:
    """Runs one problem.

    Args:
        history: the history of a trainer's loss scaler. None: the workload's scaler decides, by exact arithmetic.
    """

    def __init__(self, problem: Problem, history: ScalerHistory | None = None) -> None:
        self.problem, self.history = problem, history
        self._forms: dict[tuple[int, ...], list[tuple[Vector, NormalForm]]] = {}
        self.ledger, self.symbols = Ledger(), Symbols()
        self._overflows: list[Overflow] = []
        self._classifies_all = False
        self._scales: list[Fraction] = []
        self.loss_scale = ONE
        self.window, self.taken, self._read = problem.windows[0], 0, 0
        self._weights, self._scaler = self.symbols.exactly(problem.workload.start), Scaler(problem.workload.scale)

    # The decisions of a trainer.

    def counted(self, window: Window) -> Vector:
        """The factor of each sample's squared error, if averaged correctly; the factors sum to one."""
        return self.problem.coefficients(window)

    def over_ranks(self, window: Window) -> Fraction:
        """The average over the ranks, as a multiple of the correct one."""
        return ONE

    def over_window(self, window: Window) -> Fraction:
        """The average over the micro-batches of a window, as a multiple of the correct one."""
        return ONE

    def over_samples(self, window: Window) -> Fraction:
        """The average over the samples of a micro-batch, as a multiple of the correct one."""
        return ONE

    def trains(self, tensor: int, window: int) -> bool:
        """Whether the ``tensor``-th parameter is trained in a window; frozen parameters have no gradient."""
        return self.problem.workload.trains(tensor, window)

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        """The gradient that reaches the optimizer."""
        return self.clip(self.trained(window, weights, self.coefficients(window)))

    def clip(self, vector: Affine) -> Affine:
        clip = self.problem.workload.clip
        return vector if clip is None else clipped(vector, clip, self.problem.precision.master, self.ledger)

    def group_of(self, tensor: int) -> int:
        """The number of the parameter group with the settings for the ``tensor``-th parameter."""
        return self.problem.workload.group_of(tensor)

    def optimizer(self, group: int = 0) -> Optimizer:
        """The settings of a parameter group."""
        return self.problem.workload.optimizer_of(group)

    def schedule(self, group: int = 0) -> Vector | None:
        """The multipliers of a parameter group's learning rate, one per optimizer step or epoch."""
        return self.problem.workload.schedule_of(group)

    def place(self, step: int) -> int:
        """The place in the schedule of the ``step``-th optimizer step; a skipped window is no step."""
        return step if self.problem.workload.schedule_by == "step" else self.window.epoch

    def base_rate(self, group: int = 0) -> Fraction:
        """The learning rate of a parameter group without its schedule."""
        return self.problem.workload.optimizer_of(group).lr

    def learning_rate(self, step: int, group: int = 0) -> Fraction:
        """The learning rate of a parameter group in the ``step``-th optimizer step."""
        base, schedule = self.base_rate(group), self.schedule(group)
        # Schedulers multiply in double precision.
        return base if schedule is None else Fraction(float(base) * float(schedule[self.place(step)]))

    def optimizer_of(self, tensor: int) -> Optimizer:
        """The settings for the ``tensor``-th parameter."""
        return self.optimizer(self.group_of(tensor))

    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return self.learning_rate(step, self.group_of(tensor))

    def rule(self, spec: Optimizer) -> Rule:
        """The update rule of an optimizer, with empty state."""
        return update_rule(spec, self.problem.precision.master, self.ledger)

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return self.stepped(weights, vector, lambda tensor: self.learning_rate_of(tensor, step))

    def resumed(self, weights: Affine, taken: int) -> Affine:
        """The weights that training resumes with after ``taken`` optimizer steps."""
        return weights

    def read_on(self, stop: int) -> Sequence[Window]:
        """The windows that are read after a resume, with a stop after ``stop`` windows."""
        return self.problem.windows[stop:]

    # Shared by the correct answer and all deviations.

    @cached_property
    def rules(self) -> list[tuple[Rule, list[int]]]:
        """The update rules, each with the parameters that it steps."""
        steps, alike = range(self.problem.workload.steps), dict[object, list[int]]()
        for tensor in self.tensors:
            rates = tuple(self.learning_rate_of(tensor, step) for step in steps)
            kind = self.problem.workload.model.tensors[tensor]
            alike.setdefault((self.optimizer_of(tensor), kind.frozen, kind.block, rates), []).append(tensor)
        return [(self.rule(self.optimizer_of(own[0])), own) for own in alike.values()]

    def stepped(self, weights: Affine, vector: Affine, rate_of: Callable[[int], Fraction]) -> Affine:
        """``weights`` after the optimizer's step with the gradient ``vector``."""
        # Optimizers treat each entry separately.
        return self.joined(
            (rule.step(weights, vector, rate_of(own[0])) if self.steps_on(own[0]) else weights, own)
            for rule, own in self.rules
        )

    def steps_on(self, tensor: int) -> bool:
        """Whether the optimizer steps the ``tensor``-th parameter in the current window; never without a gradient."""
        return self.trains(tensor, self.window.index) and self.problem.workload.uses(tensor, self.window.batch)

    @property
    def tensors(self) -> range:
        """The numbers of the parameters."""
        return range(len(self.problem.workload.model.tensors))

    def only(self, vector: Affine, tensors: Container[int]) -> Affine:
        """``vector`` with zeros for all other parameters."""
        return vector.where([tensor in tensors for tensor in self.problem.workload.model.tensor_of])

    def joined(self, parts: Iterable[tuple[Affine, Sequence[int]]]) -> Affine:
        """One vector of all parameters, from vectors that each have some of them."""
        (first, own), *others = parts
        if not others:
            return first
        return reduce(Affine.plus, (self.only(vector, own) for vector, own in others), self.only(first, own))

    def coefficients(self, window: Window) -> Vector:
        """The factor of each sample's squared error."""
        counted = self.counted(window)
        factor = self.over_ranks(window) * self.over_window(window) * self.over_samples(window)
        return counted if factor == 1 else times(counted, factor)

    def trained(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        """As `averaged`, but only of the parameters that are trained in the window."""
        own = [tensor for tensor in self.tensors if self.trains(tensor, window.index)]
        vector = self.averaged(window, weights, coefficients)
        return vector if len(own) == len(self.tensors) else self.only(vector, own)

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        """``sum_i coefficients[i] grad_i``, unclipped."""
        form = self.form(window, coefficients)
        # A scaler steps only with finite gradients.
        finite = self.history is not None
        return gradient(self.problem, window, form, weights, self.loss_scale, self.ledger, finite)

    def form(self, window: Window, coefficients: Vector) -> NormalForm:
        """The window's loss as a quadratic form, kept for the next epoch."""
        # A list, because hashing a thousand fractions is slow; comparing identical ones is not.
        kept = self._forms.setdefault(window.samples, [])
        known = next((form for of, form in kept if of == coefficients), None)
        if known is None:
            known = NormalForm.of(window, coefficients, self.problem.workload.model)
            kept.append((coefficients, known))
        return known

    def run(self, limit: int | None = None) -> Trajectory:
        """Runs the first ``limit`` windows, or all. Call it once.

        Raises:
            Unbounded: the precision has no finite error bound for sums of this length.
        """
        self._classifies_all = True
        steps = tuple(self.steps(limit))
        skips = {window.index for window in self.problem.windows[:limit]}.difference(step.window for step in steps)
        certificate = Certificate(tuple(self.ledger.proofs))
        return Trajectory(steps, frozenset(skips), tuple(self._scales), tuple(self._overflows), certificate)

    def steps(self, limit: int | None = None) -> Iterator[Step]:
        """Yields the optimizer steps of the first ``limit`` windows, so callers can stop early. Call it once.

        Raises:
            Unbounded: the precision has no finite error bound for sums of this length.
        """
        halves = self.halves(limit)
        for window, vector in halves:
            _, weights = next(halves)
            yield Step(window, vector, weights)

    def halves(self, limit: int | None = None) -> Iterator[tuple[int, Enclosure]]:
        """As `steps`, but yields for each step first its window and gradient, then its window and weights."""
        scaled = self.problem.precision.scaled
        seen = () if self.history is None else self.history.scales
        for number, window in [*enumerate(self.read()[:limit])][self._read :]:
            if number == self.problem.resumed_at:
                self._weights = self.resumed(self._weights, self.taken)
            self.window, self.ledger.window, self._read = window, window.index, number + 1
            if scaled:
                self.loss_scale = seen[window.index] if window.index < len(seen) else self._scaler.scale
                dropped = window.index - len(self._scales)
                self._scales += [self.loss_scale] * (1 + dropped)
                self._overflows += ["possible"] * dropped
                skipped = self._skips(window, self._weights)
                self._scaler.update(overflowed=skipped)
                if skipped:
                    continue
            vector = self.window_gradient(window, self._weights)
            yield window.index, vector.enclosure()
            self._weights = self.update(self._weights, vector, self.taken)
            self.taken += 1
            yield window.index, self._weights.enclosure()
        if scaled:
            self._scales.append(self._scaler.scale)

    def continued(self, textbook: type[Recurrence]) -> Recurrence:
        """A copy whose `steps` start after the last step of this one, by the decisions of ``textbook``."""
        other = copy(self)
        other.__class__ = textbook
        other._scaler, other._scales, other._overflows = copy(self._scaler), [*self._scales], [*self._overflows]
        # Each parameter may get other settings than the rest of its group.
        other.rules = [(copy(rule), [tensor]) for rule, own in self.rules for tensor in own]
        return other

    def read(self) -> Sequence[Window]:
        """All windows in reading order."""
        stop = self.problem.resumed_at
        return self.problem.windows if stop is None else [*self.problem.windows[:stop], *self.read_on(stop)]

    def _skips(self, window: Window, weights: Affine) -> bool:
        # Classifying a window costs more than its step. If skips were observed, only `run` reports overflows.
        if self.history is not None and not self._classifies_all:
            return window.index in self.history.skips
        verdict = overflow(self.problem, window, weights.enclosure(), self.loss_scale)
        self._overflows.append(verdict)
        return verdict == "certain" if self.history is None else window.index in self.history.skips


def times(coefficients: Vector, factor: Fraction | int) -> Vector:
    return tuple(factor * c for c in coefficients)


@dataclass(frozen=True)
class Deviation:
    """A deviation from the textbook. ``text`` completes "the trainer ...", ``textbook`` overrides the decisions."""

    text: str
    textbook: type[Recurrence]

    @property
    def decisions(self) -> frozenset[str]:
        own = (kind for kind in self.textbook.__mro__ if kind is not Recurrence and issubclass(kind, Recurrence))
        return frozenset(name for kind in own for name in vars(kind) if not name.startswith("__"))


def deviating(deviations: Sequence[Deviation]) -> type[Recurrence]:
    """The textbook with all of these deviations; if two change the same decision, the first wins."""
    return type("Deviating", (*(one.textbook for one in deviations), Recurrence), {})


D = TypeVar("D", bound=Deviation)


def pairs(deviations: Sequence[D]) -> Iterator[tuple[D, D]]:
    """All pairs of deviations that change different decisions, or decisions with several parts: the settings of the
    optimizer, and the restored state of a resume. A deviation that contains the other makes no pair with it."""
    several = {"optimizer", "resumed"}
    return (
        (one, two)
        for one, two in combinations(deviations, 2)
        if one.decisions & two.decisions <= several and not issubclass(two.textbook, one.textbook)
    )
