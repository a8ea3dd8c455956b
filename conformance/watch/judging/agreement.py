"""Do the ranks agree: on weights, learning rates, steps and skips?"""

from __future__ import annotations

from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window


def judge(together: Together, findings: Findings) -> None:
    here = together.here
    # Ranks that have run out of data take no steps meanwhile, so that windows may be of different times.
    if together.ranks == 1 or len(here) != together.ranks or together.is_joined:
        return
    first = here[0]
    if len({window.step is None for window in here}) > 1:
        skipped = tuple(window.rank for window in here if window.step is None)
        findings.add(_of(first, "watch/same-steps", "some ranks step, and others leave the step out", skipped))
        return
    if first.step is None:
        return
    if len({window.step.rates.__repr__() for window in here if window.step}) > 1:
        rates = {window.rank: window.step.rates for window in here if window.step}
        findings.add(
            _of(
                first,
                "watch/same-rates",
                "the learning rates are " + ", ".join(f"{rate} on rank {rank}" for rank, rate in rates.items()),
                tuple(rates),
            )
        )
    scales = {window.rank: window.scales for window in here}
    if any(of_rank != scales[first.rank] for of_rank in scales.values()):
        says = "the loss scales are " + ", ".join(f"{of_rank} on rank {rank}" for rank, of_rank in scales.items())
        findings.add(_of(first, "watch/one-scale", says, tuple(scales)))
    _weights(here, findings)


def _weights(here: list[Window], findings: Findings) -> None:
    first = here[0]
    if any(window.weights.keys() != first.weights.keys() for window in here):
        # Each rank steps parameters of its own, as ZeroRedundancyOptimizer's do inside.
        findings.note("the ranks' optimizers hold different parameters")
        return
    apart = [
        number
        for number in first.weights
        if first.shards.get(number, 1) == 1 and any(window.weights[number] != first.weights[number] for window in here)
    ]
    if apart:
        when = "from the start" if first.index == 0 else f"before step {first.index}"
        findings.add(
            _of(
                first,
                "watch/same-weights",
                f"{len(apart)} of {len(first.weights)} parameters differ between ranks {when}: {first.named(apart)}",
                tuple(window.rank for window in here),
            )
        )


def _of(window: Window, law: str, says: str, ranks: tuple[int, ...]) -> Finding:
    return Finding(law, says, window.index, ranks, window.site, optimizer=window.optimizer)
