"""Gradient accumulation: forwards that nothing comes of."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.laws.event import Event
from conformance.laws.labels import placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import RankTrace, Run, Window

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'


@law(
    "acc/one-forward-per-loss",
    "A micro-batch SHOULD go forward once for each of its losses, unless gradients are disabled.",
    why="""A forward in training mode that no backward follows builds a graph that is thrown away, and doubles the time
        of that micro-batch. It is not without effect either: BatchNorm's running statistics take the micro-batch in
        once more, and dropout draws other random numbers from there on.""",
    source=f'{SEED}: "do a forward and backward pass on each batch"; '
    "PyTorch, torch.no_grad: for forwards that no `backward()` follows",
    mend="""
        outputs = model(batch.inputs)
        loss = criterion(outputs, batch.targets) / len(window)
        loss.backward()
        accuracy = metric(outputs.detach(), batch.targets)  # of the outputs that are there already
        """,
)
def one_forward_per_loss(run: Run) -> Iterator[Check]:
    for rank in run.ranks:
        used = {forward for event in rank.of("backward_end", "autograd_grad") for forward in event["forwards"]}
        for window in rank.windows:
            # Without any backward gradients come from elsewhere.
            if not window.ended or not window.backwards:
                continue
            pair = _idle(rank, window, used)
            if pair is None:
                yield kept(window)
            else:
                yield broken(window, _wasted(window, *pair))


def _idle(rank: RankTrace, window: Window, used: set[int]) -> tuple[Event, Event] | None:
    """A forward that nothing came of, with one of the same micro-batch that was trained on.

    Without the other one it is acc/one-backward-per-loss. A look at the model before training is no habit.
    """
    trained = {tuple(event["rows"]): event for event in window.forwards if event["forward"] in used}
    began = rank.of("backward_begin")[0].seq
    for event in window.forwards:
        rows = tuple(event["rows"])
        if event["forward"] not in used and event.seq > began and None not in rows and rows and rows in trained:
            return event, trained[rows]
    return None


def _wasted(window: Window, idle: Event, trained: Event) -> Broken:
    return Broken(
        idle,
        must="a micro-batch should go forward once for each of its losses",
        because="what else is to be known of it can be read from the outputs that are there, or without gradients",
        however=f"no backward went through {placed(idle)} of micro-batch {idle.micro_batch}, which {placed(trained)} "
        "trained on",
        shows=tuple(sorted((idle, trained), key=lambda event: event.seq)),
        effect=f"Window {window.number} is slower; its gradients are as they should be.",
    )
