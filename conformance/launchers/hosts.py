"""Combines a trainer's servers on all machines of a launch into one server for the suite. Each machine runs its share
of a case, and learns of events on the others."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

from conformance.cases.case import Case
from conformance.launchers.front import Front, RemoteStarter
from conformance.runner.case.supervision import (
    BUILD_LIMIT,
    GRACE,
    LEAVE_LIMIT,
    START_LIMIT,
    Action,
    Failure,
    FirstFailure,
    Limits,
    Release,
    Stop,
    Supervision,
)
from conformance.runner.front.client import (
    SLACK,
    ForkServer,
    Outcome,
    RankOutcome,
    RunnerError,
    TrainerError,
    Unavailable,
)
from conformance.runner.rank.environment import NodeShare
from conformance.runner.system.protocol import Channel
from conformance.suite.servers import Servers


class NodeMember:
    """The ranks that one machine runs, and their current state.

    Attributes:
        started, is_building, delivered, failure: its server's reports about all its ranks.
        outcome: the ranks' outcome, once it has arrived. lost: why none will arrive.
        is_dismissed: it was told to stop or leave, and only its outcome is still expected.
        raised_late: its ranks raised only because another machine had started to stop its hanging ranks.
    """

    def __init__(self, starter: RemoteStarter, server: ForkServer, ranks: Sequence[int]) -> None:
        self.starter = starter
        self.server = server
        self.ranks = ranks
        self.channel: Channel | None = None
        self.started = self.is_building = self.delivered = self.is_dismissed = self.raised_late = False
        self.failure: Failure | None = None
        self.outcome: Outcome | None = None
        self.lost: str | None = None

    @property
    def has_exited(self) -> bool:
        return self.outcome is not None or self.lost is not None

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Ignores a lost server, because the end of its connection shows the loss."""
        if self.channel is not None and not self.has_exited:
            with suppress(OSError):
                self.channel.send(message)

    def fail(self, raised: bool, rank: int) -> None:
        failure = Failure(raised, monotonic(), rank)
        self.failure = failure if self.failure is None else min(self.failure, failure)

    def outcomes(self, first_failed: int | None) -> tuple[RankOutcome, ...]:
        if self.outcome is not None:
            ranks = self.outcome.ranks
            if self.raised_late:
                ranks = tuple(map(_without_exception, ranks))
        else:
            ranks = tuple(
                RankOutcome(rank, (), False, self.lost or "", "", None, None if rank == first_failed else first_failed)
                for rank in self.ranks
            )
        return tuple(replace(rank, host=self.starter.name) for rank in ranks)


def _without_exception(rank: RankOutcome) -> RankOutcome:
    return replace(rank, events=[event for event in rank.events if event["event"] != "raised"])


class SpreadCase:
    """A case on all of ``nodes``; the first hosts the rendezvous."""

    def __init__(self, nodes: Sequence[NodeMember], spec: dict[str, Any], time_limit: float) -> None:
        self._nodes = nodes
        self._spec = spec
        self._time_limit = time_limit
        self._harness_failure: str | None = None

    def run(self) -> Outcome:
        """Run the case. Raises RunnerError, and the errors of `ForkServer`."""
        began = monotonic()
        # Each machine enforces these limits too; the slack leaves time for its reports.
        limits = Limits(
            self._time_limit, START_LIMIT + SLACK, BUILD_LIMIT + SLACK, GRACE + LEAVE_LIMIT + SLACK, LEAVE_LIMIT + SLACK
        )
        self._supervision = Supervision(self._nodes, limits, self._time_limit, began, may_leave=True)
        with selectors.DefaultSelector() as self._selector:
            try:
                self._begin(self._nodes[0], None)
                while not self._supervision.is_over:
                    self._wait()
                    for action in self._supervision.advance(monotonic()):
                        self._act(action)
            except BaseException:
                for node in self._nodes:
                    if node.channel is not None and node.outcome is None:
                        node.server.abandon(0.0)
                raise
        if self._harness_failure is not None:
            raise RunnerError(self._harness_failure)
        ranks = [rank for node in self._nodes for rank in node.outcomes(self._supervision.first_failed)]
        timed_out = any(node.outcome is not None and node.outcome.timed_out for node in self._nodes)
        return Outcome(tuple(sorted(ranks, key=lambda rank: rank.rank)), monotonic() - began, timed_out).placed(
            self._spec
        )

    def _begin(self, node: NodeMember, port: int | None) -> None:
        """Start a node's share. ``port``: that of the rendezvous; None for the node that hosts it. Raises the errors of
        `ForkServer`."""
        address = self._nodes[0].starter.hello.address
        share = NodeShare(node.ranks, address, port, node.starter.hello.interface)
        node.channel = node.server.channel()
        node.send({"spec": self._spec, "time_limit": self._time_limit, "share": asdict(share)})
        for channel in (node.channel, node.starter.channel):
            self._selector.register(channel, selectors.EVENT_READ, (node, channel))

    def _wait(self) -> None:
        """Wait for reports of the nodes, and read them."""
        for key, _ in self._selector.select(max(0.0, self._supervision.deadline - monotonic())):
            node, channel = key.data
            if node.has_exited:
                continue
            if channel is node.starter.channel:
                # A starter sends nothing unless asked, so its connection has ended.
                node.starter.lost = True
                self._give_up(node, f"lost the connection to {node.starter.name}")
            else:
                self._read(node, channel)

    def _read(self, node: NodeMember, channel: Channel) -> None:
        while not node.has_exited:
            try:
                message = channel.receive(SLACK)
            except OSError:
                message = None
            if message is None:
                self._give_up(node)
                return
            self._note(node, message)
            if not channel.holds_message:
                return

    def _note(self, node: NodeMember, message: dict[str, Any]) -> None:
        match message:
            case {"port": port}:
                for other in self._nodes[1:]:
                    self._begin(other, port)
            case {"started": True}:
                node.started = True
            case {"building": building}:
                node.is_building = building
            case {"failed": rank, "raised": raised}:
                if self._supervision.given_up is None or node.failure is not None:
                    node.fail(raised, rank)
                else:
                    node.raised_late = True
            case {"late": because}:
                self._supervision.given_up = because
            case {"finished": True}:
                node.delivered = True
            case {"failure": reason}:
                self._harness_failure = f"{node.starter.name}: {reason}"
                self._give_up(node, reason)
            case _:
                node.outcome = Outcome.from_dict(message)
                self._stop_listening(node)

    def _act(self, action: Action[NodeMember]) -> None:
        match action:
            case FirstFailure(rank, _):
                self._send({"failed": rank})
            case Release():
                self._send({"release": True})
                for node in self._nodes:
                    node.is_dismissed = True
            case Stop(nodes, because):
                for node in nodes:
                    if node.is_dismissed:
                        self._give_up(node, f"{node.starter.name} stopped answering")
                    node.is_dismissed = True
                self._send({"late": because})

    def _give_up(self, node: NodeMember, why: str | None = None) -> None:
        """Expect nothing more from a node. ``why``: the reason, None if its server has hung up."""
        self._stop_listening(node)
        how = node.server.abandon() if why is None else node.server.abandon(0.0)
        node.lost = why or f"on {node.starter.name} {how}"
        node.fail(False, node.ranks[0])
        for other in self._nodes:
            if other.channel is None:
                other.lost = f"not started: {node.lost}"

    def _stop_listening(self, node: NodeMember) -> None:
        for channel in (node.channel, node.starter.channel):
            if channel is not None and channel.fileno() in self._selector.get_map():
                self._selector.unregister(channel)

    def _send(self, message: dict[str, Any]) -> None:
        for node in self._nodes:
            node.send(message)


class HostedServer:
    """The servers of one trainer and backend, one on each machine.

    `start` raises the same errors as that of `ForkServer`, with the machine in the message.
    """

    def __init__(self, target: str, backend: str, agents: list[RemoteStarter], import_limit: float) -> None:
        self._agents = agents
        self._servers = [ForkServer(target, backend, import_limit, agent.get) for agent in agents]

    def start(self) -> None:
        for agent, server in zip(self._agents, self._servers, strict=True):
            try:
                server.start()
            except TrainerError as error:
                raise TrainerError(f"{error} (on {agent.name})") from error
            except Unavailable as error:
                reason = f"on {agent.name}: {error.reason}"
                raise Unavailable(reason, error.command, error.declaration) from error
            if server.declaration.launches_workers:
                reason = "the trainer launches its workers itself; run it without --launcher"
                raise Unavailable(reason, None, server.declaration)
        first = self._servers[0]
        self.declaration, self.versions = first.declaration, first.versions
        self.gpus = min((server.gpus for server in self._servers), key=lambda gpus: int(gpus["devices"]))
        self.refused = {name: why for server in self._servers for name, why in server.refused.items()}
        self.why_slow = next((server.why_slow for server in self._servers if server.why_slow is not None), None)

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def run(self, spec: dict[str, Any], time_limit: float) -> Outcome:
        """Run a case; with more ranks than machines, neighbouring ranks share one. Raises RunnerError."""
        size = int(spec["world_size"])
        machines = min(size, len(self._agents))
        machine_of = [rank * machines // size for rank in range(size)]
        nodes = [
            NodeMember(agent, server, [rank for rank in range(size) if machine_of[rank] == number])
            for number, (agent, server) in enumerate(zip(self._agents[:machines], self._servers, strict=False))
        ]
        spec = {**spec, "hosts": [self._agents[machine].name for machine in machine_of]}
        return SpreadCase(nodes, spec, time_limit).run()


class Hosts(Servers):
    """The servers on all machines of a launch.

    ``world_size``: the only world size of cases, if the launcher has set it.
    ``leave``: called at the end, after hanging up on all agents.
    """

    def __init__(
        self, launcher: str, front: Front, world_size: int | None, leave: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self._stack.callback(leave)
        self.option = f" --launcher {launcher}"
        self.hosts = [agent.name for agent in front.agents]
        self._launcher = launcher
        self._front = front
        self._world_size = world_size
        self._stack.callback(front.close)

    def open(self, target: str, backend: str) -> HostedServer:
        return HostedServer(target, backend, self._front.agents, self.time_limit)

    def why_not(self, case: Case) -> str | None:
        if case.resumed_at is not None and len(set(self.hosts)) > 1:
            return "its ranks need a shared checkpoint folder, which several machines may not have"
        other = next((size for size in case.world_sizes if size != self._world_size), None)
        if self._world_size is None or other is None:
            return None
        processes = "1 process" if self._world_size == 1 else f"{self._world_size} processes"
        return f"{self._launcher} started {processes}, and this case needs {other}"
