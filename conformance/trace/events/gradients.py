"""What becomes of gradients between a backward and a step."""

from __future__ import annotations

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
