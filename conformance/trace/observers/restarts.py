"""What is kept where training is stopped and resumed: optimizers, models, averages of weights, files of checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import caller, harmless
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import optimizer_steps
from conformance.trace.state.optimizers import of_group, without_rates
from conformance.trace.values import Number, elements, number


def _states(recording: Recording) -> Seams:
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


#: What is told of each file that is opened, now.
_listeners: list[Callable[[object], None]] = []


def _files(recording: Recording) -> Seams:
    """Records `save`, of files that are written from their beginning."""
    if recording.life is None or recording.life["checkpoint_dir"] is None:
        return
    folder = Path(recording.life["checkpoint_dir"]).resolve()

    def note(file: object) -> None:
        if isinstance(file, str | bytes | os.PathLike):
            path = Path(os.fsdecode(file)).resolve()
            if path.is_relative_to(folder):
                recording.note("save", path=path.relative_to(folder).as_posix())

    def writer(original: Callable[[Any], Any], file: Any) -> Any:
        # It opens a file by itself, of which Python does not know.
        harmless(note)(file)
        return original(file)

    _listen()
    yield replaced(torch.serialization, "_open_zipfile_writer", writer)
    yield _told(harmless(note))


@contextmanager
def _told(listener: Callable[[object], None]) -> Any:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@cache
def _listen() -> None:
    """Once in a process: nothing takes an audit hook off."""

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and _listeners and isinstance(args[2], int) and args[2] & os.O_TRUNC:
            for listener in tuple(_listeners):
                listener(args[0])

    sys.addaudithook(heard)


def _averages(recording: Recording) -> Seams:
    """Records `average`, in cases that are resumed."""

    def update(original: Callable[..., Any], averaged: AveragedModel, model: torch.nn.Module) -> Any:
        updates, before = int(averaged.n_averaged), _values(averaged)
        result = original(averaged, model)
        number = recording.numbers.of("average", averaged)
        recording.note("average", average=number, updates=updates, before=before, after=_values(averaged))
        return result

    if recording.life is not None and recording.watched.is_readable:
        yield replaced(AveragedModel, "update_parameters", update)


def _values(averaged: AveragedModel) -> list[Number]:
    return [value for parameter in averaged.module.parameters() for value in elements(parameter)]


def observe(recording: Recording) -> Seams:
    """Records `optimizer_state`, `save` and `average`, in cases that are resumed."""
    yield from _states(recording)
    yield from _files(recording)
    yield from _averages(recording)
