"""Automatic mixed precision: what follows from an overflow, and the scale on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from conformance.laws.event import Event
from conformance.laws.labels import label, number, placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.loss_scale import Scaling, decisions, disagree, is_scale, is_scaled, unscaled_before_sync
from conformance.laws.run import RankTrace, Run, Window

GRADIENT_SCALING = 'PyTorch, torch.amp, section "Gradient Scaling"'
LAWS = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'

#: What averaging equal weights over the ranks may round.
_ROUNDING = 1e-6


@law(
    "amp/all-ranks-skip",
    "After an overflow on any rank, every rank MUST skip the step.",
    why="""The average of gradients is infinite on every rank as soon as one rank's is. A rank that decides by what it
        saw before the averaging steps on infinities, or moves while others stay; from then on the weights differ.""",
    source=f'{LAWS}: "otherwise each worker would step differently"',
    mend="""
        overflow = torch.zeros(1)
        for parameter in model.parameters():
            overflow += (~torch.isfinite(parameter.grad)).any()
        torch.distributed.all_reduce(overflow)
        if overflow.item() == 0:
            optimizer.step()
        """,
)
def all_ranks_skip(run: Run) -> Iterator[Check]:
    for windows in map(run.stepping, run.together()):
        if len(windows) < 2 or not any(Scaling(run, window).overflowed for window in windows):
            continue
        if not all(is_scaled(window) and _in_sync(window) for window in windows):
            continue
        parted = next((steps for steps in decisions(windows) if any(steps) and not all(steps)), None)
        if parted is None:
            yield Check(windows[0].number, None)
            continue
        step = next(step for step in parted if step is not None)
        stayed = next(window for window, step in zip(windows, parted, strict=True) if step is None)
        skipped = stayed.of("skip")[:1] or stayed.of("backward_end")[-1:]
        yield Check(
            windows[0].number,
            None,
            Broken(
                step,
                "every rank must skip the step",
                "gradients have overflowed, and their average is infinite for all",
                f"rank {step.rank} took {placed(step)}, and rank {stayed.rank} did not step",
                (*skipped, step),
                "The ranks' weights differ from here on.",
            ),
        )


def _in_sync(window: Window) -> bool:
    """Whether the ranks averaged before they looked for overflows, as far as that is another law's.

    Not at all: ddp/all-reduce-every-window. Too late: amp/unscale-after-sync and hvd/synchronize-before-unscale.
    """
    averaging = [event for event in window.of("collective", "send") if event["of"] == "gradients"]
    unscales = window.of("unscale")
    by_horovod = [event for event in averaging if event["via"] == "horovod"]
    late = by_horovod and unscales and any(event.seq > unscales[0].seq for event in by_horovod)
    return bool(averaging) and not late and unscaled_before_sync(window) is None


@law(
    "amp/back-off",
    "When a step was skipped for an overflow, the update after it MUST lower the scale.",
    why="""A gradient that overflows at the scale S overflows at S again as long as it is of that size, and at 2·S all
        the more. A scale that does not come down skips one step after the other.""",
    source=f'{GRADIENT_SCALING}: `GradScaler.update`, "If any optimizer steps were skipped the scale is multiplied by '
    '`backoff_factor` to reduce it"',
    mend="""
        scaler.step(optimizer)
        scaler.update()  # without an argument: halves the scale after a skip
        """,
)
def back_off(run: Run) -> Iterator[Check]:
    for window in run.windows:
        found = None
        pairs = list(_updates_after_skips(window))
        for skip, update in pairs:
            before, after = update["scale_before"], update["scale_after"]
            if found is None and (not isinstance(after, int | float) or after >= before):
                found = Broken(
                    update,
                    "the scale must come down after an overflow",
                    f"what overflows at {number(before)} overflows again at {number(after)}",
                    f"{placed(skip)} was followed by {label(update)} ({update.place})",
                    (skip, update),
                    "The next steps are skipped too, until the gradients are smaller by themselves.",
                )
        if found is not None:
            yield broken(window, found)
        elif pairs:
            yield kept(window)


def _updates_after_skips(window: Window) -> Iterator[tuple[Event, Event]]:
    """Each skip with the first update that its scaler made of it."""
    for skip in window.of("skip"):
        asked = [event for event in window.between(None, skip) if event.kind == "scaler_step"]
        later = [event for event in window.between(skip, None) if event.kind == "update"]
        update = next((event for event in later if asked and event["scaler"] == asked[-1]["scaler"]), None)
        # A scale that is down to 1 may stay.
        if update is not None and is_scale(update["scale_before"]) and update["scale_before"] > 1:
            yield skip, update


@law(
    "amp/skip-changes-nothing",
    "A window whose step is skipped for an overflow MUST leave the weights and the optimizer's state as they are.",
    why="""The gradients of that window are lost, so it has to count as if it had not been: w before and w after are the
        same. What a trainer does besides the step, as w − lr·λ·w by hand, happens although the step does not; and a
        momentum m that is lost or decayed there makes the next step lr·(μ·m′ + g) of another m′.""",
    source='PyTorch, torch.amp, `GradScaler.step`: the step "is skipped to avoid corrupting the params"',
    mend="""
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # not skipped
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1 - lr * decay)
        """,
)
def skip_changes_nothing(run: Run) -> Iterator[Check]:
    for rank in run.ranks:
        for index, window in enumerate(rank.windows):
            if not window.of("skip") or window.of("step"):
                continue
            pairs = list(pairwise(_weights_along(rank, index)))
            moved = next((pair for pair in pairs if _differs(*pair)), None)
            states = list(_states_along(rank, index))
            changed = next((pair for pair in states if pair[0]["state"] != pair[1]["state"]), None)
            if moved is not None:
                yield broken(window, _moved(window, *moved))
            elif changed is not None:
                yield broken(window, _changed(window, *changed))
            elif pairs or states:
                yield kept(window)


def _weights_along(rank: RankTrace, index: int) -> list[Event]:
    """The events that show weights, from the beginning of a window to that of the next."""
    window, following = rank.windows[index], rank.windows[index + 1 : index + 2]
    # Who averages weights over the ranks does not do so for the skip.
    if any(event["of"] == "parameters" for event in window.of("collective", "receive")):
        return []
    start = [event for event in rank.setup if event.kind == "start"] if index == 0 else []
    events = [*start, *window.events, *(next_window.forwards[0] for next_window in following)]
    return [event for event in events if event.get("weights")]


def _states_along(rank: RankTrace, index: int) -> Iterator[tuple[Event, Event]]:
    """Each skip with the event before it, and that after it, that shows the state of the same optimizer."""
    window, following = rank.windows[index], rank.windows[index + 1 : index + 2]
    for skip in window.of("skip"):
        before = [event for event in window.between(None, skip) if event.kind == "scaler_step"]
        after = [event for next_window in following for event in next_window.of("scaler_step")]
        for pair in [(event, skip) for event in before[-1:]] + [(skip, event) for event in after]:
            one, other = pair
            if one["optimizer"] == other["optimizer"] and None not in (one["state"], other["state"]):
                yield pair


def _differs(before: Event, after: Event) -> bool:
    pairs = zip(before["weights"], after["weights"], strict=True)
    return any(one is not None and other is not None and not _alike(one, other) for one, other in pairs)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return bool(abs(one - other) <= _ROUNDING * max(abs(one), abs(other)))


def _moved(window: Window, before: Event, after: Event) -> Broken:
    skip = window.of("skip")[0]
    pairs = zip(before["weights"], after["weights"], strict=True)
    old, new = next((one, other) for one, other in pairs if one != other and None not in (one, other))
    return Broken(
        after,
        "a skipped step must leave the weights as they are",
        "the gradients of its window were lost",
        f"around {placed(skip)} a weight went from {number(old)} to {number(new)}, as was seen between {before.place} "
        f"and {after.place}",
        tuple(sorted({before, skip, after}, key=lambda event: event.seq)),
        f"A weight is {number(new)} instead of {number(old)}.",
    )


def _changed(window: Window, before: Event, after: Event) -> Broken:
    skip = window.of("skip")[0]
    return Broken(
        after,
        "a skipped step must leave the optimizer's state as it is",
        "the gradients of its window were lost",
        f"around {placed(skip)} the state changed between {before.place} and {after.place}",
        tuple(sorted({before, skip, after}, key=lambda event: event.seq)),
        "The next step goes on from a momentum, or from averages, that no step has made.",
    )


@law(
    "amp/same-scale-on-all-ranks",
    "In each window the loss scale MUST be the same on all ranks.",
    why="""The ranks average S₁·g₁, …, Sₙ·gₙ, and rank r divides the average by its own Sᵣ: (Σ Sᵢ·gᵢ) / (n·Sᵣ) is no
        average of the gradients, and differs from rank to rank. So their weights part at once.""",
    source='Determined, PyTorchTrial guide, "The Laws of PyTorchTrial": "always call scaler.scale(loss) with the same '
    'scale factor"; PyTorch, issue 136009',
    mend="""
        # The same settings on every rank; after that the ranks find the same overflows, and stay together.
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16)
        """,
)
def same_scale_on_all_ranks(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1:
        return
    for windows in run.together():
        scaled = [window.of("loss_scaled") or _by_hand(window) for window in windows]
        if not all(scaled):
            continue
        scales = [{_scale(event) for event in events} for events in scaled]
        other = next((rank for rank, some in enumerate(scales) if some != scales[0]), None)
        if other is None:
            yield Check(windows[0].number, None)
        elif unscaled_before_sync(windows[0]) is None:
            first, second = scaled[0][-1], scaled[other][-1]
            yield Check(windows[0].number, None, _scales_differ(first, second))
        if disagree(run.stepping(windows)):
            # From here on the scales differ for that: amp/all-ranks-skip.
            return


def _by_hand(window: Window) -> tuple[Event, ...]:
    return tuple(end for end in window.of("backward_end") if end["forwards"] and end["scaled"] is not None)


def _scale(event: Event) -> Any:
    return event["scale"] if event.kind == "loss_scaled" else event["scaled"]


def _scales_differ(first: Event, second: Event) -> Broken:
    one, other = number(_scale(first)), number(_scale(second))
    return Broken(
        second,
        "the loss scale must be the same on all ranks",
        "what the ranks average is divided by each rank's own",
        f"rank {first.rank} scaled its loss by {one} ({first.place}) and rank {second.rank} by {other} "
        f"({second.place})",
        (first, second),
        f"Rank {first.rank}'s gradients weigh {one} and rank {second.rank}'s {other}, and the ranks step differently.",
    )
