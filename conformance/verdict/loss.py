"""Whether the loss is the task's, by the gradients of its backwards at the model's outputs."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.laws.at_outputs import Term, at_outputs
from conformance.laws.run import Rank


def other_loss(rank: Rank) -> str | None:
    """How the loss of a rank differs from the task's, in a line; None if it is the task's, or that cannot be told.

    The gradient at each output of a micro-batch must be one multiple of weight * (output - target).

    The multiple is left open: what a loss is divided by is the trainer's own.
    """
    is_weighted = rank.run.plan.spec["loss"] == "weighted"
    wrong = [one for one in at_outputs(rank) if not _proportional(one.terms, is_weighted)]
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


def _proportional(terms: Sequence[Term], is_weighted: bool) -> bool:
    """Whether the gradients are one multiple of the residuals, up to rounding."""
    if is_weighted:
        terms = [term.weighted() for term in terms]
    for index, one in enumerate(terms):
        for two in terms[:index]:
            off = sum(
                abs(a.gradient) * b.residual_error + a.gradient_error * abs(b.residual)
                for a, b in ((one, two), (two, one))
            )
            if abs(one.gradient * two.residual - two.gradient * one.residual) > off:
                return False
    return True
