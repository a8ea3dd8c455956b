"""What a mistake is: a deviation from the textbook, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.exercise.textbook import Textbook
from conformance.oracle.deviation import Deviation

Changed = Callable[[type[Textbook]], type[Textbook]]


@dataclass(frozen=True)
class Mistake(Deviation[Textbook]):
    """``text`` completes "It looks as if it ..."; ``fix`` says what to do instead."""

    fix: str
    functions: tuple[str, ...]


# Which functions a mistake may be in.
LOSS, POINT, MULTI = ("loss_mse",), ("grad_point",), ("grad_multi",)
LOOP, BATCHES, DISTRIBUTED = ("train_loop",), ("train_loop_batches",), ("train_loop_distributed",)
GRADIENTS, OVER_BATCHES = POINT + MULTI, BATCHES + DISTRIBUTED
LOOPS = LOOP + OVER_BATCHES
ALL = LOSS + GRADIENTS + LOOPS


def adding_to(mistakes: list[Mistake]) -> Callable[[Sequence[str], str, str], Changed]:
    """A decorator that adds a textbook with one wrong decision; its words may differ from function to function."""

    def mistake(functions: Sequence[str], text: str, fix: str) -> Changed:
        def add(textbook: type[Textbook]) -> type[Textbook]:
            mistakes.append(Mistake(text, textbook, fix, tuple(functions)))
            return textbook

        return add

    return mistake
