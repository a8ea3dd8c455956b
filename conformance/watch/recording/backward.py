"""Backward passes, seen where autograd calls its engine."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import begins_at, engine_calls
from conformance.trace.state.graphs import carried
from conformance.watch import records
from conformance.watch.recording import losses
from conformance.watch.recording.adjusting import Moving
from conformance.watch.recording.coverage import Coverage
from conformance.watch.recording.exchanges import Reduced
from conformance.watch.recording.inputs import Inputs, Loading
from conformance.watch.recording.leaves import Leaves
from conformance.watch.recording.losses import Again, CutOff
from conformance.watch.recording.partitions import Gathered
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.weights import note_weights


def observe(
    recording: Recording, leaves: Leaves, inputs: Inputs, loading: Loading, moving: Moving, reduced: Reduced
) -> Seams:
    """Notes `Backward` before each outermost call of the engine that accumulates gradients."""
    again, coverage, gathered = Again(), Coverage(recording), Gathered(recording, leaves.see)
    cut_off = CutOff()

    def run(original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        if recording.gives_up():
            leaves.disarm()
            return original(tensors, *args, **kwargs)
        if recording.is_inside("backward"):
            if kwargs.get("accumulate_grad"):
                return original(tensors, *args, **kwargs)
            # A node asks for gradients, as to compute activations again, and passes them on to the leaves or not.
            recording.in_node += 1
            try:
                return original(tensors, *args, **kwargs)
            finally:
                recording.in_node -= 1
        with recording.occupied():
            return backward(original, tensors, *args, **kwargs)

    def backward(original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        leaves.close()
        if recording.is_looking:
            leaves.arm()
        else:
            leaves.disarm()
        if not kwargs.get("accumulate_grad"):
            recording.in_grad += 1
            try:
                return original(tensors, *args, **kwargs)
            finally:
                recording.in_grad -= 1
                leaves.close()
        root = begins_at(tensors)
        # What it is multiplied with then, does not show in the graph.
        times = given.pop("times", 1.0)
        if any(
            _may_multiply(hook) for one in tensors for hook in (getattr(one, "_backward_hooks", None) or {}).values()
        ):
            times = None
        is_given = times != 1.0
        divided = losses.of(root, times)
        calls = recording.own_calls()
        coverage.look(root, calls)
        note_weights(recording, calls)
        moving.begin()
        recording.backwards += 1
        recording.seen = recording.versions()
        recording.note(
            records.Backward(
                recording.backwards,
                carried(root, recording.numbers.alive("scaler")),
                divided.factors,
                divided.targets,
                recording.seen,
                not is_given and again.contains(root),
                bool(args[2]) if len(args) > 2 else False,
                inputs.probe,
                recording.site(),
                divided.summed,
                loading.loader,
                _calls(),
                divided.of_any,
                divided.divisors,
                loading.batches,
                inputs.evaluates,
                again.is_alike(None if is_given else root, is_kept=bool(args[1]) if len(args) > 1 else False),
                loading.draws,
                divided.terms,
                cut_off.sees(root, tensors),
                inputs.evaluated,
                sorted(loading.samplers),
                divided.is_hidden,
                divided.of_terms,
                divided.ignored,
                any(not getattr(one, "require_backward_grad_sync", True) for one in [*recording.wrappers]),
                calls,
                divided.made_by,
                reduced.among(divided.divisors),
            )
        )
        inputs.begin()
        try:
            with recording.inside("backward"), gathered.followed(root):
                return original(tensors, *args, **kwargs)
        finally:
            leaves.end()

    def begin(original: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        several = grad_tensors if isinstance(grad_tensors, (tuple, list)) else [grad_tensors]
        given["times"] = _times(several)
        try:
            return original(tensors, grad_tensors, *args, **kwargs)
        finally:
            given.clear()

    given: dict[str, float | None] = {}
    yield replaced(torch.autograd, "backward", begin)
    yield from engine_calls(run)


def _times(given: Sequence[Any]) -> float | None:
    """What `gradient=` multiplies a loss with; None if it is no single number."""
    if all(one is None for one in given):
        return 1.0
    [one, *others] = given
    # To read it on another device would wait for that.
    is_here = not others and type(one) is torch.Tensor and one.device.type == "cpu" and one.is_floating_point()
    return float(one) if is_here and one.numel() == 1 and not one.requires_grad else None


def _may_multiply(hook: Any) -> bool:
    """DeepSpeed's own only marks the backward pass as one of its engine's."""
    return (getattr(hook, "__module__", None) or "").partition(".")[0] != "deepspeed"


def _calls() -> int:
    """A fingerprint of all calls that led here, equal in all processes."""
    frame: FrameType | None = sys._getframe(1)
    lines = []
    while frame is not None:
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return zlib.crc32("\n".join(lines).encode(errors="backslashreplace"))
