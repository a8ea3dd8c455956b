"""Do the ranks agree: on weights, learning rates, steps and skips?"""

from __future__ import annotations

from math import prod

from conformance.watch.judging.case import Together, factor_of
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window

_DIFFERENT = 0.01


def judge(together: Together, findings: Findings) -> None:
    here = together.here
    if together.ranks == 1 or len(here) != together.ranks:
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
    _clips(here, findings)
    _weights(here, findings)


def _clips(here: list[Window], findings: Findings) -> None:
    """All ranks clip by the same norm, as they clip the same gradients; shards have norms of their own."""
    first = here[0]
    if any(shards > 1 for window in here for shards in window.shards.values()):
        return
    clips = [[clip for _, clip in window.clips if clip.how == "norm"] for window in here]
    factors = [prod(factor_of(clip) for clip in of_rank) for of_rank in clips]
    if max(factors) - min(factors) > _DIFFERENT * max(factors):
        site = next((clip.site for of_rank in clips for clip in of_rank), first.site)
        says = "clipping scales the gradients by " + ", ".join(
            f"{factor:.3g} on rank {window.rank}" for factor, window in zip(factors, here, strict=True)
        )
        everyone = tuple(window.rank for window in here)
        findings.add(Finding("watch/one-factor", says, first.index, everyone, site, optimizer=first.optimizer))


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
