"""Optimizer steps, seen through torch's global step hooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.trace.observers.horovod import synchronizes
from conformance.trace.state.watched import Found, Watched, held_by
from conformance.trace.values import Number, own_part

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


@dataclass
class _Running:
    """A step that has begun and has not ended. Steps nest: Horovod's calls that of the class it wraps."""

    caller: FrameType
    parameters: Found | None
    numbers: list[int]
    synchronizes: bool | None
    doing: ExitStack = field(default_factory=ExitStack)
    gradients: list[Number] | None = None
    is_applied: bool = True


class OptimizerSteps:
    """Notes one `step` for each outermost step, with the gradients that the innermost one saw."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._running: list[_Running] = []
        self._foreign: list[torch.optim.Optimizer] = []

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Torch's global pre-hook; `args` begins with the optimizer."""
        caller = sys._getframe(1)
        self._forget_interrupted(caller)
        recorder = self._recorder
        parameters = recorder.watched.find(optimizer)
        numbers = [] if parameters is None else recorder.watched.numbers(held_by(optimizer))
        step = _Running(caller, parameters, numbers, synchronizes(optimizer))
        step.doing.enter_context(recorder.doing("step"))
        self._running.append(step)
        if parameters is None:
            self._note_foreign(optimizer)
            return None
        recorder.optimizer(optimizer)
        self._read(optimizer, parameters)
        return self._with_reading_closure(optimizer, parameters, args, kwargs)

    def after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's global post-hook."""
        ended = self._running.pop()
        ended.doing.close()
        if ended.parameters is None or any(step.parameters is not None for step in self._running):
            return
        recorder = self._recorder
        recorder.watched.stepped(ended.parameters)
        recorder.progress.stepped()
        if not ended.is_applied:
            return
        if recorder.forwards == 0 and not _any(ended):
            recorder.note("state_init", weights=recorder.watched.weights())
        else:
            recorder.note_topology()
            recorder.note(
                "step",
                step=recorder.steps,
                forwards=recorder.forwards,
                gradients=ended.gradients,
                weights=recorder.watched.weights(),
                lr=_learning_rate(optimizer, recorder.watched),
                scale=recorder.scale,
                optimizer=recorder.optimizer(optimizer),
                parameters=ended.numbers,
                synchronizes=ended.synchronizes,
            )
            recorder.steps += 1
        recorder.gradients.known()

    def _read(self, optimizer: torch.optim.Optimizer, parameters: Found) -> None:
        # Many to look at, the gradients of a large model were when its scaler's step began.
        if self._recorder.scale is None or self._recorder.watched.is_readable:
            self._recorder.gradients.look()
        # A fused optimizer is handed the scale and the overflow flag by GradScaler, and does the rest in its
        # kernel.
        scale = getattr(optimizer, "grad_scale", None)
        overflow = getattr(optimizer, "found_inf", None)
        outermost = next(step for step in self._running if step.parameters is not None)
        outermost.gradients = self._recorder.watched.gradients(parameters, scale, only=outermost.numbers)
        outermost.is_applied = overflow is None or not bool(overflow)

    def _with_reading_closure(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Found,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """With a closure, gradients exist only once it ran: the step gets one that reads them then."""
        closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            return None

        def reading_closure() -> Any:
            result = closure()
            self._read(optimizer, parameters)
            return result

        if len(args) > 1:
            return (args[0], reading_closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": reading_closure}

    def _forget_interrupted(self, caller: FrameType) -> None:
        """Drop steps that never ended because something in them raised: their frames are not being
        executed."""
        if not self._running:
            return
        alive = set()
        frame: FrameType | None = caller
        while frame is not None:
            alive.add(frame)
            frame = frame.f_back
        for step in self._running:
            if step.caller not in alive:
                step.doing.close()
        self._running = [step for step in self._running if step.caller in alive]

    def _note_foreign(self, optimizer: torch.optim.Optimizer) -> None:
        if any(known is optimizer for known in self._foreign):
            return
        self._foreign.append(optimizer)
        shapes = [list(parameter.shape) for parameter in held_by(optimizer)]
        self._recorder.note("foreign_optimizer", optimizer=type(optimizer).__name__, shapes=shapes)


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer in a framework's wrapper, which poses as one itself and keeps it under this name."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _any(step: _Running) -> bool:
    if step.gradients is not None:
        return any(step.gradients)
    gradients = [parameter.grad for parameter in step.parameters or () if parameter is not None]
    return any(bool(own_part(gradient).any()) for gradient in gradients if gradient is not None)


def _learning_rate(optimizer: torch.optim.Optimizer, watched: Watched) -> float | None:
    for group in optimizer.param_groups:
        if any(map(watched.knows, group["params"])):
            rate = group.get("lr")
            return None if rate is None else float(rate)
    return None


@contextmanager
def observing_steps(recorder: Recorder) -> Iterator[None]:
    """Have every torch optimizer's steps noted."""
    steps = OptimizerSteps(recorder)
    before = register_optimizer_step_pre_hook(steps.before)
    after = register_optimizer_step_post_hook(steps.after)
    try:
        yield
    finally:
        before.remove()
        after.remove()
