"""Backward passes that accumulate gradients, seen where autograd calls its engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import begins_at, engine_calls
from conformance.trace.state.flow import Reached
from conformance.trace.state.loss_scale import carried


def observe(recording: Recording) -> Seams:
    """Records `backward_begin`, `backward_end` and `autograd_grad`.

    Without `accumulate_grad` a call of the engine is `torch.autograd.grad`'s; a backward within a backward belongs to
    checkpointing.
    """

    def run(original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if recording.is_inside("backward"):
            return original(tensors, *args, **kwargs)
        if kwargs.get("accumulate_grad"):
            with recording.accounting():
                return accumulate(original, tensors, *args, **kwargs)
        reached: dict[int, Reached] = {}
        with recording.flow.backward(reached):
            result = original(tensors, *args, **kwargs)
        if reached:
            recording.has_gradients = True
            recording.note("autograd_grad", forwards=sorted(reached))
        return result

    def accumulate(original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        root = begins_at(tensors)
        number = recording.backwards
        recording.backwards += 1
        recording.has_gradients = True
        recording.note(
            "backward_begin",
            backward=number,
            root=recording.graphs.number(root),
            **({"contains": contained} if (contained := recording.graphs.contained(root)) else {}),
            syncs=recording.wrappers.syncs,
            gradients=recording.gradients.state(),
        )
        # Before the engine frees what the graph has saved.
        scaled = carried(root, recording.numbers.alive("scaler"))
        recording.recomputed.clear()
        reached: dict[int, Reached] = {}
        with recording.inside("backward"), recording.flow.backward(reached):
            result = original(tensors, *args, **kwargs)
        forwards = sorted(reached)
        recording.note(
            "backward_end",
            backward=number,
            forwards=forwards,
            scaled=scaled,
            outputs=[reached[forward].outputs for forward in forwards],
            output_gradients=[reached[forward].gradients for forward in forwards],
            **({"recomputed": [*recording.recomputed]} if recording.recomputed else {}),
        )
        return result

    yield from engine_calls(run)
