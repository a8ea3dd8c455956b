"""Laws of automatic mixed precision: autocast, and loss scaling for float16."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from conformance.laws.correct_gradient import FORMATS, exceeds_mean, is_of_mean
from conformance.laws.law import OK, Broken, Outcome, law
from conformance.laws.subjects import Rank, Window, fact
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated

_SCALING = (trace.LossScaled, trace.Unscale, trace.ScalerStep, trace.Update, trace.ScaleLossEnter)


@law(
    "amp/autocast-around-forward",
    "A trainer in a bf16 or fp16 case MUST run its forwards under autocast of that type.",
    fault="runs a forward of a bf16 or fp16 case without autocast of that type",
    why="""Without autocast everything runs in float32. The averages are correct, but no time or memory is saved, and
        the half-precision code remains untested.""",
    source='PyTorch, torch.amp, section "Autocasting": it "should wrap only the forward pass(es) of your network, '
    'including the loss computation(s)"',
    advice="run forward and loss under `torch.autocast`",
    fix="""
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(inputs), targets)
        loss.backward()
        """,
    latent="""Data that the type represents exactly give the same numbers in a wider type. Other data are rounded in the
        type, and overflow in float16 beyond 65504.""",
)
def autocast_around_forward(window: Window) -> Outcome:
    if window.plan.precision.amp != "torch":
        return None
    found: Outcome = None
    wanted = window.plan.precision.compute.dtype
    # The forwards of reentrant checkpointing build no graph before the backward.
    for end in () if window.forwards else window.of(trace.BackwardEnd):
        if end.recomputed and wanted not in end.recomputed and None not in end.recomputed:
            return _in_other(end, ", which computed a forward again,", end.recomputed[0], f"under autocast of {wanted}")
        found = OK if wanted in end.recomputed else found
    # A penalty, say, may go forward in float32 next to the training forward in half precision.
    for forwards in _by_micro_batch(window):
        types = {forward.computes for forward in forwards}
        if wanted not in types and None not in types:
            return _in_other(forwards[0], "", forwards[0].computes, f"under autocast of {wanted}")
        found = OK if wanted in types else found
    return found


@law(
    "amp/autocast-only-if-asked",
    "A trainer in an fp32 or fp64 case MUST NOT run its forwards in bfloat16 or float16.",
    fault="runs a forward of an fp32 or fp64 case in half precision",
    why="""Autocast that is always on rounds features, weights and outputs to 8 or 11 bits. Gradients in full precision
        are then wrong by up to 0.4 percent.""",
    source="PyTorch, torch.autocast: its argument `enabled` turns autocast on in a region",
    advice="pass `enabled=False` to `torch.autocast` in fp32 and fp64 cases",
    fix="""
        with torch.autocast(device.type, enabled=use_amp):
            loss = criterion(model(inputs), targets)
        loss.backward()
        """,
    latent="""Data that the narrow type represents exactly give the same numbers in it. Other data are rounded, and
        overflow in float16 beyond 65504.""",
    unless=("amp/state-in-full-precision",),
)
def autocast_only_if_asked(window: Window) -> Outcome:
    if window.plan.precision.mixed:
        return None
    # An inspection in half precision, say, may stand next to the training forward.
    for forwards in _by_micro_batch(window):
        if all(forward.computes in ("bfloat16", "float16") for forward in forwards):
            found = _in_other(forwards[0], "", forwards[0].computes, f"in {window.plan.precision.compute.dtype}")
            if window.rank.has((trace.AutocastEnter,)):
                return found
            cast = f"find the cast to {forwards[0].computes} at or above it"
            return replace(found, advice="keep parameters and inputs in the case's precision", edit=cast)
    return OK if any(forward.computes for forward in window.forwards) else None


def _by_micro_batch(window: Window) -> Iterable[Sequence[trace.Forward]]:
    found: defaultdict[int | None, list[trace.Forward]] = defaultdict(list)
    for forward in window.forwards:
        found[forward.micro_batch].append(forward)
    return found.values()


def _in_other(event: trace.Forward | trace.BackwardEnd, again: str, computes: str | None, asked: str) -> Broken:
    return Broken(
        event,
        expected=f"a forward {asked}",
        observed=f"{event}{again} of micro-batch {event.micro_batch} ran in {computes}",
        why="the case has this precision",
        shows=(event,),
        effect=f"Its gradients are computed in {computes}.",
    )


@law(
    "amp/state-in-full-precision",
    "An optimizer MUST keep weights, momentum and moments at least as precise as the case's weights.",
    fault="keeps weights or optimizer state in a narrower type",
    is_seen_later=True,
    why="""Each step rounds what it keeps to the narrow type. In bfloat16, an update below 0.2 percent of a weight is
        lost, and so is a gradient below 0.2 percent of the momentum.""",
    source='PyTorch, torch.autocast: "You should not call half() or bfloat16() on your model(s) or inputs when using '
    'autocasting"',
    advice="keep the model in float32, and run its forward under `torch.autocast`",
    edit="change beginning; change optimizer",
    fix="""
        model = model.float()  # autocast casts for the forward
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(inputs), targets)
        """,
    latent="""Numbers that the narrow type represents exactly are not rounded. All others are, in each step.""",
    needs=(trace.Step,),
)
def state_in_full_precision(window: Window) -> Outcome:
    found: Outcome = None
    least = window.plan.precision.master
    for step in window.of(trace.Step):
        narrow = [name for name in step.dtypes if name not in FORMATS or FORMATS[name][0] > least.unit_roundoff]
        if narrow:
            return Broken(
                step,
                expected=f"weights and optimizer state in {least.dtype}",
                observed=f"some in {enumerated(narrow)} at {step}",
                why=f"each step rounds them to {enumerated(narrow)}",
                shows=(step,),
            )
        found = OK if step.dtypes else found
    return found


@law(
    "amp/autocast-ends-in-window",
    "Autocast MUST end between the forwards of one window and those of the next.",
    fault="keeps one autocast region open over several steps",
    why="""Autocast casts a weight when a forward first needs it, and keeps the result until its outermost region ends.
        In a region around several windows, forwards keep using the weights from before the steps.""",
    source="PyTorch, torch.autocast: its argument `cache_enabled` turns the weight cache inside the region on",
    advice="enter `torch.autocast` for each forward, and leave it before the backward",
    fix="""
        for batch in window:
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = criterion(model(batch.inputs), batch.targets) / len(window)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def autocast_ends_in_window(window: Window) -> Outcome:
    following = window.following
    if not (window.forwards and window.attempts and following and following.forwards):
        return None
    last, first, step = window.forwards[-1], following.forwards[0], window.attempts[-1]
    places, open_from = _outermost(window.rank)
    at = bisect_left(places, first.seq) - 1
    region = open_from[at] if at >= 0 else None
    if region is None or not region.caches or region.seq >= last.seq:
        ended = window.rank.first(trace.AutocastExit)
        return OK if ended is not None and ended.seq < first.seq else None
    return Broken(
        region,
        expected="autocast ends between the forwards of two windows",
        observed=f"{region} stayed open during {last}, {step} and {first}",
        why="autocast caches its casts of weights until the outermost region ends",
        shows=(region, last, step, first),
        effect="Forwards keep using the weights of the region's first forward.",
    )


@fact
def _outermost(rank: Rank) -> tuple[list[int], list[trace.AutocastEnter | None]]:
    """The places of all enters and exits in the trace, and the outermost open autocast after each."""
    found: list[trace.AutocastEnter | None] = []
    open_regions: list[trace.AutocastEnter] = []
    balance = 0
    events = sorted((*rank.of(trace.AutocastEnter), *rank.of(trace.AutocastExit)), key=attrgetter("seq"))
    for event in events:
        if isinstance(event, trace.AutocastEnter):
            open_regions.append(event)
        elif open_regions:
            open_regions.pop()
        balance += 1 if isinstance(event, trace.AutocastEnter) else -1
        found.append(open_regions[0] if open_regions and balance > 0 else None)
    return [event.seq for event in events], found


@law(
    "amp/scaler-with-fp16",
    "Losses of forwards in float16 SHOULD be scaled before their backward.",
    fault="runs a float16 backward on an unscaled loss",
    why="""The backward of a float16 forward computes float16 gradients, whose smallest positive number is 6e-8. Smaller
        gradients become zero, and their parameters silently stop learning.""",
    source='PyTorch, torch.amp, section "Gradient Scaling": "To prevent underflow, gradient scaling multiplies the '
    "network's loss(es) by a scale factor\"",
    advice="call `scaler.scale(loss).backward()` instead of `loss.backward()`",
    edit="change it to `scaler.scale({}).backward()`",
    fix="""
        scaler = torch.amp.GradScaler(device.type)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def scaler_with_fp16(window: Window) -> Outcome:
    if window.plan.spec["scaler"] is None:
        return None
    half, ends = _in_half(window)
    if any(end.scaled is not None for end in ends):
        return OK
    # A trainer may scale the loss by hand, and unscale gradients without a trace.
    plain = next((end for end in ends if is_of_mean(window, end)), None)
    if plain is None or window.rank.has(_SCALING):
        return None
    # Such a scale may come down to 1.
    if _scales_by_hand(window.rank):
        return OK
    forward = next(half[number] for number in plain.forwards if number in half)
    return Broken(
        plain,
        expected="a scaled loss before `backward()`",
        observed=f"{forward} ran in float16, and {plain} on its unscaled loss",
        why="float16 gradients smaller than 6e-8 become zero",
        shows=(forward, plain),
        effect="Small gradients are lost; large ones are correct.",
    )


@fact
def _scales_by_hand(rank: Rank) -> bool:
    """Whether some backward through float16 has larger gradients at the model's outputs than the mean gives."""
    return any(exceeds_mean(window, end) for window in rank.windows for end in _in_half(window)[1])


def _in_half(window: Window) -> tuple[Mapping[int, trace.Forward], Sequence[trace.BackwardEnd]]:
    """The forwards in float16, and the backwards through them."""
    half = {forward.forward: forward for forward in window.forwards if forward.computes == "float16"}
    return half, [end for end in window.of(trace.BackwardEnd) if not half.keys().isdisjoint(end.forwards)]
