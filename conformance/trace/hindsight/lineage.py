"""A trace without the events of copies of the task's model that are not what trains.

A framework may train a copy of the model that it was given, or compute with one. A target network, a moving average, a
teacher or a probe is a copy as well. What tells them apart shows at the end: whether the task's own parameters were
stepped, and whether gradients flowed through its own forwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.trace.hindsight.omission import FLOWS, without
from conformance.trace.hindsight.training import Line

_STEPS = ("step", "skip")


def without_copies(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines without the forwards of copies, where gradients flow through the task's own model, and without what
    optimizers do to copies, where the task's own parameters are stepped."""
    marked = [line for line in lines if line.get("copy")]
    if not marked:
        return lines
    optimizers = {line["optimizer"] for line in marked if line["event"] == "optimizer"}
    own_steps = any(line["event"] in _STEPS and line["optimizer"] not in optimizers for line in lines)
    forwards = {line["forward"] for line in marked if line["event"] == "forward"}
    reached = {number for line in lines if line["event"] in FLOWS for number in line["forwards"]}
    own_trains = bool(reached - forwards) or reached.isdisjoint(forwards)

    def is_beside(line: Line) -> bool:
        if line["event"] == "forward":
            return own_trains and line["forward"] in forwards
        return own_steps and (bool(line.get("copy")) or line.get("optimizer") in optimizers)

    return without(lines, is_beside, forwards if own_trains else frozenset())
