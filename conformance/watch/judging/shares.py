"""Ranks that each step a share of the parameters: do they clip it by its own norm?"""

from __future__ import annotations

from itertools import combinations

from conformance.watch.judging.case import Together, factor_of
from conformance.watch.judging.findings import Finding, said
from conformance.watch.records import Clipped

_STEPS_SHARES = "ZeroRedundancyOptimizer"
_SAME = 1e-3


def clips_of(together: Together) -> list[Clipped]:
    """The clipping of each rank, where each clips other parameters than the others do, so that all are clipped: those
    that it steps. What the others have of them is not used."""
    clips = [_only(window.clips) for window in together.here]
    found = [clip for clip in clips if clip is not None and clip.norm is not None]
    parts = [{*clip.parameters} for clip in found]
    if together.ranks < 2 or len(found) < together.ranks or not all(parts):
        return []
    first = together.here[0]
    is_of_shares = first.step is not None and first.step.type == _STEPS_SHARES
    are_parts = not any(one & other for one, other in combinations(parts, 2))
    return found if is_of_shares and are_parts and set().union(*parts) == {*first.used} else []


def by_own_norms(together: Together, clips: list[Clipped]) -> Finding | None:
    """Whether each rank clips by the norm of its share alone, so that shares are multiplied by different factors.

    Who clips parts of a model by themselves chooses them by what they are. Shares go by the number of ranks, and
    with it goes what is clipped together."""
    first, factors = together.here[0], [factor_of(clip) for clip in clips]
    if max(factors) <= min(factors) * (1 + _SAME):
        return None
    norms = [clip.norm or 0.0 for clip in clips]
    says = said("clips-own-share", low=min(norms), high=max(norms))
    effect = said("rank-counts", times=max(factors) / min(factors))
    ranks = tuple(window.rank for window in together.here)
    return Finding("watch/one-factor", says, first.index, ranks, clips[0].site, effect, first.optimizer)


def _only(clips: list[tuple[int, Clipped]]) -> Clipped | None:
    by_norm = [clip for _, clip in clips if clip.how == "norm"]
    return by_norm[0] if len(by_norm) == 1 else None
