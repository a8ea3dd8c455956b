"""Why gradients that a step used are no multiple of those that were computed for it.

First single hypotheses, each with one unknown factor; then least squares with one for each rank and backward pass. What
neither explains is undecided: the script may have changed gradients by hand, and rightly.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot, isclose

from conformance.watch.judging import each
from conformance.watch.judging.agreement import use_the_same
from conformance.watch.judging.case import Case
from conformance.watch.judging.divided_alone import divided_alone
from conformance.watch.judging.exchanged import exchanged
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Finding
from conformance.watch.judging.repeated import Column, are_added_again, done_again
from conformance.watch.judging.system import AMPLE, System, factors_of, system_of

ELSEWHERE = "gradients were put into `.grad` by hand, or come from a backward pass before their optimizer was made"
CHANGED = "gradients of earlier windows are in the step, after the script has changed them"
RUN_OUT = "ranks may run out of data, so that a step need not be one of all ranks"
OF_OTHER = "two optimizers step the same parameters along one gradient"
FEW = "gradients were changed between backward and step, and there are too few parameters to say how"

_MANY_ELEMENTS = 64


def explain(case: Case) -> Finding | System | str:
    """The mistake, or why none is proved; a system if this step alone has too few equations to say."""
    if case.window.captured:
        return "gradients come from torch.autograd.grad, and what becomes of them is not seen"
    if not any(case.all(number) for number in case.parameters):
        return OF_OTHER if case.window.of_others.issuperset(case.parameters) else ELSEWHERE
    if case.together.ranks > 1:
        own = case.fits(case.own)
        if own is not None and own.is_known:
            found = _found(
                case,
                "watch/averaged",
                "the step uses this rank's gradients alone",
                f"the gradients of 1 of {case.together.ranks} ranks are in the update of rank {case.window.rank}",
            )
            found.waits, found.alone = _drifts(case, case.parameters), True
            if len(case.parameters) < len(case.window.used):
                # What is clipped by itself may be a layer of each rank's own.
                found.parameters = frozenset(case.parameters)
            return found
        apart = case.factors_of_ranks
        if len({*apart}) > 1 and _is_known(case.fits(case.clipped_apart)):
            by = ", ".join(f"{factor:.3g}" for factor in apart)
            says = f"each rank clipped its own gradients, by {by}, and then averaged"
            effect = f"a rank counts up to {max(apart) / min(apart):.3g} times as much as another one"
            return _found(case, "watch/one-factor", says, effect)
    for choose in (case.with_old, case.own_with_old):
        if _has_old(case) and (factor := case.fits(choose)) is not None and factor.is_known:
            if _is_changed(case):
                return CHANGED
            left = [number for number in case.parameters if case.old(number)]
            if case.window.of_others.issuperset(left) and not any(case.all(number) for number in left):
                return OF_OTHER
            says = "the step also uses gradients of earlier windows, which were not cleared"
            return _found(case, "watch/cleared", says, _longer(case, factor.middle))
    sparse = [number for number in case.parameters if any(one.entries is not None for one in case.all(number))]
    if sparse and _is_known(case.fits(case.last_entries)):
        # Entries of one row are parts of one gradient, whoever computes them.
        says = (
            "of several entries that a sparse gradient has of a row, the step uses the last alone, and not their sum, "
        )
        effect = f"{len(sparse)} of {len(case.parameters)} gradients miss entries"
        found = _found(case, "watch/every-backward", f"{says}as in `to_dense()`: {case.window.named(sparse)}", effect)
        found.is_of_all_steps = True
        return found
    again = _used_again(case)
    if again is not None:
        return again
    if case.together.ranks > 1:
        some = _some_not_averaged(case)
        if some is not None:
            return some
    others = exchanged(case)
    if others:
        window = case.window
        says = f"{len(others)} parameters have each other's gradients: {window.named([*others])}, in this order, have "
        says += f"those of {window.named([*others.values()])}"
        effect = f"{len(others)} of {len(case.parameters)} parameters follow the gradients of other parameters"
        return _found(case, "watch/own-gradient", says, effect)
    of_each = each.explain(case)
    if of_each is not None:
        return of_each
    system = system_of(case)
    if system is None:
        return FEW
    return solved(system) if system.is_ample else system


def adds_to_the_last(case: Case) -> bool:
    """Whether gradients that carry a loss scale were added to all of what the last step had used, which are too small
    beside them to show in the sum."""
    window = case.window
    own = {n for n in case.parameters for rank, one in case.old(n) if rank == window.rank and one.is_seen}
    if case.independent < 1 + AMPLE:
        # Of a few numbers, any are a multiple of any others.
        return False
    if len(window.scales) != 1 or window.scales[0] <= 1.0 or own != {*case.parameters} or _is_changed(case):
        return False
    return case.fits(case.with_old) is not None


def _is_changed(case: Case) -> bool:
    """Whether the script has made something else of what an earlier step left: it decays them on purpose, say."""
    return any(one.is_changed for number in case.parameters for _, one in case.old(number))


def _has_old(case: Case) -> bool:
    return any(case.old(number) for number in case.parameters)


def _used_again(case: Case) -> Finding | None:
    """Whether the step uses, bit by bit, the gradients of one earlier step: all of them, or those of parameters that
    this window computed none for, while all others are what was computed.

    What a script makes of each gradient anew may be the same again where it consists of a few numbers, or of numbers of
    one size, as signs and clamped ones. All of an earlier step's may be put back now and then, to search a line."""
    window = case.window
    used = [number for number in case.parameters if window.used[number][2]]
    again = [number for number in used if number in window.again]
    rest = [number for number in used if number not in window.again]
    if not again:
        return None
    if rest:
        of_rest = Case(case.together, window, rest, case.clips)
        if any(case.all(number) for number in again) or not _is_known(of_rest.fits(case.all)):
            return None
    else:
        elements = [window.sizes.get(number, 1) for number in again]
        sizes = {f"{window.used[number][2] / size**0.5:.3g}" for number, size in zip(again, elements, strict=True)}
        if len({*window.again.values()}) > 1 or sum(elements) < _MANY_ELEMENTS or len(sizes) < 2:
            return None
    says = f"{len(again)} of {len(used)} parameters use the gradient of an earlier step again: {window.named(again)}"
    found = _found(
        case, "watch/fresh", says, f"{len(again)} of {len(used)} gradients are of weights that no longer are"
    )
    # That of the step before may be put back, if not that of an older one.
    found.is_of_all_steps = not rest and {*window.again.values()} == {window.begin}
    return found


def _some_not_averaged(case: Case) -> Finding | None:
    """Whether each parameter alone is a multiple of all ranks' gradients or of this rank's, and some are the latter."""
    alone = []
    for number in case.parameters:
        single = Case(case.together, case.window, [number], case.clips)
        if not case.window.used[number][2] or _is_known(single.fits(single.all)):
            continue
        if not _is_known(single.fits(single.own)):
            return None
        alone.append(number)
    if not alone:
        return None
    found = _found(
        case,
        "watch/averaged",
        f"{len(alone)} of {len(case.parameters)} parameters were not averaged over the ranks: "
        + case.window.named(alone),
        f"{len(alone)} of {len(case.parameters)} parameters follow the gradients of 1 of {case.together.ranks} ranks",
    )
    found.waits, found.parameters = _drifts(case, alone), frozenset(alone)
    return found


def _drifts(case: Case, parameters: list[int]) -> bool:
    """Whether it shows in the weights if each rank steps these parameters on gradients of its own."""
    is_split = any(case.window.shards.get(number, 1) > 1 for number in parameters)
    return not is_split and case.step.type != "ZeroRedundancyOptimizer"


def _is_known(factor: Factor | None) -> bool:
    return factor is not None and factor.is_known


def solved(system: System) -> Finding | str:
    """What the factors say."""
    of = factors_of(system)
    return of if isinstance(of, str) else _in_words(system.case, of)


def _in_words(case: Case, of: dict[Column, float]) -> Finding | str:
    table = _table(of)
    earlier = [factor for (_, _, is_old), factor in of.items() if is_old and factor]
    if earlier:
        # A backward pass adds to what is left over, so that both count alike, unless the script makes it count less.
        alike = any(
            isclose(factor, other, rel_tol=0.01) for factor in earlier for (_, _, old), other in of.items() if not old
        )
        if not alike or _is_changed(case):
            return f"gradients of earlier windows are in the step, with factors of the script's own: {table}"
        return _found(case, "watch/cleared", f"gradients of earlier windows are in the step: {table}", _shares(of))
    ranks = sorted({rank for rank, _, _ in of})
    places = sorted({place for _, place, _ in of})
    factors = {place: [of.get((rank, place, False), 0.0) for rank in ranks] for place in places}
    own = case.window.rank
    used = {place: [rank for rank, factor in zip(ranks, factors[place], strict=True) if factor] for place in places}
    dropped = [place for place in places if not used[place]]
    alone = [place for place in places if used[place] == [own]]
    lost = sum(not factor for of_place in factors.values() for factor in of_place)
    effect = f"{lost} of {len(of)} gradients are not in the update of rank {own}"
    if dropped and not _are_lost(case, dropped):
        return f"the script seems to have put gradients back that it had before: {table}"
    if dropped:
        says = f"{_micro_batches(dropped)} missing in the step: {table}"
        return _left_out(_found(case, "watch/every-backward", says, effect, dropped), of)
    if alone and len(ranks) > 1:
        says = f"{_micro_batches(alone)} not averaged: this rank's own gradients alone are in its step: {table}"
        found = _found(case, "watch/averaged", says, effect, alone)
        return _left_out(found, of) if use_the_same(case.together.here) else found
    without = [rank for number, rank in enumerate(ranks) if not any(factors[place][number] for place in places)]
    if without and lost == len(without) * len(places) < len(of) - len(places) and use_the_same(case.together.here):
        # Of one rank alone there is nothing to average.
        return (
            f"all ranks leave out the gradients of some, as averages do that are made to bear with wrong ones: {table}"
        )
    if lost:
        found = _found(case, "watch/averaged", f"gradients of some ranks are missing in the step: {table}", effect)
        if use_the_same(case.together.here):
            return _left_out(found, of)
        if lost == len(without) * len(places):
            # Ranks of a group may train a model of their own.
            found.waits, found.alone = _drifts(case, case.parameters), True
        return found
    if any(backward.contains for backward in case.window.backwards.values()):
        return _found(
            case,
            "watch/every-backward",
            f"a backward pass goes again through the graph of an earlier one: {table}",
            _shares(of),
        )
    again = done_again(case, [factors[place] for place in places])
    if again is not None:
        return _found(case, "watch/every-backward", f"{again}: {table}", _shares(of))
    if are_added_again(case, of):
        says = f"what earlier micro-batches of the window have added up is added again with each later one: {table}"
        found = _found(case, "watch/every-backward", says, _shares(of))
        found.is_of_all_steps = True
        return found
    scale = divided_alone(case, of.values())
    if scale is not None:
        says = f"some micro-batches are divided by the loss scale {scale:g} once more than the others: {table}"
        found = _found(case, "watch/unscale-whole-window", says, _shares(of))
        found.is_of_all_steps = True
        return found
    passes = case.window.backwards.values()
    are_equal = all(one.targets for one in passes) and len({one.targets for one in passes}) == 1
    if case.clipped_between:
        return f"gradients of some backward passes were clipped before the others came: they count {table}"
    return f"backward passes count with different weights{'' if are_equal else ', as if by their samples'}: {table}"


def _left_out(found: Finding, of: dict[Column, float]) -> Finding:
    """A script may leave out what looks wrong to it: micro-batches whose loss is too large, or ranks whose gradients
    are unlike the others'. These are not the same ones in each step, as those that a mistake loses are."""
    found.is_of_all_steps = True
    found.pattern = str(sorted(column for column, factor in of.items() if not factor))
    return found


def _longer(case: Case, factor: float) -> str | None:
    """What earlier gradients add, in the length of all together. That of a sum is at most the sum of the lengths."""
    used = hypot(*(float(case.window.used[number][2]) for number in case.parameters))
    own = factor * hypot(*(sum(float(one.sketch[..., 2].sum()) for one in case.all(n)) for n in case.parameters))
    if not 0 < own < used:
        return None
    return f"the gradients used are at least {used / own:.3g} times as long as those of this window"


def _shares(of: dict[Column, float]) -> str:
    sizes = [abs(factor) for factor in of.values() if factor]
    return f"a backward pass counts up to {max(sizes) / min(sizes):.3g} times as much as another one"


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


def _micro_batches(places: list[int]) -> str:
    numbers = [str(place + 1) for place in places]
    if len(numbers) == 1:
        return f"micro-batch {numbers[0]} is"
    return f"micro-batches {', '.join(numbers[:-1])} and {numbers[-1]} are"


def _table(of: dict[Column, float]) -> str:
    """The factors relative to the largest, by rank, in order of the backward passes."""
    right = max(of.values(), key=abs)
    ranks: dict[int, list[str]] = {}
    for (rank, _, is_old), factor in sorted(of.items()):
        ranks.setdefault(rank, []).append(f"{factor / right:.3g}{' (earlier)' if is_old else ''}")
    return "; ".join(f"rank {rank}: {', '.join(factors)}" for rank, factors in ranks.items())


def _found(case: Case, law: str, says: str, effect: str | None = None, places: Iterable[int] = ()) -> Finding:
    """places: of the backward passes that it is about, in the window of this rank."""
    window = case.window
    order = sorted(window.backwards)
    passes = frozenset((window.rank, order[place]) for place in places if 0 <= place < len(order))
    return Finding(law, says, window.index, (window.rank,), window.site, effect, window.optimizer, passes)
