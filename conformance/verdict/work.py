"""Who did the work: equal numbers do not show that every rank computed its own share and gave it to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations

from conformance.cases.case import Case
from conformance.verdict.evidence import RankEvidence, named


def redundant(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """Which ranks did work of another one's, in every window; None if none did, or the forwards do not show it.

    A rank may train on other samples than planned, as long as no other rank trains on them too. Rows that are none of
    the samples, such as transformed ones, do not tell which samples a rank trained on.
    """
    allowed, own = _planned(case)
    for one, two in combinations(ranks, 2):
        together = list(zip(one.trained or (), two.trained or (), strict=False))
        if together and all(_repeated(mine & others, allowed) for mine, others in together):
            return _both(one, two)
    for idle in ranks:
        instead = [
            rank.outcome.rank
            for rank in ranks
            if rank.trained and all(map(own[idle.outcome.rank].intersection, rank.trained))
        ]
        if idle.trained == () and instead:
            return (
                f"{named(instead)} trained on the samples of rank {idle.outcome.rank}, and rank {idle.outcome.rank} on "
                "none; every rank must compute the gradients of its own shard"
            )
    return None


def _both(one: RankEvidence, two: RankEvidence) -> str:
    assert one.trained and two.trained
    first, second = one.outcome.rank, two.outcome.rank
    if one.trained == two.trained:
        return f"ranks {first} and {second} read the same samples; every rank must read its own shard"
    more, fewer = (first, second) if len(one.trained[0]) >= len(two.trained[0]) else (second, first)
    return f"rank {more} read its own samples and those of rank {fewer}; every rank must read its own shard"


def _repeated(shared: frozenset[int], allowed: Counter[int]) -> bool:
    return any(allowed[row] < 2 for row in shared)


def _planned(case: Case) -> tuple[Counter[int], list[frozenset[int]]]:
    """How often a row occurs in one global window, at most; and the rows that only this rank has, of each rank."""
    numbers = dict[tuple[float, ...], int]()
    spec = case.spec()
    rows = [numbers.setdefault(tuple(x), len(numbers)) for x in spec["samples"]["x"]]
    allowed = Counter[int]()
    for window in range(max(map(len, spec["micro_batches"]))):
        per_window = slice(window * spec["accumulation"], (window + 1) * spec["accumulation"])
        indices = chain.from_iterable(
            chain.from_iterable(micro_batches[per_window] for micro_batches in spec["micro_batches"])
        )
        allowed |= Counter(rows[index] for index in indices)
    of_ranks = [frozenset(rows[index] for index in chain.from_iterable(one)) for one in spec["micro_batches"]]
    others = [frozenset[int]().union(*(of_ranks[:rank] + of_ranks[rank + 1 :])) for rank in range(len(of_ranks))]
    return allowed, [mine - theirs for mine, theirs in zip(of_ranks, others, strict=True)]


def gave_nothing(case: Case, ranks: Sequence[RankEvidence]) -> list[int]:
    """The ranks that put nothing but zeros into every exchange of gradients, though their samples count."""
    spec = case.spec()
    weights = spec["samples"]["weight"]
    return [
        rank.outcome.rank
        for rank, micro_batches in zip(ranks, spec["micro_batches"], strict=True)
        if rank.contributed is False
        and (spec["loss"] != "weighted" or any(weights[index] for index in chain.from_iterable(micro_batches)))
    ]
