"""Choices where several behaviours of a trainer are valid, and how reports describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: A choice of the trainer, and its behaviour.
Way: TypeAlias = Literal[
    "last_window=step", "last_window=drop", "last_window=carry", "last_window=unstepped", "last_window=pad",
    "last_batch=use", "last_batch=drop", "last_batch=pad", "last_batch=join",
    "joined_ranks=counted", "joined_ranks=left out",
    "uneven_window=by samples", "uneven_window=by micro-batches",
    "averaging=in every micro-batch",
    "schedule_on_skip=wait", "schedule_on_skip=advance",
    "average_on_skip=wait", "average_on_skip=update",
    "unused_parameters=skip", "unused_parameters=move",
    "repeated_samples=trained", "repeated_samples=left out",
    "buffers=one rank", "buffers=own", "buffers=reduced",
    "epoch_end=crossed", "epoch_order=same",
    "weights=reported",
]  # fmt: skip

#: The choices that `@trainer` accepts, and their values.
DECLARABLE: dict[str, tuple[str, ...]] = {
    "last_window": ("step", "drop", "carry", "pad"),
    "last_batch": ("use", "drop", "pad", "join"),
    "schedule_on_skip": ("wait", "advance"),
}


@dataclass(frozen=True)
class Words:
    """How a behaviour is described. ``says`` completes "the trainer ...". ``loss``: the cost to a user who does not
    expect it; ``instead``: what to write then."""

    says: str
    loss: str | None = None
    instead: str | None = None


_STEP = (
    "step after the loop too, with the losses divided by the length of that window, and clear the gradients with "
    "`optimizer.zero_grad()`"
)
_LEFT = "Its samples train nothing now, and unless the gradients are cleared, the next epoch starts with them."
_REPEATED = "The repeated samples count more than the others."

WORDS: dict[Way, Words] = {
    "last_window=step": Words("steps a short last window, averaged by its true length"),
    "last_window=drop": Words("drops a short last window", "Its samples train nothing.", _STEP),
    "last_window=carry": Words("drops a short last window and leaves its gradients behind", _LEFT, _STEP),
    "last_window=unstepped": Words(
        "does not step a short last window; its gradients may be somewhere unobserved", _LEFT, _STEP
    ),
    "last_window=pad": Words(
        "fills up a short last window by repeating samples", _REPEATED, "end the training with the data"
    ),
    "last_batch=use": Words("trains on a smaller last batch as it is"),
    "last_batch=drop": Words("drops a smaller last batch", "Its samples train nothing.", "pass `drop_last=False`"),
    "last_batch=pad": Words(
        "fills up a smaller last batch by repeating samples",
        _REPEATED,
        "train on the batch as it is, or leave the repeated samples out of the loss",
    ),
    "last_batch=join": Words("continues without the ranks that have run out of data"),
    "joined_ranks=counted": Words("divides by all ranks, including those that have run out of data"),
    "joined_ranks=left out": Words("divides by the ranks that still have data"),
    "uneven_window=by samples": Words("gives every sample the same weight in an uneven window"),
    "uneven_window=by micro-batches": Words("gives every micro-batch the same weight in an uneven window"),
    "averaging=in every micro-batch": Words("averages over the ranks in every micro-batch"),
    "schedule_on_skip=wait": Words("keeps the learning-rate schedule unchanged when a step is skipped"),
    "schedule_on_skip=advance": Words(
        "advances the learning-rate schedule when a step is skipped",
        "The schedule runs ahead of the steps that were taken.",
        "call `scheduler.step()` only if `scaler.get_scale()` has not fallen",
    ),
    "average_on_skip=wait": Words("updates its average of the weights after steps only, not after skipped ones"),
    "average_on_skip=update": Words(
        "updates its average of the weights also when a step is skipped, as torch's reference scripts do"
    ),
    "unused_parameters=skip": Words("leaves parameters unchanged that a window does not use"),
    "unused_parameters=move": Words(
        "moves parameters that a window does not use by momentum and weight decay, with gradients of zero",
        "These parameters drift, although no sample trains them.",
        "leave `parameter.grad` at None where no rank has a gradient",
    ),
    "repeated_samples=trained": Words("trains on the samples that its sampler repeats"),
    "repeated_samples=left out": Words("leaves out the samples that its sampler repeats"),
    "buffers=one rank": Words("copies the model's buffers of one rank to the others"),
    "buffers=own": Words("keeps each rank's own buffers of the model"),
    "buffers=reduced": Words("reduces the model's buffers over the ranks"),
    "epoch_end=crossed": Words("continues an accumulation window across the end of an epoch"),
    "epoch_order=same": Words(
        "shuffles once, and reads every epoch in the same order",
        "Batches have the same samples in every epoch.",
        "call `sampler.set_epoch(epoch)` before each epoch, or shuffle in each",
    ),
    "weights=reported": Words("reports weights that cannot be observed, which were judged as reported"),
}


def is_declared(way: Way, declared: str | None) -> bool:
    """Whether this behaviour was declared. Ranks that continue without others also use a smaller batch."""
    return declared == split(way)[1] or (way == "last_batch=use" and declared == "join")


def declarable(way: Way) -> tuple[str, ...]:
    """The declarations that match this behaviour."""
    choice, done = split(way)
    if way == "last_window=unstepped":
        return "drop", "carry"
    return (done,) if done in DECLARABLE.get(choice, ()) else ()


def split(way: Way) -> tuple[str, str]:
    """The choice, and the behaviour."""
    choice, _, done = way.partition("=")
    return choice, done


def warning(way: Way, declared: str | None) -> str | None:
    """The cost of a behaviour and what to do, if it costs the user something and was not ``declared``."""
    words, choice = WORDS[way], split(way)[0]
    if words.loss is None or is_declared(way, declared):
        return None
    meant = " or ".join(f'`@trainer({choice}="{one}")`' for one in declarable(way))
    return f"{words.loss} If this is {f'intended, add {meant}; else' if meant else 'not intended,'} {words.instead}."
