"""A step that no single factor explains, looked at parameter by parameter."""

from __future__ import annotations

from functools import cached_property
from math import isclose
from statistics import median_low
from typing import Any

from conformance.watch.judging.equations import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.windows import Contribution

_ENOUGH = 5
"""Independent equations needed of the majority: one fixes the factor, the rest can prove it wrong."""

_AT_LIMIT = 0.01
"""Relative spread of norms that were clipped to one limit, with clipping's epsilon."""

_MANY_ELEMENTS = 64

_NEAR = 1e-4


class Apart:
    """The parameters of a case, each with its own factor. strange: those whose gradient is no known multiple of the
    sum over the ranks. again: those whose gradient is bit-identical to one that an earlier step used. rest: all
    but these."""

    def __init__(self, case: Case) -> None:
        self.case, window = case, case.window
        self.all = case.parameters
        self.factors = {number: case.of([number]).fits(case.all) for number in case.used}
        self.known = {number: one for number, one in self.factors.items() if one is not None and one.is_known}
        self.strange = [number for number in case.used if number not in self.known]
        self.again = [number for number in case.used if number in window.again]
        self.rest = [number for number in case.used if number not in window.again]

    def counted(self, **of: list[int]) -> dict[str, Any]:
        """The number of parameters of each kind, and the names of the first kind."""
        counts = {name: len(which) for name, which in of.items()}
        return {**counts, "names": self.case.window.named(next(iter(of.values())))}

    @property
    def names(self) -> list[str]:
        return self.case.window.named(self.exchanged)

    @property
    def others(self) -> list[str]:
        return self.case.window.named(self.exchanged.values())

    @property
    def is_used_again(self) -> bool:
        """Whether the step uses stale gradients of one earlier step: all of them, or those of parameters without a new
        gradient while the rest are correct.

        Values that a script computes from gradients can repeat by chance: a few numbers, or numbers of one size, such
        as signs and clamped values. These do not count."""
        case, window = self.case, self.case.window
        if not self.again:
            return False
        if self.rest:
            return not any(case.all(number) for number in self.again) and case.of(self.rest).is_known(case.all)
        elements = [window.sizes.get(number, 1) for number in self.again]
        sizes = {f"{window.used[number][2] / size**0.5:.3g}" for number, size in zip(self.again, elements, strict=True)}
        return len({*window.again.values()}) == 1 and sum(elements) >= _MANY_ELEMENTS and len(sizes) > 1

    @property
    def is_of_the_last_step(self) -> bool:
        """Whether all gradients are those of the last step: a line search may restore them in some steps."""
        return not self.rest and {*self.case.window.again.values()} == {self.case.window.begin}

    @property
    def _off(self) -> list[int]:
        """Parameters that do not use the sum. If it is almost nothing, it fits any factor."""
        return [number for number in self.strange if self.factors[number] is None]

    @cached_property
    def own(self) -> list[int]:
        """Parameters that use this rank's gradient only; none if some use neither theirs nor the sum. Excludes parts
        that no other rank has: for them this is correct."""
        case, together = self.case, self.case.together
        if together.ranks == 1 or not all(case.of([number]).is_known(case.own) for number in self._off):
            return []
        return [number for number in self._off if len(together.with_same(number, case.window.rank)) > 1]

    @property
    def of_groups(self) -> list[int]:
        """Parameters that use the gradients of the ranks that started with equal weights, such as of one task, if all
        others use the sum."""
        case, rank = self.case, self.case.window.rank

        def of_equal(number: int) -> list[Contribution]:
            ranks = case.together.holders[number][rank]
            return [one for of, one in case.by_rank(number) if of in ranks]

        held = case.together.holders
        are_of_groups = all(number in held and case.of([number]).is_known(of_equal) for number in self._off)
        is_proof = case.of([*self.known]).independent >= _ENOUGH
        return self._off if are_of_groups and is_proof else []

    @cached_property
    def exchanged(self) -> dict[int, int]:
        """For each parameter, the one whose gradient it uses instead of its own: a one-to-one exchange with one factor,
        as when a flat buffer is unpacked in a different order than it was packed."""
        case, window = self.case, self.case.window
        like = {
            number: [
                other
                for other in self.strange
                if window.sizes.get(other) == window.sizes.get(number)
                and window.sample(other) == window.sample(number)
                and case.of([number]).is_known(lambda _, other=other: case.all(other))  # type: ignore[misc]
            ]
            for number in self.strange
        }
        of = {number: others[0] for number, others in like.items() if len(others) == 1}
        is_split = any(window.shards.get(number, 1) != 1 for number in case.parameters)
        if is_split or len(of) < max(2, len(self.strange)) or len({*of.values()}) < len(of):
            return {}
        return of if case.is_known(lambda number: case.all(of.get(number, number))) else {}

    @property
    def are_some_strange(self) -> bool:
        """Whether no factor explains a few parameters, and one factor explains the others."""
        rest = self.case.of([*self.known])
        return 0 < len(self.strange) < len(self.known) and rest.independent >= _ENOUGH and rest.is_known(rest.all)

    @cached_property
    def main(self) -> Factor:
        """The factor that most of them share: the median, as exactly as all of these show it."""
        middle = median_low([factor.middle for factor in self.known.values()] or [0.0])
        most = self.case.of([number for number, factor in self.known.items() if factor.contains(middle)])
        return most.known(most.all) or Factor(middle, middle)

    @property
    def most(self) -> float:
        return self.main.middle

    @property
    def may_be_chosen(self) -> bool:
        """Whether it may be a literal of the script, which has few digits."""
        return self.main.contains(float(f"{self.most:.2g}"))

    @property
    def are_few_divided_twice(self) -> bool:
        """Whether a few parameters have the factor of the others squared."""
        return bool(self.few) and all(self.known[number].contains(self.most**2, _NEAR) for number in self.few)

    @property
    def divisor(self) -> float:
        return 1 / self.most

    @property
    def times(self) -> float:
        return self.known[self.few[0]].middle / self.most

    @property
    def named(self) -> list[str]:
        return self.case.window.named(self.few)

    @property
    def multiples(self) -> str:
        """The factors of the mean and the number of parameters of each, if a few factors explain all; otherwise ""."""
        groups: list[list[int]] = []
        for number in self.known:
            like = (group for group in groups if self.case.of([*group, number]).is_known(self.case.all))
            if (group := next(like, None)) is not None:
                group.append(number)
            else:
                groups.append([number])
        if self.strange or not 1 < len(groups) <= len(self.known) / 2:
            return ""
        factors = [self.case.kappa(self.known[group[0]]).middle for group in groups]
        of, every = sorted(zip(map(len, groups), factors, strict=True), reverse=True), len(self.known)
        return "; ".join(f"{count} of {every} parameters: {factor:.4g}x" for count, factor in of)

    @property
    def are_clipped(self) -> bool:
        """Whether each was clipped by its own norm: to one limit, or to a fixed ratio to the norm of its weights, as in
        adaptive gradient clipping (Brock et al. 2021)."""
        case, weights = self.case, self.case.window.weights
        if None in self.factors.values():
            return False
        kappas = {number: case.kappa(factor) for number, factor in self.known.items()}
        norms = {number: norm for number in kappas if (norm := case.of([number]).norm) is not None}
        if norms.keys() < kappas.keys():
            return False
        shares = {n: norms[n] / weights[n][2] for n in kappas if n in weights and weights[n][2]}
        return _are_at_limit(kappas, norms) or (shares.keys() == kappas.keys() and _are_at_limit(kappas, shares))

    @cached_property
    def few(self) -> list[int]:
        """The minority whose factor differs from that of most; none if there is no clear majority."""
        if None in self.factors.values() or not self.known:
            return []
        most = self.case.of([number for number, factor in self.known.items() if factor.contains(self.most)])
        few = [number for number in self.known if number not in {*most.parameters}]
        are_few = len(few) < len(most.parameters) and most.independent >= _ENOUGH
        return few if are_few and most.is_known(most.all) else []


def _are_at_limit(kappas: dict[int, Factor], norms: dict[int, float]) -> bool:
    """Whether all with a factor below 1 share one norm, the limit, and no other norm exceeds it."""
    clipped = [number for number, kappa in kappas.items() if kappa.high < 1]
    if len(clipped) < 2:
        return False
    limit = max(norms[number] for number in clipped)
    at_limit = all(isclose(norms[number], limit, rel_tol=_AT_LIMIT) for number in clipped)
    others = [number for number in kappas if number not in clipped]
    return at_limit and all(kappas[one].contains(1) and norms[one] <= limit * (1 + _AT_LIMIT) for one in others)
