"""Child processes that end, as something that a selector can wait for."""

from __future__ import annotations

import os
import signal
from types import FrameType


class ChildSignals:
    """From entering to leaving, ``descriptor`` becomes readable when a child of this process ends."""

    def __enter__(self) -> ChildSignals:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._handler = signal.signal(signal.SIGCHLD, _wake)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def drain(self) -> None:
        os.read(self.descriptor, 4096)

    def restore(self) -> None:
        """Put back the handlers as they were and close both ends; a forked child does this too."""
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGCHLD, self._handler)
        os.close(self.descriptor)
        os.close(self._write)


def _wake(number: int, frame: FrameType | None) -> None:
    """A signal without a Python handler would not reach the wake-up descriptor."""
