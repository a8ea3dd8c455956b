"""Finds the forwards that train, through which gradients flow to a step, and removes lines from a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, TypeAlias

from conformance.trace.hindsight.position import Rows

Line: TypeAlias = Mapping[str, Any]


def forwarded(lines: Sequence[Line]) -> dict[int, Rows]:
    """The rows of each forward, by its number."""
    return {line["forward"]: tuple(line["rows"]) for line in lines if line["event"] == "forward"}


def steps_by_hand(lines: Sequence[Line]) -> set[int]:
    """The indices of lines before which weights changed, for a rank that never steps a torch optimizer; else empty."""
    if any(line["event"] == "step" for line in lines):
        return set()
    shown = [
        (index, line["weights"])
        for index, line in enumerate(lines)
        if line["event"] in ("forward", "finished") and line.get("weights") is not None
    ]
    return {index for (_, before), (index, weights) in pairwise(shown) if weights != before}


def trained(lines: Sequence[Line]) -> set[int]:
    """The forwards through which gradients flow to a step.

    A step without an earlier backward uses all forwards since the last step, because its gradients were made without
    autograd. If a rank did not finish, or only ran forwards, the last forwards count without a backward.

    Not counted: forwards of rows that are no samples, if no step uses their gradients and other forwards have samples
    (warm-ups, or another model's loss that flows through this one); forwards that only `autograd.grad` reaches, if
    backwards make all gradients (measurements).
    """
    rows = forwarded(lines)
    reached, unused = _reached(lines)
    reached -= _measured(lines)
    others = {number for number in reached if all(row is None for row in rows[number])}
    return reached - (others & unused) if reached - others else reached


def _measured(lines: Sequence[Line]) -> set[int]:
    """The forwards that only `autograd.grad` reached, if the rank runs backwards and sets no gradients by hand."""
    by_backward, by_function = (
        {number for line in lines if line["event"] == name for number in line["forwards"]}
        for name in ("backward_end", "autograd_grad")
    )
    puts_others = any(line["event"] == "gradient_change" and line["factor"] is None for line in lines)
    return by_function - by_backward if by_backward and not puts_others else set()


def _reached(lines: Sequence[Line]) -> tuple[set[int], set[int]]:
    """The forwards through which gradients flow, and those of them whose gradients no step used."""
    reached, stepped, waiting = set[int](), set[int](), set[int]()
    since: list[int] = []
    has_gradients = has_trained = False
    for line in lines:
        kind = line["event"]
        if kind == "forward":
            since.append(line["forward"])
        elif kind in ("backward_end", "autograd_grad"):
            has_gradients = has_trained = True
            reached.update(line["forwards"])
            waiting.update(line["forwards"])
        elif kind == "zero_grad" or (kind == "backward_begin" and line.get("gradients") in ("none", "zero")):
            # Earlier backwards have left no gradients, perhaps because the model was frozen.
            waiting.clear()
        elif kind in ("step", "skip"):
            if not has_gradients:
                reached.update(since)
                stepped.update(since)
            stepped |= waiting
            since.clear()
            has_gradients, has_trained = False, True
    if not has_trained or lines[-1]["event"] != "finished":
        stepped |= waiting
        if reached.isdisjoint(since):
            reached.update(since)
            stepped.update(since)
    return reached, reached - stepped


FLOWS = ("backward_end", "autograd_grad")
"""Events that name the forwards through which gradients flow."""


_MARKS = ("copy", "of_copy", "of_models", "own")
"""Fields that the recorder writes only for hindsight."""


def without(lines: Sequence[Line], is_left_out: Callable[[Line], bool], forwards: Set[int] = frozenset()) -> list[Line]:
    """The lines except those left out, without references to the removed `forwards`."""
    kept: list[Line] = []
    since, steps = {-1: -1}, 0
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
            kept.append(changed)
        since[line["seq"]] = kept[-1]["seq"] if kept else -1
    return kept
