"""A trace without some of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

from conformance.trace.hindsight.training import Line

FLOWS = ("backward_end", "autograd_grad")
"""Lines that name the forwards that gradients flow through."""


_MARKS = ("copy", "of_copy", "of_models", "own")
"""What the recorder writes for hindsight alone."""


def without(lines: Sequence[Line], is_left_out: Callable[[Line], bool], forwards: Set[int] = frozenset()) -> list[Line]:
    """The lines that are not left out. `forwards`: those to which others no longer refer."""
    return list(_renumbered(lines, is_left_out, forwards))


def _renumbered(lines: Sequence[Line], is_left_out: Callable[[Line], bool], forwards: Set[int]) -> Iterator[Line]:
    last, since, steps = -1, {-1: -1}, 0
    for line in lines:
        if not is_left_out(line):
            changed: dict[str, Any] = {name: value for name, value in line.items() if name not in _MARKS}
            if line["event"] in FLOWS:
                changed["forwards"] = [number for number in line["forwards"] if number not in forwards]
            elif line["event"] == "gradient_change":
                changed["since"] = since[line["since"]]
            elif line["event"] == "step":
                changed["step"] = steps
                steps += 1
            last = line["seq"]
            yield changed
        since[line["seq"]] = last
