"""Events in words, for people: one short phrase each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.laws.event import Event

_SIZES = ("B", "kB", "MB", "GB")


def label(event: Event) -> str:
    """For instance ``clip norm 1 (saw 3.2)``; events of no more interest than their kind have just that."""
    describe = _LABELS.get(event.kind)
    return event.kind.replace("_", " ") if describe is None else describe(event)


def placed(event: Event) -> str:
    """The label with the line: ``unscale 1024 (train.py:43)``."""
    return f"{label(event)} ({event.place})"


def number(value: Any) -> str:
    """A number as short as it can be told; "inf" and "nan" come as text."""
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def size(count: int) -> str:
    """Bytes with a unit."""
    scaled, unit = float(count), 0
    while scaled >= 1000 and unit < len(_SIZES) - 1:
        scaled, unit = scaled / 1000, unit + 1
    return f"{scaled:.3g} {_SIZES[unit]}"


def _forward(event: Event) -> str:
    wrapper = event.get("wrapper")
    return f"forward through {wrapper}" if wrapper else "forward"


def _loss_scaled(event: Event) -> str:
    return f"loss × {number(event['scale'])}"


def _collective(event: Event) -> str:
    return f"{event['op'].strip('_').replace('_', ' ')} ({_payload(event)})"


def _send(event: Event) -> str:
    return f"send to rank {event['peer']} ({_payload(event)})"


def _receive(event: Event) -> str:
    sender = "any rank" if event["peer"] is None else f"rank {event['peer']}"
    return f"receive from {sender} ({_payload(event)})"


def _payload(event: Event) -> str:
    what = {"gradients": "gradients, ", "parameters": "parameters, "}.get(event.get("of") or "", "")
    return f"{what}{size(event['bytes'])}"


def _unscale(event: Event) -> str:
    overflow = ", overflow found" if event.get("found_inf") else ""
    return f"unscale ÷ {number(event['scale'])}{overflow}"


def _clip(event: Event) -> str:
    saw = event.get("norm")
    return f"clip {event['kind']} {number(event['threshold'])}" + ("" if saw is None else f" (saw {number(saw)})")


def _gradient_change(event: Event) -> str:
    factor = event.get("factor")
    return "gradients changed" if factor is None else f"gradients × {number(factor)}"


def _step(event: Event) -> str:
    return f"step {event['step']}" if event.get("scale") is None else f"step {event['step']} by the scaler"


def _skip(event: Event) -> str:
    return "step skipped by the scaler"


def _update(event: Event) -> str:
    return f"scale {number(event['scale_before'])} → {number(event['scale_after'])}"


def _zero_grad(event: Event) -> str:
    return {"hand": "gradients cleared by hand", "model": "model.zero_grad"}.get(event["by"], "zero grad")


def _schedule(event: Event) -> str:
    before, after = (", ".join(map(number, event[name])) for name in ("lr_before", "lr_after"))
    return f"learning rate {before} → {after}"


def _synchronize(event: Event) -> str:
    return "synchronize within step" if event["in_step"] else "synchronize"


def _scale_loss(event: Event) -> str:
    return "enter scale_loss" + (" (delay_unscale)" if event["delay_unscale"] else "")


_LABELS: dict[str, Callable[[Event], str]] = {
    "autograd_grad": lambda event: "torch.autograd.grad",
    "autocast_enter": lambda event: f"enter autocast {event['dtype']}",
    "autocast_exit": lambda event: "leave autocast",
    "backward_begin": lambda event: "backward",
    "backward_end": lambda event: "backward done",
    "clip": _clip,
    "collective": _collective,
    "forward": _forward,
    "gradient_change": _gradient_change,
    "loss_scaled": _loss_scaled,
    "no_sync_enter": lambda event: "enter no_sync",
    "no_sync_exit": lambda event: "leave no_sync",
    "receive": _receive,
    "scale_loss_enter": _scale_loss,
    "scale_loss_exit": lambda event: "leave scale_loss",
    "schedule": _schedule,
    "send": _send,
    "skip": _skip,
    "skip_synchronize_enter": lambda event: "enter skip_synchronize",
    "skip_synchronize_exit": lambda event: "leave skip_synchronize",
    "step": _step,
    "synchronize": _synchronize,
    "unscale": _unscale,
    "update": _update,
    "zero_grad": _zero_grad,
}
