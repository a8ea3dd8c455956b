"""Decides between several problems of a case: one acyclic graph of the grounds of a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import TopologicalSorter
from typing import Literal, TypeAlias

#: The grounds of guards are "guard", "samples" (which ones were trained), "exchange" (may leave no trace),
#: "explanation" (of wrong numbers) and "place" (which numbers are wrong, not why).
Ground: TypeAlias = Literal[
    "law", "right numbers", "other rows", "guard", "samples", "exchange", "adapter", "known bug", "explanation",
    "place", "loss", "rounding", "divergence", "overflow", "difference", "scaler", "precision",
]  # fmt: skip

#: The grounds that each ground overrules. Others are listed together, in the order of the graph.
_OVERRULES: dict[Ground, tuple[Ground, ...]] = {
    "law": ("rounding",),
    # Ranks with correct numbers did exchange gradients, and need no explanation.
    "right numbers": ("exchange", "explanation", "place"),
    "other rows": ("samples",),
    "guard": ("exchange", "adapter", "loss", "rounding"),
    "samples": ("exchange", "adapter", "loss", "rounding"),
    "exchange": ("adapter", "loss", "rounding"),
    "adapter": ("explanation", "place", "loss"),
    # Numbers of a known bug are not explained by the loss or by rounding.
    "known bug": ("explanation", "place", "loss", "rounding"),
    "explanation": ("place", "rounding"),
    # The wrong parameters do not explain why they are wrong.
    "rounding": ("place",),
    "place": ("divergence",),
    "divergence": ("overflow",),
    "overflow": ("difference",),
    "loss": ("difference",),
    "difference": ("scaler",),
    "scaler": ("precision",),
}


def _in_order() -> dict[Ground, int]:
    sorter = TopologicalSorter[Ground]()
    for ground, others in _OVERRULES.items():
        for other in others:
            sorter.add(other, ground)
    return {ground: place for place, ground in enumerate(sorter.static_order())}


_PLACES = _in_order()


def overrules(one: Ground, other: Ground) -> bool:
    """Whether ``one`` overrules ``other``."""
    return other in _OVERRULES.get(one, ())


def by_precedence(claims: Iterable[tuple[Ground, str]]) -> list[str]:
    """The sentences on these grounds in order of precedence, the headline first."""
    return [text for _, text in sorted(claims, key=lambda claim: _PLACES[claim[0]])]
