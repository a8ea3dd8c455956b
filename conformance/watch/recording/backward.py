"""Records backward passes where autograd calls its engine."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import begins_at, engine_calls, registrations
from conformance.trace.state.graphs import carried
from conformance.watch import records
from conformance.watch.recording import losses
from conformance.watch.recording.exchanges import Reduced
from conformance.watch.recording.holdings import is_plain
from conformance.watch.recording.inputs import Inputs
from conformance.watch.recording.leaves import Leaves
from conformance.watch.recording.losses import Again
from conformance.watch.recording.masters import Masters
from conformance.watch.recording.output import later
from conformance.watch.recording.partitions import gathered
from conformance.watch.recording.recording import Recording, frames
from conformance.watch.recording.unheld import Coverage
from conformance.watch.recording.weights import Moving, note_weights


def observe(recording: Recording, leaves: Leaves, inputs: Inputs, moving: Moving, reduced: Reduced) -> Seams:
    """Notes `Backward` before each outermost call of the engine that accumulates gradients."""
    passes = _Passes(recording, leaves, inputs, moving, reduced)
    yield from registrations(passes.coverage.see_replaced)
    yield replaced(torch.autograd, "backward", passes.begin)
    yield from engine_calls(passes.run)


class _Passes:
    """Wraps the engine's calls. times: the factor from `gradient=`, which the graph does not show."""

    def __init__(self, recording: Recording, leaves: Leaves, inputs: Inputs, moving: Moving, reduced: Reduced) -> None:
        self._recording, self._leaves, self._inputs, self._reduced = recording, leaves, inputs, reduced
        self._again, self.coverage, self._moving = Again(), Coverage(recording), moving
        self._masters = Masters(recording)
        self._times: float | None = 1.0

    def begin(self, original: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._times = _times(grad_tensors if isinstance(grad_tensors, (tuple, list)) else [grad_tensors])
        try:
            return original(tensors, grad_tensors, *args, **kwargs)
        finally:
            self._times = 1.0

    def run(self, original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        recording = self._recording
        if torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        if recording.gives_up():
            self._leaves.disarm()
            return original(tensors, *args, **kwargs)
        if recording.is_inside("backward"):
            if kwargs.get("accumulate_grad"):
                return original(tensors, *args, **kwargs)
            # A node computes gradients, such as for activation checkpointing, and may or may not pass them on.
            with recording.inside("node"):
                return original(tensors, *args, **kwargs)
        with recording.occupied():
            self._leaves.close()
            if kwargs.get("accumulate_grad"):
                self._masters.look(begins_at(tensors))
            if recording.is_looking:
                self._leaves.arm()
            else:
                self._leaves.disarm()
            if kwargs.get("accumulate_grad"):
                return self._backward(original, tensors, *args, **kwargs)
            try:
                with recording.inside("grad"):
                    return original(tensors, *args, **kwargs)
            finally:
                self._leaves.close()

    def _backward(self, original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        recording, root = self._recording, begins_at(tensors)
        hooks = [hook for one in tensors for hook in (getattr(one, "_backward_hooks", None) or {}).values()]
        times, self._times = None if any(map(_may_multiply, hooks)) else self._times, 1.0
        calls = recording.own_calls()
        self.coverage.look(root, calls)
        note_weights(recording, calls)
        self._moving.begin()
        recording.backwards += 1
        recording.seen = recording.versions()
        loss = losses.of(root, times)
        # With a factor from `gradient=`, it is another loss.
        is_kept = bool((*args[1:2], False)[0])
        recording.note(
            records.Backward(
                backward=recording.backwards,
                scale=carried(root, recording.numbers.alive("scaler")),
                versions=recording.seen,
                contains=times == 1.0 and self._again.contains(root),
                site=recording.site(),
                calls=_calls(),
                is_alike=self._again.is_alike(root if times == 1.0 else None, is_kept=is_kept),
                is_cut_off=self._again.is_cut_off(root, tensors),
                waits=any(not getattr(one, "require_backward_grad_sync", True) for one in [*recording.wrappers]),
                own_calls=calls,
                global_divisors=self._reduced.among(loss.divisors),
                is_of_all=any(hasattr(one, "placements") for one in tensors),
                value=None if (number := _number(tensors)) is None else later(float, number),
                exchanged=self._exchanged(tensors, loss),
                **vars(loss),
                **self._inputs.seen(),
            )
        )
        self._inputs.begin()
        try:
            with recording.inside("backward"), gathered(recording, self._leaves.see, root):
                return original(tensors, *args, **kwargs)
        finally:
            self._leaves.end()

    def _exchanged(self, tensors: Sequence[Any], loss: losses.Loss) -> int:
        """The numbers in collectives before this pass; 0 if they made no common loss, but an average of own losses."""
        exchanged = self._recording.given.since()
        one = _number(tensors) if exchanged else None
        return 0 if one is not None and self._reduced.is_of_ranks(one, loss.factors) else exchanged


def _number(tensors: Sequence[Any]) -> torch.Tensor | None:
    """The loss; None if it is not one plain number."""
    [one, *others] = tensors
    is_number = not others and is_plain(one) and one.numel() == 1 and not one.is_complex()
    return one.detach() if is_number else None


def _times(given: Sequence[Any]) -> float | None:
    """The factor from `gradient=`; None if it is not a single number."""
    if all(one is None for one in given):
        return 1.0
    [one, *others] = given
    # Reading it on another device would wait for this device.
    is_here = not others and type(one) is torch.Tensor and one.device.type == "cpu" and one.is_floating_point()
    return float(one) if is_here and one.numel() == 1 and not one.requires_grad else None


def _may_multiply(hook: Any) -> bool:
    """Whether a hook may change a loss. DeepSpeed's hook only marks backward passes of its engine."""
    return (getattr(hook, "__module__", None) or "").partition(".")[0] != "deepspeed"


def _calls() -> int:
    """A fingerprint of the stack of calls, equal in all processes."""
    lines = [f"{one.f_code.co_filename}:{one.f_lasti}" for one in frames(sys._getframe(1))]
    return zlib.crc32("\n".join(lines).encode(errors="backslashreplace"))
