"""The look of each verdict: a short name, a glyph, a tone and its meaning. Never only by colour.

They are ordered from best to worst: a cell of the matrix shows its worst verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.results.result_lines import NOT_CONFORMING, NOT_RUN, PASSED


@dataclass(frozen=True)
class Look:
    """The look of a verdict. `tone` names its colour, which similar verdicts share; `plain` says in two words what the
    verdict does not."""

    verdict: str
    short: str
    glyph: str
    tone: str
    meaning: str
    plain: str = ""

    @property
    def key(self) -> str:
        """Its name in the HTML."""
        return self.short.split()[-1].lower()

    @property
    def mark(self) -> str:
        """Its sign next to a number of cases: the glyphs of failures are explained elsewhere."""
        return "✗" if self.tone == "bad" else self.glyph


LOOKS = {
    look.verdict: look
    for look in (
        Look(
            "UNSUPPORTED", "unsupported", "–", "idle",
            "The trainer does not support this case. Not run, and never counted as passed.",
        ),
        Look(
            "UNAVAILABLE", "unavailable", "○", "idle",
            "This machine lacks what the case needs; the reason says how to install it. Not run, and never counted as "
            "passed.",
        ),
        Look(
            "NOT RUN", "not run", "‥", "idle",
            "Several earlier cases hung in the same place, so this one was left out. Never counted as passed.",
        ),
        Look(
            "PASS (exact)", "exact", "✓", "good",
            "Bit-identical to the correct weights after every optimizer step, on every rank. A certificate proves that "
            "this case rounds no value, so the tolerance is zero.",
        ),
        Look(
            "PASS (bounded)", "bounded", "≤", "near",
            "This case rounds. Every value is within a derived rounding-error bound, and every known bug would exceed "
            "the bound.",
        ),
        Look(
            "INCONCLUSIVE", "inconclusive", "?", "doubt",
            "The case cannot tell a correct trainer from a wrong one, so it proves nothing. Counted as failed.",
            "proves nothing",
        ),
        Look(
            "SETUP", "SETUP", "◇", "setup",
            "The adapter, or the trainer that it calls, did not train what the case asks for: other samples, or "
            "another clip, learning rate, optimizer or loss. Fix this first. Counted as failed.",
            "adapter differs",
        ),
        Look(
            "FAIL (numerics)", "FAIL numerics", "≠", "bad",
            "Weights or gradients are wrong by more than rounding explains.",
            "wrong numbers",
        ),
        Look(
            "FAIL (law)", "FAIL law", "§", "bad",
            "The trainer broke a rule of PyTorch, Horovod or apex, or its own declaration. Its numbers may be correct.",
            "broken rule",
        ),
        Look(
            "DIVERGED", "DIVERGED", "⇄", "bad",
            "The ranks have different weights after a step.",
            "ranks differ",
        ),
        Look(
            "HANG", "HANG", "∞", "bad",
            "The case exceeded its time limit. The report shows where each rank was.",
            "no end in time",
        ),
        Look(
            "CRASH", "CRASH", "✗", "bad",
            "A rank raised an error, exited or was killed before its result was complete.",
        ),
    )
}  # fmt: skip
SHOWN = [LOOKS[verdict] for verdict in PASSED + NOT_CONFORMING + NOT_RUN]
"""The order of a summary."""


def worst(verdicts: Iterable[str]) -> Look:
    """The worst of these verdicts. Cases that did not run count only if nothing ran."""
    order = list(LOOKS)
    return LOOKS[max(verdicts, key=order.index)]
