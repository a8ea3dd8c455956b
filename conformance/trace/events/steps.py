"""Events from a backward to a step, of checkpoints, and of a trainer's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from conformance.trace.events.event import Event, Number, Numbers, Vector
from conformance.trace.short_texts import number


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
    norm: Annotated[Number | None, "total norm before clipping, null when clipping by value"]
    parameters: Numbers
    gradients: Annotated[Vector | None, "gradients before clipping"]

    @property
    def label(self) -> str:
        saw = "" if self.norm is None else f" (of norm {number(self.norm)})"
        return f"clip {self.kind} {number(self.threshold)}{saw}"

    @property
    def function(self) -> str:
        """The name of torch's function."""
        return "clip_grad_norm_" if self.kind == "norm" else "clip_grad_value_"


class Norm(Event, noted="after `get_total_norm` outside clipping"):
    norm: Number
    parameters: Numbers


class GradientChange(Event, noted="when the next event finds gradients changed and no noted call explains it"):
    parameters: Annotated[Numbers, "those with changed gradients; in a model too large to be read, only some of them"]
    factor: Annotated[
        Number | None,
        "the factor by which all were multiplied, null if there is none, `nan` if they were not finite and now are",
    ]
    since: Annotated[int, "`seq` of the event after which they were last known", {"type": "integer", "minimum": -1}]
    of_masters: Annotated[
        bool, "whether these are copies of the gradients to which backwards add, as those of master weights are"
    ] = False
    before: Annotated[Vector | None, "all gradients before the change, null for a model too large to be read"] = None

    @property
    def label(self) -> str:
        if isinstance(self.factor, str):
            return "gradients made finite"
        return "gradients changed" if self.factor is None else f"gradients × {number(self.factor)}"


class ZeroGrad(Event, noted="before gradients are cleared; if cleared by hand, when the next event finds it"):
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
    state: Annotated[str | None, "digest of the optimizer's state, null for a model too large to be read"]


class _ScaleLoss(Event):
    delay_unscale: bool
    optimizers: Annotated[int, "number of optimizers"]
    scale: Annotated[Number | None, "null while apex is disabled"]


class ScaleLossEnter(_ScaleLoss, noted="on entering `apex.amp.scale_loss`"):
    @property
    def label(self) -> str:
        return "enter scale_loss" + (" (delay_unscale)" if self.delay_unscale else "")


class ScaleLossExit(_ScaleLoss, noted="on leaving it, after gradients are unscaled", label="leave scale_loss"):
    scale_after: Annotated[Number | None, "the next scale, lower if gradients overflowed"]


class StateInit(
    Event,
    noted="after a step with zero gradients before training, such as that of Horovod's `broadcast_optimizer_state`",
):
    weights: Vector | None


class OptimizerState(
    Event,
    noted="in a resumed case, after each step before the stop, and before the first steps after it",
):
    kept: Annotated[
        Sequence[dict],  # type: ignore[type-arg]
        "for each watched parameter of the optimizer: its number `parameter`, its `values`, the `settings` of its "
        "group except the learning rate, and the optimizer's `state` for it by name, as lists of numbers",
    ]


class Attempt(Event):
    """An optimizer step, or one that was requested and skipped."""

    optimizer: int
    forwards: Annotated[int, "number of training forwards so far"]
    gradients: Annotated[
        Vector | None,
        "gradients that the step used, null for parameters outside the optimizer; null as a whole if the step is not "
        "torch's and may use others",
    ]
    weights: Annotated[Vector | None, "weights of the whole model after it"]
    scale: Annotated[Number | None, "scale of the enabled GradScaler that called it, null without one"]
    offered: Annotated[
        Vector | None, "gradients before a step that is not torch's, as `gradients`, although it may use others"
    ] = None


class Step(Attempt, noted="after an optimizer step that was applied"):
    step: Annotated[int, "its number"]
    lr: Number | None
    parameters: Annotated[Numbers, "the optimizer's watched parameters"]
    synchronizes: Annotated[
        bool | None, "whether a Horovod optimizer's step waits for averages, null for other optimizers"
    ]
    lr_of: Annotated[Numbers, "the parameters with this `lr`, if the optimizer has several groups"] = ()
    idle: Annotated[bool, "whether it changed nothing, because gradients were missing or zero"] = False
    of_replaced: Annotated[
        bool, "whether the model has since replaced the optimizer's parameters by shards, so the step has no effect"
    ] = False
    groups: Annotated[
        Sequence[dict], "the new `groups` of `optimizer`, if settings other than the learning rate changed"  # type: ignore[type-arg]
    ] = ()
    dtypes: Annotated[
        Sequence[str], "dtypes of its parameters and of their momentum or moments, before it; left out if not torch's"
    ] = ()
    unfinished: Annotated[
        Numbers,
        "`seq` of asynchronous collectives and receives that write to the gradients or weights it used, and whose "
        "handles nobody had waited for; left out if there are none, and on a GPU",
    ] = ()
    unfinished_elsewhere: Annotated[Numbers, "the same for those that write to other memory"] = ()
    scalars_in_tensors: Annotated[
        bool, "whether torch may have computed its scalars, such as bias corrections, as tensors, as when compiled"
    ] = False

    @property
    def label(self) -> str:
        return f"step {self.step}" if self.scale is None else f"step {self.step} by the scaler"


class Skip(
    Attempt,
    noted="after a `GradScaler.step`, or a step that apex replaced, skipped the optimizer's step",
    label="step skipped by the scaler",
):
    gradients_finite: bool | None
    state: Annotated[str | None, "as in `scaler_step`"]


class Update(Event, noted="after `GradScaler.update`", label="scale {scale_before} → {scale_after}"):
    scaler: int
    scale_before: Number
    scale_after: Number
    growth_factor: Annotated[Number, "the scaler's setting"]
    backoff_factor: Annotated[Number, "the scaler's setting"]
    growth_interval: Annotated[int, "the scaler's setting"]
    given: Annotated[bool, "whether the trainer passed the new scale"] = False


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


class ForeignOptimizer(
    Event,
    noted="at the first step with gradients of an optimizer whose parameters are all outside the model, and at each "
    "step whose gradients have as many elements as the model",
):
    optimizer: Annotated[str, "its class"]
    shapes: Annotated[Sequence[Numbers], "shapes of its parameters"]
    offered: Annotated[Vector | None, "their gradients, in the order of the model's, if they have as many elements"] = (
        None
    )


class Save(Event, noted="when a file in the checkpoint's folder is opened for writing from its start"):
    path: Annotated[str, "its path in that folder"]


class Load(Event, noted="when a file in the folder of the checkpoint to resume from is opened for reading"):
    path: Annotated[str, "its path in that folder"]


class Fork(Event, noted="after the trainer has forked a process, which is not recorded"):
    pass


class ObserverFailed(Event, noted="when a part of the recorder has raised an error, which switches it off"):
    observer: Annotated[str, "the part: a module of `conformance.trace.observers`, or `recorder`"]
    error: Annotated[str, "type and message of the error"]
    traceback: str
    replaced: Annotated[
        Sequence[str], "functions that the recorder calls and that the trainer had replaced, if any"
    ] = ()


class Report(
    Event,
    noted="when the trainer calls `Task.report`, and after a step within `Task.step`",
    label="reports its weights after window {step}",
):
    step: Annotated[int, "the window after which it has these weights, as reported"]
    weights: Annotated[Vector | None, "reported weights"]
    gradients: Annotated[Vector | None, "reported gradients that the step used"] = None
    counted: Annotated[bool, "whether `Task.step` counted the steps: then `step` is the `window`, if known"] = False


class AverageReport(
    Event,
    noted="when the trainer calls `Task.report_average`",
    label="reports its average of the weights after window {step}",
):
    step: Annotated[int, "the window after which it evaluates with these weights, as reported"]
    weights: Annotated[Vector | None, "reported weights"]


class Line(
    Event,
    noted="in a failed case that is run again: after a line that writes this, or divides or casts a loss",
    label="writes {writes}",
):
    writes: Literal[
        "gradient",
        "weights",
        "average",
        "loss",
        "divisor",
        "cast",
        "rate",
        "optimizer",
        "scheduler",
        "averaging",
        "buffers",
        "loader",
        "epoch",
        "hook",
        "sync",
        "unused",
        "twice",
        "part",
        "kept",
        "alias",
        "scaling",
        "rounding",
        "scaler",
        "state",
        "restored_optimizer",
        "restored_scheduler",
        "restored_scaler",
        "restored_random",
    ]


class Finished(Event, noted="after the trainer's function has returned"):
    weights: Vector | None
    copies: Annotated[
        Vector | None, "the model's own weights, if `weights` are this rank's part of the master weights"
    ] = None
    state_bytes: Annotated[
        int | None,
        "bytes of state that the optimizers of the last step kept on this rank, without step counts, if the backend "
        "may split it",
    ] = None
    asked: Annotated[
        Sequence[str] | None,
        'what the trainer has taken from its task: "model", "schedule", "loss scaling", "clip", "average"; null '
        "if unknown",
    ] = None


class Raised(Event, noted="after the trainer's function has raised"):
    type: str
    message: str
    traceback: str
    declined: Annotated[bool, "whether it is `conformance.Unsupported`"] = False
    misused: Annotated[bool, "whether the task raised it, because the trainer misused it"] = False
    weights: Annotated[Vector | None, "current weights, if declined"] = None
    at: Annotated[float | None, "`time` of the raise"] = None
