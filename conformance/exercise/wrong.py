"""Common mistakes in the exercise, each a replacement in the text of the right answers: `wrong.json` lists them.

By the text that is replaced it has what stands there instead, which functions may have the mistake, and what to say
about it, where {places} stands for each number of decimal places from 1 to 8.

An answer that lies in a mistake's enclosure on every input that was tried is recognised by it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations
from math import floor
from pathlib import Path
from typing import Any

from conformance.exercise import right
from conformance.oracle.affine import Enclosure
from conformance.workloads.precision import FP32

_TEXT = inspect.getsource(right)
# What replacements use.
_NAMES = {"Fraction": Fraction, "chain": chain, "floor": floor, "FP32": FP32}


@dataclass(frozen=True)
class Mistake:
    """``wrong`` stands where the right answers have ``right``, which occurs once in their text.

    ``text`` completes "It looks as if it ..." and says what to do instead; ``{item}`` is what an iteration uses, a
    point or a batch. ``functions`` may have this mistake.
    """

    right: str
    wrong: str
    functions: tuple[str, ...]
    text: str

    @property
    def start(self) -> int:
        return _TEXT.index(self.right)

    @property
    def end(self) -> int:
        return self.start + len(self.right)


def _groups() -> dict[str, tuple[str, ...]]:
    """The functions that have a mistake together, by the names of the catalogue."""
    gradients, over_batches = ("grad_point", "grad_multi"), ("train_loop_batches", "train_loop_distributed")
    loops = ("train_loop", *over_batches)
    return {
        "loss": ("loss_mse",),
        "point": ("grad_point",),
        "multi": ("grad_multi",),
        "gradients": gradients,
        "distributed": ("train_loop_distributed",),
        "over_batches": over_batches,
        "loops": loops,
        "over_points": ("loss_mse", "grad_multi", *over_batches),
        "all": ("loss_mse", *gradients, *loops),
    }


def _catalogue() -> Iterator[Mistake]:
    """In the order of the file: what allows for the most is last."""
    groups = _groups()
    table = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for right_text, mistakes in table.items():
        for wrong, names, text in mistakes:
            functions = tuple(function for name in names.split() for function in groups[name])
            for places in range(1, 9) if "{places}" in wrong else [0]:
                one, two = (part.replace("{places}", str(places)) for part in (wrong, text))
                yield Mistake(right_text, one, functions, two)


#: Tried in this order.
CATALOGUE = tuple(_catalogue())


def candidates(function: str) -> list[tuple[Mistake, ...]]:
    """What may be wrong with ``function``: one mistake, then two at once that replace different text."""
    single = [one for one in CATALOGUE if function in one.functions]
    pairs = [(one, two) for one, two in combinations(single, 2) if one.end <= two.start or two.end <= one.start]
    return [*((one,) for one in single), *pairs]


def answering(mistakes: Sequence[Mistake]) -> Callable[[str, dict[str, Any]], Enclosure]:
    """The right answers with all of these mistakes; `right.answer` says how to call them."""
    text = _TEXT
    for one in sorted(mistakes, key=lambda one: one.start, reverse=True):
        text = text[: one.start] + one.wrong + text[one.end :]
    namespace: dict[str, Any] = {**_NAMES, "__name__": right.__name__}
    exec(compile(text, right.__file__, "exec"), namespace)
    answer: Callable[[str, dict[str, Any]], Enclosure] = namespace["answer"]
    return answer
