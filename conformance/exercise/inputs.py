"""Inputs beyond the exercise's own: a few that distinguish the mistakes, and those that Hypothesis generates."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.exercise.questions import Call, call

_POINTS = [(1, 2), (-3, 0.5), (2.5, 4), (0.25, -1)]
_BATCHES = [[(1, 2), (-3, 0.5)], [(2.5, 4)], [(0.25, -1), (2, 1), (0.5, 3)]]
_SHARDS = [
    [[(1, 2), (-3, 0.5)], [(2.5, 4)], [(0.25, -1), (2, 1), (0.5, 3)]],
    [[(-1, 1), (2, -2)], [(0.5, 7)], [(1.5, -3), (1, 0.25), (-2, 3)]],
    [[(3, 1), (0.75, 2)], [(1.25, -1)], [(-0.5, 2), (2.25, 1), (1, 5)]],
]

#: No two mistakes of the catalogue give the same number on all of these; ten digits show rounding to eight.
DISTINGUISHING: dict[str, tuple[Call, ...]] = {
    "loss_mse": (
        call("loss_mse", m=0.7123456789, data=_POINTS),
        call("loss_mse", m=-2, data=_POINTS[:3]),
        call("loss_mse", m=1, data=_POINTS[1:2]),
    ),
    "grad_point": (
        call("grad_point", m=0.7123456789, data=(2.5, 4), N=9),
        call("grad_point", m=-2, data=(-3, 0.5), N=5),
        call("grad_point", m=3, data=(0.25, 1), N=1),
    ),
    "grad_multi": (
        call("grad_multi", m=0.7123456789, data=_POINTS),
        call("grad_multi", m=-2, data=_POINTS[:3]),
        call("grad_multi", m=1, data=_POINTS[1:2]),
    ),
    "train_loop": (
        call("train_loop", m=1.9876543211, lr=0.05, dataset=_POINTS, iterations=2),
        call("train_loop", m=2, lr=0.05, dataset=_POINTS, iterations=7),
        call("train_loop", m=-1, lr=0.02, dataset=_POINTS[:3], iterations=5),
    ),
    "train_loop_batches": (
        call("train_loop_batches", m=1.9876543211, lr=0.05, dataset=_BATCHES, iterations=2),
        call("train_loop_batches", m=2, lr=0.05, dataset=_BATCHES, iterations=7),
        call("train_loop_batches", m=-1, lr=0.02, dataset=_BATCHES[1:], iterations=5),
    ),
    "train_loop_distributed": (
        call("train_loop_distributed", m=1.9876543211, lr=0.05, shards=_SHARDS, iterations=2),
        call("train_loop_distributed", m=2, lr=0.05, shards=_SHARDS, iterations=7),
        call("train_loop_distributed", m=-1, lr=0.02, shards=_SHARDS[:2], iterations=5),
    ),
}

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
