"""Pieces of traces of DistributedDataParallel, and of averages without it."""

from __future__ import annotations

from .building import a_run, backward, event, forward, step


def ddp(window=None, syncs=True, **fields):
    """A forward through DDP."""
    return forward(window, wrapper="DistributedDataParallel", syncs=syncs, **fields)


def averaging(syncs=True, of="gradients", **fields):
    """A backward in which DDP averages."""
    begin, end = backward(syncs=syncs, **fields)
    return [begin, event("collective", during="backward", of=of), end]


def local(syncs=False, **fields):
    """A backward in which it does not."""
    return backward(syncs=syncs, **fields)


def stepped(rank, **fields):
    """A step along only this rank's gradient."""
    return step(gradients=[1.0 + rank, 0.0], weights=[0.5 - rank / 2, 0.5], **fields)


WRAP = event("wrap")
ALL_REDUCE = event("collective", of="gradients")


def ranks(build, count=2, backend="ddp", **changes):
    """A run whose ranks do what ``build`` gives for each."""
    return a_run(*(build(rank) for rank in range(count)), backend=backend, **changes)


def both(*events, **changes):
    """A run of two ranks that do the same."""
    return ranks(lambda rank: [*events], **changes)


def started(rank):
    """Starts from its own weights."""
    return event("start", weights=[float(rank), 0.0])


def raised(kind="ValueError"):
    return event("raised", type=kind, message="", traceback="")


#: A window each.
FIRST, SECOND = [ddp(0), averaging(), step()], [ddp(1), averaging(), step()]
