"""Explains gradients that are no multiple of the sum of all that was computed for a step.

Each hypothesis says what the step may have used, before one unknown factor; the first that fits within rounding
explains it. If none does, least squares finds a factor for each rank and backward pass. What that does not explain
either is open: the script may have changed gradients by hand, and rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import hypot, isclose
from typing import TypeAlias

from conformance.watch.judging import apart, factors
from conformance.watch.judging.agreement import use_the_same
from conformance.watch.judging.case import AMPLE, Case, Choose
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Finding, Findings, Said, Shown, said
from conformance.watch.judging.system import Column, System, are_added_again, done_again, factors_of, system_of
from conformance.watch.judging.targets import weigh_alike

_MANY_ELEMENTS = 64

Explained: TypeAlias = Finding | System | Said | set[Shown]
"""A violation; a system that this step alone has too few equations for; a fact; or what a right step shows."""


@dataclass(frozen=True)
class _Hypothesis:
    """choose: what the step used of each parameter. applies: to which steps. found: what it then is."""

    choose: Callable[[Case], Choose]
    applies: Callable[[Case], bool]
    found: Callable[[Case, Factor], Finding | Said]


def explain(case: Case, findings: Findings) -> Explained:
    """Why a step did not use a multiple of the sum of all gradients, as far as that is known."""
    if case.window.captured:
        return said("changed.captured")
    if not any(case.all(number) for number in case.parameters):
        return said("clearing.shared" if case.window.of_others.issuperset(case.parameters) else "changed.by-hand")
    if (kappa := apart.partitioned(case)) is not None:
        return factors.judge(case, kappa, findings)
    for one in _HYPOTHESES:
        if one.applies(case) and (factor := case.fits(one.choose(case))) is not None and factor.is_known:
            return one.found(case, factor)
    for explanation in (_used_again, apart.not_averaged, _exchanged, apart.explain):
        if (found := explanation(case)) is not None:
            return found
    system = system_of(case)
    if system is None:
        return said("changed.few")
    return solved(system) if system.is_ample else system


def _own(case: Case, factor: Factor) -> Finding:
    effect = said("ranks-in-update", used=1, ranks=case.together.ranks, rank=case.window.rank)
    found = case.finding("watch/averaged", said("own-gradients"), effect)
    found.waits, found.alone = apart.drifts(case, case.parameters), True
    if len(case.parameters) < len(case.window.used):
        # What is clipped by itself may be a layer of each rank's own.
        found.parameters = frozenset(case.parameters)
    return found


def _clipped_apart(case: Case, factor: Factor) -> Finding:
    by = case.factors_of_ranks
    effect = said("rank-counts", times=max(by) / min(by))
    return case.finding("watch/one-factor", said("clipped-then-averaged", factors=by), effect)


def _not_cleared(case: Case, factor: Factor) -> Finding | Said:
    if is_changed(case):
        return said("clearing.kept", table="")
    left = [number for number in case.parameters if case.old(number)]
    if case.window.of_others.issuperset(left) and not any(case.all(number) for number in left):
        return said("clearing.shared")
    return case.finding("watch/cleared", said("not-cleared"), _longer(case, factor.middle))


def _last_entries(case: Case, factor: Factor) -> Finding:
    sparse = [number for number in case.parameters if any(one.entries is not None for one in case.all(number))]
    says = said("last-entries", names=case.window.named(sparse))
    effect = said("gradients-miss-entries", sparse=len(sparse), all=len(case.parameters))
    return case.finding("watch/every-backward", says, effect, is_of_all_steps=True)


_HYPOTHESES = (
    _Hypothesis(lambda case: case.own, lambda case: case.together.ranks > 1, _own),
    _Hypothesis(
        lambda case: case.clipped_apart,
        lambda case: case.together.ranks > 1 and len({*case.factors_of_ranks}) > 1,
        _clipped_apart,
    ),
    _Hypothesis(lambda case: case.with_old, lambda case: _has_old(case), _not_cleared),
    _Hypothesis(lambda case: case.own_with_old, lambda case: _has_old(case), _not_cleared),
    _Hypothesis(
        lambda case: case.last_entries,
        lambda case: any(one.entries is not None for number in case.parameters for one in case.all(number)),
        _last_entries,
    ),
)


def adds_to_the_last(case: Case) -> bool:
    """Whether gradients that carry a loss scale were added to all of what the last step had used, which are too small
    next to them to show in the sum."""
    window = case.window
    own = {n for n in case.parameters for rank, one in case.old(n) if rank == window.rank and one.is_seen}
    if case.independent < 1 + AMPLE:
        # Of a few numbers, any are a multiple of any others.
        return False
    if len(window.scales) != 1 or window.scales[0] <= 1.0 or own != {*case.parameters} or is_changed(case):
        return False
    return case.fits(case.with_old) is not None


def is_changed(case: Case) -> bool:
    """Whether the script has changed what an earlier step left: it decays them on purpose, say."""
    return any(one.is_changed for number in case.parameters for _, one in case.old(number))


def _has_old(case: Case) -> bool:
    return any(case.old(number) for number in case.parameters)


def _longer(case: Case, factor: float) -> Said | None:
    """What earlier gradients add, in the length of all together. That of a sum is at most the sum of the lengths."""
    used = hypot(*(float(case.window.used[number][2]) for number in case.parameters))
    own = factor * hypot(*(sum(float(one.sketch[..., 2].sum()) for one in case.all(n)) for n in case.parameters))
    return said("times-as-long", times=used / own) if 0 < own < used else None


def _used_again(case: Case) -> Finding | None:
    """Whether the step uses, bit by bit, the gradients of one earlier step: all of them, or those of parameters that
    this window computed none for, while all others are what was computed.

    What a script computes from each gradient may be the same again where it consists of a few numbers, or of numbers of
    one size, as signs and clamped ones. All of an earlier step's may be put back now and then, to search a line."""
    window = case.window
    used = [number for number in case.parameters if window.used[number][2]]
    again = [number for number in used if number in window.again]
    rest = [number for number in used if number not in window.again]
    if not again:
        return None
    elements = [window.sizes.get(number, 1) for number in again]
    sizes = {f"{window.used[number][2] / size**0.5:.3g}" for number, size in zip(again, elements, strict=True)}
    are_few = len({*window.again.values()}) > 1 or sum(elements) < _MANY_ELEMENTS or len(sizes) < 2
    if are_few if not rest else any(case.all(number) for number in again) or not case.of(rest).is_known(case.all):
        return None
    says = said("used-again", again=len(again), used=len(used), names=window.named(again))
    found = case.finding("watch/fresh", says, said("stale", stale=len(again), all=len(used)))
    # That of the step before may be put back, if not that of an older one.
    found.is_of_all_steps = not rest and {*window.again.values()} == {window.begin}
    return found


def _exchanged(case: Case) -> Finding | None:
    """Whether, with one factor, parameters use each other's gradients, as those of a flat buffer do that is taken apart
    in another order than it was put together: each in full and once, and not by one that has none itself."""
    window = case.window
    single = {number: case.of([number]) for number in case.parameters if window.used[number][2]}
    strange = [number for number, of in single.items() if not of.is_known(of.all)]
    like = {
        number: [
            other
            for other in strange
            if window.sizes.get(other) == window.sizes.get(number)
            and case.sample(other) == case.sample(number)
            and single[number].is_known(lambda _, other=other: case.all(other))  # type: ignore[misc]
        ]
        for number in strange
    }
    of = {number: others[0] for number, others in like.items() if len(others) == 1}
    is_split = any(window.shards.get(number, 1) != 1 for number in case.parameters)
    if is_split or len(of) < max(2, len(strange)) or len({*of.values()}) < len(of):
        return None
    if not case.is_known(lambda number: case.all(of.get(number, number))):
        return None
    says = said("exchanged", names=window.named([*of]), others=window.named([*of.values()]))
    return case.finding("watch/own-gradient", says, said("follow-others", parameters=len(of), all=len(case.parameters)))


def solved(system: System) -> Finding | Said | set[Shown]:
    """What the factors of the ranks and backward passes say."""
    of = factors_of(system)
    return of if isinstance(of, Said) else _of_factors(system.case, of)


def _of_factors(case: Case, of: dict[Column, float]) -> Finding | Said | set[Shown]:
    table = _table(of)
    if any(is_old and factor for (_, _, is_old), factor in of.items()):
        # A backward pass adds to what is left over, so both count alike, unless the script shrinks what is left.
        earlier = [factor for (_, _, is_old), factor in of.items() if is_old and factor]
        own = [factor for (_, _, is_old), factor in of.items() if not is_old]
        if is_changed(case) or not any(isclose(one, other, rel_tol=0.01) for one in earlier for other in own):
            return said("clearing.kept", table=table)
        return case.finding("watch/cleared", said("old-in-step", table=table), _shares(of))
    for explanation in (_left_out, _counted_again):
        if (found := explanation(case, of, table)) is not None:
            return found
    if case.clipped_between:
        sizes = [abs(factor) for factor in of.values() if factor]
        return said("clipping.before-change", ratio=max(sizes) / min(sizes))
    if weigh_alike(case.together, of):
        return set()
    return (
        said("micro.weighted", table=table)
        if len({place for _, place, _ in of}) > 1
        else said("ranks.weighted", table=table)
    )


def _left_out(case: Case, of: dict[Column, float], table: str) -> Finding | Said | None:
    """Whether the step leaves out some backward passes, or those of some ranks."""
    ranks = sorted({rank for rank, _, _ in of})
    places = sorted({place for _, place, _ in of})
    used = {place: [rank for rank in ranks if of.get((rank, place, False), 0.0)] for place in places}
    own = case.window.rank
    dropped = [place for place in places if not used[place]]
    alone = [place for place in places if used[place] == [own]]
    lost = len(ranks) * len(places) - sum(map(len, used.values()))
    are_common = use_the_same(case.together.here)
    effect = said("lost-gradients", lost=lost, all=len(of), rank=own)
    if dropped and not _are_lost(case, dropped):
        return said("clearing.restored", table=table)
    if dropped:
        says = said("micro-batches-missing", places=[place + 1 for place in dropped], table=table)
        return _each(_found(case, "watch/every-backward", says, effect, dropped), of)
    if alone and len(ranks) > 1:
        says = said("micro-batches-own", places=[place + 1 for place in alone], table=table)
        found = _found(case, "watch/averaged", says, effect, alone)
        return _each(found, of) if are_common else found
    without = [rank for rank in ranks if not any(rank in used[place] for place in places)]
    if without and lost == len(without) * len(places) < len(of) - len(places) and are_common:
        # There is nothing to average in the gradients of one rank.
        return said("ranks.left-out", table=table)
    if lost:
        found = _found(case, "watch/averaged", said("ranks-missing", table=table), effect)
        if are_common:
            return _each(found, of)
        if lost == len(without) * len(places):
            # Ranks of a group may train a model of their own.
            found.waits, found.alone = apart.drifts(case, case.parameters), True
        return found
    return None


def _counted_again(case: Case, of: dict[Column, float], table: str) -> Finding | None:
    """Whether something that belongs once into a window was done again for each micro-batch."""
    ranks = sorted({rank for rank, _, _ in of})
    places = sorted({place for _, place, _ in of})
    if any(backward.contains for backward in case.window.backwards.values()):
        return _found(case, "watch/every-backward", said("graph-again", table=table), _shares(of))
    again = done_again(case, [[of.get((rank, place, False), 0.0) for rank in ranks] for place in places])
    if again is not None:
        return _found(case, "watch/every-backward", said(again, table=table), _shares(of))
    if are_added_again(case, of):
        return _each(_found(case, "watch/every-backward", said("added-again", table=table), _shares(of)))
    # However a script weighs its micro-batches, it does not by a number that multiplies all of their losses.
    [scale] = case.window.scales if len(case.window.scales) == 1 else [1.0]
    ratios = {factor / max(of.values(), key=abs) for factor in of.values()}
    are_divided = all(any(isclose(ratio, one, rel_tol=0.01) for one in (1.0, 1 / scale)) for ratio in ratios)
    if scale != 1.0 and are_divided and not isclose(min(ratios), 1.0, rel_tol=0.01):
        says = said("divided-alone", scale=scale, table=table)
        return _each(_found(case, "watch/unscale-whole-window", says, _shares(of)))
    return None


def _each(found: Finding, of: dict[Column, float] | None = None) -> Finding:
    """All steps must show it. of: the same gradients must be missing in each: a script may leave out what looks wrong
    to it, such as micro-batches whose loss is too large, which are others in each step."""
    found.is_of_all_steps = True
    if of is not None:
        found.pattern = str(sorted(column for column, factor in of.items() if not factor))
    return found


def _shares(of: dict[Column, float]) -> Said:
    sizes = [abs(factor) for factor in of.values() if factor]
    return said("pass-counts", times=max(sizes) / min(sizes))


def _are_lost(case: Case, dropped: list[int]) -> bool:
    """Whether these passes are like those that the step uses, and came before all of them.

    What comes later and is not used was taken back by the script, as is right for a gradient that it only looks at.
    """
    passes = [case.window.backwards[number] for number in sorted(case.window.backwards)]
    if max(dropped) >= len(passes):
        return False
    lost = [passes[place] for place in dropped]
    kept = [one for place, one in enumerate(passes) if place not in dropped]
    version = case.window.version
    alike = {(one.calls, version(one)) for one in lost} <= {(one.calls, version(one)) for one in kept}
    return alike and max(one.backward for one in lost) < min(one.backward for one in kept)


def _table(of: dict[Column, float]) -> str:
    """The factors relative to the largest, by rank, in order of the backward passes."""
    right = max(of.values(), key=abs)
    ranks: dict[int, list[str]] = {}
    for (rank, _, is_old), factor in sorted(of.items()):
        ranks.setdefault(rank, []).append(f"{factor / right:.3g}{' (earlier)' if is_old else ''}")
    return "; ".join(f"rank {rank}: {', '.join(by_pass)}" for rank, by_pass in ranks.items())


def _found(case: Case, law: str, says: Said, effect: Said, places: Iterable[int] = ()) -> Finding:
    """places: of the backward passes that it is about, in the window of this rank."""
    found = case.finding(law, says, effect)
    found.passes = frozenset(_passes(case, places))
    return found


def _passes(case: Case, places: Iterable[int]) -> Iterator[tuple[int, int]]:
    order = sorted(case.window.backwards)
    return ((case.window.rank, order[place]) for place in places if 0 <= place < len(order))
