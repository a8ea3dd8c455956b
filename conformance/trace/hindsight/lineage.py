"""Removes copies of the task's model that do not train, and rehearsals, from a trace.

A framework may train a copy of the given model, or compute with one. A target network, a moving average, a teacher or a
probe is a copy too. Only the end of the trace tells them apart: whether the task's own parameters were stepped, and
whether gradients flowed through its own forwards.

Rehearsals (learning-rate finders, sanity checks, searches for a batch size) train the model, then restore weights and
optimizer. Their sign: weights become bit-identical to the first ones, and as many steps as planned follow.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence, Set

from conformance.trace.hindsight.training import FLOWS, Line, without

_STEPS = ("step", "skip")


def without_copies(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines without forwards of models that do not train, and without optimizers' events on copies.

    The first are copies, and models of the task that nothing steps, if gradients flow through another one. Events on
    copies are removed only if the task's own parameters are stepped."""
    stepped = {model for line in lines if line["event"] in _STEPS for model in line.get("of_models", ())}
    marked = [line for line in lines if line.get("copy") or _is_of_another(line, stepped)]
    if not marked and not any("of_models" in line for line in lines):
        return lines
    optimizers = {line["optimizer"] for line in marked if line["event"] == "optimizer"}
    forwards = {line["forward"] for line in marked if line["event"] == "forward"}
    own_steps = _moves(lines, forwards, optimizers) or any(
        line["event"] in _STEPS and line["optimizer"] not in optimizers for line in lines
    )
    reached = {number for line in lines if line["event"] in FLOWS for number in line["forwards"]}
    has_masters = _has_masters(lines, reached - forwards, optimizers) or _waits(lines, reached & forwards)
    if reached and reached <= forwards:
        copies = {line["forward"]: line["of_copy"] for line in marked if "of_copy" in line}
        trained = {copies.get(number) for number in reached}
        trained = trained & _following(lines, copies, optimizers) or trained
        forwards = {number for number, copy in copies.items() if copy not in trained}

    def is_removed(line: Line) -> bool:
        if line["event"] == "forward":
            return line["forward"] in forwards
        return own_steps and (bool(line.get("copy")) or line.get("optimizer") in optimizers)

    if own_steps or has_masters:
        lines = [{**line, "weights": line["own"]} if "own" in line else line for line in lines]
    return without(lines, is_removed, forwards)


def _following(lines: Sequence[Line], copies: Mapping[int, int], optimizers: Set[int]) -> Set[int | None]:
    """The copies that run forward with the weights from the last step of the task's own model."""
    found, stepped = set[int | None](), None
    for line in lines:
        if line["event"] == "step" and line["optimizer"] not in optimizers:
            stepped = line["weights"]
        elif line["event"] == "forward" and stepped is not None and line["weights"] == stepped:
            found.add(copies.get(line["forward"]))
    return found


def _moves(lines: Sequence[Line], others: Set[int], optimizers: Set[int]) -> bool:
    """Whether the weights of the task's own model change in other ways than to the result of these optimizers' steps.

    others: forwards of copies. optimizers: optimizers of copies, including master weights.
    """
    held = stepped = None
    for line in lines:
        if line["event"] in _STEPS and line["optimizer"] in optimizers:
            stepped = line["weights"]
        elif "own" in line or (line["event"] == "forward" and line["forward"] not in others):
            weights = line.get("own", line["weights"])
            if held is not None and weights not in (held, stepped):
                return True
            held = weights
    return False


def _has_masters(lines: Sequence[Line], trains: Set[int], optimizers: Set[int]) -> bool:
    """Whether a forward that ``trains`` uses the weights stepped by one of these optimizers; then the task's own model
    must have these at the end too."""
    stepped = None
    for line in lines:
        if line["event"] in _STEPS and line["optimizer"] in optimizers:
            stepped = line["weights"]
        elif line["event"] == "forward" and line["forward"] in trains and line["weights"] == stepped:
            return True
    return False


def _waits(lines: Sequence[Line], copies: Set[int]) -> bool:
    """Whether the copy that runs forward in ``copies`` would get its last update only in the next window.

    Then nothing is stepped, it ends with its last weights, and the task's own model has weights it never had."""
    used = [line["weights"] for line in lines if line["event"] == "forward" and line["forward"] in copies]
    ended = [line for line in lines if "own" in line and [line["weights"]] == used[-1:] and line["own"] not in used]
    return bool(ended) and not any(line["event"] in _STEPS for line in lines)


def _is_of_another(line: Line, stepped: Set[int]) -> bool:
    """Whether a forward is of a task's model that nothing steps, while another one is stepped."""
    models = line.get("of_models", ()) if line["event"] == "forward" else ()
    return bool(stepped) and bool(models) and stepped.isdisjoint(models)


#: Events that a rehearsal repeats. All others, such as a new model or optimizer, persist.
_REHEARSED = frozenset(
    {
        *("forward", "backward_begin", "backward_end", "autograd_grad", "step", "skip", "state_init"),
        *("loss_scaled", "unscale", "scaler_step", "update", "scale_loss_enter", "scale_loss_exit"),
        *("clip", "norm", "gradient_change", "zero_grad", "schedule", "synchronize"),
    }
)


def without_rehearsals(lines: Sequence[Line], fewest: int, most: int) -> Sequence[Line]:
    """The lines without a rehearsal: without repeated events before a return to the first weights that `fewest` to
    `most` steps follow. Unchanged if the trace has no more than `most` steps."""
    steps = list(_steps(lines))
    if len(steps) <= most:
        return lines
    numbers = [step["seq"] for step in steps]
    returns = (seq for seq in _returns(lines, steps) if fewest <= len(steps) - bisect(numbers, seq) <= most)
    begin = next(returns, -1)
    return without(lines, lambda line: line["seq"] <= begin and _is_rehearsed(line))


def _steps(lines: Sequence[Line]) -> Iterator[Line]:
    """The first step after each run of forwards and backwards, because several optimizers may share the model."""
    has_trained = False
    for line in lines:
        if line["event"] in ("forward", "backward_begin"):
            has_trained = True
        elif line["event"] in ("step", "skip") and has_trained and not line.get("idle"):
            yield line
            has_trained = False


def _returns(lines: Sequence[Line], steps: Sequence[Line]) -> Iterator[int]:
    """The last `seq` before each forward whose weights have returned to those of the first forward."""
    forwards = [line for line in lines if line["event"] == "forward"]
    weights, numbers = forwards[0].get("weights") if forwards else None, [line["seq"] for line in forwards]
    has_moved = False
    for step in steps:
        has_moved |= step.get("weights") not in (None, weights)
        following = bisect(numbers, step["seq"])
        if weights and has_moved and following < len(forwards) and forwards[following].get("weights") == weights:
            yield numbers[following] - 1


def _is_rehearsed(line: Line) -> bool:
    return line["event"] in _REHEARSED and not line.get("initial")
