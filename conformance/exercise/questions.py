"""The functions that the exercise asks for, how it calls them, and its own test cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.workloads.data_sets import LINE, NOISY_LINE, TWO_WORKERS


@dataclass(frozen=True)
class Question:
    """A function to write. ``positional`` are the arguments that the exercise passes by position, in that order."""

    number: str
    function: str
    positional: tuple[str, ...] = ()


QUESTIONS = {
    question.function: question
    for question in (
        Question("Q4", "loss_mse", ("m", "data")),
        Question("Q5", "grad_point"),
        Question("Q5", "grad_multi"),
        Question("Q6", "train_loop"),
        Question("Q11", "train_loop_batches"),
        Question("Q12", "train_loop_distributed", ("m", "lr", "shards")),
    )
}


@dataclass(frozen=True)
class Call:
    """One call of a function, with its arguments by name. ``digits``: the exercise compares so many, or all."""

    function: str
    arguments: dict[str, Any]
    digits: int | None = None
    golden: float | None = None

    @property
    def positional(self) -> list[Any]:
        return [self.arguments[name] for name in QUESTIONS[self.function].positional]

    @property
    def named(self) -> dict[str, Any]:
        by_position = QUESTIONS[self.function].positional
        return {name: value for name, value in self.arguments.items() if name not in by_position}

    def __str__(self) -> str:
        parts = [*map(repr, self.positional), *(f"{name}={value!r}" for name, value in self.named.items())]
        return f"{self.function}({', '.join(parts)})"


def call(function: str, /, **arguments: Any) -> Call:
    return Call(function, arguments)


_LINE, _NOISY = list(LINE), list(NOISY_LINE)
_BATCHES = [_NOISY[:2], _NOISY[2:]]
_SHARDS = [[list(batch) for batch in shard] for shard in TWO_WORKERS]
_TOGETHER = [[*first, *second] for first, second in zip(*_SHARDS, strict=True)]

#: The exercise's test cases: with five digits where it rounds to five, exactly where it compares exactly. The last ones
#: of the first training loop are its far too low and far too high learning rates, which it only prints.
CASES: dict[str, tuple[Call, ...]] = {
    "loss_mse": (Call("loss_mse", {"m": 2, "data": _LINE}, golden=7.5),),
    "grad_point": (
        Call("grad_point", {"m": 2, "data": (1, 1), "N": 4}, golden=0.5),
        Call("grad_point", {"m": 2, "data": (2, 2), "N": 4}, golden=2.0),
    ),
    "grad_multi": (Call("grad_multi", {"m": 2, "data": _LINE}, golden=15.0),),
    "train_loop": (
        Call("train_loop", {"m": 0, "lr": 0.001, "dataset": [(1, 1)], "iterations": 1}, golden=0.002),
        Call("train_loop", {"m": 0, "lr": 0.001, "dataset": [(1, 1)], "iterations": 100}, 5, 0.18143),
        Call("train_loop", {"m": 0, "lr": 0.001, "dataset": _LINE, "iterations": 4}, 5, 0.05891),
        Call("train_loop", {"m": 0, "lr": 0.001, "dataset": _LINE, "iterations": 100}, 5, 0.78086),
        call("train_loop", m=0, lr=0.000000001, dataset=[(1, 2), (2, 6), (3, 7), (4, 4)], iterations=4),
        call("train_loop", m=0, lr=10, dataset=_LINE, iterations=4),
    ),
    "train_loop_batches": (
        Call("train_loop_batches", {"m": 0, "lr": 0.001, "dataset": _BATCHES, "iterations": 2}, 5, 0.02995),
        Call("train_loop_batches", {"m": 0, "lr": 0.001, "dataset": _BATCHES, "iterations": 20}, 5, 0.26228),
        Call("train_loop_batches", {"m": 0, "lr": 0.001, "dataset": _TOGETHER, "iterations": 4}, 5, 0.05893),
    ),
    "train_loop_distributed": (
        Call("train_loop_distributed", {"m": 0, "lr": 0.001, "shards": _SHARDS, "iterations": 4}, 5, 0.05893),
    ),
}
