"""What a trainer has no place for."""

from __future__ import annotations


class UnsupportedModel(AttributeError):
    """A trainer asks the task's model for what a `torch.nn.Linear` has and this one has not: the case is UNSUPPORTED,
    with this reason, unless the trainer goes on without it."""
