"""What a trainer saves and reports, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from conformance.trace.events.event import Event, Vector


class Save(Event, noted="when a file in the folder of the checkpoint is opened, to be written from its beginning"):
    path: Annotated[str, "its path in that folder"]


class Fork(Event, noted="after the trainer has forked a process, of which nothing is recorded"):
    pass


class ObserverFailed(Event, noted="when a part of the recorder has raised an error, and is switched off from then on"):
    observer: Annotated[str, "the part: a module of `conformance.trace.observers`, or `recorder`"]
    error: Annotated[str, "the type and the message"]
    traceback: str
    replaced: Annotated[
        Sequence[str], "the functions that the recorder calls and that the trainer has replaced before, if any"
    ] = ()


class Report(Event, noted="when the trainer calls `Task.report`, and after a step within `Task.step`"):
    step: Annotated[int, "the window after which it has these weights, by its own account"]
    weights: Annotated[Vector | None, "those that it reports"]
    gradients: Annotated[Vector | None, "those that the step used, by its own account"] = None
    counted: Annotated[bool, "whether `Task.step` has counted: then `step` is the `window`, if that is known"] = False

    @property
    def label(self) -> str:
        return f"reports its weights after window {self.step}"


class Finished(Event, noted="after the trainer's function has returned"):
    weights: Vector | None
    copies: Annotated[
        Vector | None, "what the model computes with, where `weights` are those of the masters, of which this is a part"
    ] = None
    state_bytes: Annotated[
        int | None,
        "of the state that the optimizers of the last step kept on this rank, without counts of steps, where a backend "
        "may split it",
    ] = None


class Raised(Event, noted="after the trainer's function has raised"):
    type: str
    message: str
    traceback: str
    declined: Annotated[bool, "whether it is `conformance.Unsupported`"] = False
    weights: Annotated[Vector | None, "where it is, those of the moment"] = None
    at: Annotated[float | None, "the `time` at which it raised"] = None
