"""Whether the loss is the task's, by the gradients of its backwards at the model's outputs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from conformance.laws.run import Rank
from conformance.trace.events import BackwardEnd, Forward, Vector


def other_loss(rank: Rank) -> str | None:
    """How the loss of a rank differs from the task's, in a line; None if it is the task's, or that cannot be told.

    The gradient at each output of a micro-batch must be one multiple of weight * (output - target).

    The multiple is left open: what a loss is divided by is the trainer's own.
    """
    spec = rank.run.plan.spec
    samples, is_weighted = _Samples(spec), spec["loss"] == "weighted"
    forwards = {event.forward: event for event in rank.of(Forward)}
    ends = rank.of(BackwardEnd)
    often = Counter(number for end in ends for number in end.forwards)
    wrong: list[tuple[BackwardEnd, bool]] = []
    for end in ends:
        for forward, outputs, gradients in zip(end.forwards, end.outputs, end.output_gradients, strict=False):
            of = forwards.get(forward)
            epsilon = None if of is None else _EPSILON.get(of.computes or "")
            # Two backwards through one forward are two parts of a loss.
            if (
                of is None
                or epsilon is None
                or often[forward] > 1
                or not len(outputs) == len(of.rows) == len(gradients)
            ):
                continue
            for terms in samples.terms(of.rows, outputs, gradients):
                if not _proportional(terms, epsilon, is_weighted):
                    wrong.append((end, is_weighted and _proportional(terms, epsilon, False)))
    if not wrong:
        return None
    where = wrong[0][0].line
    if all(without_weights for _, without_weights in wrong):
        return (
            f"Your loss ({where}) leaves out the samples' weights; this case asks for a weighted mean: use `task.loss`."
        )
    asked = "weighted mean of the squared errors" if is_weighted else "mean of the squared errors"
    return (
        f"Your loss ({where}) is not the task's: its gradient is no multiple of {'weight * ' * is_weighted}"
        f"(output - target) in each sample; this case asks for the {asked}: use `task.loss`."
    )


#: The unit roundoff and the least number of the formats that a model computes in.
_EPSILON = {
    "float64": (2.0**-53, 0.0),
    "float32": (2.0**-24, 2.0**-149),
    "float16": (2.0**-11, 2.0**-24),
    "bfloat16": (2.0**-8, 2.0**-133),
}


@dataclass(frozen=True)
class _Term:
    """What one sample gives: the gradient at its output, its residual, the size of the residual's parts, its weight."""

    gradient: float
    residual: float
    size: float
    weight: float

    def weighted(self) -> _Term:
        return _Term(self.gradient, self.weight * self.residual, self.weight * self.size, 1.0)


class _Samples:
    """The samples by their rows, as far as a row belongs to one sample of one micro-batch."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        samples = spec["samples"]
        row = dict[tuple[float, ...], int]()
        rows = [row.setdefault(tuple(x), len(row)) for x in samples["x"]]
        often = Counter(rows)
        # Each micro-batch has a divisor of its own, also where several go forward at once.
        micro_batches = chain.from_iterable(spec["micro_batches"])
        self._of = {
            rows[sample]: (number, samples["y"][sample], samples["weight"][sample])
            for number, micro_batch in enumerate(micro_batches)
            for sample in micro_batch
            if often[rows[sample]] == 1
        }

    def terms(self, rows: Sequence[int | None], outputs: Vector, gradients: Vector) -> list[list[_Term]]:
        """Those of each micro-batch in which gradients are finite and not zero: what is lost is the trainer's bug."""
        found = defaultdict[int, list[_Term]](list)
        for row, output, gradient in zip(rows, outputs, gradients, strict=True):
            if row not in self._of or not isinstance(output, float) or not isinstance(gradient, float) or not gradient:
                continue
            number, target, weight = self._of[row]
            found[number].append(_Term(gradient, output - target, abs(output) + abs(target), weight))
        return list(found.values())


def _proportional(terms: Sequence[_Term], epsilon: tuple[float, float], is_weighted: bool) -> bool:
    """Whether the gradients are one multiple of the residuals, up to rounding in a format of this ``epsilon``.

    With unit roundoff u a residual is off by at most 6 u of its parts: the cast of output and target, and the
    difference, each at most twice. A gradient is off by at most 16 u of itself, as `oracle.gradient` counts its
    scalings, and by the format's least number where it underflows.
    """
    unit, least = epsilon
    if is_weighted:
        terms = [term.weighted() for term in terms]
    for index, one in enumerate(terms):
        for two in terms[:index]:
            off = sum(
                6 * unit * abs(a.gradient) * b.size + (16 * unit * abs(a.gradient) + least) * abs(b.residual)
                for a, b in ((one, two), (two, one))
            )
            if abs(one.gradient * two.residual - two.gradient * one.residual) > off:
                return False
    return True
