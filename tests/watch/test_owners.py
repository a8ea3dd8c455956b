"""Ranks that step shares of the parameters: is there a part of a module that none of them has?"""

import pytest

from conformance.watch import records
from conformance.watch.judging.judge import judged

from .scripts import LINE, gradients, sketches

NAMES = ("first.weight", "first.bias", "second.weight", "second.bias", "third.weight", "third.bias", "head.weight")
SHAPES = ((6, 5), (6,), (4, 6), (4,), (9, 4), (9,), (3, 9))
ALL = frozenset(range(len(NAMES)))


def trained(shares, moves=(), names=NAMES, reached=ALL, unknown=False, still=True, steps=4):
    """The laws that ranks break that each step a share and send it to the others. moves: what is stepped in another
    way. reached: what gets gradients. unknown: no optimizer was ever given what is left over."""
    left = sorted(reached - {number for share in shares for number in share})
    streams = []
    for rank, share in enumerate(shares):
        stream = [records.Began(rank, rank, len(shares), "launch")]
        known = [number for number in range(len(NAMES)) if not unknown or number not in left]
        stream += [records.Parameter(n, list(SHAPES[n]), "float32", 1, names[n]) for n in known]
        stream.append(records.Optimizer(0, "SGD", known))
        stream.append(records.Optimizer(1 + rank, "SGD", [*share]))
        for step in range(steps):
            changing = {number for of_rank in shares for number in of_rank} | {*moves}
            weights = [gradients(7 + (step if n in changing else 0), [SHAPES[n]])[0] for n in known]
            stream.append(records.Weighed(known, sketches(weights)))
            stream.append(records.Backward(step + 1, None, [], None, {"0": step}, False, False, False, LINE))
            computed = [number for number in known if number in reached]
            local = sketches(gradients(step, [SHAPES[n] for n in computed]))
            stream.append(records.Local(step + 1, computed, computed, "float32", local))
            used = sketches(gradients(step, [SHAPES[n] for n in share]))
            stream.append(
                records.Stepped(
                    1 + rank, "SGD", [0.1], [*share], [], False, None, False, False, "float32", [*share], used,
                    [*share], used, LINE,
                )
            )  # fmt: skip
        if unknown:
            unheld = [names[number] for number in left]
            shapes = [[*SHAPES[number]] for number in left]
            stream.append(records.Unheld(unheld, shapes, still=unheld if still else []))
        stream.append(records.Ended())
        streams.append(stream)
    return [cause.first.says.code for (law, _), cause in judged(streams).causes.items() if law == "watch/held"]


@pytest.mark.parametrize(
    ("shares", "options", "expected"),
    [
        (((0, 1), (2, 3), (4, 5)), {}, False),  # a module of its own may stay
        (((0, 1), (2, 3), (4, 6)), {}, True),
        (((0, 1), (2, 3), (4, 6)), {"unknown": True}, True),
        (((0, 1), (2, 3), (4, 6)), {"unknown": True, "still": False}, False),
        (((0, 1), (2, 3), (4, 6)), {"moves": (5,)}, False),  # by hand
        (((0, 1), (2, 3), (4, 6)), {"reached": ALL - {5}}, False),  # frozen
        (((0, 1), (2, 3), (4, 5, 6)), {}, False),
        (((0, 1, 2), (3, 4)), {}, False),  # shares that are not alike
        (((0, 1), (2, 3)), {}, False),  # more is left over than a division leaves
        (((0, 1, 2), (2, 3, 4)), {}, False),  # they step something together
        (((0, 1), (2, 3), (4, 6)), {"names": (*NAMES[:4], None, *NAMES[5:])}, False),
        (((0, 1, 2, 3, 4, 6),), {}, False),  # one process, which leaves a bias out
    ],
)
def test_what_is_left_over(shares, options, expected):
    assert bool(trained(shares, **options)) == expected
