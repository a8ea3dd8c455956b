"""What becomes of gradients between a backward and a step, steps, what a trainer saves, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from conformance.trace.events.event import Event, Number, Numbers, Vector
from conformance.trace.words import number


class Unscale(Event, noted="after `GradScaler.unscale_`"):
    scaler: int
    optimizer: int
    scale: Number
    implicit: Annotated[bool, "whether the scaler's own step called it"]
    found_inf: Annotated[bool | None, "null if unknown"]

    @property
    def label(self) -> str:
        return f"unscale ÷ {number(self.scale)}" + (", overflow found" if self.found_inf else "")


class Clip(Event, noted="after `torch.nn.utils.clip_grad_norm_`, `clip_grad_value_` or `clip_grads_with_norm_`"):
    kind: Literal["norm", "value"]
    threshold: Number
    norm_type: Number | None
    norm: Annotated[Number | None, "the total norm before clipping, null when clipping by value"]
    parameters: Numbers
    gradients: Annotated[Vector | None, "those before it"]

    @property
    def label(self) -> str:
        saw = "" if self.norm is None else f" (saw {number(self.norm)})"
        return f"clip {self.kind} {number(self.threshold)}{saw}"

    @property
    def function(self) -> str:
        """What torch calls it."""
        return "clip_grad_norm_" if self.kind == "norm" else "clip_grad_value_"


class Norm(Event, noted="after `get_total_norm` outside clipping"):
    norm: Number
    parameters: Numbers


class GradientChange(Event, noted="when the next event finds gradients changed and no noted call explains it"):
    parameters: Annotated[Numbers, "those found changed: in a model too large to be read, only some are looked at"]
    factor: Annotated[
        Number | None,
        "the factor by which all were multiplied, null if there is none, `nan` if they were not finite and now are",
    ]
    since: Annotated[int, "the event after which they were last known", {"type": "integer", "minimum": -1}]
    of_masters: Annotated[
        bool, "whether backwards add to other tensors, of which these hold copies, as those of master weights do"
    ] = False

    @property
    def label(self) -> str:
        if isinstance(self.factor, str):
            return "gradients made finite"
        return "gradients changed" if self.factor is None else f"gradients × {number(self.factor)}"


class ZeroGrad(Event, noted="before gradients are cleared; if by hand, when the next event finds them cleared"):
    by: Literal["optimizer", "model", "hand"]
    optimizer: Annotated[int | None, "null unless an optimizer cleared them"]
    parameters: Numbers
    set_to_none: Annotated[bool | None, "null if unknown"]

    @property
    def label(self) -> str:
        return {"hand": "gradients cleared by hand", "model": "model.zero_grad"}.get(self.by, "zero grad")


class ScalerStep(Event, noted="at the beginning of `GradScaler.step`"):
    scaler: int
    optimizer: int
    scale: Number
    state: Annotated[str | None, "a digest of the optimizer's state, null for a model too large to be read"]


class _ScaleLoss(Event):
    delay_unscale: bool
    optimizers: Annotated[int, "their number"]
    scale: Annotated[Number | None, "null while apex is disabled"]


class ScaleLossEnter(_ScaleLoss, noted="on entering `apex.amp.scale_loss`"):
    @property
    def label(self) -> str:
        return "enter scale_loss" + (" (delay_unscale)" if self.delay_unscale else "")


class ScaleLossExit(_ScaleLoss, noted="on leaving it, after gradients are unscaled", label="leave scale_loss"):
    scale_after: Annotated[Number | None, "the scale of the next one, lower if gradients overflowed"]


class StateInit(
    Event,
    noted="after a step with zero gradients before training, such as that of Horovod's `broadcast_optimizer_state`",
):
    weights: Vector | None


class OptimizerState(
    Event,
    noted="in a case that is resumed, after each step before the stop, and before the first steps after it",
):
    kept: Annotated[
        Sequence[dict],  # type: ignore[type-arg]
        "of each watched parameter that the optimizer holds: its number `parameter`, its `values`, the `settings` of "
        "its group but for the learning rate, and the optimizer's `state` for it by name, as lists of numbers",
    ]


class Attempt(Event):
    """An optimizer step, or one that was requested and skipped."""

    optimizer: int
    forwards: Annotated[int, "the number of training forwards so far"]
    gradients: Annotated[
        Vector | None,
        "as the step used them, null for parameters that the optimizer does not hold; null as a whole if the step is "
        "not torch's, and may use others",
    ]
    weights: Annotated[Vector | None, "of the whole model, after it"]
    scale: Annotated[Number | None, "of the enabled GradScaler that called it, null without one"]


class Step(Attempt, noted="after an optimizer step that was applied"):
    step: Annotated[int, "its number"]
    lr: Number | None
    parameters: Annotated[Numbers, "those that the optimizer holds"]
    synchronizes: Annotated[
        bool | None, "whether a Horovod optimizer's step waits for averages, null for another optimizer"
    ]
    lr_of: Annotated[Numbers, "those of them that have this `lr`, where the optimizer has several groups"] = ()
    idle: Annotated[bool, "whether it had no gradients, or zeros, and changed nothing"] = False
    of_replaced: Annotated[
        bool,
        "whether the optimizer holds parameters in whose place the model has got shards since: these it does not step",
    ] = False
    groups: Annotated[
        Sequence[dict], "those of `optimizer`, where more than the learning rate has changed since"  # type: ignore[type-arg]
    ] = ()
    unfinished: Annotated[
        Numbers,
        "the `seq` of asynchronous collectives and receives that write to the gradients or weights it used, and whose "
        "handles nobody had waited for; left out if there are none, and on a GPU",
    ] = ()
    unfinished_elsewhere: Annotated[Numbers, "the same of those that write to other memory"] = ()
    scalars_in_tensors: Annotated[
        bool, "whether torch may have computed its scalars, such as bias corrections, as tensors: it was compiled, say"
    ] = False

    @property
    def label(self) -> str:
        return f"step {self.step}" if self.scale is None else f"step {self.step} by the scaler"


class Skip(
    Attempt,
    noted="after `GradScaler.step`, or a step that apex replaced, that took no optimizer step",
    label="step skipped by the scaler",
):
    gradients_finite: bool | None
    state: Annotated[str | None, "as in `scaler_step`"]


class Update(Event, noted="after `GradScaler.update`", label="scale {scale_before} → {scale_after}"):
    scaler: int
    scale_before: Number
    scale_after: Number
    growth_factor: Annotated[Number, "the scaler's own setting"]
    backoff_factor: Annotated[Number, "the scaler's own setting"]
    growth_interval: Annotated[int, "the scaler's own setting"]
    given: Annotated[bool, "whether the trainer gave it the new scale"] = False


class Schedule(Event, noted="after `LRScheduler.step`"):
    scheduler: int
    optimizer: int | None
    lr_before: Annotated[Sequence[Number], "of each parameter group"]
    lr_after: Annotated[Sequence[Number], "of each parameter group"]
    initial: Annotated[bool, "whether the scheduler's constructor called it"]

    @property
    def label(self) -> str:
        before, after = (", ".join(map(number, rates)) for rates in (self.lr_before, self.lr_after))
        return f"learning rate {before} → {after}"


class ForeignOptimizer(Event, noted="at the first step of an optimizer that holds no watched parameter"):
    optimizer: Annotated[str, "its class"]
    shapes: Annotated[Sequence[Numbers], "of what it holds"]


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


class Report(
    Event,
    noted="when the trainer calls `Task.report`, and after a step within `Task.step`",
    label="reports its weights after window {step}",
):
    step: Annotated[int, "the window after which it has these weights, by its own account"]
    weights: Annotated[Vector | None, "those that it reports"]
    gradients: Annotated[Vector | None, "those that the step used, by its own account"] = None
    counted: Annotated[bool, "whether `Task.step` has counted: then `step` is the `window`, if that is known"] = False


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
