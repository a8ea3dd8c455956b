"""Backward passes, seen where autograd calls its engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.graphs import Graphs
from conformance.trace.state.loss_scale import carried
from conformance.watch import records
from conformance.watch.recording.inputs import Inputs
from conformance.watch.recording.leaves import Leaves
from conformance.watch.recording.recording import Recording

_MOST_FACTORS = 4
_MOST_PASSED = 64


def observe(recording: Recording, leaves: Leaves, inputs: Inputs) -> Seams:
    """Notes `Backward` before each outermost call of the engine that accumulates gradients."""
    graphs = Graphs()

    def run(original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if "backward" in recording.inside or torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        leaves.close()
        leaves.arm()
        if not kwargs.get("accumulate_grad"):
            recording.in_grad += 1
            try:
                return original(tensors, *args, **kwargs)
            finally:
                recording.in_grad -= 1
                leaves.close()
        root = _node(tensors)
        number = graphs.number(root)
        recording.backwards += 1
        recording.note(
            records.Backward(
                recording.backwards,
                carried(root, recording.numbers.alive("scaler")),
                factors(root),
                recording.parameters.version(),
                number in passed or bool(graphs.contained(root)),
                bool(args[2]) if len(args) > 2 else False,
                inputs.probe,
                recording.site(),
            )
        )
        passed.append(number)
        inputs.begin()
        recording.inside.append("backward")
        try:
            return original(tensors, *args, **kwargs)
        finally:
            recording.inside.remove("backward")
            leaves.close()

    passed: deque[int] = deque(maxlen=_MOST_PASSED)
    yield replaced(torch.autograd, "_engine_run_backward", run)


def factors(root: Any) -> list[float]:
    """The numbers that a loss was multiplied with last, as its graph shows: 0.25 for `loss / 4`."""
    found: list[float] = []
    node = root
    while node is not None and len(found) < _MOST_FACTORS:
        factor = _factor(node)
        if factor is None:
            break
        found.append(factor)
        node = next((following for following, _ in node.next_functions if following is not None), None)
    return found


def _factor(node: Any) -> float | None:
    name = node.name()
    if name not in ("DivBackward0", "MulBackward0"):
        return None
    try:
        values = [getattr(node, f"_saved_{which}") for which in ("other",) if hasattr(node, f"_saved_{which}")]
        if name == "MulBackward0":
            values += [node._saved_self]
    except RuntimeError:
        # Freed by a backward before, so this one will fail and say so.
        return None
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.numel() != 1 or value.requires_grad:
                continue
            value = value.item()
        if isinstance(value, (int, float)) and value:
            return 1 / value if name == "DivBackward0" else float(value)
    return None


def _node(tensors: Sequence[Any]) -> Any:
    """The node of the graph where a backward begins, unless it is a leaf. `tensors` may also be `GradientEdge`s."""
    nodes = (tensor.grad_fn if isinstance(tensor, torch.Tensor) else tensor.node for tensor in tensors)
    return next((node for node in nodes if node is not None), None)
