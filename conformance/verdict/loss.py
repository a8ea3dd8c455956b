"""Checks that the loss is the task's, and its precision, by the gradients at the model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import copysign, floor, trunc

from conformance.laws.correct_gradient import FORMATS, AtOutputs, Term, at_outputs
from conformance.laws.subjects import Rank

#: Either may fit if the other was used.
_WORDS = dict.fromkeys(("float16", "bfloat16"), "16 bits")


def other_loss(rank: Rank) -> str | None:
    """The difference of a rank's loss from the task's, in a line; None if there is none, or it cannot be seen.

    The gradients at the outputs of a micro-batch must be one common multiple of weight * (output - target). The
    multiple is open: trainers may divide the loss by any number.
    """
    is_weighted, wrong = rank.run.plan.is_weighted, _other(rank)
    if not wrong:
        return None
    where = line_of_other_loss(rank)
    if all(_truncates(one, is_weighted) for one in wrong):
        return f"Your loss ({where}) makes integers of the targets: pass `batch.targets` to it unchanged."
    if is_weighted and all(_proportional(one.terms, False) for one in wrong):
        return f"Your loss ({where}) ignores the samples' weights; this case asks for a weighted mean: use `task.loss`."
    asked = "weighted mean of the squared errors" if is_weighted else "mean of the squared errors"
    return (
        f"Your loss ({where}) is not the task's: its gradients are not proportional to {'weight * ' * is_weighted}"
        f"(output - target); this case asks for the {asked} of outputs and targets (m, 1): use `task.loss`."
    )


def line_of_other_loss(rank: Rank) -> str | None:
    """The line of the first backward of a loss that is not the task's."""
    return next((one.end.line for one in _other(rank)), None)


def _other(rank: Rank) -> Sequence[AtOutputs]:
    """The backwards whose gradients are not those of the task's loss in any format."""
    is_weighted = rank.run.plan.is_weighted
    return [one for one in _imprecise(rank) if _fits(one, is_weighted) == len(FORMATS) or _truncates(one, is_weighted)]


def _truncates(one: AtOutputs, is_weighted: bool) -> bool:
    """Whether the gradients are, in the model's format, those of targets that were made integers."""
    made: Sequence[Callable[[float], int]] = (trunc, floor, round)
    return any(
        _proportional(
            [replace(term, residual=term.residual + term.target - to(term.target)) for term in one.terms], is_weighted
        )
        for to in made
    )


def rounded_loss(rank: Rank) -> tuple[str, str] | None:
    """A sentence on a loss of a rank that is the task's, but less precise than the model, and its line; None if it is
    precise, or the absolute error fits as well.

    If residuals are similar, the gradients of the absolute error also fit to some precision. The loss is the task's if
    the squared error fits more precisely somewhere, and less precisely nowhere.
    """
    is_weighted, found = rank.run.plan.is_weighted, list[tuple[int, int, AtOutputs]]()
    for one in _imprecise(rank):
        signs = [replace(term, residual=copysign(1.0, term.residual)) for term in one.terms]
        found.append((_fits(one, is_weighted), _fits(replace(one, terms=signs), is_weighted), one))
    if not any(squared < absolute for squared, absolute, _ in found) or any(two < one for one, two, _ in found):
        return None
    coarsest, _, one = max(found, key=lambda fit: fit[0])
    if coarsest == len(FORMATS):
        return None
    name = [*FORMATS][coarsest]
    text = (
        f"the loss ({one.end.line}) has only the precision of {_WORDS.get(name, name)}, but the model computes in "
        f"{one.format}: outputs, targets or the loss are rounded"
    )
    return text, one.end.line


def _imprecise(rank: Rank) -> Sequence[AtOutputs]:
    """The backwards whose gradients are not those of the task's loss in the model's format."""
    return [one for one in at_outputs(rank) if not _proportional(one.terms, rank.run.plan.is_weighted)]


def _fits(one: AtOutputs, is_weighted: bool) -> int:
    """The index in FORMATS, most precise first, of the first format that the gradients fit; len(FORMATS) if none."""
    unit, _ = FORMATS[one.format]
    times = [of / unit for of, _ in FORMATS.values()]
    fitting = (number for number, by in enumerate(times) if by >= 1 and _proportional(one.terms, is_weighted, by))
    return next(fitting, len(FORMATS))


def _proportional(terms: Sequence[Term], is_weighted: bool, times: float = 1.0) -> bool:
    """Whether the gradients are one multiple of the residuals, within ``times`` their rounding errors."""
    if is_weighted:
        terms = [term.weighted() for term in terms]
    for index, one in enumerate(terms):
        for two in terms[:index]:
            off = sum(
                abs(a.gradient) * b.residual_error + a.gradient_error * abs(b.residual)
                for a, b in ((one, two), (two, one))
            )
            if abs(one.gradient * two.residual - two.gradient * one.residual) > times * off:
                return False
    return True
