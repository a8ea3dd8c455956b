"""Joining a launch: the process of rank 0 gets all machines to run cases on; the others serve it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from conformance.launchers import LaunchError, horovodrun, ray, torchrun
from conformance.launchers.agent import JOIN_LIMIT, Member, attend
from conformance.launchers.front import Front
from conformance.launchers.hosts import Hosts
from conformance.launchers.network import FrontAddress, listen
from conformance.runner.front.client import RunnerError, shared

_READ = {"torchrun": torchrun.read, "horovodrun": horovodrun.read}


def join(launcher: str, address: str | None) -> Hosts | None:
    """The machines of this process's launch, if it is the process that plans and judges.

    Any other process serves that one until it hangs up, and gets None. ``address``: of a Ray cluster.

    Raises LaunchError, RunnerError.
    """
    if launcher == "ray":
        return ray.nodes(address or "auto")
    launch = _READ[launcher](os.environ)
    if launch.member.number != 0:
        attend(launch.find(), launch.member)
        return None
    front = Front(listen(launch.at.host, launch.at.port), launch.size, launch.at.token)
    try:
        # The others import torch as soon as they have connected, while this process imports it too.
        launch.publish(front.address)
        # A failing import of torch is better reported from here than by the thread below.
        shared.get()
        # Its own machine gets an agent like the others.
        threading.Thread(target=_attend_here, args=(front.address, launch.member), daemon=True).start()
        front.gather(JOIN_LIMIT)
    except BaseException:
        front.close()
        raise
    return Hosts(launcher, front, launch.size)


def _attend_here(front: FrontAddress, member: Member) -> None:
    """Errors are reported to the front, which prints them."""
    with suppress(LaunchError, RunnerError):
        attend(front, member)
