"""A trainer's servers on all machines of a launch, which the suite uses like one server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.cases.case import Case
from conformance.launchers.front import Front, RemoteStarter
from conformance.launchers.spread_case import NodeMember, SpreadCase
from conformance.runner.front.client import ForkServer, Outcome, TrainerError, Unavailable
from conformance.suite.servers import Servers


class HostedServer:
    """The servers of one trainer and backend, one on each machine.

    `start` raises what that of `ForkServer` raises; the message names the machine.
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
        """Where there are more ranks than machines, neighbouring ranks share one. Raises RunnerError."""
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

    ``world_size``: the only one that cases may have, if the launcher has set it.
    leave: called at the end, after hanging up on all agents.
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
            return "its ranks need one folder for checkpoints, and no folder of several machines is known"
        other = next((size for size in case.world_sizes if size != self._world_size), None)
        if self._world_size is None or other is None:
            return None
        processes = "1 process" if self._world_size == 1 else f"{self._world_size} processes"
        return f"{self._launcher} started {processes}, and this case needs {other}"
