"""Runs one case: starts its rendezvous and ranks, watches them, and cleans up after them."""

from __future__ import annotations

import os
import selectors
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import astuple, replace
from functools import partial
from time import monotonic
from typing import Any

from conformance.adapter.backends import Topology
from conformance.runner.case import rendezvous_host
from conformance.runner.case.member import RankMember
from conformance.runner.case.rank_process import RankProcess
from conformance.runner.case.supervision import (
    Action,
    AllFinished,
    AllStarted,
    Building,
    FirstFailure,
    Limits,
    Release,
    Stop,
    Supervision,
)
from conformance.runner.outcome import Outcome, RankOutcome, RunnerError, describe_status
from conformance.runner.rank.environment import NodeShare, rank_environment
from conformance.runner.rank.rank import Pipes
from conformance.runner.system import stacks
from conformance.runner.system.child import POLL, Child, children, sweep
from conformance.runner.system.descriptors import Descriptors
from conformance.runner.system.protocol import Channel

# Seconds beyond the time limit if some ranks run elsewhere; then the front enforces the limit, because it sees all.
_SHARE_PATIENCE = 30.0
# Seconds between checks of the evidence of silent ranks.
_LOOK = 1.0


class ClientDisconnected(Exception):
    """The process that asked for the case has disconnected, so nobody needs the outcome."""


class Case(ABC):
    """A case in fresh processes, for the client at the end of ``client``.

    ``request``: {"spec", "time_limit"}, the limit in seconds until all ranks have started, and again from there; and
    "share", the ranks to run here, if others run elsewhere. Then the client supervises all of them.

    ``start_limit``: seconds until all have started, if each rank imports torch itself.
    """

    def __init__(self, request: dict[str, Any], client: Channel, start_limit: float | None = None) -> None:
        self._spec = request["spec"]
        self._time_limit = request["time_limit"]
        self._start_limit = self._time_limit if start_limit is None else start_limit
        self._share = NodeShare(**request["share"]) if "share" in request else None
        self._client = client
        self._members: list[RankMember] = []
        self._rendezvous: Child | None = None

    def run(self) -> Outcome:
        """Run the case. Raises ClientDisconnected; RunnerError for failures of the harness."""
        began = monotonic()
        patience = 0.0 if self._share is None else _SHARE_PATIENCE
        limits = Limits(self._time_limit + patience, self._start_limit)
        with ExitStack() as self._clearing:
            self._clearing.callback(sweep, children())
            self._descriptors = Descriptors()
            self._clearing.callback(self._descriptors.close_all_but, ())
            self._clearing.callback(self._end_all)
            hold, release = self._descriptors.pipe()
            self._release: int | None = release
            self._start(hold)
            self._descriptors.close(hold)
            self._supervision = Supervision(
                self._members, limits, self._time_limit, began, may_leave=self._share is None
            )
            self._selector = self._clearing.enter_context(selectors.DefaultSelector())
            self._watch()
            for process in self._processes():
                if process.unwritable is not None:
                    # For example because the disk is full.
                    raise RunnerError(f"cannot write the evidence of rank {process.rank}: {process.unwritable}")
            ranks = self._outcomes(self._supervision.first_failed)
        return Outcome(ranks, monotonic() - began, self._supervision.timed_out)

    @abstractmethod
    def _start(self, hold: int) -> None:
        """Start the case's processes. ``hold``: the pipe that closes when they may leave. Raises ClientDisconnected."""

    def _outcomes(self, first_failed: int | None) -> tuple[RankOutcome, ...]:
        return tuple(member.outcome(first_failed) for member in self._members)

    def _watch(self) -> None:
        """Watch until every rank has exited. Raises ClientDisconnected, RunnerError."""
        self._listen_to(self._client, self._read_client)
        for process in self._processes():
            self._listen_to(process, process.read)
            self._listen_to(process.output.source, process.output.read)
        for child in self._children():
            if child.descriptor is not None:
                # The event only wakes the loop; `_note_exits` then finds the ended process and closes its descriptor.
                self._listen_to(child.descriptor, lambda: False)
        while not self._supervision.is_over:
            for key, _ in self._selector.select(self._patience()):
                if not key.data():
                    self._selector.unregister(key.fileobj)
            for process in self._processes():
                process.look()
            self._note_exits()
            for action in self._supervision.advance(monotonic()):
                self._act(action)

    def _patience(self) -> float:
        patience = min(_LOOK, max(0.0, self._supervision.deadline - monotonic()))
        is_silent = any(child.status is None and child.descriptor is None for child in self._children())
        return min(POLL, patience) if is_silent else patience

    def _listen_to(self, source: Any, read: Callable[[], bool]) -> None:
        """Call ``read`` when there is something to read, until it returns False."""
        self._selector.register(source, selectors.EVENT_READ, read)

    def _note_exits(self) -> None:
        """Note processes that have ended. Raises RunnerError."""
        if self._rendezvous is not None and (status := self._rendezvous.poll()) is not None:
            raise RunnerError(f"the process that hosts the rendezvous ended early: {describe_status(status)}")
        for process in self._processes():
            process.reap()

    def _act(self, action: Action[RankMember]) -> None:
        """Do what the supervision asks for. Raises ClientDisconnected."""
        match action:
            case AllStarted():
                self._report(started=True)
            case Building(in_progress):
                self._report(building=in_progress)
            case FirstFailure(rank, raised):
                self._report(failed=rank, raised=raised)
            case AllFinished():
                self._report(finished=True)
            case Release():
                self._let_leave()
            case Stop(members, because, is_late):
                if is_late:
                    self._report(late=because)
                    stacks.request(members)
                for member in members:
                    member.kill(because)

    def _let_leave(self) -> None:
        """Let ranks leave that have finished or raised."""
        if self._release is not None:
            self._descriptors.close(self._release)
            self._release = None

    def _report(self, **message: Any) -> None:
        """Report to the client if other ranks run elsewhere. Raises ClientDisconnected."""
        if self._share is not None:
            try:
                self._client.send(message)
            except OSError as error:
                raise ClientDisconnected from error

    def _read_client(self) -> bool:
        """Read the client's reports about ranks elsewhere; always True. Raises ClientDisconnected."""
        # If all ranks run here, the client sends nothing, and only the end of its connection can be read.
        if self._share is None or not self._client.fill():
            raise ClientDisconnected
        while self._client.holds_message:
            match self._client.receive():
                case {"failed": rank}:
                    self._supervision.failed_elsewhere = rank
                    self._let_leave()
                case {"late": because}:
                    self._supervision.given_up = because
                case {"release": True}:
                    self._supervision.may_leave = True
        return True

    def _start_rendezvous(self, address: str) -> int:
        """Start the case's rendezvous; returns its port."""
        listener = rendezvous_host.listen(address)

        def body() -> int:
            self._close_inherited()
            rendezvous_host.host(self._spec["backend"], listener, Topology.of(self._spec))

        with listener:
            self._rendezvous = Child(body)
            return int(listener.getsockname()[1])

    def _fork(self, rank: int, hold: int, become: Callable[[Pipes], int]) -> RankProcess:
        def body(pipes: Pipes) -> int:
            self._close_inherited(*astuple(pipes))
            return become(pipes)

        process = RankProcess(rank, self._descriptors, hold, body)
        self._members.append(process)
        return process

    def _close_inherited(self, *kept: int) -> None:
        """Close, in a child, everything of the server except the descriptors ``kept``."""
        for child in self._children():
            child.close()
        self._client.close()
        self._descriptors.close_all_but(kept)

    def _processes(self) -> Iterator[RankProcess]:
        return (member for member in self._members if isinstance(member, RankProcess))

    def _children(self) -> Iterator[Child]:
        yield from (process.child for process in self._processes())
        if self._rendezvous is not None:
            yield self._rendezvous

    def _end_all(self) -> None:
        for process in self._processes():
            process.end()
        if self._rendezvous is not None:
            self._rendezvous.end()


class StartedCase(Case):
    """A case whose ranks the harness starts; ``run_rank`` runs in a forked process and returns the exit code."""

    def __init__(
        self,
        run_rank: Callable[[dict[str, Any], int, Pipes], int],
        request: dict[str, Any],
        client: Channel,
        start_limit: float | None = None,
    ) -> None:
        super().__init__(request, client, start_limit)
        self._run_rank = run_rank

    def _start(self, hold: int) -> None:
        share = self._share or NodeShare(range(int(self._spec["world_size"])))
        # A single rank can do without a rendezvous.
        is_needed = int(self._spec["world_size"]) > 1 or rendezvous_host.why_down(share.address) is None
        if share.port is None and is_needed:
            share = replace(share, port=self._start_rendezvous(share.address))
            self._report(port=share.port)
        for rank in share.ranks:
            environment = rank_environment(self._spec, rank, share)
            self._fork(rank, hold, partial(self._become_rank, rank, environment))

    def _act(self, action: Action[RankMember]) -> None:
        super()._act(action)
        if isinstance(action, FirstFailure) and self._share is None:
            # With ranks elsewhere, the client first finds out which rank failed.
            self._let_leave()

    def _become_rank(self, rank: int, environment: dict[str, str], pipes: Pipes) -> int:
        os.environ.update(environment)
        return self._run_rank(self._spec, rank, pipes)
