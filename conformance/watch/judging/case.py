"""The ledger of a step: what one rank used, and what it may have used, as equations with an unknown factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any

import numpy as np

from conformance.watch.judging.factor import Equation, Factor, solve
from conformance.watch.judging.rounding import COARSEST, ROUNDOFF, of_sketch, of_sum, of_underflow
from conformance.watch.judging.windows import Contribution, Sketch, Window, factor_of
from conformance.watch.sizes import SMALL, UNREAD, WHOLE, WIDTH

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


@dataclass
class Together:
    """The windows in which the ranks take the same step of an optimizer: None where a rank has none any more.

    ranks: how many average together. partitioned: parameters that ranks hold in parts. is_split: the ranks compute
    the same samples, so what they compute for one parameter is to be summed. is_joined: whether ranks may run out of
    data. hooks: communication hooks. factors: by the parameters that were clipped together and by rank, what a step
    used of the sum of all gradients, where there are equations enough. own: those of them where this rank's gradients
    alone explain the step as well. kappas: by rank, the factors over the right ones. shortened: by rank, factors below
    1, with the norms of what was used with them.
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
    def over(self) -> int:
        """What the sum over the ranks is divided by, if it is right."""
        return 1 if self.is_split else self.ranks

    @property
    def is_alike(self) -> bool:
        """Whether all ranks' gradients explain the step as well as their sum, as they are equal, as far as is known."""
        return all((at, rank) in self.own for at, by_rank in self.factors.items() for rank in by_rank)


Choose = Callable[[int], list[Contribution]]
"""Which gradients a step may have used of a parameter."""


class Case:
    """One rank's step, for a set of parameters that were clipped together."""

    def __init__(self, together: Together, window: Window, parameters: list[int], clips: list[int]) -> None:
        self.together, self.window, self.parameters, self.clips = together, window, parameters, clips
        self.after = Factor(1.0, 1.0)
        """What became of gradients after the last change that is known element by element."""
        self.is_limited = any(window.clips[number][1].how == "value" for number in clips)
        # Hooks of the script's own may compress. If they do not, it shows.
        self.lossy = max([0.0, *(HOOKS.get(hook, 0.0) for hook in together.hooks)])
        assert window.step is not None
        self.step = window.step
        self.roundoff = max(
            ROUNDOFF.get(self.step.dtype, COARSEST),
            *(one.roundoff for other in together.here for p in parameters for one in other.new.get(p, [])),
            ROUNDOFF["float64"],
        )

    # What is known of it.

    @property
    def used(self) -> list[int]:
        """The parameters whose gradient is not zero."""
        return [number for number in self.parameters if self.window.used[number][2]]

    @property
    def hooks(self) -> list[str]:
        """Communication hooks that may send anything."""
        return sorted(self.together.hooks - HOOKS.keys())

    @property
    def scale(self) -> float:
        """The loss scale; the largest, if there are several."""
        return max(self.window.scales, default=1.0)

    @property
    def is_of_one_sample(self) -> bool:
        """Whether all ranks look at the same of each parameter."""
        sample = self.window.sample
        return all(one.sample == sample(number) for number in self.parameters for one in self.all(number))

    @property
    def independent(self) -> int:
        """How many equations say something of their own: projections of few elements are the same up to a sign."""
        sizes = [self.window.sizes.get(number, 1) for number in self.parameters]
        return sum(2 if size > _FEW_ELEMENTS else 1 for size in sizes)

    @property
    def is_ample(self) -> bool:
        """Whether there are enough to prove one factor wrong."""
        return self.independent >= 1 + AMPLE

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

    @property
    def has_new(self) -> bool:
        return any(self.all(number) for number in self.parameters)

    @property
    def is_any_computed(self) -> bool:
        """Whether there was something to use."""
        sums = (self.sketch(number, self.all(number)) for number in self.parameters)
        return bool(self.clipped) and any(one[:2].any() for one in sums)

    @property
    def parts(self) -> list[int]:
        """The parameters that ranks hold in parts, with gradients of other parts on other ranks."""
        own = [number for number in self.parameters if number in self.together.partitioned]
        return [number for number in own if any(rank != self.window.rank for rank, _ in self.by_rank(number))]

    @property
    def replicas(self) -> list[int]:
        """The parameters that all ranks hold, and whose gradient is not that of all."""
        held = [number for number in self.used if number not in self.together.partitioned]
        return [number for number in held if not self.of([number]).is_known(self.all)]

    def counted(self, some: list[int]) -> dict[str, Any]:
        """How many of the parameters these are, and the names of the first."""
        return {"parameters": len(some), "all": len(self.parameters), "names": self.window.named(some)}

    @property
    def is_old_of_others(self) -> bool:
        """Whether what earlier steps left is what another optimizer has used in this window."""
        left = [number for number in self.parameters if self.old(number)]
        return self.window.of_others.issuperset(left) and not any(self.all(number) for number in left)

    @property
    def is_changed(self) -> bool:
        """Whether the script has changed what an earlier step left: it decays them on purpose, say."""
        return any(one.is_changed for number in self.parameters for _, one in self.old(number))

    @property
    def keeps_old(self) -> bool:
        """Whether a single pass has added what it computed to what the last step had used, of all gradients: the step
        uses both, whatever was made of them since. Hooks of the script's own may keep what they see elsewhere."""
        window = self.window
        left = {n for n in self.used for rank, one in self.old(n) if rank == window.rank and one.is_seen}
        new = [window.new.get(number, []) for number in left]
        are_added = all(len(of) == 1 and of[0].before is None for of in new)
        is_all = bool(left) and left == {*self.used} and not left & window.of_others
        return is_all and are_added and not self.is_changed and not self.step.closure

    @property
    def drifts(self) -> bool:
        """Whether it shows in the weights if each rank steps on gradients of its own."""
        is_split = any(self.window.shards.get(number, 1) > 1 for number in self.parameters)
        return not is_split and self.step.type != "ZeroRedundancyOptimizer"

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

    @property
    def overflows(self) -> list[int]:
        """The parameters in the step that had a gradient that was not finite."""
        return [number for number in self.parameters if not all(one.is_finite for one in self.all(number))]

    def of(self, parameters: list[int]) -> Case:
        """The same for some of the parameters."""
        return Case(self.together, self.window, parameters, self.clips)

    def undone(self) -> Case | None:
        """The same step before its clip by value. None unless one such call comes after all backward passes, clips all
        these parameters, and the step uses its result."""
        window, held = self.window, {*self.used}
        last = max((one.at for number in self.parameters for one in window.new.get(number, [])), default=0)
        found = [one for at, one in window.limits if at > last and held & {*one.parameters}]
        if len(found) != 1 or not held:
            return None
        samples = dict(zip(found[0].parameters, found[0].samples, strict=True))
        before, after = (
            dict(zip(found[0].parameters, np.reshape(sketches, (-1, WIDTH)), strict=True))
            for sketches in (found[0].before, found[0].after)
        )
        if not all(samples.get(n) == window.sample(n) and np.isfinite(before[n]).all() for n in held):
            return None
        kept = self.ratio((number, window.used[number], after[number]) for number in sorted(held))
        if kept is None:
            return None
        used = {**window.used, **{number: before[number] for number in held}}
        result = Case(self.together, replace(window, used=used), self.parameters, self.clips)
        result.after = kept
        result.is_limited = any(at < last and held & {*one.parameters} for at, one in window.limits)
        return result

    # Its equations.

    def sketch(self, number: int, contributions: list[Contribution]) -> Sketch:
        """Their sum, for what this rank holds of a parameter."""
        shard = self.window.shard.get(number, 0)
        return sum((one.sketch[min(shard, len(one.sketch) - 1)] for one in contributions), np.zeros(3))

    def equations(self, choose: Choose) -> list[Equation]:
        found = []
        for number in self.parameters:
            chosen = choose(number)
            roundings = max(0, sum(one.sums for one in chosen) - 1) + len(self.clips) + _BY_HAND
            local = self.sketch(number, chosen)
            found += self._equations(number, self.window.used[number], local, roundings, self.lossy)
        return found

    def _equations(
        self, number: int, used: Sketch, local: Sketch, roundings: int = _BY_HAND, lossy: float = 0.0
    ) -> list[Equation]:
        """What must hold if one sketch of a parameter is a multiple of another one, from which it differs by these
        roundings of each element. lossy: the roundoff on the way alone: a cast, the sum over ranks, a division."""
        elements, on_the_way = self.window.sizes.get(number, 1), self.together.ranks + 1
        lost = of_underflow(roundings, self.roundoff, elements) + of_underflow(on_the_way, lossy, elements)
        spread = of_sum(roundings, self.roundoff, local[2]) + of_sum(on_the_way, lossy, local[2])
        spread += of_sketch(self.roundoff, local[2]) + lost
        slack = of_sketch(self.roundoff, abs(used[2])) + lost
        return [Equation(float(used[j]), float(local[j]), slack, spread) for j in (0, 1)]

    def fits(self, choose: Choose) -> Factor | None:
        """The factor with which the step used the sum of these contributions; None if it did not."""
        factor = solve(self.equations(choose))
        return factor if factor is not None and factor.high > 0 else None

    def known(self, choose: Choose) -> Factor | None:
        """The same, if the equations say which factor it is."""
        factor = self.fits(choose)
        return factor if factor is not None and factor.is_known else None

    def is_known(self, choose: Choose) -> bool:
        return self.known(choose) is not None

    def ratio(self, pairs: Iterable[tuple[int, Sketch, Sketch]]) -> Factor | None:
        """By what the script has multiplied gradients that are known before and after; None if it is no factor.

        pairs: of a parameter, the sketches after and before."""
        equations = [one for number, after, before in pairs for one in self._equations(number, after, before)]
        factor = solve(equations)
        return factor if factor is not None and factor.is_known else None

    def hooked(self) -> Factor | None:
        """What hooks of the script's own have multiplied all gradients with, 1 without any; None if it is no factor."""
        every = [(number, one) for number in self.parameters for one in self.all(number)]
        if all(one.before is None for _, one in every):
            return Factor(1.0, 1.0)
        return self.ratio(
            (number, one.sketch[0], one.sketch[0] if one.before is None else one.before) for number, one in every
        )

    def kappa(self, factor: Factor) -> Factor:
        """The factor relative to the mean over the ranks, with the loss scale and clipping undone: 1 is right."""
        scale = self.window.scales[0] if self.window.scales else 1.0
        undone = scale / (self.step.grad_scale or 1.0) / self.clipped
        return factor.within(self.after).times(self.together.over * undone)

    def remember(self, factor: Factor) -> None:
        """The factor of the sum over all ranks, to compare the ranks by."""
        at = tuple(self.parameters)
        if self.is_ample:
            self.together.factors[at][self.window.rank] = factor.within(self.after)
        if self.together.ranks > 1 and self.fits(self.own) is not None:
            self.together.own.add((at, self.window.rank))

    # What a step may have used.

    def all(self, number: int) -> list[Contribution]:
        return [one for _, one in self.by_rank(number)]

    def by_rank(self, number: int) -> list[tuple[int, Contribution]]:
        return [(other.rank, one) for other in self.together.here for one in other.new.get(number, [])]

    def finite(self, number: int) -> list[Contribution]:
        """Without the passes that overflowed, as if the script had left these out."""
        return [one for one in self.all(number) if one.is_finite]

    def own(self, number: int) -> list[Contribution]:
        return self.window.new.get(number, [])

    def of_parts(self, number: int) -> list[Contribution]:
        """Of a parameter that is partitioned, this rank's part: what it needs of other ranks went through a collective,
        so it is of all samples."""
        return self.own(number) if number in self.together.partitioned else self.all(number)

    def of_whole_parts(self, number: int) -> list[Contribution]:
        """The same, where the division by the ranks leaves parts out."""
        if number not in self.together.partitioned:
            return self.all(number)
        return [replace(one, sketch=one.sketch * self.together.over) for one in self.own(number)]

    def clipped_apart(self, number: int) -> list[Contribution]:
        """As if each rank had clipped its own gradients, before they were averaged."""
        return [one for other in self.together.here for one in other.clipped(number)]

    @property
    def are_clipped_apart(self) -> bool:
        """Whether ranks clip by value before they average: the step uses the mean of what their clips left."""
        if not self.is_limited or self.together.ranks == 1:
            return False
        return self.is_known(self.clipped_apart) and self.fits(self.window.clipped) is None

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

    def old(self, number: int) -> list[tuple[int, Contribution]]:
        """What earlier steps left, by rank: of a parameter that is split, this rank's part alone. What is not of the
        sample that is looked at cannot be compared."""
        is_split = self.window.shards.get(number, 1) > 1
        ranks = [self.window] if is_split else self.together.here
        sample, is_small = self.window.sample(number), self.window.sizes.get(number, 1) <= SMALL
        left = [
            (other.rank, one)
            for other in ranks
            for one in other.old.get(number, [])
            if one.sample == sample or (is_small and UNREAD not in (one.sample, sample))
        ]
        # What is not finite cannot be in a step that is. What was set to zero is cleared.
        return [(rank, one) for rank, one in left if one.is_finite and one.sketch[..., 2].any()]

    def with_old(self, number: int) -> list[Contribution]:
        return self.all(number) + [one for _, one in self.old(number)]

    def own_with_old(self, number: int) -> list[Contribution]:
        return self.own(number) + [one for rank, one in self.old(number) if rank == self.window.rank]
