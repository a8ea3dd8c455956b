"""The law of agreement between ranks on their collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.subjects import Run
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated


@law(
    "ddp/same-collectives",
    "Every rank MUST issue the same collectives in the same order.",
    fault="issues different collectives on the ranks",
    why="""A collective matches the n-th call of each rank in its group, whatever these calls were meant for. If one
        rank leaves out a call or makes an extra one, the others wait forever, or mix unrelated numbers.""",
    source="PyTorch documentation, torch.distributed: collective functions",
    advice="call each collective on every rank, outside `if rank == 0`",
    fix="""
        dist.all_reduce(loss)  # on every rank
        if rank == 0:
            print(loss.item() / world_size)
        """,
    latent="""Whether ranks that issue different collectives hang, fail or mix numbers depends on sizes, buffers and the
        backend.""",
    unless=("ddp/all-reduce-every-window",),
)
def same_collectives(run: Run) -> Outcomes:
    if run.plan.world_size == 1:
        return
    for group, members in _by_group(run):
        for index, together in enumerate(zip(*members, strict=False)):
            signatures = [_signature(event) for event in together]
            if all(signature == signatures[0] for signature in signatures):
                yield OK
                continue
            usual = max(signatures, key=signatures.count)
            odd = [event for event, signature in zip(together, signatures, strict=True) if signature != usual]
            yield _different(index, together, odd[-1], usual)
            break
        else:
            if (unanswered := _unanswered(run, group, members)) is not None:
                yield unanswered


def _by_group(run: Run) -> Iterator[tuple[tuple[int, ...], list[list[trace.Collective]]]]:
    """Yields the ranks of each group, and the collectives that each rank issued in it."""
    calls: dict[tuple[int, ...], list[list[trace.Collective]]] = {}
    for rank in run.ranks:
        for event in rank.of(trace.Collective):
            # Horovod orders the submissions of the ranks itself.
            if event.via == "c10d" and len(event.group) > 1:
                calls.setdefault(tuple(event.group), [[] for _ in run.ranks])[rank.number].append(event)
    for group, by_rank in sorted(calls.items()):
        members = [by_rank[rank] for rank in group]
        names = [{event.process_group for event in events} for events in members]
        # Several groups of the same ranks, which threads may use, have separate orders if all ranks name them alike.
        if all(one == names[0] for one in names):
            for name in sorted(names[0], key=str):
                yield group, [[event for event in events if event.process_group == name] for events in members]
        else:
            yield group, members


#: Collectives to which ranks may contribute different amounts.
_UNEVEN = ("allgather_", "alltoall_", "alltoall_base_", "scatter_")


def _signature(event: trace.Collective) -> tuple[Any, ...]:
    if event.op in _UNEVEN:
        return (event.op,)
    return event.op, event.elements, event.bytes, event.reduce


def _different(
    index: int, together: Sequence[trace.Collective], odd: trace.Collective, usual: tuple[Any, ...]
) -> Broken:
    other = next(event for event in together if _signature(event) == usual)
    details = [f" of {event.elements} elements, {event.reduce or 'no reduction'}" for event in (other, odd)]
    one, two = details if details[0] != details[1] else ("", "")
    return Broken(
        odd,
        expected="the same collectives in the same order on every rank",
        observed=f"call {index + 1} is {other}{one} on rank {other.rank} and {odd}{two} on rank {odd.rank}",
        why=f"call {index + 1} of each rank in the group joins the same collective",
        shows=together,
        effect="The ranks wait for each other, or mix unrelated numbers.",
    )


def _unanswered(run: Run, group: Sequence[int], members: Sequence[Sequence[trace.Collective]]) -> Broken | None:
    """The first collective that some ranks of a group did not enter, unless they failed for another reason."""
    answered = min(map(len, members))
    waiting = [events[answered] for events in members if len(events) > answered]
    absent = [run.ranks[rank] for rank, events in zip(group, members, strict=True) if len(events) == answered]
    # `sys.exit` is no failure.
    if not waiting or any(event.type != "SystemExit" for rank in absent for event in rank.of(trace.Raised)):
        return None
    rank, call = absent[0], waiting[0]
    last = [event for event in rank.events if not isinstance(event, trace.Finished | trace.Raised | trace.Topology)][
        -1:
    ]
    left = "finished without it" if rank.finished else "left" if rank.of(trace.Raised) else "never reached it"
    ranks = enumerated([f"rank {event.rank}" for event in waiting])
    return Broken(
        call,
        expected="the same collectives in the same order on every rank",
        observed=f"rank {call.rank} entered {call}, but rank {rank.number} {left}"
        + "".join(f"; its last action was {event}" for event in last),
        why=f"a collective needs all of its {len(group)} ranks",
        shows=(*last, *waiting),
        effect=f"{ranks.capitalize()} {'waits' if len(waiting) == 1 else 'wait'} forever.",
    )
