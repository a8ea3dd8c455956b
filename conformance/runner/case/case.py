"""One case: its rendezvous and its ranks are started, watched, and cleared away without a trace."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import astuple
from time import monotonic
from typing import Any

from conformance.adapter.topology import Topology
from conformance.runner.case import keeper
from conformance.runner.case.launch import Launch
from conformance.runner.case.part import Part
from conformance.runner.case.peers import Alone, Peers
from conformance.runner.case.seat import Seat
from conformance.runner.case.supervision import Supervision
from conformance.runner.outcome import Outcome, RankOutcome, describe_status
from conformance.runner.rank.environment import rank_environment
from conformance.runner.rank.rank import Pipes
from conformance.runner.system import linux, processes
from conformance.runner.system.descriptors import Descriptors
from conformance.runner.system.protocol import Channel
from conformance.runner.system.signals import ChildSignals


class KeeperGone(Exception):
    """The rendezvous ended under the ranks, for which none of them can be blamed."""


class Case(ABC):
    """``spec`` in fresh processes, for the client at the end of ``client``. ``peers``: its ranks that run elsewhere."""

    def __init__(self, spec: dict[str, Any], client: Channel, peers: Peers) -> None:
        self._spec = spec
        self._client = client
        self._peers = peers
        self._seats: list[Seat] = []
        self._keeper: int | None = None

    def run(self, time_limit: float) -> Outcome:
        """``time_limit``: seconds, counted from when all ranks have started.

        Raises ClientGone, KeeperGone.
        """
        began = monotonic()
        with ExitStack() as self._clearing:
            self._clearing.callback(processes.sweep, linux.children())
            self._descriptors = self._clearing.enter_context(Descriptors())
            self._signals = self._clearing.enter_context(ChildSignals())
            self._clearing.callback(self._kill_all)
            hold, release = self._descriptors.pipe()
            self._start(hold)
            self._descriptors.close(hold)
            supervision = Supervision(
                self._seats,
                time_limit,
                self._peers,
                check=self._check_keeper,
                release=lambda: self._descriptors.close(release),
            )
            supervision.watch(self._signals, self._client)
            ranks = self._outcomes(supervision.first_failed)
        return Outcome(ranks, monotonic() - began, supervision.timed_out)

    @abstractmethod
    def _start(self, hold: int) -> None:
        """Start the case's processes. ``hold``: the pipe that closes when all ranks are through. Raises ClientGone."""

    def _outcomes(self, first_failed: int | None) -> tuple[RankOutcome, ...]:
        return tuple(seat.outcome(first_failed) for seat in self._seats)

    def _start_keeper(self, address: str) -> int:
        """Returns the port of the case's rendezvous."""
        listener = keeper.listen(address)

        def body() -> int:
            self._forget()
            keeper.keep(self._spec["backend"], listener, Topology.of(self._spec))

        with listener:
            self._keeper = processes.fork(body)
            return int(listener.getsockname()[1])

    def _check_keeper(self) -> None:
        """Raises KeeperGone."""
        if self._keeper is not None and (status := processes.ended(self._keeper)) is not None:
            self._keeper = None
            raise KeeperGone(f"the process that keeps the rendezvous ended early: {describe_status(status)}")

    def _fork(self, kind: type[Seat], rank: int, hold: int, become: Callable[[Pipes], int], *kept: int) -> None:
        """Give a process its seat. It keeps its pipes and the descriptors ``kept``."""
        notices, write = self._descriptors.pipe()
        output, stack, evidence = (self._descriptors.file() for _ in range(3))
        seat = kind(rank, notices, evidence, output, stack)
        pipes = Pipes(evidence, write, hold, stack)

        def body() -> int:
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._forget(*astuple(pipes), *kept)
            return become(pipes)

        seat.pid = processes.fork(body)
        self._seats.append(seat)
        self._descriptors.close(write)

    def _forget(self, *kept: int) -> None:
        """In a child: let go of everything that is the server's."""
        self._signals.restore()
        self._client.close()
        self._descriptors.close_all_but(kept)

    def _kill_all(self) -> None:
        started = [seat.pid for seat in self._seats if not seat.gone]
        for pid in started if self._keeper is None else [*started, self._keeper]:
            processes.kill_and_reap(pid)


class StartedCase(Case):
    """A case whose ranks we start; ``launch`` makes ranks of forked processes.

    ``part``: the ranks to start here, if others run elsewhere.
    """

    def __init__(self, launch: Launch, spec: dict[str, Any], client: Channel, part: Part | None = None) -> None:
        super().__init__(spec, client, Alone(client) if part is None else Peers(client))
        self._launch = launch
        self._part = part or Part(tuple(range(int(spec["world_size"]))))

    def _start(self, hold: int) -> None:
        port = self._rendezvous()
        for rank in self._part.ranks:
            self._start_rank(rank, hold, port)

    def _rendezvous(self) -> int | None:
        """The port of the case's rendezvous, which is started if it is to be kept here. Raises ClientGone."""
        if self._spec["backend"] == "single" or self._part.port is not None:
            return self._part.port
        port = self._start_keeper(self._part.address)
        self._peers.tell(port=port)
        return port

    def _start_rank(self, rank: int, hold: int, port: int | None) -> None:
        def become(pipes: Pipes) -> int:
            environment = rank_environment(self._spec, rank, port, self._part.address, self._part.interface)
            return self._launch(self._spec, rank, pipes, environment)

        self._fork(Seat, rank, hold, become)
