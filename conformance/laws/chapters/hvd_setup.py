"""Horovod: what must be set up before the first step."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.laws.horovod import horovod_optimizers
from conformance.laws.law import GUIDE, OK, Broken, Outcomes, law
from conformance.laws.run import Rank, Run, Window, fact
from conformance.trace.events import (
    Attempt,
    BackwardBegin,
    BackwardEnd,
    Collective,
    Event,
    Optimizer,
    Start,
    Synchronize,
)
from conformance.trace.words import vector

DOCS = "Horovod documentation, horovod.torch.DistributedOptimizer"


@law(
    "hvd/backward-passes-per-step",
    "`backward_passes_per_step` SHOULD be the number of backward passes in a window.",
    why="""Horovod begins to average a gradient in its backward_passes_per_step-th backward. If the number is too small,
        it averages before the window is complete and refuses the next backward. If it is too large, nothing is
        averaged until `synchronize()` or the step, and a window that is longer by mistake goes unnoticed.""",
    source=f'{GUIDE}: "set `hvd_optimizer.backward_passes_per_step` to N (aggregation frequency)"; {DOCS}',
    fix="""
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            backward_passes_per_step=accumulation,  # times the losses of a micro-batch
        )
        """,
)
def backward_passes_per_step(window: Window) -> Outcomes:
    optimizers = horovod_optimizers(window.rank)
    # Each of several optimizers may have its own backwards.
    if window.plan.world_size == 1 or len(optimizers) != 1 or optimizers[0].backward_passes_per_step is None:
        return
    noted, set_to = optimizers[0], optimizers[0].backward_passes_per_step
    found = _passes(window)
    if len(found) > set_to:
        yield _wrong_number(noted, window, found, found[set_to], "the next is refused")
    elif window.ended and found:
        # A window at the end of an epoch may be shorter, but not all windows.
        if _most_passes(window.rank) < set_to and window.planned == window.plan.accumulation:
            end = next(event for event in (*window.of(Synchronize), *window.attempts, found[-1]))
            yield _wrong_number(noted, window, found, end, "no average begins before `synchronize()`")
        else:
            yield OK


@law(
    "hvd/broadcast-before-first-step",
    "Parameters, and any state of the optimizer, MUST be broadcast before the first step of Horovod's optimizer.",
    why="""Horovod averages gradients and leaves weights alone. Ranks that begin with different weights, w_0 ≠ w_1, keep
        this difference and average gradients of different models. Momentum on one rank only has the same effect.""",
    source=f"{GUIDE}: horovod's explicit use of broadcast_parameters; Horovod documentation, Horovod with PyTorch",
    fix="""
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # after loading a checkpoint on rank 0
        """,
)
def broadcast_before_first_step(run: Run) -> Outcomes:
    if run.plan.world_size == 1 or not all(horovod_optimizers(rank) for rank in run.ranks):
        return
    starts = [event for rank in run.ranks for event in rank.of(Start)[:1]]
    if len(starts) == len(run.ranks) and all(event.weights is not None for event in starts):
        other = next((event for event in starts if event.weights != starts[0].weights), None)
        # If there was a broadcast but it did not suffice, ddp/equal-start reports it.
        yield OK if other is None or any(map(_broadcast, run.ranks)) else _weights_apart(starts[0], other)
    first = [horovod_optimizers(rank)[0] for rank in run.ranks]
    having = [event for event in first if event.state]
    lacking = [event for event in first if not event.state]
    if having and not lacking:
        yield OK
    elif having and not any(_state_was_sent(rank, event) for rank, event in zip(run.ranks, first, strict=True)):
        yield _state_apart(having[0], lacking[0])


@fact
def _passes(window: Window) -> Sequence[BackwardBegin]:
    """The backward passes of the model before the first synchronize or step."""
    ends = {event.backward: event for event in window.of(BackwardEnd)}
    first = next((event for event in window.events if isinstance(event, Synchronize | Attempt)), None)
    return [
        event
        for event in window.between(BackwardBegin, before=first)
        if event.backward not in ends or ends[event.backward].forwards
    ]


@fact
def _most_passes(rank: Rank) -> int:
    return max((len(_passes(window)) for window in rank.windows if window.ended), default=0)


def _wrong_number(
    noted: Optimizer, window: Window, passes: Sequence[BackwardBegin], event: Event, effect: str
) -> Broken:
    set_to = noted.backward_passes_per_step
    return Broken(
        event,
        must=f"`backward_passes_per_step` should be {len(passes)}",
        because=f"window {window.number} has {len(passes)} backward pass{'es' * (len(passes) > 1)}, the last at "
        f"{passes[-1].line}",
        however=f"Horovod's optimizer was created with {set_to}",
        shows=(noted, *passes, *([] if event in passes else [event])),
        effect=f"The average begins in backward number {set_to}, so {effect}.",
    )


def _broadcast(rank: Rank) -> bool:
    """Whether Horovod carried parameters before training."""
    return any(isinstance(one, Collective) and one.via == "horovod" and one.of == "parameters" for one in rank.setup)


def _state_was_sent(rank: Rank, noted: Optimizer) -> bool:
    return any(
        isinstance(event, Collective) and event.seq > noted.seq and event.op == "broadcast" and event.of is None
        for event in rank.setup
    )


def _weights_apart(first: Start, other: Start) -> Broken:
    return Broken(
        other,
        must="parameters must be broadcast before the first step",
        because="Horovod averages gradients, and equal steps keep different weights different",
        however=f"nothing was broadcast, and rank {first.rank} began with {vector(first.weights or ())} and rank "
        f"{other.rank} with {vector(other.weights or ())}",
        shows=(first, other),
        effect="The ranks train different models until the end.",
    )


def _state_apart(having: Optimizer, lacking: Optimizer) -> Broken:
    return Broken(
        having,
        must="the state of the optimizer must be broadcast before the first step",
        because="momentum on one rank only changes the direction of its steps",
        however=f"rank {having.rank} has state ({having.line}) and rank {lacking.rank} none, and none was broadcast",
        shows=(having, lacking),
        effect="The ranks take different steps from the first step on.",
    )
