"""The worker's side of a case whose workers the trainer under test has started: `conformance.enter`."""

from __future__ import annotations

import faulthandler
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conformance.runner.protocol import Channel
from conformance.runner.telling import described

if TYPE_CHECKING:
    from conformance.trainers.task import Task


@contextmanager
def enter(ticket: Mapping[str, Any], rank: int) -> Iterator[Task]:
    """Be rank ``rank`` of the case that ``ticket`` (`Job.ticket`) is for, and get its task.

        with conformance.enter(ticket, rank) as task:
            model = task.model()
            ...

    Inside, this worker is recorded, and what it does is sent to the harness as it happens. What is raised inside is
    reported and goes on to the caller. When the harness gives the case up, the process ends. Raises ValueError for a
    rank that the case does not have, and RuntimeError when somebody was that rank before or the case is over.
    """
    from conformance.trace.recorder import Recorder
    from conformance.trainers.task import Task

    with _Line(ticket, rank) as line:
        recorder = Recorder(line.send, line.spec, rank, ticket["trainer_file"])
        recorder.note("started", pid=os.getpid())
        try:
            with recorder:
                task = Task(line.spec, rank, recorder)
                yield task
                recorder.finished(task)
        except BaseException as error:
            recorder.note("raised", **described(error), at=time.monotonic())
            raise


class _Line:
    """The connection to the harness. A thread attends to it, because a worker that hangs cannot."""

    def __init__(self, ticket: Mapping[str, Any], rank: int) -> None:
        ports = ticket["ports"]
        if not 0 <= rank < len(ports):
            raise ValueError(f"no rank {rank} in a case of world size {len(ports)}")
        self._lock = threading.Lock()
        try:
            self._socket = socket.create_connection((ticket["host"], ports[rank]))
            self._channel = Channel(self._socket)
            self._channel.send({"token": ticket["token"]})
            spec = self._channel.receive()
        except OSError as error:
            raise RuntimeError(_turned_away(rank)) from error
        if spec is None:
            raise RuntimeError(_turned_away(rank))
        self.spec = spec
        self._is_open = True

    def __enter__(self) -> _Line:
        threading.Thread(target=self._attend, name="conformance", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_open = False
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._channel.send(event)

    def _attend(self) -> None:
        while self._channel.receive() is not None:
            self.send({"stack": _stack()})
        with self._lock:
            if self._is_open:
                os._exit(1)
        self._channel.close()


def _stack() -> str:
    """Where each thread of this process is, the most recent call first."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def _turned_away(rank: int) -> str:
    return f"cannot enter the case as rank {rank}: a worker did so before, or the case is over"
