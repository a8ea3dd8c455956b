"""Checks that the ranks agree on weights, learning rates, loss scales, clipping and skipped steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, inf, isfinite, sqrt
from typing import TypeAlias

import numpy as np

from conformance.watch import records
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.windows import Window, factor_of
from conformance.watch.sizes import WIDTH

_Weights: TypeAlias = Mapping[int, Sequence[float]]

_SAME = 1e-6
_ROUNDED = 2.0**-22
"""Relative to the norm of the weights: a few roundings of each."""

_APART = 1e-3
"""Relative to the size of gradients: more than the ranks' rounding of one average."""


def judge(together: Together, findings: Findings) -> None:
    here = together.here
    # Ranks that ran out of data take no steps, so the windows may belong to different steps.
    if together.ranks == 1 or len(here) != together.ranks or together.is_joined:
        return
    first = here[0]
    if len({window.step is None for window in here}) > 1:
        skipped = tuple(window.rank for window in here if window.step is None)
        effect = said("ranks-stay", skipped=len(skipped), ranks=together.ranks)
        findings.add(_of(first, "watch/same-steps", said("some-skip"), skipped, effect))
        return
    if first.step is None:
        return
    _clips(here, findings)
    _norms_of_shards(here, findings)
    _rates(here, findings)
    _scales(here, findings)
    if not findings.causes:
        _gradients(together, here, findings)
    _weights(together, here, findings)


def _scales(here: list[Window], findings: Findings) -> None:
    # A rank that ran out of data has no scale.
    scales = {window.rank: window.scales for window in here if window.scales}
    if len({*map(tuple, scales.values())}) > 1:
        low, high = min(map(min, scales.values())), max(map(max, scales.values()))
        effect = said("rank-counts", times=high / low)
        found = _of(here[0], "watch/one-scale", said("scales-differ", low=low, high=high), tuple(scales), effect)
        found.site = here[0].scaled_at
        findings.add(found)


def _rates(here: list[Window], findings: Findings) -> None:
    by_rank = {window.rank: window.step.rates for window in here if window.step}
    groups = zip(*by_rank.values(), strict=False)
    differing = [(number, [*rates]) for number, rates in enumerate(groups) if len({*rates}) > 1]
    if not differing:
        return
    group, rates = differing[0]
    known = sorted(abs(rate) for rate in rates if rate is not None)
    says = said("rates-differ", group=group, rates=rates)
    effect = said("steps-farther", times=known[-1] / known[0]) if known and known[0] else said("rank-stays")
    findings.add(_of(here[0], "watch/same-rates", says, tuple(by_rank), effect))


def _clips(here: list[Window], findings: Findings) -> None:
    """Reports ranks that step without a clip call while clipping changes the gradients of others.

    Ranks with averaged gradients, or with shards of one gradient, see the same norm. By value, every rank must clip."""
    bites = [window.rank for window in here if any(_changes(window, clip) for _, clip in window.clips)]
    without = [window.rank for window in here if window.used and not window.clips]
    # One rank may also clip for all, and send the result to the others.
    if bites and without and not use_the_same(here):
        says = said("some-clip", clipping=bites, others=without)
        effect = said("ranks-longer", without=len(without), ranks=len(here))
        found = _of(here[0], "watch/one-factor", says, tuple(without), effect)
        found.site = next(window.clipped_at for window in here if window.rank in bites)
        findings.add(found)


def _norms_of_shards(here: list[Window], findings: Findings) -> None:
    """Reports ranks that clip shards of the same gradients by other factors, as each takes the norm of its shards."""
    by_rank = [[(clip, window) for _, clip in window.clips if _is_of_shards(window, clip)] for window in here]
    for calls in zip(*by_rank, strict=False):
        (least, low), (most, high) = (choose(calls, key=lambda one: factor_of(one[0])) for choose in (min, max))
        # A limit of 0 leaves nothing.
        if 0 < factor_of(least) < factor_of(most) * (1 - _APART):
            ratio = factor_of(least) / factor_of(most)
            of = {"parameters": len({*least.parameters}), "rank": low.rank, "other": high.rank, "ratio": ratio}
            effect = said("steps-farther", times=1 / ratio)
            found = _of(low, "watch/one-factor", said("ranks-by-factor", **of), (low.rank, high.rank), effect)
            found.site = least.site
            findings.add(found)


def _is_of_shards(window: Window, clip: records.Clipped) -> bool:
    are_shards = all(window.shards.get(number, 1) > 1 for number in clip.parameters)
    return clip.how == "norm" and bool(clip.norm) and bool(clip.parameters) and are_shards


def _changes(window: Window, clip: records.Clipped) -> bool:
    if clip.how == "norm":
        return factor_of(clip) < 1
    held = {*clip.parameters}
    return any(
        held & {*limit.parameters} and not np.array_equal(limit.before, limit.after) for _, limit in window.limits
    )


def _gradients(together: Together, here: list[Window], findings: Findings) -> None:
    """Reports replicas with equal weights that step on different gradients, so their weights drift apart."""
    first, *others = here
    whole = {n for n in first.used if first.shards.get(n, 1) == 1} - together.partitioned
    apart = [n for n in first.used if n in whole and any(_is_equal_but_its_gradient(first, one, n) for one in others)]
    if not apart:
        return
    law, effect = "watch/averaged", None
    code = "returned-differ" if all(window.captured for window in here) else "used-differ"
    says = said(code, parameters=len(apart), all=len(first.used), names=first.named(apart))
    if len(here) == 2 and (ratio := _ratio(first, others[0], apart)) is not None:
        law, effect = "watch/one-factor", said("rank-counts", times=max(ratio, 1 / ratio))
        says = said("ranks-by-factor", parameters=len(apart), rank=others[0].rank, other=first.rank, ratio=ratio)
    found = _of(first, law, says, tuple(window.rank for window in here), effect)
    found.is_bare, found.parameters = True, frozenset(apart)
    findings.add(found)


def _is_equal_but_its_gradient(one: Window, other: Window, number: int) -> bool:
    if any(number not in of for of in (one.weights, other.weights, other.used)):
        return False
    if one.used[number].tobytes() == other.used[number].tobytes():
        return False
    if one.sample(number) != other.sample(number) or _share(other.weights, one.weights, [number]) > _ROUNDED:
        return False
    used = one.used[number], other.used[number]
    with np.errstate(invalid="ignore"):  # Both may have overflowed.
        differs = used[0] - used[1]
    return bool(np.abs(differs).max() > _APART * max(sketch[2] for sketch in used))


def _ratio(one: Window, other: Window, apart: list[int]) -> float | None:
    """The factor between the other rank's gradients and this one's; None if it differs or there is one gradient."""
    ratios = [other.used[n][2] / one.used[n][2] if one.used[n][2] else inf for n in apart]
    is_one = len(apart) > 1 and min(ratios) > 0 and max(ratios) < inf and np.ptp(ratios) <= _APART * max(ratios)
    are_alike = (np.allclose(other.used[n], ratios[0] * one.used[n], 0, _APART * other.used[n][2]) for n in apart)
    return float(ratios[0]) if is_one and all(are_alike) else None


def _weights(together: Together, here: list[Window], findings: Findings) -> None:
    first = here[0]
    if any(window.weights.keys() != first.weights.keys() for window in here):
        # Each rank steps different parameters, as in ZeroRedundancyOptimizer.
        findings.leave_open(said("agreement.parameters"), step=first.index)
        return
    expected = [(window, {n: _first_with(together, window, n).weights[n] for n in first.weights}) for window in here]
    apart = [
        number
        for number in first.weights
        if first.shards.get(number, 1) == 1
        and not all(_are_equal(one.weights[number], of[number]) for one, of in expected)
    ]
    if apart:
        # NaN stays NaN, unlike with `max`.
        share = float(np.max([_share(window.weights, of, apart) for window, of in expected]))
        if share <= _ROUNDED:
            # For example, each rank perturbs its weights and restores them.
            findings.leave_open(said("agreement.rounding"), step=first.index)
            return
        counts = {"apart": len(apart), "all": len(first.weights), "names": first.named(apart)}
        says = (
            said("weights-differ", step=first.index, **counts) if first.index else said("weights-start-apart", **counts)
        )
        effect = said("differ-by", share=share) if isfinite(share) else None
        found = _of(first, "watch/same-weights", says, tuple(window.rank for window in here), effect)
        found.parameters = frozenset(apart)
        findings.add(found)
    elif first.weights:
        findings.seen[Property.AGREEMENT] += len(here)


def _are_equal(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether weights are equal; NaN equals itself."""
    return one == other or np.array_equal(one, other, equal_nan=True)


def _first_with(together: Together, window: Window, number: int) -> Window:
    """The first rank with the same parameter as a rank, or with the same part of it."""
    ranks = together.with_same(number, window.rank)
    return next(one for one in together.here if one.rank in ranks)


def use_the_same(here: list[Window]) -> bool:
    """Whether there are several ranks and their steps use equal gradients."""
    first, *others = [window.used for window in here]
    used = [number for number, sketch in first.items() if sketch[2]]
    are_whole = all(window.shards.get(number, 1) == 1 for window in here for number in used)
    return bool(used and others and are_whole) and all(
        other.keys() == first.keys() and all(np.allclose(other[n], first[n], _SAME, 0) for n in used)
        for other in others
    )


def judge_buffers(by_rank: Mapping[int, records.Buffers], findings: Findings) -> None:
    """Leaves open differing buffers, such as BatchNorm statistics under DDP, and parameters in no optimizer, such
    as parts of one model on each rank."""
    first, *others = [dict(zip(one.names, _rows(one.values), strict=True)) for one in by_rank.values()]
    unheld = len(first) - max(one.frozen for one in by_rank.values())
    for code, of_kind in (("agreement.buffers", [*first][:unheld]), ("agreement.frozen", [*first][unheld:])):
        apart = [name for name in of_kind if any(other[name] != first[name] for other in others)]
        if apart:
            findings.leave_open(said(code, apart=len(apart), all=len(of_kind), names=apart))


def _rows(sketches: records.Sketches) -> list[bytes]:
    """The rows as bytes, so two NaN compare equal."""
    return [row.tobytes() for row in np.reshape(sketches, (-1, WIDTH))]


def _share(weights: _Weights, others: _Weights, apart: list[int]) -> float:
    """The distance between weights, relative to the norm of the others. The mean square of a projection on random signs
    is the square of the norm."""
    square = sum((others[n][j] - weights[n][j]) ** 2 / 2 for n in apart for j in (0, 1))
    size = hypot(*(others[n][2] for n in apart))
    return sqrt(square) / size if size else inf


def _of(window: Window, law: str, says: Said, ranks: tuple[int, ...], effect: Said | None) -> Finding:
    return Finding(law, says, window.index, ranks, window.site, effect, window.optimizer)
