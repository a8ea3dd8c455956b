"""Clipping where each rank holds a part of the gradients, as under FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, isclose, nan
from typing import TypeAlias

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.run import GlobalWindow, Window
from conformance.trace.events import BackwardEnd, Clip, Collective, Event, GradientChange
from conformance.trace.words import number

#: A factor is the quotient of two numbers of at least 16 bits, each rounded.
_ROUNDING = 2**-7

_Factors: TypeAlias = Mapping[Window, tuple[float, Event]]


@law(
    "clip/norm-of-all-shards",
    "Ranks that hold parts of the gradients MUST clip them by the norm of all parts.",
    why="""The norm is √(Σ ‖g_r‖²) over the parts g_r. If each rank compares the norm of its own part with the threshold
        t, it multiplies that by its own min(1, t / ‖g_r‖), and the step takes another direction than the gradient.""",
    source="PyTorch documentation, Getting Started with Fully Sharded Data Parallel (FSDP2): clip_grad_norm_ computes "
    "the norm of DTensors over all ranks",
    fix="""
        # Of the parameters as they are, not of their `to_local()`.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """,
)
def norm_of_all_shards(here: GlobalWindow) -> Outcomes:
    clip = here.plan.clip
    if clip is None or clip["kind"] != "norm" or any(window.rank.shard is None for window in here.windows):
        return
    factors = {window: known for window in here.windows if (known := _factor(window)) is not None}
    if not any(isinstance(event, GradientChange) for _, event in factors.values()):
        if any(window.of(Clip) for window in here.windows):
            yield OK
        return
    window, (least, event) = min(factors.items(), key=lambda one: one[1][0])
    other, (most, _) = max(factors.items(), key=lambda one: one[1][0])
    if isclose(least, most, rel_tol=_ROUNDING):
        yield _by_largest(here, factors, clip["threshold"]) or OK
        return
    # Other things than a clip may multiply them apart.
    if not all(_is_clipped_alone(one, factor, clip["threshold"]) for one, (factor, _) in factors.items()):
        return
    yield Broken(
        event,
        must="all ranks must multiply their parts of the gradients by the same factor",
        because=f"the threshold {number(clip['threshold'])} is for all parts together",
        however=f"before the step of window {here.number}, rank {window.rank.number} multiplied its part by "
        f"{number(least)} and rank {other.rank.number} by {number(most)}",
        shows=(event, *window.attempts[-1:]),
        effect=f"The step of window {here.number} takes another direction than the gradient.",
    )


def _by_largest(here: GlobalWindow, factors: _Factors, threshold: float) -> Broken | None:
    """That the largest part has the norm that all of them should have."""
    window, (factor, event) = next(one for one in factors.items() if isinstance(one[1][1], GradientChange))
    parts = [_part(one) for one in here.windows if one.attempts]
    # Several ranks may hold the same part.
    whole = hypot(*{at: value for part in parts for at, value in part.items()}.values())
    largest = max(hypot(*part.values()) for part in parts)
    if not (isclose(largest, threshold, rel_tol=_ROUNDING) and whole > threshold * (1 + _ROUNDING)):
        return None
    return Broken(
        event,
        must="ranks must clip by the norm of all parts of the gradients",
        because=f"the threshold {number(threshold)} is for all parts together",
        however=f"before the step of window {here.number}, rank {window.rank.number} multiplied its part by "
        f"{number(factor)}, which leaves the largest part the norm {number(largest)}, and all together {number(whole)}",
        shows=(event, *window.attempts[-1:]),
        effect=f"The step of window {here.number} goes along gradients that are too long.",
    )


def _factor(window: Window) -> tuple[float, Event] | None:
    """What a rank has multiplied its part of the gradients by, and the event that shows it; None if that is unknown."""
    if not window.attempts or not window.backwards:
        return None
    step = window.attempts[-1]
    changes = window.between(GradientChange, after=window.backwards[-1], before=step)
    if changes:
        factor = changes[-1].factor
        return (factor, changes[-1]) if len(changes) == 1 and isinstance(factor, float) else None
    # A norm that is an entry of the gradients looks as if these were exchanged, which may change them.
    backward = [*window.backwards, *window.of(BackwardEnd)][-1]
    if any(event.of == "gradients" for event in window.between(Collective, after=backward, before=step)):
        return None
    # Zeros do not show it.
    return (1.0, step) if any(window.rank.own(step.gradients) or ()) else None


def _is_clipped_alone(window: Window, factor: float, threshold: float) -> bool:
    """Whether the rank's own part has the norm that a clip of it alone would leave."""
    norm = hypot(*_part(window).values())
    if factor == 1:
        return norm <= threshold * (1 + _ROUNDING)
    return factor < 1 and isclose(norm, threshold, rel_tol=_ROUNDING)


def _part(window: Window) -> dict[int, float]:
    """The gradients that a rank holds where it steps, by their places; NaN for those that are not finite."""
    own = zip(window.rank.shard or (), window.rank.own(window.attempts[-1].gradients) or (), strict=False)
    return {at: nan if isinstance(one, str) else one for at, one in own if one is not None}
