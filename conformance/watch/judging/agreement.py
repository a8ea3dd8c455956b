"""Do the ranks agree: on weights, learning rates, steps and skips?"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, inf, isfinite, sqrt

import numpy as np

from conformance.watch import records
from conformance.watch.judging.case import Together, factor_of
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.sizes import WIDTH

_MOST_NAMED = 3
_SAME = 1e-6
_ROUNDED = 2.0**-22
"""Of the size of weights: a few roundings of each."""


def judge(together: Together, findings: Findings) -> None:
    here = together.here
    # Ranks that have run out of data take no steps meanwhile, so that windows may be of different times.
    if together.ranks == 1 or len(here) != together.ranks or together.is_joined:
        return
    first = here[0]
    if len({window.step is None for window in here}) > 1:
        skipped = tuple(window.rank for window in here if window.step is None)
        says = "some ranks step, and others leave the step out"
        effect = f"the weights of {len(skipped)} of {together.ranks} ranks stay where they are"
        findings.add(_of(first, "watch/same-steps", says, skipped, effect))
        return
    if first.step is None:
        return
    _clips(here, findings)
    if len({window.step.rates.__repr__() for window in here if window.step}) > 1:
        rates = {window.rank: window.step.rates for window in here if window.step}
        sizes = [abs(rate) for of_rank in rates.values() for rate in of_rank[:1] if rate]
        findings.add(
            _of(
                first,
                "watch/same-rates",
                "the learning rates are " + ", ".join(f"{rate} on rank {rank}" for rank, rate in rates.items()),
                tuple(rates),
                f"a rank steps {max(sizes) / min(sizes):.6g} times as far as another one" if sizes else None,
            )
        )
    # A rank that has run out of data has none.
    scales = {window.rank: window.scales for window in here if window.scales}
    if len({*map(tuple, scales.values())}) > 1:
        says = "the loss scales are " + ", ".join(f"{of_rank} on rank {rank}" for rank, of_rank in scales.items())
        every = [scale for of_rank in scales.values() for scale in of_rank]
        effect = f"a rank counts up to {max(every) / min(every):g} times as much as another one"
        findings.add(_of(first, "watch/one-scale", says, tuple(scales), effect))
    _weights(here, findings)


def _clips(here: list[Window], findings: Findings) -> None:
    """Whether some ranks clip what they step by, and others do not call for it at all.

    Ranks that have averaged, or hold shards of one gradient, see the same norm; and by value each rank has to clip."""
    bites = [window.rank for window in here if any(_changes(window, clip) for _, clip in window.clips)]
    without = [window.rank for window in here if window.used and not window.clips]
    # One rank may also clip for all, and send them what it has.
    if bites and without and not use_the_same(here):
        says = f"ranks {_list(bites)} clip the gradients of this step, and ranks {_list(without)} do not"
        effect = f"{len(without)} of {len(here)} ranks step by gradients that are longer than the others'"
        findings.add(_of(here[0], "watch/one-factor", says, tuple(without), effect))


def _changes(window: Window, clip: records.Clipped) -> bool:
    if clip.how == "norm":
        return factor_of(clip) < 1
    held = {*clip.parameters}
    return any(
        held & {*limit.parameters} and not np.array_equal(limit.before, limit.after) for _, limit in window.limits
    )


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _weights(here: list[Window], findings: Findings) -> None:
    first = here[0]
    if any(window.weights.keys() != first.weights.keys() for window in here):
        # Each rank steps parameters of its own, as ZeroRedundancyOptimizer's do inside.
        findings.note("the ranks' optimizers hold different parameters")
        return
    apart = [
        number
        for number in first.weights
        if first.shards.get(number, 1) == 1
        and not all(np.array_equal(window.weights[number], first.weights[number], equal_nan=True) for window in here)
    ]
    share = _share(here, apart)
    if apart and share <= _ROUNDED:
        # As where each rank adds something of its own to its weights, and takes it away again.
        findings.undecided("the ranks' weights differ by no more than what rounding does")
        return
    if apart:
        when = "from the start" if first.index == 0 else f"before step {first.index}"
        found = _of(
            first,
            "watch/same-weights",
            f"{len(apart)} of {len(first.weights)} parameters differ between ranks {when}: {first.named(apart)}",
            tuple(window.rank for window in here),
            f"these weights differ by about {share:.2g} of their size" if isfinite(share) else None,
        )
        found.parameters = frozenset(apart)
        findings.add(found)


def use_the_same(here: list[Window]) -> bool:
    """Whether several ranks' steps use equal gradients."""
    first, *others = [window.used for window in here]
    used = [number for number, sketch in first.items() if sketch[2]]
    return (
        bool(used)
        and bool(others)
        and all(
            other.keys() == first.keys() and all(np.allclose(other[n], first[n], _SAME, 0) for n in used)
            for other in others
        )
        and all(window.shards.get(number, 1) == 1 for window in here for number in used)
    )


def judge_buffers(by_rank: Mapping[int, records.Buffers], findings: Findings) -> None:
    """Buffers may well differ, as BatchNorm's statistics do under DDP, and frozen parameters, as where each rank has a
    part of a model. Who evaluates on another rank should know."""
    values = [dict(zip(one.names, _rows(one.values), strict=True)) for one in by_rank.values()]
    names = [*values[0]]
    first = len(names) - next(iter(by_rank.values())).frozen
    kinds = (("buffers", names[:first], " (SyncBatchNorm has common ones)"), ("frozen parameters", names[first:], ""))
    for kind, of_kind, remedy in kinds:
        apart = [name for name in of_kind if any(other.get(name) != values[0][name] for other in values)]
        if apart:
            such = ", ".join(apart[:_MOST_NAMED]) + (", ..." if len(apart) > _MOST_NAMED else "")
            findings.note(
                f"{len(apart)} of {len(of_kind)} {kind} differ between ranks, such as {such}: what is evaluated or "
                f"saved depends on the rank{remedy}"
            )


def _rows(sketches: records.Sketches) -> list[bytes]:
    """Two NaN are the same."""
    return [row.tobytes() for row in np.reshape(sketches, (-1, WIDTH))]


def _share(here: list[Window], apart: list[int]) -> float:
    """How far weights are apart, of their size. The square of a projection on random signs is, on average, the square
    of the norm."""
    first = here[0].weights
    square = max(sum((other.weights[n][j] - first[n][j]) ** 2 / 2 for n in apart for j in (0, 1)) for other in here[1:])
    size = hypot(*(first[n][2] for n in apart))
    return sqrt(square) / size if size else inf


def _of(window: Window, law: str, says: str, ranks: tuple[int, ...], effect: str | None) -> Finding:
    return Finding(law, says, window.index, ranks, window.site, effect, window.optimizer)
