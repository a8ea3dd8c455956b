"""Automatic mixed precision: what must happen after an overflow, and the scale on several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from conformance.laws.law import GUIDE, OK, Broken, Outcomes, law
from conformance.laws.loss_scale import decisions, first_disagreement, is_scale, overflowed, scale_of, scaling
from conformance.laws.run import GlobalWindow, Window
from conformance.trace.events import (
    Attempt,
    BackwardEnd,
    Collective,
    Contribution,
    Event,
    Finished,
    Forward,
    LossScaled,
    Number,
    Receive,
    ScalerStep,
    Skip,
    Start,
    StateInit,
    Step,
    Update,
    Vector,
)
from conformance.trace.words import number

GRADIENT_SCALING = 'PyTorch, torch.amp, section "Gradient Scaling"'

#: The relative rounding error of averaging equal weights over the ranks, at most.
_ROUNDING = 1e-6


@law(
    "amp/all-ranks-skip",
    "After an overflow on any rank, every rank MUST skip the step.",
    why="""If the gradients of one rank are infinite, their average is infinite on every rank. A rank that decides by
        its own gradients, before averaging, steps on infinities, or steps while others skip; then the weights
        differ.""",
    source=f'{GUIDE}: "otherwise each worker would step differently"',
    fix="""
        overflow = torch.zeros(1)
        for parameter in model.parameters():
            overflow += (~torch.isfinite(parameter.grad)).any()
        torch.distributed.all_reduce(overflow)
        if overflow.item() == 0:
            optimizer.step()
        """,
    unless=(
        "ddp/all-reduce-every-window",
        "amp/unscale-after-sync",
        "hvd/synchronize-before-unscale",
    ),
)
def all_ranks_skip(here: GlobalWindow) -> Outcomes:
    windows = here.stepping
    if len(windows) < 2 or not any(map(overflowed, windows)):
        return
    if not all(scaling(window).is_scaled and _averages(window) for window in windows):
        return
    parted = next((steps for steps in decisions(windows) if any(steps) and not all(steps)), None)
    if parted is None:
        yield OK
        return
    step = next(step for step in parted if step is not None)
    stayed = next(window for window, step in zip(windows, parted, strict=True) if step is None)
    yield Broken(
        step,
        "every rank must skip the step",
        "gradients have overflowed, and their average is infinite for all",
        f"rank {step.rank} took {step}, and rank {stayed.rank.number} did not step",
        (*(stayed.of(Skip)[:1] or stayed.of(BackwardEnd)[-1:]), step),
        "The ranks' weights differ from here on.",
    )


def _averages(window: Window) -> bool:
    """Whether the trace shows that the rank averages gradients with others."""
    return any(event.of == "gradients" for event in window.of(Contribution))


@law(
    "amp/back-off",
    "When a step was skipped because of an overflow, the update after it MUST lower the scale.",
    why="""A gradient that overflows at the scale S overflows again at S or above until it becomes smaller. If the scale
        does not come down, one step after the other is skipped.""",
    source=f'{GRADIENT_SCALING}: `GradScaler.update`, "If any optimizer steps were skipped the scale is multiplied by '
    '`backoff_factor` to reduce it"',
    fix="""
        scaler.step(optimizer)
        scaler.update()  # without an argument: halves the scale after a skip
        """,
    needs=(Skip,),
)
def back_off(window: Window) -> Outcomes:
    pairs = list(_updates_after_skips(window))
    for skip, update in pairs:
        before, after = update.scale_before, update.scale_after
        if isinstance(before, str) or isinstance(after, str) or after >= before:
            yield Broken(
                update,
                "the scale must come down after an overflow",
                f"what overflows at {number(before)} overflows again at {number(after)}",
                f"{skip} was followed by {update}",
                (skip, update),
                "The next steps are skipped too, until the gradients become smaller.",
            )
            return
    if pairs:
        yield OK


def _updates_after_skips(window: Window) -> Iterator[tuple[Skip, Update]]:
    """Each skip with the first update of its scaler after it."""
    for skip in window.of(Skip):
        asked = window.between(ScalerStep, before=skip)
        later = window.between(Update, after=skip)
        update = next((event for event in later if asked and event.scaler == asked[-1].scaler), None)
        # The scale need not fall below 1.
        if update is not None and is_scale(update.scale_before) and update.scale_before > 1:
            yield skip, update


@law(
    "amp/skip-changes-nothing",
    "A window whose step is skipped because of an overflow MUST NOT change the weights or the optimizer's state.",
    why="""The gradients of that window are lost, so it must have no effect: w stays the same. Changes beside the step,
        such as w − lr·λ·w by hand, must be skipped too; and if the momentum m is reset or decayed to m′, the next step
        is lr·(μ·m′ + g) instead of lr·(μ·m + g).""",
    source='PyTorch, torch.amp, `GradScaler.step`: the step "is skipped to avoid corrupting the params"',
    fix="""
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # not skipped
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1 - lr * decay)
        """,
    needs=(Skip,),
)
def skip_changes_nothing(window: Window) -> Outcomes:
    if window.of(Step):
        return
    pairs = list(pairwise(_weights_along(window)))
    moved = next((pair for pair in pairs if _differs(pair[0][1], pair[1][1])), None)
    states = list(_changes_of_state(window))
    changed = next(filter(None, states), None)
    if moved is not None:
        yield _moved(window, *moved)
    elif changed is not None:
        yield _changed(window, *changed)
    elif pairs or states:
        yield OK


_Shown: TypeAlias = tuple[Event, Vector]


def _weights_along(window: Window) -> Sequence[_Shown]:
    """The events that show weights, from the beginning of a window to that of the next, and the weights."""
    # Averaging the weights over the ranks may change them, and is independent of the skip.
    if any(one.of == "parameters" for kind in (Collective, Receive) for one in window.of(kind)):
        return []
    start = [] if window.index else [event for event in window.rank.setup if isinstance(event, Start)]
    events = [*start, *window.events, *(window.following.forwards[:1] if window.following else ())]
    return [
        (event, event.weights)
        for event in events
        if isinstance(event, Start | Forward | Attempt | StateInit | Finished) and event.weights
    ]


def _changes_of_state(window: Window) -> Iterator[tuple[Event, Event] | None]:
    """Of each skip and each event around it that shows the state of the same optimizer: the two if it has changed.

    What changes after the next forward belongs to another window.
    """
    forwards = [*window.of(Forward), *(window.following.forwards[:1] if window.following else ())]
    for order, skip in enumerate(window.of(Skip)):
        steps = [step for step in window.between(ScalerStep, before=skip) if step.optimizer == skip.optimizer]
        for step in steps[-1:]:
            yield None if step.state == skip.state else (step, skip)
        later = next((event for event in forwards if event.seq > skip.seq and event.states), None)
        if later is not None:
            noted = order - len(window.between(Skip, before=later))
            yield None if later.states[noted] == skip.state else (skip, later)


def _differs(before: Vector, after: Vector) -> bool:
    return any(not _alike(one, other) for one, other in zip(before, after, strict=True))


def _alike(one: Number | None, other: Number | None) -> bool:
    if one is None or other is None:
        return True
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return abs(one - other) <= _ROUNDING * max(abs(one), abs(other))


def _moved(window: Window, before: _Shown, after: _Shown) -> Broken:
    skip = window.of(Skip)[0]
    pairs = zip(before[1], after[1], strict=True)
    old, new = next((one, other) for one, other in pairs if one is not None and other is not None and one != other)
    return Broken(
        after[0],
        "a skipped step must not change the weights",
        "the gradients of its window were lost",
        f"around {skip} a weight changed from {number(old)} to {number(new)}, between {before[0].line} "
        f"and {after[0].line}",
        tuple(sorted({before[0], skip, after[0]}, key=lambda event: event.seq)),
        f"A weight is {number(new)} instead of {number(old)}.",
    )


def _changed(window: Window, before: Event, after: Event) -> Broken:
    skip = window.of(Skip)[0]
    return Broken(
        after,
        "a skipped step must not change the optimizer's state",
        "the gradients of its window were lost",
        f"around {skip} the state changed between {before.line} and {after.line}",
        tuple(sorted({before, skip, after}, key=lambda event: event.seq)),
        "The next step continues from a momentum, or from averages, that no step produced.",
    )


@law(
    "amp/one-scaler",
    "One scaler SHOULD scale the gradients of an optimizer throughout training.",
    why="""A new one begins at its first scale. What the old one had found out is lost: windows that overflow at the
        first scale are skipped once more.""",
    source='PyTorch recipe "Automatic Mixed Precision": "The same GradScaler instance should be used for the entire '
    'convergence run"',
    fix="""
        scaler = torch.amp.GradScaler(device.type)  # once, before the first epoch
        for epoch in range(epochs):
            ...
        """,
    needs=(ScalerStep, Update),
)
def one_scaler(window: Window) -> Outcomes:
    if window.previous is None:
        return
    left = {update.scaler: update for update in window.previous.of(Update)}
    earlier = {step.optimizer: left[step.scaler] for step in window.previous.of(ScalerStep) if step.scaler in left}
    pairs = [(earlier[step.optimizer], step) for step in window.of(ScalerStep) if step.optimizer in earlier]
    for update, step in pairs:
        if step.scaler != update.scaler and step.scale != update.scale_after:
            yield Broken(
                step,
                "one scaler should serve an optimizer throughout",
                "a new one knows nothing of earlier overflows",
                f"{step} is taken by a new scaler, at the scale {number(step.scale)}, where {update} had left "
                f"{number(update.scale_after)}",
                (update, step),
                "Windows that overflow at that scale are skipped once more.",
            )
            return
    if pairs:
        yield OK


@law(
    "amp/same-scale-on-all-ranks",
    "In each window the loss scale MUST be the same on all ranks.",
    why="""The ranks average S₁·g₁, …, Sₙ·gₙ, and rank r divides the average by its own Sᵣ: (Σ Sᵢ·gᵢ) / (n·Sᵣ) is not
        the average of the gradients, and differs from rank to rank. So their weights diverge at once.""",
    source='Determined, PyTorchTrial guide, "The Laws of PyTorchTrial": "always call scaler.scale(loss) with the same '
    'scale factor"; PyTorch, issue 136009',
    fix="""
        # The same settings on every rank: then the ranks find the same overflows and keep the same scale.
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16)
        """,
    unless=("amp/unscale-after-sync",),
)
def same_scale_on_all_ranks(here: GlobalWindow) -> Outcomes:
    # After ranks have skipped different steps, their scales differ for that reason.
    if here.plan.world_size == 1 or here.number > first_disagreement(here.run):
        return
    scaled = [window.of(LossScaled) or _by_hand(window) for window in here.windows]
    if not all(scaled):
        return
    scales = [set(map(scale_of, events)) for events in scaled]
    other = next((rank for rank, some in enumerate(scales) if some != scales[0]), None)
    yield OK if other is None else _scales_differ(scaled[0][-1], scaled[other][-1])


def _by_hand(window: Window) -> Sequence[BackwardEnd]:
    return [end for end in window.of(BackwardEnd) if end.forwards and end.scaled is not None]


def _scales_differ(first: LossScaled | BackwardEnd, second: LossScaled | BackwardEnd) -> Broken:
    one, other = number(scale_of(first) or 0), number(scale_of(second) or 0)
    return Broken(
        second,
        "the loss scale must be the same on all ranks",
        "each rank divides the common average by its own scale",
        f"rank {first.rank} scaled its loss by {one} ({first.line}) and rank {second.rank} by {other} ({second.line})",
        (first, second),
        f"Rank {first.rank}'s gradients weigh {one} and rank {second.rank}'s {other}, and the ranks step differently.",
    )
