"""Joins a launch: the process of rank 0 gets all machines to run cases on; the other processes serve it.

On a Ray cluster, each node has an agent that runs as an actor."""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.launchers import LaunchError
from conformance.launchers.agent import JOIN_LIMIT, FrontAddress, Member, attend, connect, listen
from conformance.launchers.context import read_horovodrun, read_torchrun
from conformance.launchers.front import Front
from conformance.launchers.hosts import Hosts
from conformance.runner.front.client import RunnerError, shared

_READ = {"torchrun": read_torchrun, "horovodrun": read_horovodrun}


def join(launcher: str, address: str | None) -> Hosts | None:
    """The machines of this process's launch, if this process plans and judges.

    Any other process serves that one until it hangs up, and gets None. ``address``: that of a Ray cluster.

    Raises LaunchError, RunnerError.
    """
    if launcher == "ray":
        return _nodes(address or "auto")
    launch = _READ[launcher](os.environ)
    if launch.member.number != 0:
        attend(launch.find(), launch.member)
        return None
    front = Front(listen(launch.at.host, launch.at.port), launch.size, launch.at.token)
    try:
        # The others import torch as soon as they have connected, while this process imports it too.
        launch.publish(front.address)
        # If torch cannot be imported, this reports it better than the thread below.
        shared.get()
        # This machine gets an agent like the others.
        threading.Thread(target=_attend_here, args=(front.address, launch.member), daemon=True).start()
        front.gather(JOIN_LIMIT)
    except BaseException:
        front.close()
        raise
    return Hosts(launcher, front, launch.size)


def _attend_here(front: FrontAddress, member: Member) -> None:
    """Serve the front. `attend` reports errors to the front, which prints them."""
    with suppress(LaunchError, RunnerError):
        attend(front, member)


#: No case has more ranks, so more nodes would be idle.
_MOST = 4
_REACH_LIMIT = 10.0
"""Seconds."""


def _nodes(address: str) -> Hosts:
    """The nodes of the cluster at ``address`` that have a free CPU. Raises LaunchError."""
    ray = _connected(address)
    try:
        return _agents(ray)
    except BaseException:
        ray.shutdown()
        raise


def _connected(address: str) -> Any:
    """Ray, connected to the cluster. Raises LaunchError."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise LaunchError(f"Ray cannot be imported ({error}); install it with: pip install ray") from error
    if "://" in address:
        raise LaunchError(
            f"{address}: run this command on a node of the cluster, with HOST:PORT or no --address at all"
        )
    if address != "auto":
        _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise LaunchError(f"cannot connect to a Ray cluster at {address}: {reason}") from error
    return ray


def _reach(address: str) -> None:
    """Fail early if nothing listens, because Ray would retry for minutes and print each attempt. Raises LaunchError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise LaunchError(f"--address is {address!r}, but must be HOST:PORT of a Ray cluster")
    connect(host, int(port), _REACH_LIMIT, "a Ray cluster").close()


def _agents(ray: Any) -> Hosts:
    """Start an agent on each usable node. Raises LaunchError."""
    usable = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1][:_MOST]
    if not usable:
        raise LaunchError("no node of the Ray cluster has a free CPU")
    front = Front(listen(ray.util.get_node_ip_address()), len(usable), secrets.token_hex(16))
    try:
        affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        actor = ray.remote(NodeActor)
        actors = []
        for number, node in enumerate(usable):
            where = affinity(node["NodeID"], soft=False)
            # Ray hides a node's GPUs from an actor that did not request them.
            options = {"num_cpus": 1, "num_gpus": node["Resources"].get("GPU", 0), "scheduling_strategy": where}
            member = Member(number, node["NodeManagerHostname"], node["NodeID"])
            actors.append(actor.options(**options).remote(member, os.getcwd()))
        _check(ray, actors)
        for one in actors:
            one.attend.remote(front.address)
        front.gather(JOIN_LIMIT)
    except BaseException:
        front.close()
        raise

    def leave() -> None:
        # Actors end when nothing refers to them.
        actors.clear()
        ray.shutdown()

    return Hosts("ray", front, None, leave)


def _check(ray: Any, actors: list[Any]) -> None:
    """Wait until all actors run; a node may be busy, or lack this package. Raises LaunchError."""
    try:
        ray.get([one.ready.remote() for one in actors], timeout=JOIN_LIMIT)
    except ray.exceptions.GetTimeoutError as error:
        raise LaunchError(f"not every node of the Ray cluster had a free CPU within {JOIN_LIMIT:g} s") from error
    except ray.exceptions.RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise LaunchError(f"a node of the Ray cluster cannot run cases: {lines[-1].strip()}") from error


class NodeActor:
    """The actor of a node. ``folder``: the front's working folder, used here too if it exists."""

    def __init__(self, member: Member, folder: str) -> None:
        self._member = member
        if Path(folder).is_dir():
            os.chdir(folder)

    def ready(self) -> None:
        """Does nothing; the answer shows that the actor runs."""

    def attend(self, front: FrontAddress) -> None:
        attend(front, self._member)
