"""Laws of automatic mixed precision: overflows, and the scale on several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from math import isclose
from typing import TypeAlias

from conformance.laws.correct_gradient import seen_scale, weight_of
from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.scaled_gradients import decisions, first_disagreement, is_scale, overflowed, scale_of, scaling
from conformance.laws.sharing import first_parted
from conformance.laws.subjects import GlobalWindow, Window, fact
from conformance.oracle.overflow import Scaler
from conformance.trace import events as trace
from conformance.trace.short_texts import number
from conformance.workloads.workload import LossScale

GRADIENT_SCALING = 'PyTorch, torch.amp, section "Gradient Scaling"'

#: Loss scales differ by more; what outputs show of them is rounded.
_LEAST_CHANGE = 1 / 64
#: The relative rounding error of averaging equal weights over the ranks, at most.
_ROUNDING = 1e-6


@law(
    "amp/all-ranks-skip",
    "After an overflow on any rank, every rank MUST skip the step.",
    fault="steps on some ranks while others skip an overflow",
    why="""If the gradients of one rank are infinite, their average is infinite on every rank. A rank that decides by
        its own gradients, before averaging, steps with infinities, or steps while others skip; then the weights
        differ.""",
    source=f'{GUIDE}: "otherwise each worker would step differently"',
    advice="all-reduce the overflow flag, so all ranks skip together",
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
def all_ranks_skip(here: GlobalWindow) -> Outcome:
    windows = here.stepping
    is_scaled = here.plan.precision.scaled or all(scaling(one).is_scaled for one in windows)
    if len(windows) < 2 or not is_scaled or not (any(map(overflowed, windows)) or _is_clamped(here)):
        return None
    # Ranks that average weights may decide alone. Buffers of the trainer's own do not show whose sum they carry.
    sent = [
        event.of
        for one in windows
        for event in one.between(trace.Contribution, before=one.attempts[0] if one.attempts else None)
    ]
    if "gradients" not in sent and (here.number != first_parted(here.run) or None not in sent):
        return None
    parted = next((steps for steps in decisions(windows) if any(steps) and not all(steps)), None)
    if parted is None:
        return OK
    step = next(step for step in parted if step is not None)
    stayed = next(window for window, step in zip(windows, parted, strict=True) if step is None)
    return Broken(
        step,
        "every rank skips the step",
        f"rank {step.rank} took {step}, but rank {stayed.rank.number} did not step",
        "gradients overflowed, so their average is infinite on all ranks",
        (*(stayed.of(trace.Skip)[:1] or stayed.of(trace.BackwardEnd)[-1:]), step),
        "The ranks' weights differ from now on.",
    )


def _is_clamped(here: GlobalWindow) -> bool:
    """Whether a clip by value may hide the overflow for which ranks that otherwise step part."""
    steps_elsewhere = all(window.rank.of(trace.Attempt) for window in here.windows)
    is_by_value = here.plan.clip is not None and here.plan.clip["kind"] == "value"
    return is_by_value and steps_elsewhere and here.number == first_parted(here.run)


@law(
    "amp/back-off",
    "After a step is skipped for an overflow, the update MUST lower the scale.",
    fault="does not lower the loss scale after an overflow",
    why="""A gradient that overflows at the scale S overflows again at S or above until it becomes smaller. If the scale
        does not come down, step after step is skipped.""",
    source=f'{GRADIENT_SCALING}: `GradScaler.update`, "If any optimizer steps were skipped the scale is multiplied by '
    '`backoff_factor` to reduce it"',
    advice="call `scaler.update()` without an argument",
    fix="""
        scaler.step(optimizer)
        scaler.update()  # without an argument: halves the scale after a skip
        """,
    needs=(trace.Skip,),
)
def back_off(window: Window) -> Outcome:
    found: Outcome = None
    for skip in window.of(trace.Skip):
        asked, later = window.between(trace.ScalerStep, before=skip), window.between(trace.Update, after=skip)
        update = next((event for event in later if asked and event.scaler == asked[-1].scaler), None)
        # The scale need not fall below 1.
        if update is None or not is_scale(update.scale_before) or update.scale_before <= 1:
            continue
        found = OK
        before, after = update.scale_before, update.scale_after
        if isinstance(after, str) or after >= before:
            return Broken(
                update,
                "a lower scale after an overflow",
                f"{update} followed {skip}",
                f"gradients that overflow at {number(before)} overflow again at {number(after)}",
                (skip, update),
                "The next steps are skipped too, until the gradients become smaller.",
            )
    return found


@law(
    "amp/skip-changes-nothing",
    "A window whose step is skipped for an overflow MUST NOT change the weights or the optimizer's state.",
    fault="changes weights or optimizer state in a skipped step",
    is_seen_later=True,
    why="""The gradients of that window are lost, so w must stay the same. Changes outside the step, such as w − lr·λ·w
        by hand, must be skipped too. If the momentum m is reset or decayed to m′, the next step is lr·(μ·m′ + g)
        instead of lr·(μ·m + g).""",
    source='PyTorch, torch.amp, `GradScaler.step`: the step "is skipped to avoid corrupting the params"',
    advice="change weights and state only if the step was not skipped",
    fix="""
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # not skipped
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1 - lr * decay)
        """,
    needs=(trace.Skip,),
)
def skip_changes_nothing(window: Window) -> Outcome:
    if window.of(trace.Step):
        return None
    skip, why = window.of(trace.Skip)[0], "the gradients of the window were lost"
    pairs = list(pairwise(_weights_along(window)))
    for (one, before), (other, after) in pairs:
        shown = zip(before, after, strict=True)
        changes = [(old, new) for old, new in shown if old is not None and new is not None and old != new]
        if all(_alike(*pair) for pair in changes):
            continue
        old, new = map(number, changes[0])
        return Broken(
            other,
            "unchanged weights around a skipped step",
            f"around {skip}, a weight changed from {old} to {new} between {one.line} and {other.line}",
            why,
            tuple(sorted({one, skip, other}, key=lambda event: event.seq)),
            f"A weight is {new} instead of {old}.",
        )
    states = list(_changes_of_state(window))
    for one, other in filter(None, states):
        return Broken(
            other,
            "an unchanged optimizer state around a skipped step",
            f"around {skip}, the state changed between {one.line} and {other.line}",
            why,
            tuple(sorted({one, skip, other}, key=lambda event: event.seq)),
            "The next step starts from a momentum, or from averages, that no step produced.",
        )
    return OK if pairs or states else None


_Shown: TypeAlias = tuple[trace.Event, trace.Vector]


def _weights_along(window: Window) -> Sequence[_Shown]:
    """The events that show weights, from the beginning of a window to the beginning of the next, with these weights."""
    # Averaging over the ranks may change the weights independently of the skip.
    if any(one.of == "parameters" for kind in (trace.Collective, trace.Receive) for one in window.of(kind)):
        return []
    start = [] if window.index else [event for event in window.rank.setup if isinstance(event, trace.Start)]
    events = [*start, *window.events, *(window.following.forwards[:1] if window.following else ())]
    return [
        (event, event.weights)
        for event in events
        if isinstance(event, trace.Start | trace.Forward | trace.Attempt | trace.StateInit | trace.Finished)
        and event.weights
    ]


def _changes_of_state(window: Window) -> Iterator[tuple[trace.Event, trace.Event] | None]:
    """Yields, for each skip and each event around it that shows the state of the same optimizer, the two events if the
    state changed between them, else None. Changes after the next forward belong to another window."""
    forwards = [*window.of(trace.Forward), *(window.following.forwards[:1] if window.following else ())]
    for order, skip in enumerate(window.of(trace.Skip)):
        steps = [step for step in window.between(trace.ScalerStep, before=skip) if step.optimizer == skip.optimizer]
        for step in steps[-1:]:
            yield None if step.state == skip.state else (step, skip)
        later = next((event for event in forwards if event.seq > skip.seq and event.states), None)
        if later is not None:
            noted = order - len(window.between(trace.Skip, before=later))
            yield None if later.states[noted] == skip.state else (skip, later)


def _alike(one: trace.Number, other: trace.Number) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return abs(one - other) <= _ROUNDING * max(abs(one), abs(other))


@law(
    "amp/one-scaler",
    "One scaler SHOULD scale the gradients of an optimizer throughout training.",
    fault="replaces the GradScaler during training",
    is_seen_later=True,
    why="""A new scaler starts from its initial scale and knows no earlier overflows: windows that overflow at the
        initial scale are skipped again.""",
    source='PyTorch recipe "Automatic Mixed Precision": "The same GradScaler instance should be used for the entire '
    'convergence run"',
    advice="create the `GradScaler` once, before the first epoch",
    fix="""
        scaler = torch.amp.GradScaler(device.type)  # once, before the first epoch
        for epoch in range(epochs):
            ...
        """,
    needs=(trace.ScalerStep, trace.Update),
)
def one_scaler(window: Window) -> Outcome:
    if window.previous is None:
        return None
    left = {update.scaler: update for update in window.previous.of(trace.Update)}
    earlier = {
        step.optimizer: left[step.scaler] for step in window.previous.of(trace.ScalerStep) if step.scaler in left
    }
    pairs = [(earlier[step.optimizer], step) for step in window.of(trace.ScalerStep) if step.optimizer in earlier]
    for update, step in pairs:
        if step.scaler != update.scaler and step.scale != update.scale_after:
            return Broken(
                step,
                "the same scaler throughout training",
                f"{step} went through a new scaler at {number(step.scale)}; {update} had left "
                f"{number(update.scale_after)}",
                "a new scaler knows no earlier overflows",
                (update, step),
                "Windows that overflow at that scale are skipped again.",
            )
    return OK if pairs else None


@law(
    "amp/same-scale-on-all-ranks",
    "In each window the loss scale MUST be the same on all ranks.",
    fault="scales the loss differently on each rank",
    is_seen_later=True,
    why="""The ranks average S₁·g₁, …, Sₙ·gₙ, and rank r divides the average by its own Sᵣ: (Σ Sᵢ·gᵢ) / (n·Sᵣ) is not
        the average of the gradients, and differs from rank to rank. So the weights diverge at once.""",
    source='Determined, PyTorchTrial guide, "The Laws of PyTorchTrial": "always call scaler.scale(loss) with the same '
    'scale factor"; PyTorch, issue 136009',
    advice="create the scaler with the same settings on every rank",
    fix="""
        # The same settings on every rank: then the ranks find the same overflows and keep the same scale.
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16)
        """,
    unless=("amp/unscale-after-sync",),
)
def same_scale_on_all_ranks(here: GlobalWindow) -> Outcome:
    # Ranks that skipped different steps have different scales for that reason.
    if here.plan.world_size == 1 or here.number > first_disagreement(here.run):
        return None
    shown = _scales(here)
    if len(shown) < 2:
        return None
    (first, own), *others = shown
    apart = next(((event, scales) for event, scales in others if not _agree(scales, own)), None)
    if apart is None:
        return OK
    event, scales = apart
    one, other = (number(min(each)) for each in (own, scales))
    return Broken(
        event,
        "one loss scale on all ranks",
        f"rank {first.rank} scaled its loss by {one} ({first.line}), rank {event.rank} by {other} ({event.line})",
        "each rank divides the common average by its own scale",
        (first, event),
        f"Rank {first.rank}'s gradients weigh {one}, rank {event.rank}'s {other}, and the ranks step differently.",
        # Ranks with other settings differ from the first window on.
        advice="all-reduce the overflow flag before the scale changes" if here.number else "",
    )


def _agree(one: set[float], other: set[float]) -> bool:
    pairs = zip(sorted(one), sorted(other), strict=False)
    return len(one) == len(other) and all(isclose(*pair, rel_tol=_LEAST_CHANGE) for pair in pairs)


def _scales(here: GlobalWindow) -> Sequence[tuple[trace.Event, set[float]]]:
    """The last event of each rank that shows loss scales, with these scales. A scale by hand only shows at the model's
    outputs, and there only if the ranks' losses have the same divisor."""
    marked: list[Sequence[trace.LossScaled | trace.BackwardEnd]] = [
        window.of(trace.LossScaled)
        or [end for end in window.of(trace.BackwardEnd) if end.forwards and end.scaled is not None]
        for window in here.windows
    ]
    if all(marked):
        return [(events[-1], {float(scale_of(event) or 0) for event in events}) for events in marked]
    sizes = {sum(map(len, here.plan.micro_batches(rank, here.number))) for rank in range(here.plan.world_size)}
    # Ranks with other numbers of samples may have other divisors.
    if any(marked) or here.plan.is_weighted or len(sizes) > 1 or not here.plan.precision.scaled:
        return []
    seen = [(window.of(trace.BackwardEnd)[-1], scale) for window in here.windows if (scale := seen_scale(window))]
    return [(end, {scale}) for end, scale in seen]


@law(
    "amp/scale-as-set",
    "A loss scale by hand that takes the task's settings SHOULD change when they say so.",
    fault="does not grow its loss scale by the task's settings",
    is_seen_later=True,
    why="""The scale grows after `growth_interval` windows in a row without an overflow, counted from the last change,
        and shrinks after an overflow. The numbers stay correct with another count, until small gradients round to zero
        at a scale that is too low, or windows are skipped at one that is too high.""",
    source=f'{GRADIENT_SCALING}: `GradScaler`, "growth_interval: Number of consecutive iterations without inf/NaN '
    'gradients that must occur for the scale to be multiplied by growth_factor"',
    advice="count windows from the last change of the scale, and set the count to 0 after growth and overflow",
    fix="""
        if overflow:
            scale, count = scale * backoff_factor, 0
        elif count + 1 == growth_interval:
            scale, count = scale * growth_factor, 0
        else:
            count += 1
        """,
)
def scale_as_set(window: Window) -> Outcome:
    if window.rank.earlier:
        return None
    return _judged(window, "The numbers are correct, but the scale is not the one that was asked for.")


@law(
    "amp/scale-restored",
    "After a resume, a loss scale by hand MUST be the one that the stop left.",
    fault="restarts its loss scale after a resume",
    is_seen_later=True,
    why="After each resume, windows that overflow at the initial scale are skipped again.",
    source='PyTorch recipe "Automatic Mixed Precision", section "Saving/Resuming": "save the scaler state dict"',
    advice="save and load the loss scale and its count of windows",
    fix="""
        saved = {"model": model.state_dict(), "scale": scale, "count": count}
        ...
        scale, count = saved["scale"], saved["count"]
        """,
    edit="restore scaler",
    latent="At another scale, windows that overflow are skipped again, and small gradients round to zero.",
)
def scale_restored(window: Window) -> Outcome:
    return _judged(window) if window.rank.earlier else None


def _judged(window: Window, effect: str | None = None) -> Outcome:
    found = _by_hand(window)
    if found is None or isclose(*found, rel_tol=_LEAST_CHANGE):
        return found and OK
    end = window.of(trace.BackwardEnd)[-1]
    seen, expected = (number(round(window.plan.spec["scaler"]["init_scale"] * grown, 3)) for grown in found)
    return Broken(
        end,
        f"a loss scale of {expected} in window {window.number}",
        f"the loss scale is {seen} there",
        "the scale and its count follow the settings in `task.loss_scaling`",
        (end,),
        effect,
    )


@fact
def _by_hand(window: Window) -> tuple[float, float] | None:
    """How much a scale by hand has grown since the first window, and how much it should have; None if that is unknown,
    or it did not follow the task's settings before the last resume."""
    rank = window.rank
    asked = next((event.asked for event in rank.of(trace.Finished)), None)
    by_hand = not (rank.steps_by_hand or rank.has((trace.Update, trace.LossScaled, trace.ScaleLossEnter)))
    before = [one for one in rank.earlier if one.number < rank.windows[0].number]
    earlier = [*before, *rank.windows[: window.index]]
    is_asked = "loss scaling" in (asked or ()) and window.plan.precision.scaled
    if not is_asked or not by_hand or not earlier or earlier[0].number:
        return None
    if any(one and not isclose(*one, rel_tol=_LEAST_CHANGE) for one in map(_by_hand, before)):
        return None
    spec = window.plan.spec["scaler"]
    factors = Fraction(spec["growth_factor"]), Fraction(spec["backoff_factor"])
    scaler = Scaler(LossScale(Fraction(1), spec["growth_interval"], *factors))
    for one in earlier:
        scaler.update(overflowed=not one.of(trace.Step))
    start, seen = seen_scale(earlier[0]), seen_scale(window)
    # Sums and means have other divisors in windows of another length.
    if start is None or seen is None or weight_of(earlier[0]) != weight_of(window):
        return None
    return seen / start, float(scaler.scale)
