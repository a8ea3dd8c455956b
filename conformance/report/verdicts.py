"""How each verdict is shown: a short name, a glyph, a tone, and what it means. Never by colour alone.

They are ordered from best to worst: a cell of the matrix shows its worst verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.results.records import NOT_CONFORMING, NOT_RUN, PASSED


@dataclass(frozen=True)
class Look:
    """How one verdict is shown. `tone` names its colour, which similar verdicts share."""

    verdict: str
    short: str
    glyph: str
    tone: str
    meaning: str

    @property
    def key(self) -> str:
        """Its name in the HTML."""
        return self.short.split()[-1].lower()


LOOKS = {
    look.verdict: look
    for look in (
        Look(
            "UNSUPPORTED", "unsupported", "–", "idle",
            "The trainer declares that it does not do this. Not run, and never counted as passed.",
        ),
        Look(
            "UNAVAILABLE", "unavailable", "○", "idle",
            "This machine lacks something that the case needs; the reason says what, and how to install it. "
            "Not run, and never counted as passed.",
        ),
        Look(
            "NOT RUN", "not run", "‥", "idle",
            "The trainer hung in the same place in several cases before this one, so its time was not spent. Never "
            "counted as passed.",
        ),
        Look(
            "PASS (exact)", "exact", "✓", "good",
            "Bit-identical to the right answer after every optimizer step, on every rank. A certificate "
            "proves that no value of this case is rounded, so the tolerance is zero.",
        ),
        Look(
            "PASS (bounded)", "bounded", "≤", "near",
            "Rounding cannot be avoided here. Every value is within a derived rounding-error bound, and every "
            "known bug would have exceeded that bound.",
        ),
        Look(
            "INCONCLUSIVE", "inconclusive", "?", "doubt",
            "The case could not distinguish a right trainer from a wrong one, so it proves nothing. "
            "Counted as not conforming.",
        ),
        Look(
            "SETUP", "SETUP", "◇", "setup",
            "The adapter did not train what the case asks for: other samples, or another clip, learning rate, "
            "optimizer or loss. Says nothing about the trainer until that is put right. Counted as not conforming.",
        ),
        Look(
            "FAIL (numerics)", "FAIL numerics", "≠", "bad",
            "Weights or gradients are wrong by more than rounding can explain.",
        ),
        Look(
            "FAIL (law)", "FAIL law", "§", "bad",
            "The trainer broke a rule of PyTorch, Horovod or apex, or one that it declares. "
            "Its numbers may still be right.",
        ),
        Look(
            "DIVERGED", "DIVERGED", "⇄", "bad",
            "The ranks have different weights after a step: they no longer train one model.",
        ),
        Look(
            "HANG", "HANG", "∞", "bad",
            "The case did not end within its time limit. The report shows where each rank was then.",
        ),
        Look(
            "CRASH", "CRASH", "✗", "bad",
            "A rank raised an error, exited or was killed before it delivered its result.",
        ),
    )
}  # fmt: skip
SHOWN = [LOOKS[verdict] for verdict in PASSED + NOT_CONFORMING + NOT_RUN]
"""In the order in which a summary lists them."""


def worst(verdicts: Iterable[str]) -> Look:
    """The worst of these verdicts. Those that did not run count only if nothing ran."""
    order = list(LOOKS)
    return LOOKS[max(verdicts, key=order.index)]
