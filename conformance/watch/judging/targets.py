"""Computes the factors and divisors of losses, and the weights of backward passes and targets in an update.

A loss shows the number of its targets, whether it is their mean or sum, and its factors. `Together.kappas` has the
factor of the step: 1 is the mean over ranks. Together they give the weight of each pass and of each target. A step is
correct if its passes or its targets have equal weights with a total of 1. Any other total shows the bug: the number of
ranks, of passes, of a full window, or 1 over one of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from math import isclose, log2, prod

import numpy as np

from conformance.watch import records
from conformance.watch.judging.equations import Together
from conformance.watch.judging.windows import Window


def divisors_of(backward: records.Backward) -> list[float]:
    """The divisors of the loss, without those that a factor cancels, while another divisor is left: for example, a mean
    over all targets is multiplied by the number of micro-batches, and a framework divides by it again."""
    left = [*backward.divisors]
    others = [*backward.divisors, 1 / (backward.scale or 1.0)]
    for factor in backward.factors:
        own = next((one for one in others if isclose(factor * one, 1)), None)
        if own is not None:
            others.remove(own)
            continue
        for divisor in [*left]:
            if len(left) > 1 and factor >= divisor > 1 and isclose(factor / divisor, round(factor / divisor)):
                left.remove(divisor)
                factor /= divisor
    return left


def weight_of(window: Window) -> float | None:
    """The total weight of a rank's targets in its losses; None if it is not known."""
    # A made-up batch, for a rank without data, has a factor of 0.
    passes = [(one, factor) for one in window.passes if (factor := one.factor)]
    if not all(map(targets_of, (one for one, _ in passes))):
        return None
    return sum(factor * (1 if one.targets else one.summed) for one, factor in passes)


def scale_of(window: Window) -> float | None:
    """The last factor of all losses, if it exceeds 1 and no scaler applied it: a hand-written loss scale."""
    scales = {one.factors[0] if one.factors else 0.0 for one in window.passes}
    return max(scales) if len(scales) == 1 and window.scales == [1.0] and max(scales) > 1.0 else None


def own_scale(window: Window, ranks: int) -> float | None:
    """The same, if it is surely a loss scale: a power of two, which rounds nothing, above the number of passes of all
    ranks."""
    own = scale_of(window) or 1.0
    return own if log2(own).is_integer() and own > ranks * len(window.backwards) else None


def kinds(windows: Iterable[Window]) -> set[int]:
    """The call sites of the losses."""
    return set[int]().union(*(window.kinds for window in windows))


def may_be_one(windows: Iterable[Window]) -> bool:
    """Whether all passes may be of one loss: they have one call site, or the last one has another, as in scripts with a
    separate line for it. Two losses may also take turns with the batches of one loader."""
    return all(len(window.kinds) == 1 or window.are_alike_but_the_last for window in windows)


def reach_the_same(window: Window) -> bool:
    """Whether all backward passes reach the same parameters, unlike losses of several heads."""
    reached = ({one.backward for one in of} & window.backwards.keys() for of in window.new.values())
    return all(of in (set(), {*window.backwards}) for of in reached)


NEAR = 1e-4
_MANY = 8
"""More numbers than a log exchanges, such as the loss itself."""
_ROUNDED = 1e-5
"""Relative: the same number, computed by several ranks."""


def near(one: float | None, other: float) -> bool:
    """Whether a weight is this number; False if it is unknown."""
    return one is not None and isclose(one, other, rel_tol=NEAR)


def are_alike(numbers: Collection[float]) -> bool:
    return not numbers or max(numbers) <= min(numbers) * (1 + NEAR)


def kappa_of(together: Together) -> float | None:
    """The factor of the mean over ranks in the step; None if it is not one number."""
    kappas = {kappa for of_rank in together.kappas.values() for kappa in of_rank}
    return kappas.pop() if len(kappas) == 1 else None


def passes_of(windows: Iterable[Window]) -> list[records.Backward]:
    return [one for window in windows for one in window.passes]


def targets_of(backward: records.Backward) -> int:
    """The number of targets of a mean or sum; 0 if it is not known."""
    return backward.targets or backward.summed


def of_one_target(backward: records.Backward) -> float:
    """The weight of one target in the loss."""
    return backward.factor / (backward.targets or 1)


def is_mean(backward: records.Backward) -> bool:
    """Whether it is a mean of cross entropy or a similar loss over targets."""
    return bool(backward.targets) and not backward.of_any


def total_of(together: Together, windows: Collection[Window]) -> float | None:
    """The total weight of these windows' targets in the step, 1 for their mean; None if it is not known."""
    kappa, weights = kappa_of(together), [weight_of(window) or 0.0 for window in windows]
    if kappa is None or not all(weights) or any(one.of_any for one in passes_of(windows)):
        return None
    return sum(weights) * kappa / together.ranks


def total_by_count(together: Together, kappa: float) -> float | None:
    """The total weight of counted targets in the step, 1 for their mean, if each loss is only divided by one count that
    the ranks summed or averaged. None if there is no such count."""
    passes = passes_of(together.here)
    if not passes or any(len(one.global_divisors) != 1 for one in passes):
        return None
    by_rank = [{tuple(one.global_divisors[0]) for one in window.passes} for window in together.here]
    divisors = {divisor for of_rank in by_rank for divisor, _ in of_rank}
    if len(by_rank) < together.ranks or len(divisors) != 1 or any(len(of_rank) != 1 for of_rank in by_rank):
        return None
    [divisor] = divisors
    if not divisor or not all(near(one.factor * divisor, 1) for one in passes):
        return None
    # A rank may count its own share, and compute the loss of what it gathered from all.
    counts = [[targets_of(one) for one in window.passes] for window in together.here]
    total = sum(sum(targets) if all(targets) else own for targets, [(_, own)] in zip(counts, by_rank, strict=True))
    return total / divisor * kappa / together.ranks


def is_of_all_ranks(windows: Collection[Window]) -> bool:
    """Whether each loss is one of all ranks, so the weight of a rank's loss shows nothing: a DTensor, or a number that
    all ranks compute from what they exchanged, each with a part of its gradient. That of a contrastive batch is one."""
    passes = passes_of(windows)
    if {one.is_of_all for one in passes} == {True}:
        return True
    if not all(one.exchanged > _MANY for one in passes):
        return False
    by_rank = [[one.value for one in window.passes] for window in windows]
    return len(by_rank) > 1 and all(by_rank) and all(map(_are_one, zip_longest(*by_rank))) and _differ(windows)


def _differ(windows: Collection[Window]) -> bool:
    """Whether the ranks compute other gradients of some parameter, so they do not just read the same samples."""
    return any(differs(windows, number) for number in {number for window in windows for number in window.new})


def differs(windows: Collection[Window], number: int) -> bool:
    """Whether the ranks compute other gradients of a parameter."""
    computed = [of for window in windows if (of := window.new.get(number))]
    if len(computed) < len(windows):
        return bool(computed)
    first, *others = [np.sum([one.sketch for one in of], 0) for of in computed]
    # Relative to the norm: a projection may be much smaller.
    return any(abs(first - other).max() > _ROUNDED * abs(first).max() for other in others)


def _are_one(values: Sequence[float | None]) -> bool:
    """Whether they are one number, up to its rounding on each rank."""
    known = [value for value in values if value is not None]
    return len(known) == len(values) and all(isclose(one, known[0], rel_tol=_ROUNDED) for one in known)


def losses_of(windows: Collection[Window]) -> int:
    """The number of different losses of the ranks in a step; 1 if they are unknown. Ranks that compute one model have
    the same loss."""
    found: list[list[float | None]] = []
    for window in windows:
        values = [one.value for one in window.passes]
        if values and None not in values and not any(all(map(_are_one, zip_longest(values, other))) for other in found):
            found.append(values)
    return max(1, len(found))


def are_of_one_loss(windows: Collection[Window]) -> bool:
    """Whether only one rank has a loss, and the others pass its gradient on, as pipeline stages do."""
    have_one = [all(one.value is not None for one in window.passes) for window in windows if window.passes]
    return sum(have_one) == 1 < len(have_one) == len(windows)


def is_mean_of_all(together: Together) -> bool:
    """Whether the sum over ranks is correct in this step: they have one loss, or the total weight is 1, as for sums
    over the number of all targets, or means over the number of ranks. Losses of several terms have no known weight, but
    a divisor that is the number of ranks. `0.5 * mse`, or half a sum of two losses, is no mean over two ranks."""
    here = together.here
    if is_of_all_ranks(here):
        # A gradient that each rank already has as a whole must not be added.
        some = {n for window in here for n, of in window.new.items() if any(one.sketch.any() for one in of)}
        return all(differs(here, number) for number in some)
    if (total := total_by_count(together, together.ranks)) is not None:
        return near(total, 1)
    weights = [weight_of(window) or 0.0 for window in here]
    if not any(weights):
        return len(here) == together.ranks and all(_is_divided_by(together.ranks, window) for window in here)
    targets = [of_one_target(one) for one in passes_of(here) if one.factor]
    is_of_all = len(here) == together.ranks and near(sum(weights), 1) and not _are_weighted(passes_of(here), len(here))
    return is_of_all and min(targets) > 0 and (are_alike(weights) or are_alike(targets))


def _are_weighted(passes: Sequence[records.Backward], ranks: int) -> bool:
    """Whether a factor of 1 over the number of ranks is a weight of the loss, because no division makes it."""
    products = {one.factor * prod(one.divisors) for one in passes}
    return all(near(ranks * product, 1) for product in products) and not any(ranks in one.divisors for one in passes)


def _is_divided_by(ranks: int, window: Window) -> bool:
    """Whether each loss is divided by the number of ranks, besides the number of micro-batches and of its terms."""
    number, passes = len(window.backwards), window.passes
    divisors = [Counter(round(divisor, 3) for divisor in one.divisors) for one in passes]
    are_others = all(one.added != ranks or one.weighs for one in passes)
    return are_others and bool(divisors) and all(of_one[ranks] > (number == ranks > 1) for of_one in divisors)


def weigh_alike(together: Together, factors: Mapping[tuple[int, int, bool], float]) -> bool:
    """Whether all targets of a step have equal weights although its passes have different factors, so it is a mean over
    all targets. factors: by rank, place of the pass in its window, and whether the gradient is an old one."""
    passes = {
        (window.rank, place, False): window.backwards[number]
        for window in together.here
        for place, number in enumerate(sorted(window.backwards))
    }
    if not all(column in passes and targets_of(passes[column]) for column in factors):
        return False
    weights = [factor * of_one_target(passes[column]) for column, factor in factors.items()]
    total = sum(weight * targets_of(passes[column]) for weight, column in zip(weights, factors, strict=True))
    return are_alike(weights) and near(total, 1)


def are_batches(passes: Collection[records.Backward]) -> bool:
    """Whether each pass has a batch of one loader, so they are micro-batches, not terms of a loss. All batches may come
    first. A batch sampler of the script does not count: it may draw tasks or episodes."""
    loaders = {one.loader for one in passes if one.batches}
    is_of_one = len(loaders) == 1 and None not in loaders and not any(one.draws for one in passes)
    return is_of_one and sum(one.batches for one in passes) == len(passes)
