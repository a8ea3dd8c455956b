"""The update rules of torch.optim's single-tensor implementations, stage by stage, and clipping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from conformance.oracle.affine import Affine, Interval, dot, square_root
from conformance.oracle.rounding import Ledger, combined, gamma
from conformance.workloads.precision import FP32, Format
from conformance.workloads.workload import SGD, Adagrad, AdamW, Clip, Optimizer

ONE = Fraction(1)


class Rule(ABC):
    """An optimizer's update rule and state. Assigning another ``spec`` of its kind changes its settings."""

    def __init__(self, spec: Any, fmt: Format, ledger: Ledger) -> None:
        self.spec, self._fmt, self._ledger = spec, fmt, ledger
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """Empties the state."""

    @abstractmethod
    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        """The weights after a step with this gradient."""


class SGDRule(Rule):
    """``buf = momentum buf + (1 - dampening) g``; ``w -= lr (g + momentum buf)`` with Nesterov, else ``w -= lr buf``.

    The first step sets ``buf = g`` for any dampening; weight decay adds ``weight_decay w`` to g.
    """

    def forget(self) -> None:
        self.buffer: Affine | None = None

    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        spec = self.spec
        if spec.weight_decay:
            gradient = self.decayed(gradient, weights)
        if spec.momentum:
            before = self.buffer
            self.buffer = self.kept(
                gradient
                if before is None
                else self._combine("momentum", (spec.momentum, before), (1 - spec.dampening, gradient))
            )
            gradient = self.direction(gradient, before, self.buffer)
        return self.updated(weights, gradient, lr)

    def decayed(self, gradient: Affine, weights: Affine) -> Affine:
        """The gradient with the weight decay."""
        return self._combine("weight decay", (ONE, gradient), (self.spec.weight_decay, weights))

    def direction(self, gradient: Affine, before: Affine | None, after: Affine) -> Affine:
        """What the weights move along: by the gradient, and the momentum before and after it."""
        if not self.spec.nesterov:
            return after
        return self._combine("nesterov", (ONE, gradient), (self.spec.momentum, after))

    def updated(self, weights: Affine, direction: Affine, lr: Fraction) -> Affine:
        """The weights after the step."""
        return self._combine("update", (ONE, weights), (-lr, direction))

    def kept(self, momentum: Affine) -> Affine:
        """The momentum as the optimizer stores it, and steps with it."""
        return momentum

    def _combine(self, stage: str, *parts: tuple[Fraction, Affine]) -> Affine:
        return combined(stage, parts, self._fmt, self._ledger)


class AdagradRule(Rule):
    """``v += g g``, then ``w -= lr / (1 + (steps - 1) lr_decay) g / (sqrt(v) + eps)``; never exact, always bounded.

    Weight decay adds ``weight_decay w`` to g.
    """

    def forget(self) -> None:
        self.steps = 0
        self.sums: list[Interval] = []

    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        spec, size = self.spec, len(weights)
        if spec.weight_decay:
            parts = (ONE, gradient), (spec.weight_decay, weights)
            gradient = combined("weight decay", parts, self._fmt, self._ledger)
        self._ledger.refuse("update", self._fmt, "Adagrad divides by a square root")
        rate = lr / (1 + self.steps * spec.lr_decay)
        self.steps += 1
        gradients = [gradient.interval(i) for i in range(size)]
        before = self.sums or [(Fraction(0), Fraction(0))] * size
        self.sums = [self._added(v, _square(g)) for v, g in zip(before, gradients, strict=True)]
        steps = []
        for g, v in zip(gradients, self.sums, strict=True):
            quotients = [bound / root for bound in g for root in self.roots(v)]
            # Roundings: a square root, eps and the sum, the rate and its product, the quotient.
            slack = gamma(8, self._fmt) * max(map(abs, quotients)) + 2 * self._fmt.quantum
            steps.append((-rate * (max(quotients) + slack), -rate * (min(quotients) - slack)))
        return moved(weights, steps, gamma(2, self._fmt), self._fmt)

    def roots(self, total: Interval) -> Interval:
        """Bounds of the divisor of the gradient."""
        return square_root(total[0])[0] + self.spec.eps, square_root(total[1])[1] + self.spec.eps

    def _added(self, total: Interval, square: Interval) -> Interval:
        """The sum of both, with their roundings."""
        slack = gamma(3, self._fmt) * (total[1] + square[1]) + 2 * self._fmt.quantum
        least = max(total[0] + square[0] - slack, Fraction(0))
        return _short(least, down=True), _short(total[1] + square[1] + slack, down=False)


class AdamWRule(Rule):
    """Decoupled weight decay, then ``w -= lr / bc1 * m / (sqrt(v) / sqrt(bc2) + eps)``; never exact, always bounded."""

    #: The relative error of the scalars of a step, on top of the counted roundings: negligible for doubles.
    _of_scalars = Fraction(0)

    def forget(self) -> None:
        self.steps = 0
        self._first: list[Interval] = []
        self._second: list[Interval] = []

    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        spec, size = self.spec, len(weights)
        self._ledger.refuse("update", self._fmt, "AdamW divides by a square root")
        self.steps += 1
        if not self._first:
            self._first = self._second = [(Fraction(0), Fraction(0))] * size
        gradients = [gradient.interval(i) for i in range(size)]
        squares = [_square(bounds) for bounds in gradients]
        # Each moment rounds at most six times: both factors, both products, a difference (lerp) and the sum.
        self._first = [self._blend(m, g, spec.beta1) for m, g in zip(self._first, gradients, strict=True)]
        self._second = [self._blend(v, s, spec.beta2) for v, s in zip(self._second, squares, strict=True)]
        rates = [lr / correction for correction in self._bias_correction(spec.beta1)]
        least, most = self._bias_correction(spec.beta2)
        correction = square_root(least)[0], square_root(most)[1]
        steps = []
        for m, v in zip(self._first, self._second, strict=True):
            quotients = [bound / root for bound in m for root in self.roots((max(v[0], Fraction(0)), v[1]), correction)]
            # Roundings: two square roots and a cast, their quotient, eps and the sum, the step size and its cast,
            # product, quotient.
            slack = self._roundings(10) * max(map(abs, quotients)) + 2 * self._fmt.quantum
            moves = [rate * bound for rate in rates for bound in (min(quotients) - slack, max(quotients) + slack)]
            steps.append((-max(moves), -min(moves)))
        return self.updated(weights, steps, lr)

    def updated(self, weights: Affine, steps: Sequence[Interval], lr: Fraction) -> Affine:
        """The weights after these steps and the decay."""
        return moved(weights, steps, self._roundings(4), self._fmt, kept=self.kept(lr))

    def kept(self, lr: Fraction) -> Fraction:
        """The factor of the weights that weight decay leaves."""
        return ONE - lr * Fraction(self.spec.weight_decay)

    def roots(self, square: Interval, correction: Interval) -> Interval:
        """Bounds of the divisor of the first moment, from those of the second and the root of its bias correction."""
        eps = self.spec.eps
        return square_root(square[0])[0] / correction[1] + eps, square_root(square[1])[1] / correction[0] + eps

    def _roundings(self, operations: int) -> Fraction:
        """The relative error of so many operations and of the scalars in them."""
        return (1 + gamma(operations, self._fmt)) * (1 + self._of_scalars) - 1

    def _bias_correction(self, beta: Fraction) -> Interval:
        """Bounds of 1 - beta^steps in double precision: the power is wrong by an ulp, and the difference cancels
        digits."""
        exact, error = 1 - beta**self.steps, Fraction(1, 2**52)
        return exact - error, exact + error

    def _blend(self, old: Interval, new: Interval, beta: Fraction) -> Interval:
        """``beta * old + (1 - beta) * new``, with its roundings."""
        slack = gamma(6, self._fmt) * (max(map(abs, old)) + 2 * self._fresh(beta) * max(map(abs, new)))
        slack += 4 * self._fmt.quantum
        parts = (beta, self._fresh(beta))
        low, high = dot(parts, (old[0], new[0]), -slack), dot(parts, (old[1], new[1]), slack)
        return _short(low, down=True), _short(high, down=False)

    def _fresh(self, beta: Fraction) -> Fraction:
        """How much a new gradient or square counts in its moment."""
        return 1 - beta


class AdamWRuleOfTensors(AdamWRule):
    """AdamW with all scalars of a step in tensors of 24 bits: `torch.optim` computes them so if it is compiled,
    `capturable` or `differentiable`."""

    #: One rounding each of the learning rate, its quotient with the first correction, the inverse of that, its product
    #: with the root of the second, eps, and its quotient with the step size; eight of the root, which may be a power.
    #: The decay has three: of the learning rate, its product with the decay, and the difference.
    _of_scalars = gamma(14, FP32)

    def _bias_correction(self, beta: Fraction) -> Interval:
        """Bounds of 1 - beta^steps in fp32: the base rounds, hence each of its factors; the power is wrong by at most
        four ulps, two units each (CUDA Programming Guide, mathematical functions, `powf`; less elsewhere), and the
        difference rounds."""
        power = beta**self.steps
        error = gamma(self.steps + 8, FP32) * power + gamma(1, FP32) * (1 - power)
        return 1 - power - error, 1 - power + error


def moved(weights: Affine, steps: Sequence[Interval], rounding: Fraction, fmt: Format, kept: Fraction = ONE) -> Affine:
    """``kept * weights`` plus a step for each entry, with this relative error of both."""
    added = weights.scaled(kept).plus(weights.symbols.between(steps))
    sizes = [size + max(map(abs, step)) for size, step in zip(weights.magnitude, steps, strict=True)]
    return added.widen([rounding * size + 2 * fmt.quantum for size in sizes])


def _square(bounds: Interval) -> Interval:
    low, high = sorted(map(abs, bounds))
    return (Fraction(0) if bounds[0] <= 0 <= bounds[1] else low * low), high * high


def _short(value: Fraction, *, down: bool) -> Fraction:
    """``value`` rounded outward to a multiple of 2^-400, which keeps denominators from growing with each step."""
    grid = 2**400
    return Fraction(value.numerator * grid // value.denominator + (0 if down else 1), grid)


def update_rule(spec: Optimizer, fmt: Format, ledger: Ledger) -> Rule:
    """An optimizer with empty state."""
    rules: dict[type[Optimizer], type[Rule]] = {SGD: SGDRule, AdamW: AdamWRule, Adagrad: AdagradRule}
    return rules[type(spec)](spec, fmt, ledger)


#: torch.nn.utils.clip_grad_norm_ divides by (norm + 1e-6).
NORM_GUARD = Fraction(1e-6)


def clipped(
    gradient: Affine,
    clip: Clip,
    fmt: Format,
    ledger: Ledger,
    guard: Fraction = NORM_GUARD,
    measured: Sequence[Affine] = (),
) -> Affine:
    """``gradient`` after clipping. Clamping never rounds; scaling rounds unless the norm is below the threshold.
    ``guard``: the number added to the norm. ``measured``: the vectors whose largest norm replaces the gradient's."""
    if clip.kind == "value":
        if not fmt.holds(clip.threshold):
            ledger.refuse("clip", fmt, f"the threshold is not representable in {fmt.name}")
            return gradient.clamped(clip.threshold).widen([fmt.unit_roundoff * clip.threshold] * len(gradient))
        return gradient.clamped(clip.threshold)
    low, high = map(max, zip(*(_norm(vector, fmt) for vector in measured or [gradient]), strict=True))
    if high + guard * (1 + gamma(2, fmt)) <= clip.threshold * (1 - gamma(4, fmt)):
        return gradient
    ledger.refuse("clip", fmt, "scaling by the norm rounds")
    # The quotient's two roundings, its clamp to 1, and the product.
    rounding = gamma(4, fmt)
    coefficient_low = min(Fraction(1), clip.threshold / (high + guard) * (1 - rounding))
    coefficient_high = min(Fraction(1), clip.threshold / max(low + guard, clip.threshold) * (1 + rounding))
    scaled = gradient.scaled_by_interval(coefficient_low, coefficient_high)
    return scaled.widen([fmt.unit_roundoff * size + fmt.quantum for size in scaled.magnitude])


def _norm(gradient: Affine, fmt: Format) -> Interval:
    """Bounds of the 2-norm in ``fmt``: squares, sums over entries and over tensors, and two square roots round."""
    squares = [_square(gradient.interval(index)) for index in range(len(gradient))]
    least, most = (sum(bounds, Fraction(0)) for bounds in zip(*squares, strict=True))
    underflow = len(squares) * fmt.quantum
    rounding = gamma(2 * len(squares) + 6, fmt)
    return (
        square_root(max(least - underflow, Fraction(0)))[0] * (1 - rounding),
        square_root(most + underflow)[1] * (1 + rounding),
    )
