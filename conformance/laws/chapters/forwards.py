"""Gradient accumulation: forwards that nothing follows from."""

from __future__ import annotations

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.run import Rank, Window, fact
from conformance.trace.events import AutogradGrad, BackwardBegin, BackwardEnd, Forward

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'


@law(
    "acc/one-forward-per-loss",
    "A micro-batch SHOULD go forward once for each of its losses, unless gradients are disabled.",
    why="""A forward in training mode that no backward follows builds a graph that is thrown away, and doubles the time
        of that micro-batch. It is not without effect either: BatchNorm's running statistics take the micro-batch in
        once more, and dropout draws other random numbers from there on.""",
    source=f'{SEED}: "do a forward and backward pass on each batch"; '
    "PyTorch, torch.no_grad: for forwards that no `backward()` follows",
    fix="""
        outputs = model(batch.inputs)
        loss = criterion(outputs, batch.targets) / len(window)
        loss.backward()
        accuracy = metric(outputs.detach(), batch.targets)  # of the outputs that are there already
        """,
)
def one_forward_per_loss(window: Window) -> Outcomes:
    # Without any backward gradients come from elsewhere.
    if window.ended and window.backwards:
        pair = _idle(window)
        yield OK if pair is None else _wasted(window, *pair)


@fact
def _used(rank: Rank) -> set[int]:
    """The forwards that gradients were computed through."""
    events: list[BackwardEnd | AutogradGrad] = [*rank.of(BackwardEnd), *rank.of(AutogradGrad)]
    return {forward for event in events for forward in event.forwards}


def _idle(window: Window) -> tuple[Forward, Forward] | None:
    """A forward that nothing follows from, with one of the same micro-batch that was trained on.

    Without the other one nothing was trained on the micro-batch. A look at the model before training is no habit.
    """
    used = _used(window.rank)
    idle = [event for event in window.forwards if event.forward not in used]
    if not idle:
        return None
    trained = {tuple(event.rows): event for event in window.forwards if event.forward in used}
    began = window.rank.of(BackwardBegin)[0].seq
    for event in idle:
        rows = tuple(event.rows)
        if event.seq > began and None not in rows and rows and rows in trained:
            return event, trained[rows]
    return None


def _wasted(window: Window, idle: Forward, trained: Forward) -> Broken:
    return Broken(
        idle,
        must="a micro-batch should go forward once for each of its losses",
        because="what else is to be known of it can be read from the outputs that are there, or without gradients",
        however=f"no backward went through {idle} of micro-batch {idle.micro_batch}, which {trained} trained on",
        shows=tuple(sorted((idle, trained), key=lambda event: event.seq)),
        effect=f"Window {window.number} is slower; its gradients are as they should be.",
    )
