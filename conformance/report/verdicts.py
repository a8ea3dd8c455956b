"""How the verdicts are shown: a word, a glyph and a tone each, and what each means in plain words.

A verdict is never shown by colour alone. The order is from best to worst, which decides what a cell of the
matrix shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """How one verdict is shown. `key` names it in the HTML; `tone` is its colour, shared with its kin."""

    verdict: str
    key: str
    short: str
    glyph: str
    tone: str
    style: str
    meaning: str


LOOKS = {
    look.verdict: look
    for look in (
        Look(
            "UNSUPPORTED", "unsupported", "unsupported", "–", "idle", "dim",
            "The trainer declares that it does not do this. Not run, and never counted as passed.",
        ),
        Look(
            "UNAVAILABLE", "unavailable", "unavailable", "○", "idle", "dim",
            "This machine lacks something that the case needs; the reason says how to install it. "
            "Not run, and never counted as passed.",
        ),
        Look(
            "PASS (exact)", "exact", "exact", "✓", "good", "green",
            "Bit-identical to the right answer after every optimizer step, on every rank. A certificate "
            "proves that nothing is rounded anywhere in this case, so the tolerance is zero.",
        ),
        Look(
            "PASS (bounded)", "bounded", "bounded", "≤", "near", "cyan",
            "Rounding cannot be avoided here. Every value is within a derived rounding-error bound, and the "
            "smallest known bug would have exceeded that bound.",
        ),
        Look(
            "INCONCLUSIVE", "inconclusive", "inconclusive", "?", "doubt", "yellow",
            "The case could not distinguish a right trainer from a wrong one, so it proves nothing. "
            "Counted as not conforming.",
        ),
        Look(
            "FAIL (numerics)", "numerics", "FAIL numerics", "≠", "bad", "red",
            "Weights or gradients are not the right ones, by more than rounding can explain.",
        ),
        Look(
            "FAIL (law)", "law", "FAIL law", "§", "bad", "red",
            "The trainer did something in an order that the rules of PyTorch or Horovod forbid.",
        ),
        Look(
            "DIVERGED", "diverged", "DIVERGED", "⇄", "bad", "red",
            "The ranks left a step with different weights: they no longer train one model.",
        ),
        Look(
            "HANG", "hang", "HANG", "∞", "bad", "red",
            "The case did not end within its time limit. The report shows where each rank was.",
        ),
        Look(
            "CRASH", "crash", "CRASH", "✗", "bad", "red",
            "A rank raised, exited or was killed before it had delivered its result.",
        ),
    )
}  # fmt: skip


def worst(verdicts: Iterable[str]) -> Look:
    """The worst of these verdicts; one that did not run only if nothing ran."""
    order = list(LOOKS)
    return LOOKS[max(verdicts, key=order.index)]
