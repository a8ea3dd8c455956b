"""The gradients that one rank's step used, and those that it may have used, as equations with an unknown factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod, sqrt
from operator import add
from typing import Any, NamedTuple

import numpy as np

from conformance.watch.judging.factor import Equation, Factor, solve
from conformance.watch.judging.findings import Finding
from conformance.watch.judging.sketch_bounds import COARSEST, ROUNDOFF, of_sketch, of_sum, of_underflow
from conformance.watch.judging.windows import Contribution, Sketch, Window, factor_of
from conformance.watch.sizes import SMALL, UNREAD, WIDTH

_BY_HAND = 3
"""Further roundings of each element: divisions by the ranks and the loss scale, and a factor in the script."""

_FEW_ELEMENTS = 3

AMPLE = 4
"""Equations beyond the unknowns. With fewer, gradients that a script changes may fit a hypothesis by chance, so all
steps must fit it."""

HOOKS = {
    "allreduce_hook": 0.0,
    "fp16_compress_hook": ROUNDOFF["float16"],
    "BuiltinCommHookType.FP16_COMPRESS": ROUNDOFF["float16"],
    "BuiltinCommHookType.ALLREDUCE": 0.0,
    "bf16_compress_hook": ROUNDOFF["bfloat16"],
    "noop_hook": 0.0,
}
"""Communication hooks, with the roundoff of the dtype that each sends."""


class Shortened(NamedTuple):
    """A factor below 1, the norm of the used gradients, and the bug that the factor suggests, if any."""

    factor: float
    norm: float
    suspected: Finding | None


@dataclass
class Together:
    """All ranks' windows of one step of an optimizer: None for a rank without further windows.

    ranks: how many average together. is_joined: whether ranks may run out of data. hooks: communication hooks.
    partitioned: parameters with a part on each rank. holders: of these and by rank, the ranks with the same part, such
    as replicas of a tensor-parallel group; without an entry, only this rank. is_split: all ranks compute the same
    samples, so the sum of their gradients is correct, not the mean. factors: used gradients over the sum of all ranks'
    gradients, by parameters that were clipped together and by rank, given enough equations. own: keys of these where
    this rank's gradients explain the step just as well. kappas: by rank, the factors over the correct ones. shortened:
    by rank, factors below 1.
    """

    windows: Sequence[Window | None]
    ranks: int
    is_joined: bool
    hooks: frozenset[str]
    partitioned: frozenset[int] = frozenset()
    holders: Mapping[int, Mapping[int, frozenset[int]]] = field(default_factory=dict)
    is_split: bool = False
    factors: dict[tuple[int, ...], dict[int, Factor]] = field(default_factory=lambda: defaultdict(dict))
    own: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    kappas: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    shortened: dict[int, list[Shortened]] = field(default_factory=lambda: defaultdict(list))

    @cached_property
    def here(self) -> list[Window]:
        return [window for window in self.windows if window is not None]

    @cached_property
    def everyone(self) -> frozenset[int]:
        """The ranks with a window."""
        return frozenset(window.rank for window in self.here)

    @cached_property
    def new(self) -> dict[int, list[tuple[int, Contribution]]]:
        """By parameter, the gradients of the window, each with its rank."""
        found = defaultdict[int, list[tuple[int, Contribution]]](list)
        for window in self.here:
            for number, contributions in window.new.items():
                found[number] += [(window.rank, one) for one in contributions]
        return dict(found)

    @cached_property
    def all(self) -> dict[int, list[Contribution]]:
        """The same without the ranks."""
        return {number: [one for _, one in of] for number, of in self.new.items()}

    @cached_property
    def roundoffs(self) -> dict[int, float]:
        """By parameter, the roundoff of its coarsest gradient."""
        return {number: max({one.roundoff for one in of}, default=0.0) for number, of in self.all.items()}

    @cached_property
    def samples(self) -> dict[int, set[int]]:
        """By parameter, the samples of its gradients."""
        return {number: {one.sample for one in of} for number, of in self.all.items()}

    @cached_property
    def infinite(self) -> set[int]:
        """The parameters with a gradient that is not finite."""
        return {number for number, of in self.all.items() for one in of if not one.is_finite}

    @cached_property
    def hooked(self) -> set[int]:
        """The parameters with a gradient that hooks of the script may have changed."""
        return {number for number, of in self.all.items() for one in of if one.before is not None}

    @property
    def over(self) -> int:
        """The correct divisor of the sum over the ranks."""
        return 1 if self.is_split else self.ranks

    def with_same(self, number: int, rank: int) -> frozenset[int]:
        """The ranks that have the same parameter as this rank, or the same part of it."""
        if number not in self.partitioned:
            return self.everyone
        return self.holders.get(number, {}).get(rank, frozenset((rank,)))

    def parts(self, number: int, window: Window) -> list[Window]:
        """Windows that together hold the used gradient of a parameter once, as `window` sees it: one for each part."""
        here = [one for one in self.here if number in one.used]
        if number in self.partitioned:
            return [one for one in here if one.rank == min(self.with_same(number, one.rank))]
        if window.shards.get(number, 1) > 1:
            # Groups of ranks may have the same shards.
            return [*{one.shard.get(number, 0): one for one in here}.values()]
        return [one for one in here if one is window] or here[:1]

    @property
    def is_alike(self) -> bool:
        """Whether each rank's gradients explain its step as well as their sum does: they seem to be equal."""
        return all((at, rank) in self.own for at, by_rank in self.factors.items() for rank in by_rank)


Choose = Callable[[int], list[Contribution]]
"""Returns the gradients of a parameter that a step may have used."""


class Case:
    """One rank's step, for a set of parameters that were clipped together."""

    def __init__(self, together: Together, window: Window, parameters: list[int], clips: list[int]) -> None:
        self.together, self.window, self.parameters, self.clips = together, window, parameters, clips
        self.after = Factor(1.0, 1.0)
        """The factor after the last change that was recorded element by element."""
        self.is_limited = any(window.clips[number][1].how == "value" for number in clips)
        # Unknown hooks count as exact. If they are not, the equations do not fit.
        self.lossy = max([0.0, *(HOOKS.get(hook, 0.0) for hook in together.hooks)])
        assert window.step is not None
        self.step = window.step
        self.since, self.steps = window.index, 1
        """The first of the steps that are solved together, and their number."""
        self.roundoff = max(
            ROUNDOFF.get(self.step.dtype, COARSEST),
            *(together.roundoffs.get(number, 0.0) for number in parameters),
            ROUNDOFF["float64"],
        )

    # Facts.

    @property
    def used(self) -> list[int]:
        """The parameters whose gradient is not zero."""
        return [number for number in self.parameters if self.window.used[number][2]]

    @property
    def hooks(self) -> list[str]:
        """Unknown communication hooks, which may send anything."""
        return sorted(self.together.hooks - HOOKS.keys())

    @property
    def scale(self) -> float:
        """The loss scale, the largest of several."""
        return max(self.window.scales, default=1.0)

    @property
    def is_of_one_sample(self) -> bool:
        """Whether all ranks sampled the same elements of each parameter."""
        samples = self.together.samples
        return all(samples.get(number, set()) <= {self.window.sample(number)} for number in self.parameters)

    @property
    def independent(self) -> int:
        """The number of independent equations: both projections of very few elements are equal up to a sign."""
        sizes = [self.window.sizes.get(number, 1) for number in self.parameters]
        return sum(2 if size > _FEW_ELEMENTS else 1 for size in sizes)

    @property
    def is_ample(self) -> bool:
        """Whether there are enough equations to prove a factor wrong."""
        return self.independent >= 1 + AMPLE

    @property
    def clipped(self) -> float:
        """The factor of clipping by norm."""
        clips = [self.window.clips[number][1] for number in self.clips]
        return prod(factor_of(clip) for clip in clips if clip.how == "norm")

    @property
    def clipped_between(self) -> bool:
        """Whether a clip call came before the last gradient of the window."""
        places = [one.at for number in self.parameters for one in self.window.new.get(number, [])]
        return any(at < max(places, default=0) for at, _ in self.window.clips)

    @property
    def has_new(self) -> bool:
        return any(self.all(number) for number in self.parameters)

    @property
    def is_any_computed(self) -> bool:
        """Whether the ranks computed gradients whose sum is not zero."""
        sums = (self.sketch(number, self.all(number)) for number in self.parameters)
        return bool(self.clipped) and any(first or second for first, second, _ in sums)

    @property
    def parts(self) -> list[int]:
        """Partitioned parameters that also have gradients on other ranks."""
        own = [number for number in self.parameters if number in self.together.partitioned]
        return [number for number in own if any(rank != self.window.rank for rank, _ in self.by_rank(number))]

    @property
    def has_parts(self) -> bool:
        """Whether it steps partitioned parameters that other ranks have parts of, or stages of one model."""
        together = self.together
        return bool(self.parts) or (together.is_split and bool(together.partitioned & {*self.parameters}))

    @property
    def parts_apart(self) -> list[int]:
        """Those of them whose weights differ between the ranks in this step."""
        weights = [one.weights for one in self.together.here]
        known = [number for number in self.parts if all(number in of_rank for of_rank in weights)]
        return [number for number in known if len({of_rank[number] for of_rank in weights}) > 1]

    @property
    def replicas(self) -> list[int]:
        """Parameters that are whole on all ranks, but whose gradient is not a multiple of the ranks' sum."""
        return [number for number in self.shared if not self.of([number]).is_known(self.all)]

    @property
    def shared(self) -> list[int]:
        """Parameters that are whole on all ranks."""
        return [number for number in self.used if number not in self.together.partitioned]

    def counted(self, some: list[int]) -> dict[str, Any]:
        """The number of these and of all parameters, and the first names."""
        return {"parameters": len(some), "all": len(self.parameters), "names": self.window.named(some)}

    @property
    def is_old_of_others(self) -> bool:
        """Whether another optimizer used the old gradients in this window."""
        left = [number for number in self.parameters if self.old(number)]
        return self.window.of_others.issuperset(left) and not any(self.all(number) for number in left)

    @property
    def is_changed(self) -> bool:
        """Whether the script changed the old gradients, such as by an intended decay."""
        return any(one.is_changed for number in self.parameters for _, one in self.old(number))

    @property
    def keeps_old(self) -> bool:
        """Whether a single backward pass added to the old gradients of all parameters, so the step uses both. Hooks of
        the script may store gradients elsewhere, so these do not count."""
        window = self.window
        left = {n for n in self.used for rank, one in self.old(n) if rank == window.rank and one.is_seen}
        new = [window.new.get(number, []) for number in left]
        are_added = all(len(of) == 1 and of[0].before is None for of in new)
        is_all = bool(left) and left == {*self.used} and not left & window.of_others
        return is_all and are_added and not self.is_changed and not self.step.closure

    @property
    def drifts(self) -> bool:
        """Whether replicas' weights drift apart if each rank steps on its own gradients."""
        is_split = any(self.window.shards.get(number, 1) > 1 for number in self.parameters)
        return not is_split and self.step.type != "ZeroRedundancyOptimizer"

    @property
    def norm(self) -> float | None:
        """The norm of the gradients used, over all parts on all ranks; None if a part was only sampled."""
        square = 0.0
        others = {number for part in self.together.here for number in part.used} if self.together.is_split else set()
        for number in {*self.parameters} | others:
            for part in self.together.parts(number, self.window):
                if not part.is_whole(number):
                    return None
                square += float(part.used[number][2]) ** 2
        return sqrt(square)

    @property
    def overflows(self) -> list[int]:
        """Parameters with a gradient that is not finite."""
        infinite = self.together.infinite
        return [number for number in self.parameters if number in infinite] if infinite else []

    def of(self, parameters: list[int]) -> Case:
        """The case of a subset of the parameters."""
        return Case(self.together, self.window, parameters, self.clips)

    def undone(self) -> Case | None:
        """The same step before its clip by value. None unless each of these parameters is clipped once after all
        backward passes, and the step uses the results."""
        window, held = self.window, {*self.used}
        if not window.limits:
            return None
        last = max((one.at for number in self.parameters for one in window.new.get(number, [])), default=0)
        late = {number: [one for one in window.limited(number) if one.at > last] for number in sorted(held)}
        if not held or not all(len(found) == 1 and np.isfinite(found[0].before).all() for found in late.values()):
            return None
        kept = self.ratio((number, window.used[number], found.after) for number, [found] in late.items())
        if kept is None:
            return None
        used = {**window.used, **{number: found.before for number, [found] in late.items()}}
        result = Case(self.together, replace(window, used=used), self.parameters, self.clips)
        result.after = kept
        result.is_limited = any(at < last and held & {*one.parameters} for at, one in window.limits)
        return result

    # Equations.

    def sketch(self, number: int, contributions: list[Contribution]) -> list[float]:
        """The sum of the contributions to this rank's shard of a parameter."""
        shard, total = self.window.shard.get(number, 0), [0.0] * WIDTH
        for one in contributions:
            # Plain numbers: numpy needs longer for three.
            total = [*map(add, total, one.sketch[min(shard, len(one.sketch) - 1)].tolist())]
        return total

    def equations(self, choose: Choose) -> Iterator[Equation]:
        for number in self.parameters:
            chosen = choose(number)
            roundings = max(0, sum([one.sums for one in chosen]) - 1) + len(self.clips) + _BY_HAND
            local, used = self.sketch(number, chosen), self.window.used[number].tolist()
            yield from self._equations(number, used, local, roundings, self.lossy)

    def _equations(
        self, number: int, used: list[float], local: list[float], roundings: int = _BY_HAND, lossy: float = 0.0
    ) -> tuple[Equation, Equation]:
        """Equations of the factor between two sketches of a parameter, which differ by these roundings of each element.
        lossy: the roundoff of communication only: a cast, the sum over ranks, a division."""
        elements, on_the_way = self.window.sizes.get(number, 1), self.together.ranks + 1
        (used_one, used_other, used_norm), (one, other, norm) = used, local
        lost = of_underflow(roundings, self.roundoff, elements)
        spread = of_sum(roundings, self.roundoff, norm) + of_sketch(self.roundoff, norm)
        if lossy:
            lost += of_underflow(on_the_way, lossy, elements)
            spread += of_sum(on_the_way, lossy, norm)
        slack = of_sketch(self.roundoff, abs(used_norm)) + lost
        spread += lost
        return Equation(used_one, one, slack, spread), Equation(used_other, other, slack, spread)

    def fits(self, choose: Choose) -> Factor | None:
        """The factor between the used gradients and the sum of these contributions; None if none fits."""
        factor = solve(self.equations(choose))
        return factor if factor is not None and factor.high > 0 else None

    def known(self, choose: Choose) -> Factor | None:
        """The same; None also if the equations do not determine the factor."""
        factor = self.fits(choose)
        return factor if factor is not None and factor.is_known else None

    def is_known(self, choose: Choose) -> bool:
        return self.known(choose) is not None

    def ratio(self, pairs: Iterable[tuple[int, Sketch, Sketch]]) -> Factor | None:
        """The factor between gradients after and before a change by the script; None if no factor fits.

        pairs: parameter, sketch after, sketch before."""
        known = ((number, after.tolist(), before.tolist()) for number, after, before in pairs)
        factor = solve(one for of in known for one in self._equations(*of))
        return factor if factor is not None and factor.is_known else None

    def hooked(self) -> Factor | None:
        """The factor by which the script's hooks changed all gradients, 1 without hooks; None if no factor fits."""
        if self.together.hooked.isdisjoint(self.parameters):
            return Factor(1.0, 1.0)
        every = ((number, one) for number in self.parameters for one in self.all(number))
        return self.ratio(
            (number, one.sketch[0], one.sketch[0] if one.before is None else one.before) for number, one in every
        )

    @property
    def are_averaged_by_hooks(self) -> bool:
        """Whether the step used the mean over the ranks of the gradients before the script's hooks."""

        def before(number: int) -> list[Contribution]:
            found = self.all(number)
            return [one if one.before is None else replace(one, sketch=one.before[None]) for one in found]

        factor = self.known(before)
        return factor is not None and self.kappa(factor).contains(1)

    def kappa(self, factor: Factor) -> Factor:
        """The factor relative to the mean over the ranks, with the loss scale and clipping undone: 1 is correct."""
        scale = self.window.scales[0] if self.window.scales else 1.0
        undone = scale / (self.step.grad_scale or 1.0) / self.clipped
        return factor.within(self.after).times(self.together.over * undone)

    def remember(self, factor: Factor) -> None:
        """Keeps the factor of the sum over all ranks, to compare the ranks."""
        at = tuple(self.parameters)
        if self.is_ample:
            self.together.factors[at][self.window.rank] = factor.within(self.after)
        if self.together.ranks > 1 and self.fits(self.own) is not None:
            self.together.own.add((at, self.window.rank))

    # Gradients that a step may have used.

    def all(self, number: int) -> list[Contribution]:
        return self.together.all.get(number, [])

    def by_rank(self, number: int) -> list[tuple[int, Contribution]]:
        return self.together.new.get(number, [])

    def finite(self, number: int) -> list[Contribution]:
        """All gradients but those that overflowed, which the script may have left out."""
        return [one for one in self.all(number) if one.is_finite]

    def own(self, number: int) -> list[Contribution]:
        return self.window.new.get(number, [])

    def of_parts(self, number: int) -> list[Contribution]:
        """The gradients of a partitioned parameter on the ranks with this part: collectives inside the model made each
        cover the samples of all parts. For other parameters, the gradients of all ranks."""
        ranks = self.together.with_same(number, self.window.rank)
        return [one for rank, one in self.by_rank(number) if rank in ranks]

    def of_whole_parts(self, number: int) -> list[Contribution]:
        """The same, if the division by the ranks skips partitioned parameters."""
        found = self.of_parts(number)
        if number not in self.together.partitioned:
            return found
        parts = self.together.over / len(self.together.with_same(number, self.window.rank))
        return [replace(one, sketch=one.sketch * parts) for one in found]

    def clipped_apart(self, number: int) -> list[Contribution]:
        """Gradients that each rank clipped before they were averaged."""
        return [one for other in self.together.here for one in other.clipped(number)]

    @property
    def are_clipped_apart(self) -> bool:
        """Whether ranks clip by value before they average: the step uses the mean of what their clips left."""
        if not self.is_limited or self.together.ranks == 1:
            return False
        return self.is_known(self.clipped_apart) and self.fits(self.window.clipped) is None

    @property
    def factors_of_ranks(self) -> list[float]:
        """Each rank's factor of clipping these parameters by norm."""
        return [
            prod(
                factor_of(clip)
                for n, (_, clip) in enumerate(other.clips)
                if clip.how == "norm" and all(n in other.clips_of(number) for number in self.parameters)
            )
            for other in self.together.here
        ]

    def old(self, number: int) -> list[tuple[int, Contribution]]:
        """Old gradients that earlier steps left, by rank: of a sharded parameter, this rank's shard only. Other samples
        of elements cannot be compared, so they are left out."""
        is_split = self.window.shards.get(number, 1) > 1
        ranks = [self.window] if is_split else self.together.here
        sample, is_small = self.window.sample(number), self.window.sizes.get(number, 1) <= SMALL
        left = [
            (other.rank, one)
            for other in ranks
            for one in other.old.get(number, [])
            if one.sample == sample or (is_small and UNREAD not in (one.sample, sample))
        ]
        # A finite step cannot contain non-finite gradients; zeros are cleared gradients.
        return [(rank, one) for rank, one in left if one.is_finite and one.is_any]

    def with_old(self, number: int) -> list[Contribution]:
        return self.all(number) + [one for _, one in self.old(number)]

    def own_with_old(self, number: int) -> list[Contribution]:
        return self.own(number) + [one for rank, one in self.old(number) if rank == self.window.rank]
