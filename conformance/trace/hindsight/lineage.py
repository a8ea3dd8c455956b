"""A trace without copies of the task's model that are not what trains, and without rehearsals.

A framework may train a copy of the model that it was given, or compute with one. A target network, a moving average, a
teacher or a probe is a copy as well. What tells them apart shows at the end: whether the task's own parameters were
stepped, and whether gradients flowed through its own forwards.

Learning-rate finders, sanity checks and searches for a batch size train the model itself for a while, and restore its
weights and its optimizer afterwards. It shows in weights that are bit-identical to those of the beginning, and in as
many steps from there on as are planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from conformance.trace.hindsight.training import FLOWS, Line, without

_STEPS = ("step", "skip")


def without_copies(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines without the forwards of copies, and of models of the task's that nothing steps, where gradients flow
    through the one that trains, which may be another copy; and without what optimizers do to copies, where the task's
    own parameters are stepped."""
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

    def is_beside(line: Line) -> bool:
        if line["event"] == "forward":
            return line["forward"] in forwards
        return own_steps and (bool(line.get("copy")) or line.get("optimizer") in optimizers)

    if own_steps or has_masters:
        lines = [{**line, "weights": line["own"]} if "own" in line else line for line in lines]
    return without(lines, is_beside, forwards)


def _following(lines: Sequence[Line], copies: Mapping[int, int], optimizers: Set[int]) -> Set[int | None]:
    """The copies that go forward with the weights to which the task's own model was last stepped."""
    found, stepped = set[int | None](), None
    for line in lines:
        if line["event"] == "step" and line["optimizer"] not in optimizers:
            stepped = line["weights"]
        elif line["event"] == "forward" and stepped is not None and line["weights"] == stepped:
            found.add(copies.get(line["forward"]))
    return found


def _moves(lines: Sequence[Line], others: Set[int], optimizers: Set[int]) -> bool:
    """Whether the weights of the task's own model change otherwise than to what one of these optimizers has stepped.

    others: the forwards of copies. optimizers: those that step copies; master weights are such a copy.
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
    """Whether a forward that ``trains`` computes with what one of these optimizers has stepped: then that is to come
    back to the task's own model at the end too."""
    stepped = None
    for line in lines:
        if line["event"] in _STEPS and line["optimizer"] in optimizers:
            stepped = line["weights"]
        elif line["event"] == "forward" and line["forward"] in trains and line["weights"] == stepped:
            return True
    return False


def _waits(lines: Sequence[Line], copies: Set[int]) -> bool:
    """Whether nothing is stepped, and the copy that goes forward in ``copies`` ends as it last did: it would get what
    came of that in the next window only, and the task's own model has weights that the copy never had."""
    used = [line["weights"] for line in lines if line["event"] == "forward" and line["forward"] in copies]
    ended = [line for line in lines if "own" in line and [line["weights"]] == used[-1:] and line["own"] not in used]
    return bool(ended) and not any(line["event"] in _STEPS for line in lines)


def _is_of_another(line: Line, stepped: Set[int]) -> bool:
    """Whether a forward is of a model that the task handed out and that nothing steps, beside one that is stepped."""
    models = line.get("of_models", ()) if line["event"] == "forward" else ()
    return bool(stepped) and bool(models) and stepped.isdisjoint(models)


#: What is done over again. All else, such as a model or an optimizer, is there from then on.
_REHEARSED = frozenset(
    {
        *("forward", "backward_begin", "backward_end", "autograd_grad", "step", "skip", "state_init"),
        *("loss_scaled", "unscale", "scaler_step", "update", "scale_loss_enter", "scale_loss_exit"),
        *("clip", "norm", "gradient_change", "zero_grad", "schedule", "synchronize"),
    }
)


def without_rehearsals(lines: Sequence[Line], fewest: int, most: int) -> Sequence[Line]:
    """The lines without what came before a return to the first weights, from which on there are from `fewest` to `most`
    steps. A trace without more steps than that is left as it is."""
    steps = list(_steps(lines))
    if len(steps) <= most:
        return lines
    returns = (seq for seq in _returns(lines, steps) if fewest <= sum(step["seq"] > seq for step in steps) <= most)
    begin = next(returns, -1)
    return without(lines, lambda line: line["seq"] <= begin and _is_rehearsed(line))


def _steps(lines: Sequence[Line]) -> Iterator[Line]:
    """The first step after forwards or backwards: several optimizers may share the model."""
    has_trained = False
    for line in lines:
        if line["event"] in ("forward", "backward_begin"):
            has_trained = True
        elif line["event"] in ("step", "skip") and has_trained and not line.get("idle"):
            yield line
            has_trained = False


def _returns(lines: Sequence[Line], steps: Sequence[Line]) -> Iterator[int]:
    """Where the weights have become those of the first forward again: the last `seq` before these forwards."""
    forwards = [line for line in lines if line["event"] == "forward"]
    weights = forwards[0].get("weights") if forwards else None
    has_moved = False
    for step in steps:
        has_moved |= step.get("weights") not in (None, weights)
        following = next((forward for forward in forwards if forward["seq"] > step["seq"]), None)
        if weights and has_moved and following is not None and following.get("weights") == weights:
            yield following["seq"] - 1


def _is_rehearsed(line: Line) -> bool:
    return line["event"] in _REHEARSED and not line.get("initial")
