"""The right answer: the trajectory of weights, gradients and losses that every correct trainer must produce.

:class:`Recurrence` is the textbook: one gradient per accumulation window, averaged over the global batch, clipped,
applied once. Each method is one decision that a trainer can get wrong; the faults in :mod:`conformance.oracle.faults`
override exactly one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from fractions import Fraction

from conformance.oracle.affine import Affine, Enclosure, Symbols
from conformance.oracle.clipping import clipped
from conformance.oracle.gradient import gradient, total_weight
from conformance.oracle.normal_form import NormalForm
from conformance.oracle.optimizers import update_rule
from conformance.oracle.overflow import Overflow, Scaler, overflow
from conformance.oracle.rounding import Ledger, StageProof
from conformance.workloads.layout import Layout, Window
from conformance.workloads.precision import Precision
from conformance.workloads.workload import SGD, AdamW, Vector, Workload


@dataclass(frozen=True)
class Step:
    """One optimizer step: the window that led to it, the gradient as the optimizer saw it, the weights after it."""

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
        """For each stage its first refusal, else the proof with the fewest spare bits."""
        worst: dict[str, StageProof] = {}
        for proof in self.proofs:
            known = worst.get(proof.stage)
            if known is None or (
                known.exact and (not proof.exact or proof.available - proof.bits < known.available - known.bits)
            ):
                worst[proof.stage] = proof
        return tuple(worst.values())


@dataclass(frozen=True)
class Trajectory:
    """A whole run. ``scales[window]`` is the loss scale during that window, one more entry for the scale at the end.

    ``overflows[window]`` says whether the window overflows at that scale; it is empty where nothing is scaled.
    """

    steps: tuple[Step, ...] = field(hash=False)
    skips: frozenset[int]
    scales: tuple[Fraction, ...]
    overflows: tuple[Overflow, ...]
    certificate: Certificate = field(hash=False)


class Recurrence:
    """Runs one workload in one layout and precision.

    Args:
        observed_skips: the windows that a trainer with a loss scaler of its own really skipped. None: the workload's
            scaler decides, by exact arithmetic.
        observed_scales: that scaler's loss scale in each window; the workload's where it is shorter.
        limit: run only the first ``limit`` windows.

    Raises:
        Unbounded: the precision has no finite error bound for sums of this length.
    """

    def __init__(
        self,
        workload: Workload,
        layout: Layout,
        precision: Precision,
        observed_skips: Set[int] | None = None,
        observed_scales: tuple[Fraction, ...] = (),
        limit: int | None = None,
    ) -> None:
        self.workload, self.layout, self.precision = workload, layout, precision
        self._observed_skips, self._observed_scales = observed_skips, observed_scales
        self._windows = (layout.window(workload, step) for step in range(workload.steps)[:limit])
        self._forms: dict[tuple[int, int | None], NormalForm] = {}
        self.ledger, self.symbols = Ledger(), Symbols()
        self._rule = update_rule(self.optimizer(), precision.master, self.ledger, self.symbols)
        self._skipped: set[int] = set()
        self._overflows: list[Overflow] | None = None
        self._scales: list[Fraction] = []
        self.loss_scale = workload.scale.initial if precision.scaled else Fraction(1)

    # The decisions of a trainer.

    def coefficients(self, window: Window) -> Vector:
        """What each sample's squared error is multiplied with; they sum to one."""
        total = total_weight(self.workload, window)
        if self.workload.loss == "mean":
            return (1 / total,) * len(window.batch)
        return tuple(sample.weight / total for sample in window.batch)

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        """The gradient that reaches the optimizer."""
        return self.clip(self.averaged(window, weights, self.coefficients(window)))

    def clip(self, vector: Affine) -> Affine:
        clip = self.workload.clip
        return vector if clip is None else clipped(vector, clip, self.precision.master, self.ledger)

    def learning_rate(self, step: int) -> Fraction:
        """The learning rate of the ``step``-th optimizer step; a skipped window is no step."""
        base = self.workload.optimizer.lr
        if self.workload.schedule is None:
            return base
        # Schedulers multiply in double precision.
        return Fraction(float(base) * float(self.workload.schedule[step]))

    def optimizer(self) -> SGD | AdamW:
        return self.workload.optimizer

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return self._rule.step(weights, vector, self.learning_rate(step))

    # Shared by the right answer and the faults.

    def averaged(self, window: Window, weights: Affine, coefficients: Vector, part: int | None = None) -> Affine:
        """``sum_i coefficients[i] grad_i``, unclipped. ``part`` tells sums over parts of one window apart."""
        form = self.form(window, coefficients, part)
        # A scaler that steps has seen finite gradients.
        finite = self._observed_skips is not None
        return gradient(self.workload, window, form, weights, self.precision, self.loss_scale, self.ledger, finite)

    def form(self, window: Window, coefficients: Vector, part: int | None = None) -> NormalForm:
        """The window's loss as a quadratic form, kept for the next epoch; ``part`` as for :meth:`averaged`."""
        key = (window.index % len(self.workload.batches), part)
        if key not in self._forms:
            self._forms[key] = NormalForm.of(window, coefficients, self.workload.bias)
        return self._forms[key]

    def run(self) -> Trajectory:
        self._overflows = overflows = list[Overflow]()
        steps = tuple(self.steps())
        return Trajectory(
            steps,
            frozenset(self._skipped),
            tuple(self._scales),
            tuple(overflows),
            Certificate(tuple(self.ledger.proofs)),
        )

    def steps(self) -> Iterator[Step]:
        """The optimizer steps one by one, for those who need only the first few. Call it once."""
        scaler = Scaler(self.workload.scale)
        weights = self.symbols.exactly(self.workload.start)
        taken = 0
        for window in self._windows:
            self.ledger.window = window.index
            if self.precision.scaled:
                self.loss_scale = self._scale(window.index, scaler)
            self._scales.append(self.loss_scale)
            skipped = self._skips(window, weights)
            scaler.update(overflowed=skipped)
            if skipped:
                self._skipped.add(window.index)
                continue
            vector = self.window_gradient(window, weights)
            weights = self.update(weights, vector, taken)
            taken += 1
            yield Step(window.index, vector.enclosure(), weights.enclosure())
        if self.precision.scaled:
            self._scales.append(scaler.scale)

    def _scale(self, window: int, scaler: Scaler) -> Fraction:
        return self._observed_scales[window] if window < len(self._observed_scales) else scaler.scale

    def _skips(self, window: Window, weights: Affine) -> bool:
        if not self.precision.scaled:
            return False
        observed = None if self._observed_skips is None else window.index in self._observed_skips
        # Classifying costs more than the step, and where skips were observed only a whole run tells of overflows.
        if observed is not None and self._overflows is None:
            return observed
        verdict = overflow(self.workload, window, weights.enclosure(), self.loss_scale, self.precision.compute)
        if self._overflows is not None:
            self._overflows.append(verdict)
        return verdict == "certain" if observed is None else observed
