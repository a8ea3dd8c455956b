"""Automatic mixed precision: when and how often gradients are unscaled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.loss_scale import averages_gradients, divides_by, is_scale, scaling, unscaled_before_sync
from conformance.laws.run import Run, Window, fact
from conformance.trace.events import (
    Attempt,
    BackwardEnd,
    Contribution,
    Event,
    GradientChange,
    Raised,
    Step,
    Unscale,
    Update,
    ZeroGrad,
)
from conformance.trace.words import number

ACCUMULATION = 'PyTorch, "Automatic Mixed Precision examples", section "Gradient accumulation"'


@law(
    "amp/unscale-once",
    "The gradients of an optimizer MUST be unscaled at most once in a window.",
    why="""Each unscaling divides by S, so two of them turn the gradient g into g / S. GradScaler refuses a second
        `unscale_` before `update()`, but it cannot see a division by hand.""",
    source='PyTorch, torch.amp, `GradScaler.unscale_`: "should only be called once per optimizer per step call"',
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # step() remembers this and does not unscale again
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(Unscale,),
)
def unscale_once(window: Window) -> Outcomes:
    unscales = window.of(Unscale)
    if not scaling(window).is_scaled:
        return
    twice = _refused(window) or _unscaled_again(window) or _unscaled_by_hand_too(window)
    if twice is None:
        yield OK
        return
    first, second = twice
    scale = number(unscales[0].scale)
    refused = isinstance(second, Raised)
    yield Broken(
        second,
        "gradients must be unscaled once",
        f"they carry the factor {scale} once",
        f"after {first} they were unscaled again: "
        + (f"GradScaler reported {second.message!r}" if isinstance(second, Raised) else str(second)),
        twice,
        None if refused else f"The step is {scale} times too small.",
    )


def _refused(window: Window) -> tuple[Event, Event] | None:
    """A call of `unscale_` that GradScaler refused, with the one before it in the same window."""
    for error in window.of(Raised):
        unscales = [event for event in window.of(Unscale) if not window.between(Update, after=event, before=error)]
        if unscales and error.message.startswith("unscale_() "):
            return unscales[-1], error
    return None


def _unscaled_again(window: Window) -> tuple[Event, Event] | None:
    for first, second in pairwise(window.of(Unscale)):
        # After an update, a backward or a clearing these are other gradients.
        if first.optimizer == second.optimizer and not _between(window, first, second, Update, BackwardEnd, ZeroGrad):
            return first, second
    return None


def _unscaled_by_hand_too(window: Window) -> tuple[Event, Event] | None:
    for change in window.of(GradientChange):
        for unscale in window.of(Unscale):
            scale = unscale.scale
            first, second = (change, unscale) if change.seq < unscale.seq else (unscale, change)
            if (
                not isinstance(scale, str)
                and divides_by(change.factor, scale)
                and scale > _samples(window.run)
                and set(change.parameters) <= set(scaling(window).held(unscale.optimizer))
                and not _between(window, first, second, BackwardEnd, ZeroGrad, Step)
            ):
                return first, second
    return None


@fact
def _samples(run: Run) -> float:
    """The largest number by which averaging may divide gradients."""
    spec = run.plan.spec
    sizes = [sum(map(len, run.plan.micro_batches(rank, 0))) for rank in range(run.plan.world_size)]
    return float(sum(sizes) * max([1.0, *spec["samples"]["weight"]]))


@law(
    "amp/unscale-after-last-backward",
    "Gradients MUST be unscaled only after the last backward pass of the window.",
    why="""Unscaled after the k-th of n micro-batches, the gradient becomes g₁ + … + gₖ + S·(gₖ₊₁ + … + gₙ), from which
        no division recovers the sum. If each micro-batch ends with unscaling, the gradients of the first one are
        divided by S again and again.""",
    source=ACCUMULATION,
    fix="""
        for inputs, targets in window:
            loss = criterion(model(inputs), targets) / len(window)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(Unscale,),
)
def unscale_after_last_backward(window: Window) -> Outcomes:
    unscales = window.of(Unscale)
    # With several optimizers, a later backward may belong to another one.
    if not scaling(window).is_scaled or len({event.optimizer for event in unscales}) > 1:
        return
    pair = next((pair for event in unscales if (pair := _early(window, event))), None)
    if pair is None:
        yield OK
        return
    unscale, end = pair
    scale = number(end.scaled or 0)
    yield Broken(
        unscale,
        "`unscale_` must come after the last backward pass of the window",
        f"a later backward adds gradients with the factor {scale} to gradients without it",
        f"{unscale} came before the backward pass at {end.line}",
        pair,
        f"The micro-batches before it weigh 1/{scale} of the others.",
    )


def _early(window: Window, unscale: Unscale) -> tuple[Unscale, BackwardEnd] | None:
    """An explicit unscale, and the end of a later backward whose gradients the same step uses."""
    steps: Sequence[Attempt] = window.between(Attempt, after=unscale)
    # If the step itself unscales, the step comes too early, and acc/step-after-all-backwards reports it.
    if unscale.implicit or not steps or not window.between(BackwardEnd, after=unscale):
        return None
    ends = scaling(window).accumulated(steps[0])
    later = next((end for end in ends if end.seq > unscale.seq and is_scale(end.scaled)), None)
    return None if later is None or ends[0].seq > unscale.seq else (unscale, later)


@law(
    "amp/unscale-after-sync",
    "Gradients MUST be unscaled only after the ranks have averaged them.",
    why="""`unscale_` also looks for overflows: before the average, a rank finds only its own infinities. It skips, and
        the others step on the infinity that it sends them; or it steps, and they skip.""",
    source='Determined, PyTorchTrial guide, "The Laws of PyTorchTrial": always synchronize before `scaler.step`, '
    "otherwise each worker steps differently",
    fix="""
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= torch.distributed.get_world_size()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        """,
    latent="""Until a gradient overflows, the order of the two divisions does not matter. Once the gradients of one rank
        overflow, some ranks step and others skip.""",
    needs=(Unscale,),
)
def unscale_after_sync(window: Window) -> Outcomes:
    if window.plan.world_size == 1 or not scaling(window).is_scaled:
        return
    if not any(averages_gradients(event) for event in window.of(Contribution)):
        return
    pair = unscaled_before_sync(window)
    if pair is None:
        yield OK
        return
    unscale, collective = pair
    yield Broken(
        unscale,
        "`unscale_` must come after the ranks have averaged their gradients",
        "it looks for overflows, and until then finds only those of this rank",
        f"{unscale} came before {collective}",
        pair,
        "Nothing changes until a gradient overflows; then some ranks step and others skip.",
    )


def _between(window: Window, first: Event, second: Event, *kinds: type[Event]) -> bool:
    return any(window.between(kind, after=first, before=second) for kind in kinds)
