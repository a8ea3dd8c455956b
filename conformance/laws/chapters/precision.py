"""Automatic mixed precision: what is computed in half precision, and what that needs."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.laws.event import Event
from conformance.laws.labels import placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import RankTrace, Run, Window

_TYPES = {"bf16": "bfloat16", "fp16": "float16"}
_WIDE = ("float32", "float64")
_SCALING = ("loss_scaled", "unscale", "scaler_step", "update", "scale_loss_enter")


@law(
    "amp/autocast-around-forward",
    "A trainer that is asked for bf16 or fp16 MUST run its forwards under autocast of that type.",
    why="""Without autocast everything is computed in float32. The averages are right, but nothing is saved of time or
        memory; and whoever tests the trainer has not tested what will run where autocast is on.""",
    source='PyTorch, torch.amp, section "Autocasting": it "should wrap only the forward pass(es) of your network, '
    'including the loss computation(s)"',
    mend="""
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(inputs), targets)
        loss.backward()
        """,
)
def autocast_around_forward(run: Run) -> Iterator[Check]:
    wanted = _TYPES.get(run.plan.spec["precision"])
    if wanted is None:
        return
    for rank in run.ranks:
        # Where some forwards are in half precision the others may be meant as they are.
        never = all(forward["computes"] in _WIDE for forward in rank.of("forward"))
        for window in rank.windows:
            if never:
                yield broken(window, _wide(window.forwards[0], wanted))
            elif any(forward["computes"] == wanted for forward in window.forwards):
                yield kept(window)


def _wide(forward: Event, wanted: str) -> Broken:
    return Broken(
        forward,
        must=f"the forward must run under autocast of {wanted}",
        because="that is the precision that the trainer was asked for",
        however=f"{placed(forward)} ran in {forward['computes']}, and so did every other one",
        shows=(forward,),
        effect="Weights and gradients are those of a run without autocast.",
    )


@law(
    "amp/scaler-with-fp16",
    "Losses of forwards in float16 SHOULD be scaled before their backward.",
    why="""The backward of what ran in float16 makes float16 gradients, and 6e-8 is the smallest number that these can
        hold. Smaller ones become zero, and the parameters that they belong to stop learning without a word.""",
    source='PyTorch, torch.amp, section "Gradient Scaling": "To prevent underflow, gradient scaling multiplies the '
    "network's loss(es) by a scale factor\"",
    mend="""
        scaler = torch.amp.GradScaler(device.type)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def scaler_with_fp16(run: Run) -> Iterator[Check]:
    if run.plan.spec["scaler"] is None:
        return
    for rank in run.ranks:
        # Who is served has the loss scale from the server, which takes it off again.
        scalers = {rank.rank, rank.rank if run.server is None else run.server}
        scaled = [event for number in scalers for event in run.ranks[number].of(*_SCALING)]
        for window in rank.windows:
            half = {forward["forward"] for forward in window.forwards if forward["computes"] == "float16"}
            ends = [end for end in window.of("backward_end") if half.intersection(end["forwards"])]
            if any(end["scaled"] is not None for end in ends):
                yield kept(window)
            elif ends and not scaled and not _changes_gradients(rank):
                yield broken(window, _not_scaled(window, ends[0]))


def _changes_gradients(rank: RankTrace) -> bool:
    """Whether gradients are changed by hand, which may take off a scale that the loss was given by hand."""
    return bool(rank.of("gradient_change"))


def _not_scaled(window: Window, end: Event) -> Broken:
    forward = next(event for event in window.forwards if event["forward"] in end["forwards"])
    return Broken(
        end,
        must="the loss should be scaled before `backward()`",
        because="gradients are computed in float16, where what is smaller than 6e-8 is zero",
        however=f"{placed(forward)} ran in float16, and {placed(end)} on its loss as it was",
        shows=(forward, end),
        effect="Small gradients are lost; large ones are as they should be.",
    )
