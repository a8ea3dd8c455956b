"""Automatic mixed precision: when the gradients are unscaled, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from conformance.laws.event import Event
from conformance.laws.labels import number, placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.loss_scale import Scaling, averages, divides_by, is_scale, scaled_windows, unscaled_before_sync
from conformance.laws.run import Run, Window

ACCUMULATION = 'PyTorch, "Automatic Mixed Precision examples", section "Gradient accumulation"'


@law(
    "amp/unscale-once",
    "The gradients of an optimizer MUST be unscaled at most once in a window.",
    why="""Each unscaling divides by S, so two of them leave g / S of the gradient g. GradScaler refuses a second
        `unscale_` before `update()`, but it cannot see a division by hand.""",
    source='PyTorch, torch.amp, `GradScaler.unscale_`: "should only be called once per optimizer per step call"',
    mend="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # step() knows of it, and does not unscale again
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
)
def unscale_once(run: Run) -> Iterator[Check]:
    for scaling in scaled_windows(run):
        window = scaling.window
        unscales = window.of("unscale")
        if not unscales:
            continue
        twice = _refused(window) or _unscaled_again(scaling, unscales) or _unscaled_by_hand_too(scaling, unscales)
        if twice is None:
            yield kept(window)
            continue
        first, second = twice
        scale = unscales[0]["scale"]
        yield broken(
            window,
            Broken(
                second,
                "gradients must be unscaled once",
                f"they carry the factor {number(scale)} once",
                f"after {placed(first)} it was done again: {_said(second)}",
                twice,
                f"The step is {number(scale)} times too small." if second.kind != "raised" else None,
            ),
        )


def _said(event: Event) -> str:
    return f"GradScaler said {event['message']!r}" if event.kind == "raised" else placed(event)


def _refused(window: Window) -> tuple[Event, Event] | None:
    """A call of `unscale_` that GradScaler refused, with the one before it in the same window."""
    for error in window.of("raised"):
        unscales = [event for event in window.of("unscale") if not _between(window, event, error, "update")]
        if unscales and str(error["message"]).startswith("unscale_() "):
            return unscales[-1], error
    return None


def _unscaled_again(scaling: Scaling, unscales: tuple[Event, ...]) -> tuple[Event, Event] | None:
    for first, second in pairwise(unscales):
        # After further backwards it is amp/unscale-after-last-backward; after an update, amp/update-once.
        between = _between(scaling.window, first, second, "update", "backward_end", "zero_grad")
        if first["optimizer"] == second["optimizer"] and not between:
            return first, second
    return None


def _unscaled_by_hand_too(scaling: Scaling, unscales: tuple[Event, ...]) -> tuple[Event, Event] | None:
    for change in scaling.window.of("gradient_change"):
        for unscale in unscales:
            first, second = sorted((change, unscale), key=lambda event: event.seq)
            is_division = divides_by(change["factor"], unscale["scale"]) and unscale["scale"] > _samples(scaling.run)
            alike = set(change["parameters"]) <= set(scaling.held(unscale["optimizer"]))
            between = _between(scaling.window, first, second, "backward_end", "zero_grad", "step")
            if is_division and alike and not between:
                return first, second
    return None


def _samples(run: Run) -> float:
    """What gradients may be divided by to average them is at most this."""
    sizes: list[int] = [
        sum(map(len, run.plan.micro_batches(rank, 0))) for rank in range(len(run.plan.spec["micro_batches"]))
    ]
    weights: list[float] = run.plan.spec["samples"]["weight"]
    return sum(sizes) * max([1.0, *weights])


@law(
    "amp/unscale-after-last-backward",
    "Gradients MUST be unscaled only after the last backward pass of the window.",
    why="""Unscaled after the k-th of n micro-batches, the gradient becomes g₁ + … + gₖ + S·(gₖ₊₁ + … + gₙ), from which
        no division recovers the sum. If each micro-batch ends with unscaling, the first one's part is divided by S
        again and again.""",
    source=ACCUMULATION,
    mend="""
        for inputs, targets in window:
            loss = criterion(model(inputs), targets) / len(window)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
)
def unscale_after_last_backward(run: Run) -> Iterator[Check]:
    for scaling in scaled_windows(run):
        window = scaling.window
        unscales = window.of("unscale")
        # A backward may be for the gradients of another optimizer.
        if not unscales or len({event["optimizer"] for event in unscales}) > 1:
            continue
        pair = next((pair for event in unscales if (pair := _early(scaling, event))), None)
        if pair is None:
            yield kept(window)
            continue
        unscale, end = pair
        yield broken(
            window,
            Broken(
                unscale,
                "`unscale_` must come after the last backward pass of the window",
                f"a later one adds gradients that carry the factor {number(end['scaled'])} to some that do not",
                f"{placed(unscale)} came before the backward pass at {end.place}",
                pair,
                f"The micro-batches before it weigh 1/{number(end['scaled'])} of the others.",
            ),
        )


def _early(scaling: Scaling, unscale: Event) -> tuple[Event, Event] | None:
    """An explicit unscale with the end of a later backward whose gradients were added and then stepped on."""
    step = next((event for event in scaling.window.between(unscale, None) if event.kind in ("step", "skip")), None)
    if unscale["implicit"] or step is None:
        # Within a step, it is the step that comes too early: acc/step-after-all-backwards.
        return None
    ends = scaling.accumulated(step)
    later = next((end for end in ends if end.seq > unscale.seq and is_scale(end["scaled"])), None)
    return None if later is None or ends[0].seq > unscale.seq else (unscale, later)


@law(
    "amp/unscale-after-sync",
    "Gradients MUST be unscaled only after the ranks have averaged them.",
    why="""Unscaling is also the search for overflows: a rank that has not received the others' gradients finds only
        its own infinities. It skips, and the others step on the infinity that it has sent them; or it steps, and they
        skip.""",
    source='Determined, PyTorchTrial guide, "The Laws of PyTorchTrial": always synchronize before `scaler.step`, '
    "otherwise each worker steps differently",
    mend="""
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= torch.distributed.get_world_size()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        """,
)
def unscale_after_sync(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1:
        return
    for scaling in scaled_windows(run):
        window = scaling.window
        averaging = [event for event in window.of("collective", "send") if averages(event)]
        if not averaging or not window.of("unscale"):
            continue
        pair = unscaled_before_sync(window)
        if pair is None:
            yield kept(window)
            continue
        unscale, collective = pair
        yield broken(
            window,
            Broken(
                unscale,
                "`unscale_` must come after the ranks have averaged their gradients",
                "it looks for overflows, and finds only those of this rank until then",
                f"{placed(unscale)} came before {placed(collective)}",
                pair,
                "Nothing changes while nothing overflows; an overflow on one rank parts the ranks.",
            ),
        )


def _between(window: Window, first: Event, second: Event, *kinds: str) -> bool:
    return any(event.kind in kinds for event in window.between(first, second))
