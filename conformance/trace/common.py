"""Events that several observers record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.state.optimizers import held_by
from conformance.trace.values import Number


def note_collective(
    recording: Recording,
    op: str,
    tensors: Sequence[torch.Tensor],
    via: str,
    group: list[int],
    reduce: str | None,
    name: str | None = None,
) -> bool:
    """Note a collective that is about to be issued over the ranks `group`; `tensors` are this rank's inputs.
    `name`: that of the group, if it has one.

    Returns whether the trainer itself reduces gradients with it.
    """
    # Not within `unscale_` either: a scaler may exchange overflows there, when it has divided the gradients.
    if recording.during is None:
        recording.look()
    if len(group) > 1:
        # A rank may leave its process group before it steps or ends.
        recording.topology()
    of, is_the_trainers = recording.payloads.of(tensors, reduces=reduce is not None)
    fields = exchange(recording, tensors, via, group)
    if name is not None:
        fields["process_group"] = name
    zeros = recording.payloads.zeros(tensors, of)
    recording.handles.noted(recording.note("collective", op=op, reduce=reduce, **fields, of=of, **zeros))
    if is_the_trainers:
        # Their changes are not reported until it has finished.
        recording.gradients.is_stale = True
    return is_the_trainers


def exchange(recording: Recording, tensors: Sequence[torch.Tensor], via: str, group: list[int]) -> dict[str, Any]:
    """The fields that collectives and messages have in common."""
    have_fractions = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    return {
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "elements": sum(tensor.numel() for tensor in tensors),
        "group": group,
        "via": via,
        "during": recording.during,
        **({"integers": True} if tensors and not have_fractions else {}),
    }


def note_skip(
    recording: Recording, optimizer: torch.optim.Optimizer, scale: Number, *, are_cleared: bool = False
) -> None:
    """Note a step that was requested and skipped, because gradients overflowed at `scale`; perhaps they are cleared."""
    parameters = recording.watched.find(optimizer)
    if parameters is None:
        return
    gradients = None if are_cleared else recording.watched.gradients(parameters)
    recording.shards()
    recording.note(
        "skip",
        scale=scale,
        gradients_finite=None if gradients is None else not any(isinstance(gradient, str) for gradient in gradients),
        gradients=gradients,
        weights=recording.watched.weights(parameters),
        optimizer=recording.optimizer(optimizer),
        state=recording.watched.state(optimizer),
        **recording.watched.handed_out(held_by(optimizer)),
    )
    recording.skipped.append(optimizer)
    recording.accounted()
