"""Common mistakes in the exercise, each a replacement in the text of the right answers.

An answer that lies in a mistake's enclosure on every input that was tried is recognised by it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations
from math import floor
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


LOSS, POINT, MULTI = ("loss_mse",), ("grad_point",), ("grad_multi",)
LOOP, BATCHES, DISTRIBUTED = ("train_loop",), ("train_loop_batches",), ("train_loop_distributed",)
GRADIENTS, OVER_BATCHES = POINT + MULTI, BATCHES + DISTRIBUTED
LOOPS = LOOP + OVER_BATCHES
OVER_POINTS = LOSS + MULTI + OVER_BATCHES
ALL = LOSS + GRADIENTS + LOOPS

# By the text that is replaced: what stands there instead, in which functions, and what to say about it.
_MISTAKES: dict[str, list[tuple[str, tuple[str, ...], str]]] = {
    # The loss and the derivative.
    "return error * error": [
        ("return abs(error)", LOSS, "takes the errors by their magnitude. Square each error: `(ytrue - m*x)**2`."),
        (
            "return error",
            LOSS,
            "does not square the errors. Square each error, so that none is negative: `(ytrue - m*x)**2`.",
        ),
        (
            "return error * error / 2",
            LOSS,
            "halves the squared errors. This loss has no factor of one half: take the mean of `(ytrue - m*x)**2`.",
        ),
    ],
    "error = y - m * x": [
        ("error = y + m * x", LOSS, "adds the prediction to the truth. The error is their difference: `ytrue - m*x`.")
    ],
    "-2 * x *": [
        (
            "2 * x *",
            GRADIENTS,
            "flips the sign of the gradient. The derivative of `(ytrue - m*x)**2` is `-2*x*(ytrue - m*x)`.",
        ),
        (
            "2 * x *",
            LOOPS,
            "goes up the slope. The step is `-gradient * lr`: subtract `gradient * lr` from the weight.",
        ),
        (
            "-1 * x *",
            GRADIENTS + LOOPS,
            "leaves out the factor 2. The derivative of a square has it: `-2*x*(ytrue - m*x)`.",
        ),
        (
            "-2 *",
            GRADIENTS + LOOPS,
            "leaves out the inner derivative, `-x`. By the chain rule it is a factor too: `-2*x*(ytrue - m*x)`.",
        ),
    ],
    # Which points count, and what their sum is divided by.
    "/ N": [
        ("", POINT, "ignores N. One point's gradient is its part of the mean over N points: divide it by N."),
        ("/ N / N", POINT, "divides by N twice. Divide by N once."),
        ("* N", POINT, "multiplies by N. Divide by N."),
    ],
    "/ len(terms)": [
        (
            "",
            OVER_POINTS,
            "sums over the points instead of taking the mean. Divide the sum by the number of its points.",
        ),
        (
            "/ len(terms) ** 2",
            OVER_POINTS,
            "divides by the number of points twice. If each point is divided by N already, only add them up.",
        ),
        (
            "/ (len(terms) - 1)",
            LOSS + MULTI,
            "divides by the number of points less one. A mean divides by the number of points.",
        ),
    ],
    "gradient = ": [
        (
            "gradient = Fraction(len(batch), len(shard[0])) * ",
            OVER_BATCHES,
            "divides by the nominal batch size, that of the first batch. Divide by the size of this one.",
        ),
        (
            "gradient = Fraction(len(batch), len(shard)) * ",
            OVER_BATCHES,
            "divides by the number of batches. Divide by the number of points in the batch.",
        ),
        (
            "gradient = Fraction(len(batch), sum(map(len, chain(*shards)))) * ",
            LOOPS,
            "divides by the number of points in the whole dataset. N counts those that this iteration uses.",
        ),
    ],
    "sum(terms, ZERO)": [
        (
            "sum(terms[:1], ZERO)",
            OVER_POINTS,
            "counts the first point only. Loop over all points; a `return` inside the loop ends it early.",
        ),
        (
            "sum(terms[-1:], ZERO)",
            OVER_POINTS,
            "counts the last point only. Set the running total to zero before the loop, not inside it.",
        ),
        ("sum(terms[1:], ZERO)", OVER_POINTS, "leaves out the first point. Count the points from 0."),
        (
            "sum(terms[:-1], ZERO)",
            OVER_POINTS,
            "leaves out the last point. `range(len(data))` already ends before `len(data)`.",
        ),
    ],
    # The loop.
    "weight = m\n": [
        ("weight = ZERO\n", LOOPS, "starts from 0 instead of the weight that it is given. Begin with the argument `m`.")
    ],
    "range(iterations)": [
        (
            "range(iterations + 1)",
            LOOPS,
            "does one iteration too many. Do `iterations` steps: `for i in range(iterations)`.",
        ),
        (
            "range(iterations - 1)",
            LOOPS,
            "does one iteration too few. Do `iterations` steps, and return the weight after the last one.",
        ),
        (
            "range(min(1, iterations))",
            LOOPS,
            "takes a single step. Repeat the step `iterations` times; a `return` inside the loop ends it early.",
        ),
        (
            "range(iterations * len(shards[0]))",
            LOOPS,
            "runs over the whole dataset in every iteration. One iteration is one step.",
        ),
        (
            "range(min(iterations, len(shards[0])))",
            LOOPS,
            "stops at the end of the dataset. After the last {item}, begin again with the first: `i % len(dataset)`.",
        ),
    ],
    "i % len(shard)": [
        ("0", LOOPS, "uses the first {item} in every iteration. Use the next {item} each time: `i % len(dataset)`."),
        ("(i + 1) % len(shard)", LOOPS, "begins with the second {item}. The first iteration uses {item} number 0."),
        (
            "min(i, len(shard) - 1)",
            LOOPS,
            "stays at the last {item} once it is there. Begin again with the first: `i % len(dataset)`.",
        ),
        (
            "-1 - i % len(shard)",
            LOOPS,
            "reads the dataset backwards. Begin with the first {item}, and continue with the next.",
        ),
    ],
    "shard[i % len(shard)]": [
        (
            "[*chain(*shard)]",
            LOOPS,
            "uses the whole dataset in every iteration. Use one {item} in each iteration, in turn.",
        )
    ],
    "lr * ": [("", LOOPS, "leaves out the learning rate. The step is `-gradient * lr`.")],
    "grad_multi(weight, batch)": [
        (
            "grad_multi(m, batch)",
            LOOPS,
            "computes every gradient at the initial weight. Use the weight that the last step left.",
        )
    ],
    # Several workers.
    "sum(gradients, ZERO) / len(gradients)": [
        (
            "sum(gradients, ZERO)",
            DISTRIBUTED,
            "sums the workers' gradients instead of averaging them. Divide the sum by the number of workers.",
        ),
        ("gradients[0]", DISTRIBUTED, "uses the gradient of the first worker only. Average over all workers."),
        ("gradients[-1]", DISTRIBUTED, "uses the gradient of the last worker only. Average over all workers."),
        (
            "sum(gradients, ZERO) / len(gradients) ** 2",
            DISTRIBUTED,
            "divides by the number of workers twice. Average once.",
        ),
    ],
    "gradients.append(gradient)\n        weight = weight - lr * (sum(gradients, ZERO) / len(gradients))": [
        (
            "weight = weight - lr * gradient",
            DISTRIBUTED,
            "lets the workers step one after the other. Take one step, with the average of all their gradients.",
        )
    ],
    # What is done to the result.
    "return weight": [("return weight - m", LOOPS, "returns how far the weight has moved. Return the weight itself.")],
    "return result.": [
        (
            "return result.root().",
            LOSS,
            "takes the root of the mean squared error. Return the mean of the squares itself.",
        ),
        (
            "return floor(result).",
            LOSS + GRADIENTS,
            "divides with `//`. `//` rounds down to a whole number: divide with `/`.",
        ),
        *(
            (
                f"return round(result, {places}).",
                ALL,
                f"rounds what it returns to {places} decimal places. Return the number as it is; the tests round it.",
            )
            for places in range(1, 9)
        ),
    ],
    # Last, because its enclosure is wide.
    "FP64)": [
        (
            "FP32)",
            ALL,
            "computes in single precision. It is right to seven digits. Python's own floats have sixteen: use them.",
        )
    ],
}

#: Tried in this order: what allows for the most is last.
CATALOGUE = tuple(Mistake(right, *mistake) for right, mistakes in _MISTAKES.items() for mistake in mistakes)


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
