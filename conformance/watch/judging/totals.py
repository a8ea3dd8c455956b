"""What all targets of a window weigh together in an update: 1, if it is that of a mean.

Losses of cross entropy and its kin show in their graphs how many targets they are a mean or a sum of, and what divides
them. Nothing is said of losses that show less, nor of those that are sums on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.kinds import kinds, may_be_one
from conformance.watch.judging.multiplied import divisors_of, factor_of, weight_of
from conformance.watch.judging.steady import Steady
from conformance.watch.judging.windows import Window

_NEAR = 1e-4
_SEVERAL = 3
"""Backward passes. By two, a loss may be halved twice for other reasons."""


OF_TASKS = (
    "each rank's loss is the mean over its own targets, and the gradients of ranks that train other parts of the model "
    "are summed up: each rank may have a task of its own"
)


class Totals:
    """Of the processes that train together."""

    def __init__(self, findings: Findings, steady: Steady) -> None:
        self._findings, self._steady = findings, steady

    def judge(self, together: Together) -> None:
        """A step whose gradients are conserved."""
        here = together.here
        passes = [one for window in here for one in window.backwards.values()]
        kappas = {kappa for of_rank in together.kappas.values() for kappa in of_rank}
        if not passes or len(kappas) != 1:
            return
        if any(window.captured or (window.step is not None and window.step.closure) for window in here):
            return
        # A step of the script's own class may divide what it was given.
        if any(window.step is not None and window.step.is_own for window in here):
            return
        [kappa] = kappas
        # Ranks that still have data are fewer than all in the end, and may be averaged over.
        is_over_ranks = together.ranks > 1 and not together.is_joined
        found = [*_averaged_twice(together, kappa)] if is_over_ranks else []
        # Losses of several lines are several losses, which are summed up on purpose.
        if (is_one := len(kinds(here)) == 1) or may_be_one(here):
            sums = [*_sums(together, kappa)] if is_over_ranks else []
            if sums and not _train_the_same(here):
                self._findings.undecided(OF_TASKS)
                return
            sums += [] if found or sums or kappa != 1 else _over_micro_batches(here)
            if sums and not is_one:
                self._findings.undecided(f"{sums[0].says}, if these lines have one loss")
                return
            found += sums
        self._steady.feed([(one.ranks[0], one, False) for one in found], here)


def _sums(together: Together, kappa: float) -> Iterator[Finding]:
    here, ranks = together.here, together.ranks
    weights = [weight_of(window) for window in here]
    if isclose(kappa, ranks, rel_tol=_NEAR) and all(weight and isclose(weight, 1, rel_tol=_NEAR) for weight in weights):
        for window in here:
            says = f"each rank's loss is the mean over its own targets, and the {ranks} ranks' gradients are summed up"
            yield _finding(window, "watch/means-averaged", says, f"the update is {ranks} times what it should be")


def _averaged_twice(together: Together, kappa: float) -> Iterator[Finding]:
    """Whatever lines the losses come from: that they are divided by just the number of all their targets shows that
    they are of one mean."""
    here, ranks = together.here, together.ranks
    passes = [one for window in here for one in window.backwards.values()]
    counts = [sum(one.summed or one.targets or 0 for one in window.backwards.values()) for window in here]
    everything = sum(counts)
    # A mean over n of all is the sum of these, divided by n.
    of_each = [factor_of(one) / (one.targets or 1) if one.summed or one.targets else 0.0 for one in passes]
    # Half of a loss, or so, may be meant, if not by one number that says how many there are.
    are_bare = all(_numbers_beside_targets(one) <= 1 for one in passes)
    by_everything = are_bare and all(isclose(one * everything, 1, rel_tol=_NEAR) for one in of_each)
    # Were the counts equal, what divides might be each rank's own, times a factor of the script's.
    if kappa == 1 and len({*counts}) > 1 and by_everything:
        for window in here:
            says = f"sums were divided by {everything}, the targets of all ranks, and averaged over the ranks then"
            yield _finding(window, "watch/averaged-once", says, f"the update is 1/{ranks} of what it should be")


def _numbers_beside_targets(backward: records.Backward) -> int:
    """How many numbers a loss is multiplied with or divided by, but for the loss scale and how many targets it has."""
    left = [one for one in backward.factors if not isclose(one, 1)]
    for known in (backward.scale, backward.targets):
        own = next((one for one in left if known and isclose(one, known)), None)
        if own is not None:
            left.remove(own)
    return len(left)


def _train_the_same(here: list[Window]) -> bool:
    """Whether the backward passes of all ranks reach the same parameters."""
    return len({frozenset(number for number, of in window.new.items() if of) for window in here}) == 1


def _over_micro_batches(here: list[Window]) -> Iterator[Finding]:
    for window in here:
        passes = [*window.backwards.values()]
        # Once for the micro-batches, and by the same number for something else again, no mean is.
        if len(passes) >= _SEVERAL and all(
            one.targets and not one.of_any and divisors_of(one) == 2 * [len(passes)] for one in passes
        ):
            says = f"each of {len(passes)} losses was divided by {len(passes)} twice"
            yield _finding(window, "watch/divided-once", says, f"the update is 1/{len(passes)} of what it should be")
        if _is_of_the_last(passes):
            batches = passes[0].batches
            says = f"{batches} batches were loaded, and one loss, divided by {batches}, went backward"
            effect = f"the update is 1/{batches} of that of one batch, and {batches - 1} of {batches} are in none"
            yield _finding(window, "watch/every-backward", says, effect)
            continue
        # As many batches of one loader as passes: these are micro-batches, not terms of a loss. All may come first.
        loaders = {one.loader for one in passes if one.batches}
        batches = sum(one.batches for one in passes)
        if len(passes) < 2 or len(loaders) != 1 or None in loaders or batches != len(passes):
            continue
        # What the script has put together itself may be a task, or an episode, whose losses are summed up on purpose.
        if any(one.draws for one in passes) or _waits(window):
            continue
        if all(one.targets and _is_bare(one) for one in passes):
            says = f"each of {len(passes)} losses is the mean over a micro-batch, and nothing divides their sum"
            effect = f"the gradients that the step uses are {len(passes)} times those of the mean"
            yield _finding(window, "watch/means-averaged", says, effect)


def _waits(window: Window) -> bool:
    """Whether another optimizer steps between its backward passes, so that these are no micro-batches: it is the one
    that steps more rarely, as for an embedding."""
    calls = [one for one in window.moments if isinstance(one, (records.Backward, records.Stepped))]
    passes = [place for place, one in enumerate(calls) if isinstance(one, records.Backward)]
    between = calls[passes[0] : passes[-1]] if passes else []
    return any(isinstance(one, records.Stepped) and one.optimizer != window.optimizer for one in between)


def _is_of_the_last(passes: list[records.Backward]) -> bool:
    """Whether the only loss of a window is one mean, divided by the number of batches of one loader that came for it.

    Who makes one batch of all of them, or leaves some out on purpose, has one mean, and nothing to divide it by."""
    if len(passes) != 1 or passes[0].batches < _SEVERAL or passes[0].loader is None:
        return False
    [one] = passes
    return bool(one.targets) and not one.of_any and divisors_of(one) == [one.batches]


def _is_bare(backward: records.Backward) -> bool:
    """Whether nothing but the loss scale multiplies it. Factors that come to 1 together, as the number of ranks over
    that of micro-batches may, are meant."""
    factors = [factor for factor in backward.factors if not isclose(factor, 1, rel_tol=_NEAR)]
    return factors in ([], [backward.scale])


def _finding(window: Window, law: str, says: str, effect: str) -> Finding:
    site = next(iter(window.backwards.values())).site
    passes = frozenset((window.rank, number) for number in window.backwards)
    return Finding(law, says, window.index, (window.rank,), site, effect, window.optimizer, passes)
