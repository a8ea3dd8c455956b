"""What a mistake is: the textbook with one decision changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.exercise.textbook import Textbook

Changed = Callable[[type[Textbook]], type[Textbook]]


@dataclass(frozen=True)
class Mistake:
    """``does`` completes "It looks as if it ..."; ``mend`` says what to do instead."""

    does: str
    mend: str
    functions: tuple[str, ...]
    textbook: type[Textbook]

    @property
    def decisions(self) -> set[str]:
        return {name for name in vars(self.textbook) if not name.startswith("__")}


# Whom a mistake may be told of.
LOSS, POINT, MULTI = ("loss_mse",), ("grad_point",), ("grad_multi",)
LOOP, BATCHES, DISTRIBUTED = ("train_loop",), ("train_loop_batches",), ("train_loop_distributed",)
GRADIENTS, OVER_BATCHES = POINT + MULTI, BATCHES + DISTRIBUTED
LOOPS = LOOP + OVER_BATCHES
ALL = LOSS + GRADIENTS + LOOPS


def adding_to(mistakes: list[Mistake]) -> Callable[[Sequence[str], str, str], Changed]:
    """A decorator that adds a textbook with one wrong decision; functions may be told of the same one differently."""

    def mistake(functions: Sequence[str], does: str, mend: str) -> Changed:
        def add(textbook: type[Textbook]) -> type[Textbook]:
            mistakes.append(Mistake(does, mend, tuple(functions), textbook))
            return textbook

        return add

    return mistake
