"""What the ranks of a case sent each other in an optimizer step, beside what its backend should send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from conformance.laws.run import GlobalWindow, Run, Window
from conformance.oracle.traffic import Split, expected, ring_collective, state
from conformance.results.records import RankTraffic, Traffic
from conformance.trace.events import Collective, Contribution, Finished, Send, Step
from conformance.workloads.precision import PRECISIONS


def traffic(run: Run) -> Traffic | None:
    """Bytes per optimizer step, the mean over all windows that every rank has ended; None without any.

    For messages, the sender's record counts on both sides. A payload counts as gradients or weights if the recorder
    knows it as such, or if it is as large as the model, as a running sum of gradients is. The rest, such as total
    weights and loss scales, is `other`.
    """
    ranks, together = run.plan.world_size, list(run.together.values())
    if ranks == 1 or len(run.ranks) < ranks or not together:
        return None
    totals = [defaultdict[str, Fraction](Fraction) for _ in range(ranks)]
    for here in together:
        for window in here.windows:
            _count(run, window, totals)
    width = PRECISIONS[run.plan.spec["precision"]].wire.width
    stepped = Fraction(sum(bool(here.windows[0].of(Step)) for here in together), len(together))
    formula = expected(run.plan.backend, ranks, run.plan.model.numel, width, _split(run, together), stepped)
    whole = state(run.plan.backend, run.plan.model.numel, run.plan.spec["optimizer"], run.plan.precision.master.width)
    return Traffic(
        gradient=run.plan.model.numel * width,
        state=whole,
        ranks=tuple(
            RankTraffic(
                **{
                    name: float(total[name] / len(together))
                    for name in ("sent", "received", "reduced", "ring", "other")
                },
                expected_sent=None if formula is None else formula[rank].sent,
                expected_received=None if formula is None else formula[rank].received,
                expected_reduced=None if formula is None else float(formula[rank].reduced),
                state=next((event.state_bytes for event in run.ranks[rank].of(Finished)), None) if whole else None,
            )
            for rank, total in enumerate(totals)
        ),
    )


def _split(run: Run, together: Sequence[GlobalWindow]) -> Split | None:
    """How the parameters are split over the ranks; None if they are not."""
    shards = [rank.shard for rank in run.ranks if rank.shard is not None]
    if len(shards) < len(run.ranks):
        return None
    of = run.plan.model.tensor_of
    most = [max(sum(of[at] == tensor for at in shard) for shard in shards) for tensor in range(len(set(of)))]
    precision, gathers = run.plan.precision, sum(here.windows[0].planned for here in together)
    width = (precision.compute if precision.mixed else precision.master).width
    copies = sum(0 in shard for shard in shards)
    return Split(sum(most), max(copies, 1), Fraction(gathers, len(together)), width)


def _count(run: Run, window: Window, totals: list[defaultdict[str, Fraction]]) -> None:
    own = totals[window.rank.number]
    # The first forward gathers before it begins.
    before = [event for event in window.gap_before if isinstance(event, Collective)] if window.index == 0 else []
    gathered = [event for event in before if "allgather" in event.op and event.of == "parameters"]
    for event in (*gathered, *window.of(Contribution)):
        if not _is_payload(run, event):
            own["other"] += event.bytes
        elif isinstance(event, Send):
            own["sent"] += event.bytes
            totals[event.peer]["received"] += event.bytes
        else:
            own["reduced"] += event.bytes
            own["ring"] += ring_collective(
                event.op if isinstance(event, Collective) else "", len(event.group), event.bytes
            )


def _is_payload(run: Run, event: Contribution) -> bool:
    # Elements of one byte are text or pickled objects.
    is_as_large = event.elements >= run.plan.model.numel and event.bytes > event.elements
    return event.of is not None or is_as_large
