"""A rank that a worker of a framework runs, at the other end of a connection."""

from __future__ import annotations

import select
from time import monotonic
from typing import Any

from conformance.runner.case.member import RankMember
from conformance.runner.case.supervision import Failure
from conformance.runner.rank.reporting import NOTICES
from conformance.runner.system import linux
from conformance.runner.system.protocol import Channel, to_json

_LONGEST_STACK = 20_000
#: Exceptions that collectives raise when a rank is gone, in torch and in Horovod.
_OF_LOST_PEERS = ("RuntimeError", "Dist", "Connection", "HorovodInternalError")


class Worker(RankMember):
    """A rank that one process enters (`conformance.enter`). When we hang up, that process ends.

    lost_a_peer: whether it raised what ranks raise when another one is gone.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._channel: Channel | None = None
        self._has_exited = False
        self._stack = ""
        self._pid: int | None = None
        self.lost_a_peer = False

    @property
    def has_exited(self) -> bool:
        return self._has_exited

    @property
    def failure(self) -> Failure | None:
        failure = super().failure
        # If no worker entered, the driver is at fault.
        if failure is None or not (self.started or self.malformed):
            return None
        # The first failure counts, raised or not: a framework ends all workers when one raises.
        return failure._replace(raised=False)

    def enter(self, channel: Channel, spec: dict[str, Any]) -> bool:
        """Let the process at the other end be this rank; False if the rank is taken or the process has disconnected."""
        if self._channel is not None or self._has_exited:
            return False
        try:
            channel.send(spec)
        except OSError:
            return False
        self._channel = channel
        return True

    def refuse(self) -> None:
        """Admit no worker any more."""
        if self._channel is None:
            self._has_exited = True

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def fileno(self) -> int:
        return -1 if self._channel is None else self._channel.fileno()

    def read(self) -> bool:
        if self._channel is None or not self._channel.fill():
            self._has_exited = True
            self._fail(monotonic())
            return False
        try:
            while self._channel.holds_message and (message := self._channel.receive()) is not None:
                self._take(message)
        except (ValueError, RecursionError):
            self._reject("has something among its events that is none")
        return True

    def note_earlier_failure(self, at: float) -> None:
        """Note, as of ``at``, if its process has raised what is no consequence, or dies or has hung up without that."""
        if self._channel is None or self._has_exited or self._failed_at is not None or self.killed_because:
            return
        poll = select.poll()
        poll.register(self._channel, select.POLLRDHUP)
        is_gone = bool(poll.poll(0)) or (self._pid is not None and linux.is_exiting(self._pid))
        self._read_all()
        if not self.lost_a_peer if self.raised else is_gone:
            self._failed_at = at

    def kill(self, because: str) -> None:
        if not self._has_exited:
            self.killed_because = because
            self.refuse()
            if self._channel is not None:
                self._channel.cut()

    def ask_for_stack(self) -> bool:
        if self._channel is None or self._has_exited:
            return False
        try:
            self._channel.send({"ask": "stack"})
        except OSError:
            return False
        return True

    def stack_size(self) -> int:
        self._read_all()
        return len(self._stack)

    def _read_all(self) -> None:
        while self._channel is not None and self._channel.is_readable(0.0) and self.read():
            continue

    def _take(self, message: dict[str, Any]) -> None:
        if isinstance(stack := message.get("stack"), str):
            self._stack += stack
            return
        # Clocks of other machines cannot be compared with ours.
        message.pop("at", None)
        if message.get("event") == "started":
            self._pid = message.get("pid")
        self._add(to_json(message))
        if message.get("event") == "raised":
            self.lost_a_peer = str(message.get("type")).startswith(_OF_LOST_PEERS)
        if message.get("event") in NOTICES:
            self._note({**message, "at": monotonic()})

    def _printed(self) -> tuple[str, str]:
        """The framework captures its workers' output, and may pass it on to the driver."""
        return "", self._stack[-_LONGEST_STACK:]

    def _exit(self, after: int | None) -> str:
        if not self.started:
            return f"no worker entered the case as rank {self.rank}"
        if self.killed_because:
            return f"killed {self.killed_because}"
        if self.delivered:
            return "exited 0"
        text = "exited 1 before it finished"
        if not self.raised:
            text = f"the worker of rank {self.rank} disconnected before it finished"
        return text if after is None else f"{text}, after rank {after} failed"
