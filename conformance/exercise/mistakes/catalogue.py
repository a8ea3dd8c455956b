"""All mistakes, alone and two at once.

An answer that lies in a mistake's enclosure on every input that was tried is recognised by it. Two mistakes at once
are the textbook with both decisions changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.exercise.mistakes import gradients, loops, results
from conformance.exercise.mistakes.mistake import Mistake
from conformance.exercise.textbook import Textbook
from conformance.oracle.deviation import deviating, pairs

# Tried in this order: what allows for the most is last.
CATALOGUE = (*gradients.MISTAKES, *loops.MISTAKES, *results.MISTAKES)


def candidates(function: str) -> list[tuple[Mistake, ...]]:
    """What may be wrong with ``function``: one mistake, then two at once that concern different decisions."""
    single = [one for one in CATALOGUE if function in one.functions]
    return [*((one,) for one in single), *pairs(single)]


def mistaken(mistakes: Sequence[Mistake]) -> Textbook:
    """The textbook with all of these decisions changed."""
    return deviating(Textbook, mistakes)()
