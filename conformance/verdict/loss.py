"""Whether the loss is the task's, and how precise, by the gradients of its backwards at the model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import copysign

from conformance.laws.gradients import FORMATS, AtOutputs, Term, at_outputs
from conformance.laws.run import Rank

#: One of them may fit where it was the other.
_WORDS = dict.fromkeys(("float16", "bfloat16"), "16 bits")


def other_loss(rank: Rank) -> str | None:
    """How the loss of a rank differs from the task's, in a line; None if it is the task's, or that cannot be told.

    The gradient at each output of a micro-batch must be one multiple of weight * (output - target).

    The multiple is left open: what a loss is divided by is the trainer's own.
    """
    is_weighted, wrong = rank.run.plan.is_weighted, _other(rank)
    if not wrong:
        return None
    where = line_of_other_loss(rank)
    if is_weighted and all(_proportional(one.terms, False) for one in wrong):
        return (
            f"Your loss ({where}) leaves out the samples' weights; this case asks for a weighted mean: use `task.loss`."
        )
    asked = "weighted mean of the squared errors" if is_weighted else "mean of the squared errors"
    return (
        f"Your loss ({where}) is not the task's: its gradient is no multiple of {'weight * ' * is_weighted}"
        f"(output - target) in each sample; this case asks for the {asked} of outputs and targets (m, 1): use "
        "`task.loss`."
    )


def line_of_other_loss(rank: Rank) -> str | None:
    """The line of the first backward of a loss that is not the task's."""
    return next((one.end.line for one in _other(rank)), None)


def _other(rank: Rank) -> Sequence[AtOutputs]:
    """The backwards whose gradients are not those of the task's loss in any format."""
    return [one for one in _imprecise(rank) if _fits(one, rank.run.plan.is_weighted) == len(FORMATS)]


def rounded_loss(rank: Rank) -> tuple[str, str] | None:
    """How far a loss of a rank that is the task's is right only, in a sentence, and its line; None if it is right to
    the last bit, or the absolute error's fits as well.

    Where residuals are alike, the absolute error's gradients, too, are right to some precision. It is the task's loss
    if its own are right to a higher one somewhere, and to a lower one nowhere.
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
        f"the loss ({one.end.line}) is right to the precision of {_WORDS.get(name, name)} only, though "
        f"the model computes in {one.format}: outputs, targets or the loss are rounded on the way"
    )
    return text, one.end.line


def _imprecise(rank: Rank) -> Sequence[AtOutputs]:
    """The backwards whose gradients are not those of the task's loss in the format in which the model computes."""
    return [one for one in at_outputs(rank) if not _proportional(one.terms, rank.run.plan.is_weighted)]


def _fits(one: AtOutputs, is_weighted: bool) -> int:
    """To which of FORMATS, from the most precise on, they are right; as many as there are if to none."""
    unit, _ = FORMATS[one.format]
    times = [of / unit for of, _ in FORMATS.values()]
    fitting = (number for number, by in enumerate(times) if by >= 1 and _proportional(one.terms, is_weighted, by))
    return next(fitting, len(FORMATS))


def _proportional(terms: Sequence[Term], is_weighted: bool, times: float = 1.0) -> bool:
    """Whether the gradients are one multiple of the residuals, up to so many times what is rounded."""
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
