"""The worker's side of a case whose workers the trainer starts: `conformance.enter`."""

from __future__ import annotations

import faulthandler
import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from conformance.runner.rank.reporting import described
from conformance.runner.system.descriptors import Known
from conformance.runner.system.protocol import Channel

if TYPE_CHECKING:
    from conformance.adapter.task import Task


@contextmanager
def enter(ticket: Mapping[str, Any], rank: int) -> Iterator[Task]:
    """Enter the case of ``ticket`` (`Job.ticket`) as rank ``rank``, and get the rank's task.

        with conformance.enter(ticket, rank) as task:
            model = task.model()
            ...

    Inside, the harness records this worker. An exception is reported and propagates to the caller. The process ends if
    the harness gives up the case. Raises ValueError for a rank that the case does not have, and RuntimeError if another
    worker has entered as this rank or the case is over.
    """
    with closing(Entry(ticket, rank)) as entry, entry.working() as task:
        yield task
        entry.finish()


class Entry:
    """`enter` in parts, for a worker that works in separate calls, or a process that is several ranks in turn.

        entry = conformance.Entry(ticket, rank)
        with entry.working() as task: ...     # any number of times
        entry.finish()
        entry.close()

    Only the code inside `working` is recorded as this rank. Only one entry of a process can work at a time. An entry
    closed without `finish` counts as a rank that died. Raises the same errors as `enter`.
    """

    def __init__(self, ticket: Mapping[str, Any], rank: int) -> None:
        from conformance.adapter.task import Task
        from conformance.trace.recorder import Recorder

        self._connection = _Connection(ticket, rank)
        self._recorder = Recorder(self._connection.send, self._connection.spec, rank, ticket["trainer_file"])
        self._recorder.note("started", pid=os.getpid())
        with self._reporting():
            self._task = Task(self._connection.spec, rank, self._recorder)

    @contextmanager
    def working(self) -> Iterator[Task]:
        """A context in which this process is this rank. An exception inside is reported and ends the entry."""
        with self._reporting(), self._recorder:
            yield self._task

    def finish(self) -> None:
        """Report that the rank has finished its work."""
        self._recorder.finished()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._recorder.raised(**described(error))
            self.close()
            raise


class _Connection:
    """The connection to the harness. A thread serves it, because a worker that hangs cannot."""

    def __init__(self, ticket: Mapping[str, Any], rank: int) -> None:
        if not 0 <= rank < ticket["world_size"]:
            raise ValueError(f"rank {rank} is not in this case; its ranks are 0 to {ticket['world_size'] - 1}")
        self._lock = threading.Lock()
        try:
            self._socket = socket.create_connection((ticket["host"], ticket["port"]))
            self._known = Known.of(self._socket.fileno())
            self._channel = Channel(self._socket)
            self._channel.send({"token": ticket["token"], "rank": rank})
            if (spec := self._channel.receive()) is None:
                raise ConnectionResetError("the harness disconnected")
        except OSError as error:
            raise RuntimeError(
                f"cannot enter the case as rank {rank}: another worker has entered as this rank, or the case is over"
            ) from error
        self.spec = spec
        self._is_open = True
        threading.Thread(target=self._attend, name="conformance", daemon=True).start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event. Never raises into a trainer: an event that cannot be sent ends the evidence."""
        with self._lock, suppress(OSError):
            if self._known.is_intact:
                self._channel.send(event)

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                if self._known.is_intact:
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _attend(self) -> None:
        with suppress(OSError):
            while self._known.is_intact and self._channel.receive() is not None:
                self.send({"stack": _stack()})
        with self._lock:
            if self._is_open and self._known.is_intact:
                os._exit(1)
        if self._known.is_intact:
            self._channel.close()


def _stack() -> str:
    """The stacks of all threads of this process, most recent call first."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
