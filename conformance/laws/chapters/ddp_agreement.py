"""What ranks have to agree on: their first weights, their collectives, and their weights after each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conformance.laws.event import Event
from conformance.laws.labels import number, placed
from conformance.laws.law import Broken, Check, law
from conformance.laws.run import RankTrace, Run, Window
from conformance.laws.sharing import brings_together, in_turn, sharings, trained_elements, vector

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'
DOCS = "PyTorch documentation, torch.nn.parallel.DistributedDataParallel"


@law(
    "ddp/equal-start",
    "All ranks MUST begin with the same weights.",
    why="""Ranks that take equal steps from different weights stay apart by what they were apart at the start. Their
        gradients belong to different models, (1/N) Σ ∇L(w_r), and no single model is trained.""",
    source=f'{SEED}: "DDP broadcasts parameters on model instantiation"',
    mend="""
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)  # DistributedDataParallel(model) does it by itself
        """,
)
def equal_start(run: Run) -> Iterator[Check]:
    starts = [event for rank in run.ranks for event in rank.of("start")[:1]]
    if run.plan.world_size == 1 or len(starts) < run.plan.world_size or any(e["weights"] is None for e in starts):
        return
    first = starts[0]
    other = next((event for event in starts if event["weights"] != first["weights"]), None)
    exchanges = [event for event in run.ranks[0].setup if event.kind in ("collective", "send", "receive")]
    sent = [event for event in exchanges if event.get("of") == "parameters"]
    if other is None:
        yield Check(None, None)
    # Otherwise hvd/broadcast-before-first-step tells why.
    elif run.plan.backend != "horovod" or sent:
        told = f"after {placed(sent[-1])}" if sent else "no collective carried weights before the first forward, and"
        yield Check(
            None,
            None,
            Broken(
                other,
                must="all ranks must begin with the weights of one of them",
                because="equal steps keep different weights different",
                however=f"{told} rank {first.rank} began with {vector(first['weights'])} and rank {other.rank} with "
                f"{vector(other['weights'])}",
                shows=(*sent[-1:], first, other),
                effect="The ranks train different models to the end.",
            ),
        )


@law(
    "ddp/same-collectives",
    "Every rank MUST issue the same collectives in the same order.",
    why="""A collective joins the n-th call of each rank of its group, whatever these meant. A call that a rank
        leaves out, or makes more often, has the others wait forever, or mixes numbers that have nothing to do with
        each other.""",
    source="PyTorch documentation, torch.distributed: collective functions",
    mend="""
        dist.all_reduce(loss)  # on every rank
        if rank == 0:
            print(loss.item() / world_size)
        """,
)
def same_collectives(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1:
        return
    # Horovod itself puts what ranks submit into one order.
    calls = [[event for event in rank.of("collective") if event["via"] == "c10d"] for rank in run.ranks]
    for group in sorted({tuple(event["group"]) for events in calls for event in events if len(event["group"]) > 1}):
        members = [[event for event in calls[rank] if tuple(event["group"]) == group] for rank in group]
        answered = min(map(len, members))
        for index, together in enumerate(zip(*members, strict=False)):
            signatures = [_signature(event) for event in together]
            usual = max(signatures, key=signatures.count)
            odd = [event for event, signature in zip(together, signatures, strict=True) if signature != usual]
            if odd:
                yield Check(odd[-1].window, None, _different(index, together, odd[-1], usual))
                break
            yield Check(together[0].window, None)
        else:
            if (unanswered := _unanswered(run, group, members, answered)) is not None:
                yield Check(unanswered.event.window, None, unanswered)


@law(
    "ddp/identical-weights",
    "After each optimizer step all ranks MUST hold the same weights, to the bit.",
    why="""Ranks that have parted average gradients of different models, (1/N) Σ ∇L(w_r), and nothing brings them
        together again. What one rank saves or evaluates is not what the others train.""",
    source=f"{DOCS}: parameters are never broadcast between processes after construction",
    mend="""
        # Whatever enters a step has to be the same on all ranks: gradients after the all-reduce,
        # learning rate, weight decay, momentum, loss scale, and the decision to step.
        optimizer.step()
        """,
)
def identical_weights(run: Run) -> Iterator[Check]:
    # Otherwise ddp/equal-start or hvd/broadcast-before-first-step tells why.
    starts = [event["weights"] for rank in run.ranks for event in rank.of("start")[:1]]
    if run.plan.world_size == 1 or any(start != starts[0] for start in starts):
        return
    # Otherwise ddp/all-reduce-every-window and its like tell why.
    parted = min((sharing.window.number for sharing in sharings(run) if sharing.is_missing), default=None)
    for windows in run.together():
        if windows[0].number == parted or _is_explained(run, windows):
            return
        shown = [run.held_after(window) for window in windows]
        steps = [event for event in shown if event is not None and event["weights"] is not None]
        # Weights that are averaged after the step are seen no more.
        if len(steps) < len(windows) or any(
            _may_carry_weights(run, event)
            for window, step in zip(windows, steps, strict=True)
            for event in window.between(step, None)
        ):
            continue
        other = next((step for step in steps if step["weights"] != steps[0]["weights"]), None)
        if other is not None:
            yield Check(windows[0].number, None, _parted(windows, steps[0], other))
            return
        yield Check(windows[0].number, None)


#: In these ranks may put in different amounts.
_UNEVEN = ("allgather_", "alltoall_", "alltoall_base_", "scatter_")


def _signature(event: Event) -> tuple[Any, ...]:
    if event["op"] in _UNEVEN:
        return (event["op"],)
    return event["op"], event["elements"], event["bytes"], event["reduce"]


def _different(index: int, together: Sequence[Event], odd: Event, usual: tuple[Any, ...]) -> Broken:
    other = next(event for event in together if _signature(event) == usual)
    details = [f"{event['elements']} elements, {event['reduce'] or 'no reduction'}" for event in (other, odd)]
    told = ("", "") if details[0] == details[1] else tuple(f" of {detail}" for detail in details)
    return Broken(
        odd,
        must="every rank must issue the same collectives in the same order",
        because=f"call {index + 1} of each rank of the group is one collective, whatever it was meant for",
        however=f"it is {placed(other)}{told[0]} on rank {other.rank} and {placed(odd)}{told[1]} on rank {odd.rank}",
        shows=tuple(together),
        effect="The ranks wait for each other, or take each other's numbers for something else.",
    )


def _unanswered(run: Run, group: Sequence[int], members: Sequence[Sequence[Event]], answered: int) -> Broken | None:
    """The first collective that not all ranks of a group entered, unless a failure that is no law's kept one away."""
    waiting = [events[answered] for events in members if len(events) > answered]
    absent = [run.ranks[rank] for rank, events in zip(group, members, strict=True) if len(events) == answered]
    if not waiting or any(_failed(rank) for rank in absent):
        return None
    # ddp/all-reduce-every-window and its like tell which collective was left out.
    if any(sharing.is_missing for sharing in sharings(run)):
        return None
    rank, call = absent[0], waiting[0]
    last = next(
        (event for event in reversed(rank.events) if event.kind not in ("finished", "raised", "topology")), None
    )
    if rank.finished:
        told = "finished without it"
    elif rank.of("raised"):
        told = "left"
    else:
        told = "never came to it"
    return Broken(
        call,
        must="every rank must issue the same collectives in the same order",
        because=f"a collective needs all of its {len(group)} ranks",
        however=f"rank {call.rank} entered {placed(call)}, and rank {rank.rank} {told}"
        + ("" if last is None else f"; the last that it did was {placed(last)}"),
        shows=(*([] if last is None else [last]), *waiting),
        effect=f"{in_turn([f'rank {event.rank}' for event in waiting]).capitalize()} waits for it in vain.",
    )


def _failed(rank: RankTrace) -> bool:
    """Whether a rank ended by an error; one that leaves with `sys.exit` does not."""
    return any(event["type"] != "SystemExit" for event in rank.of("raised"))


def _is_explained(run: Run, windows: Sequence[Window]) -> bool:
    """Whether another law's violation makes the ranks part in a window."""
    attempts = [window.attempts[-1] for window in windows if window.attempts]
    schedules = [run.ranks[attempt.rank].count("schedule", before=attempt) for attempt in attempts]
    return (
        # amp/all-ranks-skip
        len({attempt.kind for attempt in attempts}) > 1
        # amp/same-scale-on-all-ranks
        or len({attempt["scale"] for attempt in attempts}) > 1
        # acc/schedule-per-step
        or len(set(schedules)) > 1
        # acc/step-after-all-backwards
        or any(w.attempts and w.backwards and w.attempts[0].seq < w.backwards[-1].seq for w in windows)
        # hvd/synchronize-before-clip, hvd/synchronize-before-unscale, hvd/not-cleared-before-synchronize
        or any(_touched_before_synchronize(window) for window in windows)
    )


def _may_carry_weights(run: Run, event: Event) -> bool:
    # What a rank sends leaves its own weights as they are.
    if event.kind != "receive" and not (event.kind == "collective" and brings_together(event)):
        return False
    of_enough = event["elements"] >= trained_elements(run, run.ranks[event.rank])
    return bool(event["of"] != "gradients" and (of_enough or event["of"] == "parameters"))


def _touched_before_synchronize(window: Window) -> bool:
    if not window.backwards:
        return False
    after = window.between(window.backwards[-1], None)
    synchronize = next((event for event in after if event.kind == "synchronize"), None)
    touching = ("clip", "unscale", "scaler_step", "zero_grad")
    return synchronize is not None and any(e.kind in touching for e in after if e.seq < synchronize.seq)


def _parted(windows: Sequence[Window], one: Event, other: Event) -> Broken:
    # A rank that is served shows its weights at something that is no step.
    known = [name for name in ("lr", "gradients") if name in one.fields and name in other.fields]
    differ = [name for name in known if one[name] != other[name]]
    what = {"lr": "learning rate", "gradients": "gradient"}
    told = [
        f"the {what[name]} is {_value(one[name])} on rank {one.rank} and {_value(other[name])} on rank {other.rank}"
        for name in differ
    ]
    return Broken(
        other,
        must="all ranks must hold the same weights after a step",
        because="from then on they average gradients of different models",
        however=f"after {placed(one)} of window {windows[0].number} rank {one.rank} holds {vector(one['weights'])} and "
        f"rank {other.rank} {vector(other['weights'])}" + (f"; in that step {in_turn(told)}" if told else ""),
        shows=(one, other),
        effect="The ranks train different models from here on.",
    )


def _value(value: Any) -> str:
    return vector(value) if isinstance(value, list) else number(value)
