"""What the ranks of a case sent each other in an optimizer step, beside what its backend should send."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from conformance.laws.run import Run, Window
from conformance.oracle.traffic import expected, ring_all_reduce
from conformance.results.records import RankTraffic, Traffic
from conformance.trace.events import Contribution, Send
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
    totals = [defaultdict[str, int](int) for _ in range(ranks)]
    for here in together:
        for window in here.windows:
            _count(run, window, totals)
    width = PRECISIONS[run.plan.spec["precision"]].wire.width
    formula = expected(run.plan.backend, ranks, run.plan.model.size, width)
    return Traffic(
        gradient=run.plan.model.size * width,
        ranks=tuple(
            RankTraffic(
                **{name: total[name] / len(together) for name in ("sent", "received", "reduced", "other")},
                ring=float(ring_all_reduce(ranks, Fraction(total["reduced"], len(together)))),
                expected_sent=None if formula is None else formula[rank].sent,
                expected_received=None if formula is None else formula[rank].received,
                expected_reduced=None if formula is None else formula[rank].reduced,
            )
            for rank, total in enumerate(totals)
        ),
    )


def _count(run: Run, window: Window, totals: list[defaultdict[str, int]]) -> None:
    own = totals[window.rank.number]
    for event in window.of(Contribution):
        if not _is_payload(run, event):
            own["other"] += event.bytes
        elif isinstance(event, Send):
            own["sent"] += event.bytes
            totals[event.peer]["received"] += event.bytes
        else:
            own["reduced"] += event.bytes


def _is_payload(run: Run, event: Contribution) -> bool:
    # Elements of one byte are text or pickled objects.
    is_as_large = event.elements >= run.plan.model.size and event.bytes > event.elements
    return event.of is not None or is_as_large
