"""What a process prints. It goes through a pipe, of which the end is kept: a file would grow as long as it prints."""

from __future__ import annotations

import os
import select
import threading

#: Bytes of the end that are kept.
KEPT = 20_000
_CHUNK = 1 << 16
# More than a pipe holds.
_REST = 32


class Output:
    """The end of what comes out of the pipe ``source``.

    Attributes:
        count: bytes that were read until now.
    """

    def __init__(self, source: int) -> None:
        self.source = source
        self.count = 0
        os.set_blocking(source, False)
        self._end = b""

    def read(self) -> bool:
        """Read what has arrived; False when nothing more will come."""
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        self.count += len(data)
        self._end = (self._end + data)[-KEPT:]
        return bool(data)

    def text(self) -> str:
        """The last `KEPT` bytes of what was printed until now."""
        # Something that the process has started elsewhere may go on printing.
        for _ in range(_REST):
            self.read()
        return self._end.decode(errors="replace")


class Followed:
    """The same, of a pipe that a thread reads: for who waits for other things.

    Attributes:
        sink: what to write to. It stays open here, so that the pipe does not end.
    """

    def __init__(self) -> None:
        source, self.sink = os.pipe()
        self._woken, self._wake = os.pipe()
        self._output = Output(source)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="conformance-output", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The last `KEPT` bytes of what was printed until now."""
        with self._lock:
            return self._output.text()

    def close(self) -> None:
        os.close(self._wake)
        self._thread.join()
        for descriptor in (self._woken, self._output.source, self.sink):
            os.close(descriptor)

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._output.source, select.POLLIN)
        poll.register(self._woken)
        while all(ready != self._woken for ready, _ in poll.poll()):
            with self._lock:
                self._output.read()
