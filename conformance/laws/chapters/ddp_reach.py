"""Laws of averaging over ranks: whose gradients reach whom."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.laws.law import OK, Broken, Outcome, law
from conformance.laws.sharing import agree, trained_elements
from conformance.laws.subjects import GlobalWindow, Window
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated


@law(
    "ddp/average-over-all-ranks",
    "The gradients of every rank MUST reach all other ranks before the step.",
    fault="averages over a part of the ranks only",
    why="""A collective averages over its own group only. If that is a node, or one dimension of a mesh, each group
        trains its own model on its own part of the data.""",
    source="PyTorch documentation, torch.distributed: groups",
    advice="average over all ranks, in the default process group",
    fix="""
        dist.all_reduce(parameter.grad)  # in the default group, which has all ranks
        parameter.grad /= dist.get_world_size()
        """,
    unless=("ddp/all-reduce-every-window", "ddp/same-collectives"),
)
def average_over_all_ranks(here: GlobalWindow) -> Outcome:
    windows = here.windows
    sent = [_of_gradients(window) for window in windows]
    # The trace does not know what each message carries, nor exchanges that it does not see.
    if here.plan.world_size == 1 or len(here.stepping) < len(windows) or not all(sent):
        return None
    if any(one.between(trace.Send, before=one.attempts[0] if one.attempts else None) for one in windows):
        return None
    first = windows[0].rank.number
    reached = _connected(first, [event.group for events in sent for event in events])
    apart = next((window for window in windows if window.rank.number not in reached), None)
    if apart is None or agree(windows):
        return OK
    last, other = sent[0][-1], sent[windows.index(apart)][-1]
    ranks = enumerated([str(rank) for rank in sorted(reached)])
    return Broken(
        last,
        expected=f"gradients averaged over all {len(windows)} ranks",
        observed=f"{last} is among ranks {ranks} only; rank {apart.rank.number} is in another group",
        why=f"the update is the mean over all {len(windows)} ranks",
        shows=(last, other, *windows[0].attempts[:1], *apart.attempts[:1]),
        effect="Each group of ranks trains a different model.",
    )


def _of_gradients(window: Window) -> Sequence[trace.Collective]:
    until = window.attempts[0] if window.attempts else None
    found = [one for one in window.between(trace.Collective, before=until) if one.of == "gradients"]
    if found or not window.backwards:
        return found
    # A buffer may hold counts, too.
    mixed = window.between(trace.Collective, after=window.backwards[-1], before=until)
    return mixed if sum(one.elements for one in mixed) >= trained_elements(window.rank) else []


def _connected(rank: int, groups: Sequence[Sequence[int]]) -> set[int]:
    """The ranks that share a group with ``rank``, or with such a rank, and so on."""
    found, size = {rank}, 0
    while len(found) > size:
        size = len(found)
        found.update(*(group for group in groups if not found.isdisjoint(group)))
    return found
