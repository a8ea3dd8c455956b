"""What an optimizer holds and keeps where training is stopped, and where it is resumed, and models that are restored as
a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import caller
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import optimizer_steps
from conformance.trace.state.settings import of_group, without_rates
from conformance.trace.values import elements, number


def observe(recording: Recording) -> Seams:
    """Records `optimizer_state`: in a process that will stop after each step, in one that has resumed before its first
    steps."""
    begun = set[int]()

    def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _note(recording, optimizer)

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if id(optimizer) not in begun:
            _note(recording, optimizer)
        has_begun(optimizer, args, kwargs)

    def has_begun(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A step before any backward only makes a state to load into.
        if recording.has_gradients:
            begun.add(id(optimizer))

    def set_state(original: Callable[..., None], module: torch.nn.Module, state: dict[str, Any]) -> None:
        original(module, state)
        # A copy that is made in this process has its state set, too.
        frame = caller(sys._getframe())
        if frame is None or frame.f_globals.get("__name__") != "copy":
            recording.watched.unpickled(module)

    if recording.life is None:
        return
    if recording.life["resume_from"] is None:
        yield from optimizer_steps(after=after)
    else:
        # With a closure, the first backward is inside the step.
        yield from optimizer_steps(before, has_begun)
        yield replaced(torch.nn.Module, "__setstate__", set_state)


def _note(recording: Recording, optimizer: torch.optim.Optimizer) -> None:
    watched = recording.watched
    if not watched.is_readable or watched.find(optimizer) is None:
        return
    kept = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for position in watched.numbers([parameter]):
                # ZeroRedundancyOptimizer loads None for what is another rank's.
                state = optimizer.state.get(parameter) or {}
                kept.append(
                    {
                        "parameter": position,
                        "values": elements(parameter),
                        "settings": without_rates(of_group(group)),
                        "state": {name: plain for name, value in state.items() if (plain := _plain(value)) is not None},
                    }
                )
    recording.note("optimizer_state", kept=kept)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return elements(value)
    return [number(float(value))] if isinstance(value, int | float) else None
