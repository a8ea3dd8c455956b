"""Steps of optimizers, scalers and schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from conformance.trace.events.event import Event, Number, Numbers, Vector
from conformance.trace.words import number


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


class Update(Event, noted="after `GradScaler.update`"):
    scaler: int
    scale_before: Number
    scale_after: Number
    growth_factor: Annotated[Number, "the scaler's own setting"]
    backoff_factor: Annotated[Number, "the scaler's own setting"]
    growth_interval: Annotated[int, "the scaler's own setting"]
    given: Annotated[bool, "whether the trainer gave it the new scale"] = False

    @property
    def label(self) -> str:
        return f"scale {number(self.scale_before)} → {number(self.scale_after)}"


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
