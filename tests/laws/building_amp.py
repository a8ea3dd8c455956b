"""Pieces of traces of mixed precision."""

from __future__ import annotations

from .building import a_run, backward, event, forward, step

S = 1024.0
CLIP = {"kind": "norm", "threshold": 1.0}


def scaled(window, **fields):
    """The forward and the backward on a scaled loss that open a window, or continue it."""
    return [forward(window), event("loss_scaled", scale=S), backward(scaled=S, **fields)]


def more(**fields):
    """A further micro-batch of the same window."""
    return scaled(None, gradients="some", **fields)


def unscale(**fields):
    return event("unscale", **fields)


def taken(**fields):
    """A step that the scaler takes, with its update."""
    return [event("scaler_step"), step(scale=S, **fields), event("update")]


def skipped(after=S / 2, **fields):
    """A step that the scaler skips, with its update."""
    return [event("scaler_step"), event("skip", **fields), event("update", scale_after=after)]


def last():
    """A window in which all is well, and the end."""
    return [event("zero_grad"), scaled(1), unscale(), taken()]


def by_hand(**fields):
    """The ranks sum their gradients without DDP."""
    return event("collective", of="gradients", **fields)


def two_ranks(first, second=None, **changes):
    return a_run(first, first if second is None else second, backend="ddp", **changes)


CLIPPED = event("clip", norm=4096.0)
