"""What a trainer has no place for."""

from __future__ import annotations


class Unsupported(Exception):
    """The case is UNSUPPORTED, with this reason, unless the trainer goes on without what it asked for."""


class UnsupportedModel(Unsupported, AttributeError):
    """A trainer asks the task's model for what a `torch.nn.Linear` has and this one has not."""


class UnsupportedGroups(Unsupported, ValueError):
    """A trainer asks for an optimizer of a flat parameter, which cannot have several groups."""


REASONS = frozenset(kind.__name__ for kind in (UnsupportedModel, UnsupportedGroups))
