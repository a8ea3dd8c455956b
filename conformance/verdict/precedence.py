"""What decides where several things are wrong with a case: one acyclic graph of the grounds of a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import TopologicalSorter
from typing import Literal, TypeAlias

#: Guards are of the grounds "guard", "samples" (which ones were trained), "exchange" (that may leave no trace),
#: "explanation" (of wrong numbers) and "place" (which of many numbers are wrong, and not why).
Ground: TypeAlias = Literal[
    "law", "right numbers", "other rows", "guard", "samples", "exchange", "adapter", "known bug", "explanation",
    "place", "loss", "rounding", "divergence", "overflow", "difference", "scaler", "precision",
]  # fmt: skip

#: What each ground overrules where both are there. What may stand side by side is said in the order of the graph.
_OVERRULES: dict[Ground, tuple[Ground, ...]] = {
    "law": ("rounding",),
    # Ranks that have the right numbers did exchange gradients, and need no explanation.
    "right numbers": ("exchange", "explanation", "place"),
    "other rows": ("samples",),
    "guard": ("exchange", "adapter", "loss", "rounding"),
    "samples": ("exchange", "adapter", "loss", "rounding"),
    "exchange": ("adapter", "loss", "rounding"),
    "adapter": ("explanation", "place", "loss"),
    # What a known bug makes is not the loss, and not rounded.
    "known bug": ("explanation", "place", "loss", "rounding"),
    "explanation": ("place", "rounding"),
    # Which parameters are wrong is no reason why.
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
    """Whether ``one`` decides against ``other``."""
    return other in _OVERRULES.get(one, ())


def spoken(claims: Iterable[tuple[Ground, str]]) -> list[str]:
    """What is wrong, on these grounds, in the order in which it is said: the headline first."""
    return [text for _, text in sorted(claims, key=lambda claim: _PLACES[claim[0]])]
