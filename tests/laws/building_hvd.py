"""Pieces of traces of Horovod."""

from __future__ import annotations

from .building import a_run, backward, event, forward, step

SYNCHRONIZE = event("synchronize")
WITHIN_STEP = event("synchronize", in_step=True)
REDUCED = event("collective", op="allreduce", via="horovod", of="gradients", reduce="sum", during="synchronize")
BROADCAST = event("collective", op="broadcast", via="horovod", of="parameters", phase="construction")
OPTIMIZER = event("optimizer", horovod=True, backward_passes_per_step=1)


def made(passes=1, **fields):
    return event("optimizer", horovod=True, backward_passes_per_step=passes, **fields)


def one(window=None, **fields):
    """A micro-batch; Horovod averages in its backward."""
    begin, end = backward(**fields)
    return [forward(window), begin, REDUCED, end]


def inside(*events):
    """The step, or what leads to it, inside of `skip_synchronize`."""
    return [event("skip_synchronize_enter"), *events, event("skip_synchronize_exit")]


def plain():
    """A step that synchronizes by itself."""
    return [WITHIN_STEP, step(synchronizes=True)]


def explicit():
    return [SYNCHRONIZE, inside(step(synchronizes=False))]


def ranks(build, **changes):
    return a_run(build(0), build(1), backend="horovod", **changes)


def both(*events, **changes):
    """A run of two ranks that do the same, with one optimizer of Horovod's."""
    return ranks(lambda rank: [OPTIMIZER, *events], **changes)


def accumulating(passes, *events, **changes):
    """The same, in windows of two micro-batches."""
    return ranks(lambda rank: [made(passes), *events], accumulation=2, **changes)


def raised():
    return event("raised", type="AssertionError", message="", traceback="")
