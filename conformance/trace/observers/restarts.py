"""Observes what a resumed training keeps: optimizer states, averages of weights, checkpoint files."""

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
from conformance.trace.state.optimizer_state import of_group, without_rates
from conformance.trace.tensor_values import Number, elements, number


def _states(recording: Recording) -> Seams:
    """Records `optimizer_state`: after each step of a process that will stop, before the first steps of a resumed."""
    started = set[int]()

    def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _note(recording, optimizer)

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if id(optimizer) not in started:
            _note(recording, optimizer)
        has_started(optimizer, args, kwargs)

    def has_started(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A step before any backward only creates state to load into.
        if recording.has_gradients:
            started.add(id(optimizer))

    def set_state(original: Callable[..., None], module: torch.nn.Module, state: dict[str, Any]) -> None:
        original(module, state)
        # Copying within this process calls `__setstate__` too.
        frame = caller(sys._getframe())
        if frame is None or frame.f_globals.get("__name__") != "copy":
            recording.watched.unpickled(module)

    if recording.life is None:
        return
    if recording.life["resume_from"] is None:
        yield from optimizer_steps(after=after)
    else:
        # With a closure, the first backward is inside the step.
        yield from optimizer_steps(before, has_started)
        yield replaced(torch.nn.Module, "__setstate__", set_state)


def _note(recording: Recording, optimizer: torch.optim.Optimizer) -> None:
    watched = recording.watched
    if not watched.is_readable or watched.find(optimizer) is None:
        return
    kept = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for position in watched.numbers([parameter]):
                # ZeroRedundancyOptimizer loads None for other ranks' parameters.
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


#: Called with each file that is opened, and the flags of the call.
_listeners: list[Callable[[object, int], None]] = []


def _files(recording: Recording) -> Seams:
    """Records `save` for checkpoint files that are written from their start, and `load` for those that are read."""
    if recording.life is None:
        return
    folders = {
        event: Path(recording.life[name]).resolve()
        for event, name in (("save", "checkpoint_dir"), ("load", "resume_from"))
        if recording.life[name] is not None
    }

    def note(file: object, flags: int) -> None:
        event = "save" if flags & os.O_TRUNC else "load" if not flags & (os.O_WRONLY | os.O_RDWR) else ""
        if event in folders and isinstance(file, str | bytes | os.PathLike):
            path, folder = Path(os.fsdecode(file)).resolve(), folders[event]
            if path.is_relative_to(folder):
                recording.note(event, path=path.relative_to(folder).as_posix())

    def writer(original: Callable[[Any], Any], file: Any) -> Any:
        # The original opens the file in C++, without an audit event.
        harmless(note)(file, os.O_TRUNC)
        return original(file)

    _listen()
    yield replaced(torch.serialization, "_open_zipfile_writer", writer)
    yield _told(harmless(note))


@contextmanager
def _told(listener: Callable[[object, int], None]) -> Any:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@cache
def _listen() -> None:
    """Add the audit hook, once per process because audit hooks cannot be removed."""

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and _listeners and isinstance(args[2], int):
            for listener in tuple(_listeners):
                listener(args[0], args[2])

    sys.addaudithook(heard)


def _averages(recording: Recording) -> Seams:
    """Records `average` in cases that are resumed or average."""

    def update(original: Callable[..., Any], averaged: AveragedModel, model: torch.nn.Module) -> Any:
        updates, before = int(averaged.n_averaged), _values(averaged)
        result = original(averaged, model)
        number = recording.numbers.of("average", averaged)
        recording.note("average", average=number, updates=updates, before=before, after=_values(averaged))
        return result

    if recording.averages and recording.watched.is_readable:
        yield replaced(AveragedModel, "update_parameters", update)


def _values(averaged: AveragedModel) -> list[Number]:
    return [value for parameter in averaged.module.parameters() for value in elements(parameter)]


def observe(recording: Recording) -> Seams:
    """Records `optimizer_state`, `save`, `load` and `average` in resumed cases, and `average` in those that average."""
    yield from _states(recording)
    yield from _files(recording)
    yield from _averages(recording)
