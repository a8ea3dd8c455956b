"""What a process prints. It goes through a pipe, of which the end is kept: a file would grow as long as it prints."""

from __future__ import annotations

import os

#: Bytes of the end that are kept.
KEPT = 20_000
_CHUNK = 1 << 16
# More than a pipe holds.
_REST = 32


class Output:
    """The end of what comes out of the pipe ``source``."""

    def __init__(self, source: int) -> None:
        self.source = source
        os.set_blocking(source, False)
        self._end = b""

    def read(self) -> bool:
        """Read what has arrived; False when nothing more will come."""
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        self._end = (self._end + data)[-KEPT:]
        return bool(data)

    def text(self) -> str:
        """The last `KEPT` bytes of what was printed until now."""
        # Something that the process has started elsewhere may go on printing.
        for _ in range(_REST):
            self.read()
        return self._end.decode(errors="replace")
