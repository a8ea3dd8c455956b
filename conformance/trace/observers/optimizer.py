"""Observes optimizer steps with torch's global step hooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import torch

from conformance.trace.emit import Recording, note_skip
from conformance.trace.seams.guarding import caller, harmless
from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.seams.probes import optimizer_steps
from conformance.trace.state import deepspeed
from conformance.trace.state.optimizer_state import Parted, bytes_kept, dtypes_kept, held_by
from conformance.trace.state.topology import synchronizes
from conformance.trace.state.watched import Found, Watched
from conformance.trace.tensor_values import Number, own_part

_set_compiler: Any = torch._C._dynamo.eval_frame.set_eval_frame


def observe(recording: Recording) -> Seams:
    """Records the steps of every torch optimizer."""
    steps = _Steps(recording)
    yield from optimizer_steps(steps.before, steps.after)
    for module, name in deepspeed.WRAPPERS.items():
        yield when_imported(module, partial(_seams_of_wrapper, steps, name))


def _seams_of_wrapper(steps: _Steps, name: str, module: ModuleType) -> Seams:
    yield replaced(getattr(module, name), "step", steps.in_parts)


@dataclass
class _Running:
    """A step in progress. Steps nest: Horovod's step calls that of the class it wraps.

    has_begun: the step of the optimizer's class runs. lasting: contexts and callbacks that end with the step.
    """

    caller: FrameType | None
    optimizer: torch.optim.Optimizer
    parameters: Found | None
    numbers: list[int]
    synchronizes: bool | None
    has_begun: bool = False
    lasting: ExitStack = field(default_factory=ExitStack)
    gradients: list[Number] | None = None
    offered: list[Number] | None = None
    is_applied: bool = True
    weights: list[Number] | None = None
    dtypes: list[str] = field(default_factory=list)
    unfinished: dict[str, list[int]] = field(default_factory=dict)
    scalars_in_tensors: bool = False
    stepped: list[torch.optim.Optimizer] = field(default_factory=list)

    def steps(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is the step of a wrapper around this optimizer that steps it in parts."""
        return isinstance(self.optimizer, Parted) and self.optimizer.inner is optimizer

    def begin(self, doing: AbstractContextManager[None]) -> None:
        """Mark the class's step as running, and keep `doing` entered until it ends."""
        self.has_begun = True
        self.lasting.enter_context(doing)


class _Steps:
    """Notes one `step` for each outermost step, with the gradients that the innermost one saw."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._here = threading.local()
        self._parted: dict[int, tuple[object, Parted | None]] = {}

    @property
    def _running(self) -> list[_Running]:
        """The steps in progress in this thread, outermost first."""
        steps: list[_Running] = vars(self._here).setdefault("steps", [])
        return steps

    def in_parts(self, original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        """The `around` of a wrapper's step, in which its optimizer steps parts of masters, perhaps group by group."""
        here, known = sys._getframe(), self._parted
        if id(wrapper) not in known:
            # Keeping the wrapper alive prevents reuse of its identity.
            known[id(wrapper)] = wrapper, deepspeed.parted(wrapper, self._recording.watched)
        _, optimizer = known[id(wrapper)]
        if optimizer is None:
            return original(wrapper, *args, **kwargs)
        optimizer.take()
        self._begin(optimizer, here).begin(self._recording.inside("step"))
        scale = deepspeed.loss_scale(wrapper)
        with self._recording.scaled_by(scale):
            result = original(wrapper, *args, **kwargs)
            if deepspeed.has_skipped(wrapper):
                self._running.pop().lasting.close()
                note_skip(self._recording, optimizer, scale, are_cleared=True)
            else:
                self.after(optimizer, args, kwargs)
            if scale is not None:
                self._note_update(wrapper, scale)
        return result

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Torch's global pre-hook; `args` starts with the optimizer."""
        step = self._begin(optimizer, caller(sys._getframe()))
        if step.parameters is None:
            return None
        _have_bases_hooked(type(optimizer))
        # Torch calls the optimizer's own pre-hooks after the global ones. They may still average, clip or unscale.
        last = optimizer.register_step_pre_hook(harmless(partial(self._last, step), __name__))
        step.lasting.callback(last.remove)
        return None

    def _begin(self, optimizer: torch.optim.Optimizer, running: FrameType | None) -> _Running:
        self._forget_interrupted(running)
        recording = self._recording
        outer = next((step for step in self._running if step.steps(optimizer)), None)
        parameters = recording.watched.find(optimizer) if outer is None else None
        numbers = [] if parameters is None else recording.watched.numbers(held_by(optimizer))
        step = _Running(running, optimizer, parameters, numbers, synchronizes(optimizer))
        self._running.append(step)
        if outer is not None:
            self._read_parts(outer)
        elif parameters is None:
            self._note_other(optimizer)
        else:
            recording.optimizer(optimizer)
        return step

    def _last(
        self, step: _Running, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The last pre-hook of a step, after which the step of the optimizer's class runs."""
        # A nested step of the same optimizer calls this hook again.
        if step.parameters is None or step.has_begun:
            return None
        step.begin(self._recording.inside("step"))
        self._read(optimizer, step.parameters)
        return self._with_reading_closure(optimizer, step.parameters, args, kwargs)

    def after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's global post-hook."""
        ended = self._running.pop()
        ended.lasting.close()
        outermost = next(iter(self._running), ended)
        outermost.stepped.append(optimizer)
        if ended.parameters is None or any(step.parameters is not None for step in self._running):
            return
        recording = self._recording
        recording.watched.stepped(ended.parameters)
        if not ended.is_applied:
            return
        if recording.splits_state:
            recording.state_bytes = bytes_kept(ended.stepped)
        weights = recording.watched.weights()
        if not (recording.has_gradients or recording.steps or _any(ended)):
            recording.note("state_init", weights=weights)
        else:
            recording.topology()
            recording.shards()
            recording.note(
                "step",
                step=recording.steps,
                gradients=ended.gradients,
                weights=weights,
                **_learning_rate(optimizer, recording.watched),
                scale=recording.scale,
                optimizer=recording.optimizer(optimizer),
                parameters=ended.numbers,
                synchronizes=ended.synchronizes,
                **ended.unfinished,
                **recording.changed_settings(optimizer),
                **recording.watched.handed_out(held_by(optimizer)),
                **({"dtypes": ended.dtypes} if ended.dtypes else {}),
                **({"offered": ended.offered} if ended.offered and ended.gradients is None else {}),
                **({"scalars_in_tensors": True} if ended.scalars_in_tensors else {}),
                **({"idle": True} if _is_idle(ended, weights) else {}),
                **({"of_replaced": True} if recording.watched.holds_replaced(optimizer) else {}),
            )
            recording.steps += 1
        recording.accounted()

    def _read(self, optimizer: torch.optim.Optimizer, parameters: Found) -> None:
        # Reading a large model takes long, and its scaler's step has just read it.
        if self._recording.scale is None or self._recording.watched.is_readable:
            self._recording.look()
        # A fused optimizer gets the scale and the overflow flag from GradScaler, and its kernel does the rest.
        scale = getattr(optimizer, "grad_scale", None)
        overflow = getattr(optimizer, "found_inf", None)
        if all(group.get("maximize", False) for group in optimizer.param_groups):
            scale = -1.0 if scale is None else -scale
        for tensor in _used(optimizer):
            # The step itself waits for the results of functional collectives; the trainer need not wait earlier.
            wait = getattr(type(tensor), "trigger_wait", None)
            if wait is not None:
                wait(tensor)
        outermost = next(step for step in self._running if step.parameters is not None)
        # A class with its own step may average or clip in it, or use other gradients.
        outermost.gradients, outermost.dtypes = None, []
        watched = self._recording.watched
        outermost.offered = watched.gradients(parameters, scale, only=outermost.numbers)
        if self._runs_torchs(optimizer):
            outermost.gradients = outermost.offered
            outermost.dtypes = dtypes_kept(optimizer, [one for one in held_by(optimizer) if watched.numbers([one])])
        outermost.unfinished = self._recording.handles.unfinished(_used(optimizer))
        outermost.scalars_in_tensors = _scalars_in_tensors(optimizer)
        outermost.weights = None if _any(outermost) else self._recording.watched.weights(parameters)
        outermost.is_applied = overflow is None or not bool(overflow)

    def _note_update(self, wrapper: Any, scale: float) -> None:
        # A wrapper has its own rule, so its new scale counts as given; an overflow may not change it.
        recording = self._recording
        recording.note(
            "update",
            scale_before=scale,
            scale_after=deepspeed.loss_scale(wrapper),
            growth_factor=2.0,
            backoff_factor=1.0,
            growth_interval=1,
            scaler=recording.numbers.of("scaler of a wrapper", wrapper),
            given=True,
        )

    def _read_parts(self, step: _Running) -> None:
        """Read the gradients that a wrapper's optimizer will use."""
        optimizer, watched = step.optimizer, self._recording.watched
        if isinstance(optimizer, Parted) and step.parameters is not None:
            optimizer.take_gradients()
            step.gradients = watched.gradients(step.parameters, only=step.numbers)
            step.scalars_in_tensors = _scalars_in_tensors(optimizer)

    def _runs_torchs(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the innermost step in progress is that of a torch class."""
        depth = sum(step.optimizer is optimizer for step in self._running)
        steps = [vars(kind)["step"] for kind in type(optimizer).__mro__ if "step" in vars(kind)]
        seen = [step for step in steps if getattr(step, "hooked", False)][:depth]
        return bool(seen) and _is_torchs(seen[-1])

    def _with_reading_closure(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Found,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The step's arguments with a closure that then reads gradients, which do not exist earlier; else None."""
        closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            return None

        def reading_closure() -> Any:
            result = closure()
            harmless(self._read)(optimizer, parameters)
            return result

        if len(args) > 1:
            return (args[0], reading_closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": reading_closure}

    def _forget_interrupted(self, caller: FrameType | None) -> None:
        """Drop steps that raised and so never ended: their frames are not running."""
        if not self._running:
            return
        alive = set()
        frame = caller
        while frame is not None:
            alive.add(frame)
            frame = frame.f_back
        for step in self._running:
            if step.caller not in alive:
                step.lasting.close()
        self._running[:] = [step for step in self._running if step.caller in alive]

    def _note_other(self, optimizer: torch.optim.Optimizer) -> None:
        held = held_by(optimizer)
        shapes = [list(parameter.shape) for parameter in held]
        offered = self._recording.watched.flat_gradients(held)
        is_known = self._recording.numbers.known("other optimizer", optimizer) is not None
        # A rank whose share of the parameters is empty steps an empty optimizer, or one of a placeholder.
        is_empty = all(parameter.grad is None for parameter in held)
        if offered or not (is_known or is_empty):
            self._recording.numbers.of("other optimizer", optimizer)
            known = {"offered": offered} if offered else {}
            self._recording.note("foreign_optimizer", optimizer=type(optimizer).__name__, shapes=shapes, **known)


def _scalars_in_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch may compute the scalars of a step, such as bias corrections, as tensors, as when compiled."""
    # In torch 2.6 the compiler can be read only by setting it.
    compiler = _set_compiler(None)
    _set_compiler(compiler)
    return compiler is not None or any(
        group.get("capturable") or group.get("differentiable") or isinstance(group.get("lr"), torch.Tensor)
        for group in optimizer.param_groups
    )


def _is_torchs(step: Callable[..., Any]) -> bool:
    return step.__module__.partition(".")[0] == "torch"


def _have_bases_hooked(kind: type[torch.optim.Optimizer]) -> None:
    """Hooks the step of the torch class that a class's own step may call: torch hooks it only when the torch class is
    instantiated."""
    if _is_torchs(kind.step):
        return
    for base in kind.__mro__:
        step = vars(base).get("step")
        if base is not torch.optim.Optimizer and step is not None and _is_torchs(step):
            if not getattr(step, "hooked", False):
                hooked: Any = torch.optim.Optimizer.profile_hook_step(step)
                hooked.hooked = True
                setattr(base, "step", hooked)  # noqa: B010  # mypy knows only `Optimizer` to have one
            return


def _used(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The tensors that a step reads and writes."""
    for parameter in held_by(optimizer):
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def _is_idle(step: _Running, weights: list[Number] | None) -> bool:
    """Whether a step changed no weights; False if other ranks hold a part, whose changes this rank does not see."""
    return step.weights is not None and step.weights == weights and None not in step.weights


def _any(step: _Running) -> bool:
    if step.gradients is not None:
        return any(step.gradients)
    gradients = [parameter.grad for parameter in step.parameters or () if parameter is not None]
    return any(bool(own_part(gradient).any()) for gradient in gradients if gradient is not None)


def _learning_rate(optimizer: torch.optim.Optimizer, watched: Watched) -> dict[str, Any]:
    """The fields `lr` and, with several groups, `lr_of`: rate and parameters of the first group with watched ones."""
    groups = [(group, own) for group in optimizer.param_groups if (own := watched.numbers(group["params"]))]
    if not groups or (rate := groups[0][0].get("lr")) is None:
        return {"lr": None}
    return {"lr": float(rate), **({"lr_of": groups[0][1]} if len(groups) > 1 else {})}
