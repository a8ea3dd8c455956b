"""Automatic mixed precision: what runs in half precision, and what float16 needs."""

from __future__ import annotations

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.run import Rank, Window, fact
from conformance.trace.events import (
    BackwardEnd,
    Forward,
    GradientChange,
    LossScaled,
    ScaleLossEnter,
    ScalerStep,
    Unscale,
    Update,
)

_WIDE = ("float32", "float64")
_SCALING = (LossScaled, Unscale, ScalerStep, Update, ScaleLossEnter)


@law(
    "amp/autocast-around-forward",
    "A trainer that is asked for bf16 or fp16 MUST run its forwards under autocast of that type.",
    why="""Without autocast everything runs in float32. The averages are right, but no time or memory is saved, and the
        half-precision code remains untested.""",
    source='PyTorch, torch.amp, section "Autocasting": it "should wrap only the forward pass(es) of your network, '
    'including the loss computation(s)"',
    fix="""
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(inputs), targets)
        loss.backward()
        """,
)
def autocast_around_forward(window: Window) -> Outcomes:
    if window.plan.precision.amp != "torch":
        return
    wanted = window.plan.precision.compute.dtype
    # If some forwards run in half precision, the others may be intended.
    if _is_wide(window.rank):
        yield _wide(window.forwards[0], wanted)
    elif any(forward.computes == wanted for forward in window.forwards):
        yield OK


@fact
def _is_wide(rank: Rank) -> bool:
    return all(forward.computes in _WIDE for forward in rank.of(Forward))


def _wide(forward: Forward, wanted: str) -> Broken:
    return Broken(
        forward,
        must=f"the forward must run under autocast of {wanted}",
        because="the case asks for this precision",
        however=f"{forward} ran in {forward.computes}, and so did every other forward",
        shows=(forward,),
        effect="Weights and gradients are those of a run without autocast.",
    )


@law(
    "amp/scaler-with-fp16",
    "Losses of forwards in float16 SHOULD be scaled before their backward.",
    why="""The backward of a float16 forward computes float16 gradients, whose smallest positive number is 6e-8. Smaller
        gradients become zero, and their parameters silently stop learning.""",
    source='PyTorch, torch.amp, section "Gradient Scaling": "To prevent underflow, gradient scaling multiplies the '
    "network's loss(es) by a scale factor\"",
    fix="""
        scaler = torch.amp.GradScaler(device.type)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def scaler_with_fp16(window: Window) -> Outcomes:
    if window.plan.spec["scaler"] is None:
        return
    half = {forward.forward: forward for forward in window.forwards if forward.computes == "float16"}
    ends = [end for end in window.of(BackwardEnd) if not half.keys().isdisjoint(end.forwards)]
    if any(end.scaled is not None for end in ends):
        yield OK
    # A trainer that changes gradients by hand may also have scaled the loss by hand.
    elif ends and not _scales(window) and not window.rank.of(GradientChange):
        yield _not_scaled(next(half[number] for number in ends[0].forwards if number in half), ends[0])


def _scales(window: Window) -> bool:
    """Whether the rank scales its losses, or its server unscales the gradients."""
    run = window.run
    ranks = {window.rank.number, window.rank.number if run.server is None else run.server}
    return any(run.ranks[number].of(kind) for number in ranks for kind in _SCALING)


def _not_scaled(forward: Forward, end: BackwardEnd) -> Broken:
    return Broken(
        end,
        must="the loss should be scaled before `backward()`",
        because="gradients are computed in float16, where numbers smaller than 6e-8 become zero",
        however=f"{forward} ran in float16, and {end} on its unscaled loss",
        shows=(forward, end),
        effect="Small gradients are lost; large ones are right.",
    )
