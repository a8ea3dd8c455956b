"""DeepSpeed: in ZeRO, the optimizer inside holds flat tensors, in which each parameter of the model has a range."""

from __future__ import annotations

import weakref
from functools import partial
from types import ModuleType
from typing import Any

import torch

from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import clipping, optimizer_steps
from conformance.trace.state.deepspeed import WRAPPERS, cuts, stepped
from conformance.watch import records
from conformance.watch.recording import surroundings
from conformance.watch.recording.clipping import noted
from conformance.watch.recording.recording import Recording


def observe(recording: Recording) -> Seams:
    """Follows the parameters of a model into the flat tensors, and notes `Clipped` before each step on these. Without
    ZeRO, the engine clips by a function of its own."""
    wrappers: weakref.WeakSet[Any] = weakref.WeakSet()

    def construct(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        parts = [(parameter, part, cuts(wrapper, parameter, part)) for parameter, part in stepped(wrapper)]
        _, rank, world = surroundings.of_process()
        if any(len(pieces) != world or pieces[rank][1] - pieces[rank][0] != part.length for _, part, pieces in parts):
            raise ValueError("its parameters are split over other ranks, or in another way")
        for parameter, part, pieces in parts:
            recording.parameters.divide(parameter, part, pieces, rank)
        wrappers.add(wrapper)

    def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        wrapper = next((one for one in wrappers if getattr(one, "optimizer", None) is optimizer), None)
        limit, norm = getattr(wrapper, "clip_grad", 0.0), getattr(wrapper, "_global_grad_norm", None)
        if limit and norm is not None:
            held = [known.number for known, _ in recording.parameters.held(optimizer)]
            given, site, within = len(held), recording.site(), recording.within
            recording.note(records.Clipped("norm", held, float(limit), float(norm), given, site, within=within))

    def classes(module: ModuleType) -> Seams:
        yield replaced(getattr(module, WRAPPERS[module.__name__]), "__init__", construct)

    def engine(module: ModuleType) -> Seams:
        around = clipping(recording, partial(noted, recording), module.clip_grad_norm_, "norm")
        yield replaced(module, "clip_grad_norm_", around)

    for name in WRAPPERS:
        yield when_imported(name, classes)
    yield when_imported("deepspeed.runtime.engine", engine)
    yield from optimizer_steps(clip)
