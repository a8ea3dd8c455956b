"""One rank's step: what it used, and what it may have used, as equations with an unknown factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod, sqrt

import numpy as np

from conformance.watch.judging.factor import Equation, Factor, solve
from conformance.watch.judging.findings import Finding, Said
from conformance.watch.judging.rounding import COARSEST, ROUNDOFF, of_sketch, of_sum, of_underflow
from conformance.watch.judging.windows import Contribution, Sketch, Window
from conformance.watch.records import Clipped
from conformance.watch.sizes import SMALL, UNREAD, WHOLE

_BY_HAND = 3
"""Further roundings of each element: divisions by the ranks and the loss scale, and a factor of the script's own."""

_FEW_ELEMENTS = 3

AMPLE = 4
"""Equations beyond the unknowns. With fewer, gradients that a script changed by hand may fit a hypothesis by chance, so
all steps must."""

HOOKS = {
    "allreduce_hook": 0.0,
    "fp16_compress_hook": ROUNDOFF["float16"],
    "BuiltinCommHookType.FP16_COMPRESS": ROUNDOFF["float16"],
    "BuiltinCommHookType.ALLREDUCE": 0.0,
    "bf16_compress_hook": ROUNDOFF["bfloat16"],
    "noop_hook": 0.0,
}
"""Communication hooks, each with the roundoff of what it sends."""

LETS_APART = "post_localSGD_hook"
"""The one with which ranks train by themselves, after some steps, and average their weights now and then."""


@dataclass
class Together:
    """The windows in which the ranks take the same step of an optimizer: None where a rank has none any more.

    ranks: how many average together. partitioned: parameters of which each rank has a part, see `apart.py`. is_split:
    the ranks compute the same samples, so what they compute for one parameter is to be summed. is_joined: whether
    ranks may run out of data. hooks: communication hooks. factors: by the parameters that were clipped together and by
    rank, what a step used of the sum of all gradients, where there are equations enough. own: those of them where this
    rank's gradients alone explain the step as well. kappas: by rank, the factors over the right ones. shortened: by
    rank, factors below 1, with the norms of what was used with them.
    """

    windows: Sequence[Window | None]
    ranks: int
    is_joined: bool
    hooks: frozenset[str]
    partitioned: frozenset[int] = frozenset()
    is_split: bool = False
    factors: dict[tuple[int, ...], dict[int, Factor]] = field(default_factory=lambda: defaultdict(dict))
    own: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    kappas: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    shortened: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def here(self) -> list[Window]:
        return [window for window in self.windows if window is not None]

    @property
    def is_alike(self) -> bool:
        """Whether all ranks' gradients explain the step as well as their sum, as they are equal, as far as is known."""
        return all((at, rank) in self.own for at, by_rank in self.factors.items() for rank in by_rank)


@dataclass
class Sum:
    """A hypothesis about what a step used of a parameter, before any factor. roundings: that an element passed."""

    contributions: list[Contribution]

    def sketch(self, shard: int) -> Sketch:
        if not self.contributions:
            return np.zeros(3)
        total: Sketch
        total, *others = [one.sketch[min(shard, len(one.sketch) - 1)] for one in self.contributions]
        for other in others:
            total = total + other
        return total

    @property
    def terms(self) -> int:
        return sum(one.sums for one in self.contributions)


def factor_of(clip: Clipped) -> float:
    """What clipping by norm multiplies gradients with."""
    if clip.norm is None or not isfinite(clip.norm):
        return 1.0
    return min(1.0, clip.limit / (clip.norm + 1e-6))


Choose = Callable[[int], list[Contribution]]


class Case:
    """One rank's step, for a set of parameters that were clipped together."""

    def __init__(self, together: Together, window: Window, parameters: list[int], clips: list[int]) -> None:
        self.together, self.window, self.parameters, self.clips = together, window, parameters, clips
        self.after = Factor(1.0, 1.0)
        """What became of gradients after the last change that is known element by element, see `limits.py`."""
        self.is_limited = any(window.clips[number][1].how == "value" for number in clips)
        # Hooks of the script's own may compress. If they do not, it shows.
        self.lossy = max([0.0, *(HOOKS.get(hook, 0.0) for hook in together.hooks)])
        step = window.step
        assert step is not None
        self.step = step
        self.roundoff = max(
            ROUNDOFF.get(step.dtype, COARSEST),
            *(one.roundoff for other in together.here for p in parameters for one in other.new.get(p, [])),
            ROUNDOFF["float64"],
        )

    @property
    def is_of_one_sample(self) -> bool:
        """Whether all ranks look at the same of each parameter."""
        return all(one.sample == self.sample(number) for number in self.parameters for _, one in self.by_rank(number))

    @property
    def independent(self) -> int:
        """How many equations say something of their own: projections of few elements are the same up to a sign."""
        sizes = [self.window.sizes.get(number, 1) for number in self.parameters]
        return sum(2 if size > _FEW_ELEMENTS else 1 for size in sizes)

    @property
    def clipped(self) -> float:
        """What clipping by norm has multiplied the gradients with."""
        clips = [self.window.clips[number][1] for number in self.clips]
        return prod(factor_of(clip) for clip in clips if clip.how == "norm")

    @property
    def clipped_between(self) -> bool:
        """Whether some were clipped before others of the window came."""
        places = [one.at for number in self.parameters for one in self.window.new.get(number, [])]
        return any(at < max(places, default=0) for at, _ in self.window.clips)

    def equations(self, choose: Choose) -> list[Equation]:
        found = []
        for number in self.parameters:
            used, total = self.window.used[number], Sum(choose(number))
            local = total.sketch(self.shard(number))
            roundings = max(0, total.terms - 1) + len(self.clips) + _BY_HAND
            # Compressed for the way alone: a cast, the sum over ranks, a division.
            on_the_way = self.together.ranks + 1
            elements = self.window.sizes.get(number, 1)
            lost = of_underflow(roundings, self.roundoff, elements)
            lost += of_underflow(on_the_way, self.lossy, elements)
            spread = (
                of_sum(roundings, self.roundoff, local[2])
                + of_sum(on_the_way, self.lossy, local[2])
                + of_sketch(self.roundoff, local[2])
                + lost
            )
            slack = of_sketch(self.roundoff, abs(used[2])) + lost
            found += [Equation(float(used[j]), float(local[j]), slack, spread, number) for j in (0, 1)]
        return found

    def fits(self, choose: Choose) -> Factor | None:
        """The factor with which the step used the sum of these contributions; None if it did not."""
        factor = solve(self.equations(choose))
        return factor if factor is not None and factor.high > 0 else None

    def hooked(self) -> Factor | None:
        """What hooks of the script's own have multiplied all gradients with, 1 without any; None if it is no factor."""
        every = [(number, one) for number in self.parameters for one in self.all(number)]
        if all(one.before is None for _, one in every):
            return Factor(1.0, 1.0)
        return self.ratio(
            (number, one.sketch[0], one.sketch[0] if one.before is None else one.before) for number, one in every
        )

    def ratio(self, pairs: Iterable[tuple[int, Sketch, Sketch]]) -> Factor | None:
        """By what the script has multiplied gradients that are known before and after; None if it is no factor.

        pairs: of a parameter, the sketches after and before."""
        equations = []
        for number, after, before in pairs:
            lost = of_underflow(_BY_HAND, self.roundoff, self.window.sizes.get(number, 1))
            slack = of_sketch(self.roundoff, abs(after[2])) + lost
            spread = of_sum(_BY_HAND, self.roundoff, before[2]) + of_sketch(self.roundoff, before[2]) + lost
            equations += [Equation(float(after[j]), float(before[j]), slack, spread, number) for j in (0, 1)]
        factor = solve(equations)
        return factor if factor is not None and factor.is_known else None

    def of(self, parameters: list[int]) -> Case:
        """The same for some of the parameters."""
        return Case(self.together, self.window, parameters, self.clips)

    def is_known(self, choose: Choose) -> bool:
        """Whether the step used the sum of these contributions, by a factor that is known."""
        factor = self.fits(choose)
        return factor is not None and factor.is_known

    def kappa(self, factor: Factor, ranks: int | None = None) -> Factor:
        """The factor relative to the mean over so many ranks, with the loss scale and clipping undone: 1 is right."""
        scale = self.window.scales[0] if self.window.scales else 1.0
        over = (1 if self.together.is_split else self.together.ranks) if ranks is None else ranks
        return factor.within(self.after).times(over * scale / (self.step.grad_scale or 1.0) / self.clipped)

    def remember(self, factor: Factor) -> None:
        """The factor of the sum over all ranks, to compare the ranks by."""
        at = tuple(self.parameters)
        if self.independent >= 1 + AMPLE:
            self.together.factors[at][self.window.rank] = factor.within(self.after)
        if self.together.ranks > 1 and self.fits(self.own) is not None:
            self.together.own.add((at, self.window.rank))

    @property
    def norm(self) -> float | None:
        """The norm of the gradients used, over all that the ranks hold of them; None if not all of it was read."""
        square = 0.0
        others = {number for part in self.together.here for number in part.used} if self.together.is_split else set()
        for number in {*self.parameters} | others:
            holders = [part for part in self.together.here if number in part.used]
            is_cut = number in self.together.partitioned or self.window.shards.get(number, 1) > 1
            own = [part for part in holders if part is self.window] or holders[:1]
            for part in holders if is_cut else own:
                if part.sample(number) != WHOLE and part.sizes.get(number, 1) > SMALL:
                    return None
                square += float(part.used[number][2]) ** 2
        return sqrt(square)

    def finding(self, law: str, says: Said, effect: Said | None, *, is_of_all_steps: bool = False) -> Finding:
        """Of this step and rank."""
        of, where = self.window, (self.window.rank,)
        return Finding(law, says, of.index, where, of.site, effect, of.optimizer, is_of_all_steps=is_of_all_steps)

    def shard(self, number: int) -> int:
        return self.window.shard.get(number, 0)

    def sample(self, number: int) -> int:
        """What is looked at of a parameter."""
        return self.window.sample(number)

    # What a step may have used.

    def sum(self, number: int) -> Sketch:
        """Of the gradients of all ranks, for what this rank holds of a parameter."""
        return Sum(self.all(number)).sketch(self.shard(number))

    def all(self, number: int) -> list[Contribution]:
        return [one for _, one in self.by_rank(number)]

    def by_rank(self, number: int) -> list[tuple[int, Contribution]]:
        return [(other.rank, one) for other in self.together.here for one in other.new.get(number, [])]

    def finite(self, number: int) -> list[Contribution]:
        """Without the passes that overflowed, as if the script had left these out."""
        return [one for one in self.all(number) if one.is_finite]

    def clipped_apart(self, number: int) -> list[Contribution]:
        """As if each rank had clipped its own gradients, before they were averaged."""
        return [
            replace(one, sketch=one.sketch * factor, sums=one.sums + 1)
            for other, factor in zip(self.together.here, self.factors_of_ranks, strict=True)
            for one in other.new.get(number, [])
        ]

    @property
    def factors_of_ranks(self) -> list[float]:
        """What each rank's clipping by norm has multiplied these parameters with."""
        return [
            prod(
                factor_of(clip)
                for n, (_, clip) in enumerate(other.clips)
                if clip.how == "norm" and all(n in other.clips_of(number) for number in self.parameters)
            )
            for other in self.together.here
        ]

    def last_entries(self, number: int) -> list[Contribution]:
        """As if of a sparse gradient the last entry of each row were kept."""
        return [one if one.entries is None else replace(one, sketch=one.entries[None]) for one in self.all(number)]

    def own(self, number: int) -> list[Contribution]:
        return self.window.new.get(number, [])

    def with_old(self, number: int) -> list[Contribution]:
        return self.all(number) + [one for _, one in self.old(number)]

    def old(self, number: int) -> list[tuple[int, Contribution]]:
        """What earlier steps left, by rank: of a parameter that is split, this rank's part alone. What is not of the
        sample that is looked at cannot be compared."""
        is_split = self.window.shards.get(number, 1) > 1
        ranks = [self.window] if is_split else self.together.here
        sample, is_small = self.sample(number), self.window.sizes.get(number, 1) <= SMALL
        left = [
            (other.rank, one)
            for other in ranks
            for one in other.old.get(number, [])
            if one.sample == sample or (is_small and UNREAD not in (one.sample, sample))
        ]
        # What is not finite cannot be in a step that is. What was set to zero is cleared.
        return [(rank, one) for rank, one in left if one.is_finite and one.sketch[..., 2].any()]

    def own_with_old(self, number: int) -> list[Contribution]:
        return self.own(number) + [one for rank, one in self.old(number) if rank == self.window.rank]
