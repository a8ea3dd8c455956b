"""Calls a trainer, and sees that it has run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def call(function: Callable[[Any], object], argument: object) -> None:
    """Call a trainer.

    Raises TypeError if it returned what has not run yet, as a function does that wraps an async or generator function.
    """
    returned = function(argument)
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            # Else Python would warn that nobody awaits it.
            returned.close()
        kind = type(returned).__name__.replace("_", " ")
        raise TypeError(
            f"the trainer's function returned a {kind}, of which nothing has run; write a plain `def train(task)` that "
            "runs it to its end"
        )
