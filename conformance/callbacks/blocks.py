"""A watch that begins and ends in two calls."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from conformance.watch.inside import Watch, watching


class Block:
    """What callbacks share. The arguments are those of `watching`."""

    watch: Watch | None = None

    def __init__(self, expect: Mapping[str, str] | None = None, *, strict: bool = False, check: bool = True) -> None:
        super().__init__()
        self._expect, self._strict, self._check = expect, strict, check
        self._stack = ExitStack()

    def begin(self) -> None:
        self.abandon()
        self.watch = self._stack.enter_context(watching(self._expect, strict=self._strict, check=self._check))

    def end(self) -> None:
        """Raises NotConforming, as `watching` does."""
        self._stack.close()

    def abandon(self) -> None:
        """End a watch on a training that failed, without a verdict."""
        error = InterruptedError()
        self._stack.__exit__(type(error), error, None)
