"""Gradient accumulation: forwards whose outputs are not used for gradients."""

from __future__ import annotations

from conformance.laws.law import GUIDE, OK, Broken, Outcomes, law
from conformance.laws.run import Window, with_gradients
from conformance.trace.events import BackwardBegin, BackwardEnd, Forward


@law(
    "acc/one-forward-per-loss",
    "A micro-batch SHOULD go forward once for each of its losses, unless gradients are disabled.",
    why="""A forward in training mode without a backward builds a graph that is thrown away, and costs the time of
        another forward. It can change results too: BatchNorm's running statistics count the micro-batch twice, and
        dropout draws other random numbers from there on.""",
    source=f'{GUIDE}: "do a forward and backward pass on each batch"; '
    "PyTorch, torch.no_grad: for forwards that no `backward()` follows",
    fix="""
        outputs = model(batch.inputs)
        loss = criterion(outputs, batch.targets) / len(window)
        loss.backward()
        accuracy = metric(outputs.detach(), batch.targets)  # reuses the outputs
        """,
)
def one_forward_per_loss(window: Window) -> Outcomes:
    # Without any backward, gradients have another source.
    if window.ended and window.backwards:
        pair = _idle(window)
        yield OK if pair is None else _wasted(window, *pair)


def _idle(window: Window) -> tuple[Forward, Forward] | None:
    """A forward without a backward, and the forward of the same micro-batch that has one.

    If no forward of the micro-batch has a backward, acc/one-backward-per-loss reports it. Forwards before the first
    backward of the training do not count: they happen once, for example to inspect the model. Nor do those whose
    backward raised: the trainer goes forward again.
    """
    used = with_gradients(window.rank)
    idle = [event for event in window.of(Forward) if event.extra and event.training and event.forward not in used]
    if not idle:
        return None
    # What goes forward before the first training forward of a window is still in the window before.
    nearby = (*window.forwards, *(window.following.forwards if window.following else ()))
    trained = {tuple(event.rows): event for event in nearby if event.forward in used}
    began = window.rank.of(BackwardBegin)[0].seq
    for event in idle:
        rows = tuple(event.rows)
        if event.seq > began and None not in rows and rows and rows in trained and not _raised(window, event):
            return event, trained[rows]
    return None


def _raised(window: Window, forward: Forward) -> bool:
    """Whether the backward that came next never ended."""
    following = window.rank.first(BackwardBegin, after=forward)
    return following is not None and all(end.backward != following.backward for end in window.rank.of(BackwardEnd))


def _wasted(window: Window, idle: Forward, trained: Forward) -> Broken:
    return Broken(
        idle,
        must="a micro-batch should go forward once for each of its losses",
        because="metrics can reuse the existing outputs, or run their own forward under `torch.no_grad()`",
        however=f"no backward reached {idle} of micro-batch {idle.micro_batch}, on which {trained} trained",
        shows=tuple(sorted((idle, trained), key=lambda event: event.seq)),
        effect=f"Window {window.number} takes longer; its gradients are right.",
    )
