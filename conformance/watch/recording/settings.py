"""How many steps a recorder watches, and which: `--steps` and `--every`, passed through environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

STEPS, EVERY = "CONFORMANCE_WATCH_STEPS", "CONFORMANCE_WATCH_EVERY"


@dataclass(frozen=True)
class Settings:
    """The amount to record. steps: of each optimizer, after which the recorder stops; None for all. every: watches one
    window out of this many."""

    steps: int | None = None
    every: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        steps = environment.get(STEPS)
        return cls(None if steps is None else int(steps), int(environment.get(EVERY, "1")))

    def variables(self) -> dict[str, str]:
        """The variables that `of` reads."""
        return {EVERY: str(self.every), **({} if self.steps is None else {STEPS: str(self.steps)})}

    def looks_at(self, window: int) -> bool:
        """Whether the window before the step of this number, from 0, is watched."""
        return window % self.every == 0
