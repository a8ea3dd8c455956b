"""Horovod: what has to be set up before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.laws.event import Event
from conformance.laws.horovod import horovod_optimizers
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import RankTrace, Run, Window
from conformance.laws.sharing import vector

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'
DOCS = "Horovod documentation, horovod.torch.DistributedOptimizer"


@law(
    "hvd/backward-passes-per-step",
    "`backward_passes_per_step` MUST be the number of backward passes in a window.",
    why="""Horovod begins to average a gradient in its backward_passes_per_step-th backward. With a smaller number
        it averages before the window is complete and refuses the next backward; with a larger one nothing is
        averaged until `synchronize()` or the step, and a window that is longer by mistake goes unnoticed.""",
    source=f'{SEED}: "set `hvd_optimizer.backward_passes_per_step` to N (aggregation frequency)"; {DOCS}',
    mend="""
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            backward_passes_per_step=accumulation,  # times the losses of a micro-batch
        )
        """,
)
def backward_passes_per_step(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1:
        return
    for rank in run.ranks:
        optimizers = horovod_optimizers(rank)
        # Of several optimizers each may have backwards of its own.
        if len(optimizers) != 1 or optimizers[0]["backward_passes_per_step"] is None:
            continue
        set_to: int = optimizers[0]["backward_passes_per_step"]
        passes = [(window, _passes(window)) for window in rank.windows]
        # Windows may be shorter than that, at the end of an epoch; but not all of them.
        longest = max((len(found) for window, found in passes if window.ended), default=0)
        for window, found in passes:
            if len(found) > set_to:
                yield broken(window, _wrong_number(optimizers[0], window, found, found[set_to], "the next is refused"))
            elif window.ended and 0 < longest < set_to and window.planned == run.plan.accumulation and found:
                end = next(event for event in (*window.of("synchronize"), *window.attempts, found[-1]))
                effect = "no average begins before `synchronize()`"
                yield broken(window, _wrong_number(optimizers[0], window, found, end, effect))
            elif window.ended and found:
                yield kept(window)


@law(
    "hvd/broadcast-before-first-step",
    "Parameters, and what state the optimizer has, MUST be broadcast before the first step of Horovod's optimizer.",
    why="""Horovod averages gradients and leaves weights alone. Ranks that begin apart, w_0 ≠ w_1, stay apart by
        that much and average gradients of different models; momentum of one rank alone has the same effect.""",
    source=f"{SEED}: horovod's explicit use of broadcast_parameters; Horovod documentation, Horovod with PyTorch",
    mend="""
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # after loading a checkpoint on rank 0
        """,
)
def broadcast_before_first_step(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1 or not all(horovod_optimizers(rank) for rank in run.ranks):
        return
    starts = [event for rank in run.ranks for event in rank.of("start")[:1]]
    sent = [event for rank in run.ranks for event in rank.setup if _carries(event, "parameters")]
    if len(starts) == len(run.ranks) and all(event["weights"] is not None for event in starts):
        other = next((event for event in starts if event["weights"] != starts[0]["weights"]), None)
        # After a broadcast ddp/equal-start tells that it was not enough.
        if other is None or sent:
            yield Check(None, None)
        else:
            yield Check(None, None, _weights_apart(starts[0], other))
    first = [horovod_optimizers(rank)[0] for rank in run.ranks]
    having = [event for event in first if event["state"]]
    lacking = [event for event in first if not event["state"]]
    if not having or not lacking:
        if having:
            yield Check(None, None)
    elif not any(_state_was_sent(rank, event) for rank, event in zip(run.ranks, first, strict=True)):
        yield Check(None, None, _state_apart(having[0], lacking[0]))


def _passes(window: Window) -> tuple[Event, ...]:
    """The backward passes of the model until gradients were first synchronized or stepped with."""
    ends = {event["backward"]: event for event in window.of("backward_end")}
    found: list[Event] = []
    for event in window.events:
        if event.kind in ("synchronize", "step", "skip"):
            break
        end = ends.get(event["backward"]) if event.kind == "backward_begin" else None
        if event.kind == "backward_begin" and (end is None or end["forwards"]):
            found.append(event)
    return tuple(found)


def _wrong_number(noted: Event, window: Window, passes: Sequence[Event], event: Event, effect: str) -> Broken:
    set_to = noted["backward_passes_per_step"]
    return Broken(
        event,
        must=f"`backward_passes_per_step` must be {len(passes)}",
        because=f"window {window.number} has {len(passes)} backward pass{'es' * (len(passes) > 1)}, the last at "
        f"{passes[-1].place}",
        however=f"Horovod's optimizer was made for {set_to}",
        shows=(noted, *passes, *([] if event in passes else [event])),
        effect=f"The average begins in backward number {set_to}, so {effect}.",
    )


def _carries(event: Event, what: str) -> bool:
    return event.kind == "collective" and event["via"] == "horovod" and event.get("of") == what


def _state_was_sent(rank: RankTrace, noted: Event) -> bool:
    return any(
        event.kind == "collective" and event.seq > noted.seq and event["op"] == "broadcast" and event.get("of") is None
        for event in rank.setup
    )


def _weights_apart(first: Event, other: Event) -> Broken:
    return Broken(
        other,
        must="parameters must be broadcast before the first step",
        because="Horovod averages gradients, and equal steps keep different weights different",
        however=f"nothing was broadcast, and rank {first.rank} began with {vector(first['weights'])} and rank "
        f"{other.rank} with {vector(other['weights'])}",
        shows=(first, other),
        effect="The ranks train different models to the end.",
    )


def _state_apart(having: Event, lacking: Event) -> Broken:
    return Broken(
        having,
        must="the state of the optimizer must be broadcast before the first step",
        because="momentum that one rank alone has takes its steps elsewhere",
        however=f"rank {having.rank} has state ({having.place}) and rank {lacking.rank} none, and none was broadcast",
        shows=(having, lacking),
        effect="The ranks take different steps from the first one on.",
    )
