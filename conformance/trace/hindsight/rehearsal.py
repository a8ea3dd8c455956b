"""A trace without rehearsals: a trainer may train the model for a while, and then go back to where it began.

Learning-rate finders, sanity checks and searches for a batch size do so on the model itself, and restore its weights
and its optimizer afterwards. It shows in weights that are those of the beginning again, to the bit, and in as many
steps from there on as are planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.trace.hindsight.omission import without
from conformance.trace.hindsight.training import Line

#: What is done over again. All else, such as a model or an optimizer, is there from then on.
_REHEARSED = frozenset(
    {
        *("forward", "backward_begin", "backward_end", "autograd_grad", "step", "skip", "state_init"),
        *("loss_scaled", "unscale", "scaler_step", "update", "scale_loss_enter", "scale_loss_exit"),
        *("clip", "norm", "gradient_change", "zero_grad", "schedule", "synchronize"),
    }
)


def without_rehearsals(lines: Sequence[Line], fewest: int, most: int) -> Sequence[Line]:
    """The lines without what came before a return to the first weights, from which on there are from `fewest` to `most`
    steps. A trace without more steps than that is left as it is."""
    steps = list(_steps(lines))
    if len(steps) <= most:
        return lines
    returns = (seq for seq in _returns(lines, steps) if fewest <= sum(step["seq"] > seq for step in steps) <= most)
    begin = next(returns, -1)
    return without(lines, lambda line: line["seq"] <= begin and _is_rehearsed(line))


def _steps(lines: Sequence[Line]) -> Iterator[Line]:
    """The first step after forwards or backwards: several optimizers may share the model."""
    has_trained = False
    for line in lines:
        if line["event"] in ("forward", "backward_begin"):
            has_trained = True
        elif line["event"] in ("step", "skip") and has_trained and not line.get("idle"):
            yield line
            has_trained = False


def _returns(lines: Sequence[Line], steps: Sequence[Line]) -> Iterator[int]:
    """Where the weights have become those of the first forward again: the last `seq` before these forwards."""
    forwards = [line for line in lines if line["event"] == "forward"]
    weights = forwards[0].get("weights") if forwards else None
    has_moved = False
    for step in steps:
        has_moved |= step.get("weights") not in (None, weights)
        following = next((forward for forward in forwards if forward["seq"] > step["seq"]), None)
        if weights and has_moved and following is not None and following.get("weights") == weights:
            yield following["seq"] - 1


def _is_rehearsed(line: Line) -> bool:
    return line["event"] in _REHEARSED and not line.get("initial")
