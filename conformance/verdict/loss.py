"""Whether the loss is the task's, and how precise, by the gradients of its backwards at the model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import copysign

from conformance.laws.at_outputs import FORMATS, AtOutputs, Term, at_outputs
from conformance.laws.run import Rank

#: One of them may fit where it was the other.
_WORDS = dict.fromkeys(("float16", "bfloat16"), "16 bits")


def other_loss(rank: Rank) -> str | None:
    """How the loss of a rank differs from the task's, in a line; None if it is the task's, or that cannot be told.

    The gradient at each output of a micro-batch must be one multiple of weight * (output - target).

    The multiple is left open: what a loss is divided by is the trainer's own.
    """
    is_weighted = rank.run.plan.is_weighted
    wrong = [one for one in _imprecise(rank) if _rounded_to(one, is_weighted) is None]
    if not wrong:
        return None
    where = wrong[0].end.line
    if is_weighted and all(_proportional(one.terms, False) for one in wrong):
        return (
            f"Your loss ({where}) leaves out the samples' weights; this case asks for a weighted mean: use `task.loss`."
        )
    asked = "weighted mean of the squared errors" if is_weighted else "mean of the squared errors"
    return (
        f"Your loss ({where}) is not the task's: its gradient is no multiple of {'weight * ' * is_weighted}"
        f"(output - target) in each sample; this case asks for the {asked}: use `task.loss`."
    )


def rounded_loss(rank: Rank) -> str | None:
    """How far a loss of a rank that is the task's is right only, in a line; None if it is right to the last bit, or the
    absolute error's would fit as well."""
    is_weighted = rank.run.plan.is_weighted
    for one in _imprecise(rank):
        rounded = _rounded_to(one, is_weighted)
        signs = [replace(term, residual=copysign(1.0, term.residual)) for term in one.terms]
        if rounded is not None and _rounded_to(replace(one, terms=signs), is_weighted) is None:
            return (
                f"the loss ({one.end.line}) is right to the precision of {_WORDS.get(rounded, rounded)} only, though "
                f"the model computes in {one.format}: outputs, targets or the loss are rounded on the way"
            )
    return None


def _imprecise(rank: Rank) -> Sequence[AtOutputs]:
    """The backwards whose gradients are not those of the task's loss in the format in which the model computes."""
    return [one for one in at_outputs(rank) if not _proportional(one.terms, rank.run.plan.is_weighted)]


def _rounded_to(one: AtOutputs, is_weighted: bool) -> str | None:
    """The most precise of the lower formats in which they are."""
    unit, _ = FORMATS[one.format]
    lower = ((name, of / unit) for name, (of, _) in FORMATS.items() if of > unit)
    return next((name for name, times in lower if _proportional(one.terms, is_weighted, times)), None)


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
