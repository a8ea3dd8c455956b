"""The functions that the exercise asks for, how it calls them, its own test cases and further inputs: a few that
distinguish the mistakes, and those that Hypothesis generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

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


def _calls(cases: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[Call, ...]]:
    """By function, the calls with these arguments; "golden" is the right result to so many "digits", or exactly."""
    return {function: tuple(_call(function, **case) for case in of) for function, of in cases.items()}


def _call(function: str, /, digits: int | None = None, golden: float | None = None, **arguments: Any) -> Call:
    return Call(function, arguments, digits, golden)


_LINE, _NOISY, _ONE = list(LINE), list(NOISY_LINE), [(1, 1)]
_HALVES = [_NOISY[:2], _NOISY[2:]]
_WORKERS = [[list(batch) for batch in shard] for shard in TWO_WORKERS]
_TOGETHER = [[*first, *second] for first, second in zip(*_WORKERS, strict=True)]

#: The exercise's test cases: with five digits where it rounds to five, exactly where it compares exactly. The last ones
#: of the first training loop are its far too low and far too high learning rates, which it only prints.
CASES = _calls(
    {
        "loss_mse": [{"m": 2, "data": _LINE, "golden": 7.5}],
        "grad_point": [
            {"m": 2, "data": (1, 1), "N": 4, "golden": 0.5},
            {"m": 2, "data": (2, 2), "N": 4, "golden": 2.0},
        ],
        "grad_multi": [{"m": 2, "data": _LINE, "golden": 15.0}],
        "train_loop": [
            {"m": 0, "lr": 0.001, "dataset": _ONE, "iterations": 1, "golden": 0.002},
            {"m": 0, "lr": 0.001, "dataset": _ONE, "iterations": 100, "digits": 5, "golden": 0.18143},
            {"m": 0, "lr": 0.001, "dataset": _LINE, "iterations": 4, "digits": 5, "golden": 0.05891},
            {"m": 0, "lr": 0.001, "dataset": _LINE, "iterations": 100, "digits": 5, "golden": 0.78086},
            {"m": 0, "lr": 0.000000001, "dataset": [(1, 2), (2, 6), (3, 7), (4, 4)], "iterations": 4},
            {"m": 0, "lr": 10, "dataset": _LINE, "iterations": 4},
        ],
        "train_loop_batches": [
            {"m": 0, "lr": 0.001, "dataset": _HALVES, "iterations": 2, "digits": 5, "golden": 0.02995},
            {"m": 0, "lr": 0.001, "dataset": _HALVES, "iterations": 20, "digits": 5, "golden": 0.26228},
            {"m": 0, "lr": 0.001, "dataset": _TOGETHER, "iterations": 4, "digits": 5, "golden": 0.05893},
        ],
        "train_loop_distributed": [
            {"m": 0, "lr": 0.001, "shards": _WORKERS, "iterations": 4, "digits": 5, "golden": 0.05893}
        ],
    }
)

_POINTS = [(1, 2), (-3, 0.5), (2.5, 4), (0.25, -1)]
_BATCHES = [[(1, 2), (-3, 0.5)], [(2.5, 4)], [(0.25, -1), (2, 1), (0.5, 3)]]
_SHARDS = [
    _BATCHES,
    [[(-1, 1), (2, -2)], [(0.5, 7)], [(1.5, -3), (1, 0.25), (-2, 3)]],
    [[(3, 1), (0.75, 2)], [(1.25, -1)], [(-0.5, 2), (2.25, 1), (1, 5)]],
]
_OF_POINTS = [{"m": 0.7123456789, "data": _POINTS}, {"m": -2, "data": _POINTS[:3]}, {"m": 1, "data": _POINTS[1:2]}]


def _over(name: str, *data: Any) -> list[dict[str, Any]]:
    steps = [(1.9876543211, 0.05, 2), (2, 0.05, 7), (-1, 0.02, 5)]
    return [
        {"m": m, "lr": lr, name: given, "iterations": iterations}
        for (m, lr, iterations), given in zip(steps, data, strict=True)
    ]


#: No two mistakes of the catalogue give the same number on all of these; ten digits show rounding to eight.
DISTINGUISHING = _calls(
    {
        "loss_mse": _OF_POINTS,
        "grad_point": [
            {"m": 0.7123456789, "data": (2.5, 4), "N": 9},
            {"m": -2, "data": (-3, 0.5), "N": 5},
            {"m": 3, "data": (0.25, 1), "N": 1},
        ],
        "grad_multi": _OF_POINTS,
        "train_loop": _over("dataset", _POINTS, _POINTS, _POINTS[:3]),
        "train_loop_batches": _over("dataset", _BATCHES, _BATCHES, _BATCHES[1:]),
        "train_loop_distributed": _over("shards", _SHARDS, _SHARDS, _SHARDS[:2]),
    }
)

_NUMBERS = st.one_of(st.integers(-8, 8), st.integers(-32, 32).map(lambda quarters: quarters / 4))
_RATES = st.sampled_from([1, 0.5, 0.25, 0.1, 0.01, 0.001])
_POINT = st.tuples(_NUMBERS, _NUMBERS)
_BATCH = st.lists(_POINT, min_size=1, max_size=5)
_ITERATIONS = st.integers(1, 9)


@st.composite
def _shards(draw: st.DrawFn) -> list[list[list[tuple[float, float]]]]:
    """Workers' batches of one iteration are equally long, without which an average of averages is open to question."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    workers = draw(st.integers(1, 3))
    return [[draw(st.lists(_POINT, min_size=size, max_size=size)) for size in sizes] for _ in range(workers)]


_ARGUMENTS: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "loss_mse": {"m": _NUMBERS, "data": _BATCH},
    "grad_point": {"m": _NUMBERS, "data": _POINT, "N": st.integers(1, 6)},
    "grad_multi": {"m": _NUMBERS, "data": _BATCH},
    "train_loop": {"m": _NUMBERS, "lr": _RATES, "dataset": _BATCH, "iterations": _ITERATIONS},
    "train_loop_batches": {
        "m": _NUMBERS,
        "lr": _RATES,
        "dataset": st.lists(_BATCH, min_size=1, max_size=3),
        "iterations": _ITERATIONS,
    },
    "train_loop_distributed": {"m": _NUMBERS, "lr": _RATES, "shards": _shards(), "iterations": _ITERATIONS},
}


def calls(function: str) -> st.SearchStrategy[Call]:
    """Calls of ``function``; simpler ones are those with fewer points and smaller whole numbers."""
    return st.fixed_dictionaries(_ARGUMENTS[function]).map(lambda arguments: Call(function, arguments))
