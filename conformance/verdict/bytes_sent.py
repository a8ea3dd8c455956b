"""The bytes that the ranks of a case sent in an optimizer step, next to the bytes that its backend should send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from conformance.laws.subjects import GlobalWindow, Run, Window
from conformance.oracle.traffic import Partitioned, Split, expected, ring_collective, state
from conformance.results.result_lines import RankTraffic, Traffic
from conformance.trace.events import Collective, Contribution, Finished, Send, Step, Zero
from conformance.workloads.precision import PRECISIONS


def traffic(run: Run) -> Traffic | None:
    """Bytes per optimizer step, the mean over all windows that every rank has ended; None without any.

    For messages, the sender's record counts on both sides. A payload counts as gradients or weights if the recorder
    knows it as such, or if it is as large as the model, such as a running sum of gradients. The rest, such as total
    weights and loss scales, is `other`. The first window of ZeRO's stage 3 is left out: its number of gathers depends
    on the modules.
    """
    ranks, engine = run.plan.world_size, _engine(run)
    together = list(run.together.values())[engine is not None and engine.stage == 3 :]
    if ranks == 1 or len(run.ranks) < ranks or not together:
        return None
    totals = [defaultdict[str, Fraction](Fraction) for _ in range(ranks)]
    for here in together:
        for window in here.windows:
            _count(run, window, totals)
    width = PRECISIONS[run.plan.spec["precision"]].wire.width if engine is None else engine.gradient_width
    stepped = Fraction(sum(bool(here.windows[0].of(Step)) for here in together), len(together))
    split = _split(run, together) if engine is None else _partitioned(engine, together)
    formula = expected(run.plan.backend, ranks, run.plan.model.numel, width, split, stepped)
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


def _engine(run: Run) -> Zero | None:
    """DeepSpeed's engine, if it is known and the same on every rank; else None."""
    engines = [engine for rank in run.ranks for engine in rank.of(Zero)]
    alike = {(one.stage, one.share, one.in_each_micro_batch, one.gradient_width, one.weight_width) for one in engines}
    return engines[0] if len(alike) == 1 and len(engines) == len(run.ranks) else None


def _partitioned(engine: Zero, together: Sequence[GlobalWindow]) -> Partitioned:
    times = sum(here.windows[0].planned for here in together) if engine.in_each_micro_batch else len(together)
    reductions = Fraction(times, len(together))
    return Partitioned(engine.stage, engine.share, engine.gradient_width, engine.weight_width, reductions)


def _split(run: Run, together: Sequence[GlobalWindow]) -> Split | None:
    """The sharding of the parameters; None if they are not sharded."""
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
    # The first forward gathers before it starts.
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
    return event.of is not None or (event.elements >= run.plan.model.numel and not event.integers)
