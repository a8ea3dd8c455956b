"""The process that imports trainers once for all clients in the same surroundings, and forks a zygote for each."""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from conformance.adapter.loading import Import
from conformance.runner.outcome import describe_status
from conformance.runner.rank.loading import remembered
from conformance.runner.rank.reporting import DESCRIPTORS_LOST
from conformance.runner.server import forking, server
from conformance.runner.system import stacks
from conformance.runner.system.child import POLL, Child
from conformance.runner.system.descriptors import Known, last_line
from conformance.runner.system.output import Output
from conformance.runner.system.protocol import Channel
from conformance.runner.zygote import loop

#: Seconds that it has to end once it has disconnected.
END_LIMIT = 1.0
# pytest names the worker and the test in these, which are all that differs between the workers of one run.
_OF_WORKER = "PYTEST_"


def shared_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a trainer is imported."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_WORKER)}


class Importer:
    """An importer, seen from the process that forks it.

    Attributes:
        channel: from here come {"imported": whether zygotes can be forked from it}, and {"idle": how many clients it
            has had} when the last of them has gone.
        watched: readable when it has said something or has ended. What it has forked may hold its channel open.
        output: what it prints.
        was_killed: it has ended by SIGKILL, which may be the system's doing when memory runs out.
    """

    def __init__(self, request: dict[str, Any], close_inherited: Callable[[], None]) -> None:
        """``request``: {"place", "folder", "path", "environment"}; ``close_inherited`` is called in the fork."""
        self.channel, theirs = map(Channel, socket.socketpair())
        source, sink = os.pipe()
        self.output = Output(source)
        self.was_killed = False
        self._place = request["place"]
        self._admitted = 0

        def body() -> int:
            close_inherited()
            self.channel.close()
            os.close(source)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.close(sink)
            return _become(theirs, request)

        self._child = Child(body)
        self.watched: list[Channel | int] = [
            self.channel,
            *([] if self._child.descriptor is None else [self._child.descriptor]),
        ]
        theirs.close()
        os.close(sink)

    def admit(self, client: Channel, environment: Mapping[str, str]) -> None:
        """Have it fork a zygote for a client. Raises OSError if it has ended."""
        own = {name: value for name, value in environment.items() if name.startswith(_OF_WORKER)}
        self.channel.send({"environment": own}, [client.fileno()])
        self._admitted += 1

    def is_idle(self, admitted: int) -> bool:
        """Whether no client is left of ``admitted`` ones that it has had."""
        return admitted == self._admitted

    def why_late(self, limit: float) -> str:
        """The error when the import has not ended after ``limit`` seconds."""

        def size() -> int:
            self.output.read()
            return self.output.count

        stacks.request([stacks.Process(self._child.pid, size)])
        return f"{self._place}: importing it did not end within {limit:g} s{self._at_line()}"

    def why_ended(self) -> str:
        """The error when it has ended or disconnected before the import had ended. It is ended."""
        has_ended = self._child.wait(END_LIMIT)
        status = self._child.end()
        self.was_killed = has_ended and status == signal.SIGKILL
        if not has_ended or status == DESCRIPTORS_LOST << 8:
            return self.why_unreadable()
        words = last_line(self.output.text())
        why = self._at_line() or (f"; it last printed: {words}" if words else "")
        return f"{self._place}: importing it ended the process ({describe_status(status)}){why}"

    def why_unreadable(self) -> str:
        """The error when its channel is not its own any more."""
        return f"{self._place}: importing it closed, or wrote to, file descriptors that it had not opened"

    def end(self, patience: float | None) -> None:
        """Hang up, and kill it after ``patience`` seconds (None: wait for its zygotes)."""
        self.channel.close()
        self._child.end(patience)
        os.close(self.output.source)

    def close(self) -> None:
        """In another child: close what belongs to the parent."""
        self.channel.close()
        os.close(self.output.source)
        self._child.close()

    def _at_line(self) -> str:
        line = stacks.line_of_trainer(self.output.text())
        return f" at {line}" if line else ""


def _become(parent: Channel, request: dict[str, Any]) -> int:
    faulthandler.enable(file=2)
    stacks.answer_requests(2)
    os.environ.clear()
    os.environ.update(shared_environment(request["environment"]))
    known, process = Known.of(parent.fileno()), os.getpid()
    server.move(request["place"], request)
    imported = remembered(request["place"])
    if os.getpid() != process:
        # The import has forked, and this is what it has forked.
        return 0
    if not known.is_intact:
        return DESCRIPTORS_LOST
    is_fit = forking.why_not_fork() is None
    parent.send({"imported": is_fit})
    if is_fit:
        gc.freeze()
        _fork_zygotes(parent, imported)
    return 0


def _fork_zygotes(parent: Channel, imported: Import) -> None:
    """Fork one for each client that ``parent`` passes on, until it disconnects and they have ended."""
    zygotes: dict[Child, Channel] = {}
    admitted = 0
    while True:
        descriptors = [zygote.descriptor for zygote in zygotes if zygote.descriptor is not None]
        patience = None if len(descriptors) == len(zygotes) else POLL
        ready, _, _ = select.select([parent.fileno(), *descriptors], [], [], patience)
        ended = [zygote for zygote in zygotes if zygote.poll() is not None]
        if ended and len(ended) == len(zygotes):
            parent.send({"idle": admitted})
        for zygote in ended:
            # Not before: a client that has seen its zygote end may ask for a new import.
            zygotes.pop(zygote).close()
        if parent.fileno() in ready:
            if not parent.fill():
                break
            while parent.holds_message:
                message = parent.receive() or {}
                [connection] = parent.take_descriptors()
                client = Channel(socket.socket(fileno=connection))
                zygote = Child(partial(_become_zygote, client, message["environment"], parent, zygotes, imported))
                zygotes[zygote] = client
                admitted += 1
    for zygote in zygotes:
        zygote.end(None)


def _become_zygote(
    client: Channel,
    environment: Mapping[str, str],
    parent: Channel,
    others: Mapping[Child, Channel],
    imported: Import,
) -> int:
    parent.close()
    for other, its_client in others.items():
        other.close()
        its_client.close()
    os.environ.update(environment)
    return loop.serve(client, {"imported": True}, imported)
