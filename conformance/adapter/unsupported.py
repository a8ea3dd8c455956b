"""What a trainer has no place for."""

from __future__ import annotations


class Unsupported(Exception):
    """A trainer raises it for a case that its framework has no place for: `raise Unsupported("no dampening")`.

    The case is UNSUPPORTED, with that reason, if any rank raises it before the first optimizer step. After a step,
    which may have been a wrong one, it is a CRASH.
    """


class UnsupportedModel(Unsupported, AttributeError):
    """A trainer asks the task's model for what a `torch.nn.Linear` has and this one has not."""


class UnsupportedGroups(Unsupported, ValueError):
    """A trainer asks for an optimizer of a flat parameter, which cannot have several groups."""
