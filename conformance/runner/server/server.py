"""The server of one trainer: imports it once, then runs cases in processes that are forked from here."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, TypeAlias

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import Train, TrainerError
from conformance.runner.case import rendezvous_host
from conformance.runner.case.case import Case, ClientDisconnected, RendezvousLost, StartedCase
from conformance.runner.case.launched import LaunchedCase
from conformance.runner.case.node_share import NodeShare
from conformance.runner.case.rank_starter import RankStarter, forked, spawned
from conformance.runner.outcome import Outcome, Unavailable
from conformance.runner.rank import loading
from conformance.runner.server import forking
from conformance.runner.server.session import Session, SessionFailed
from conformance.runner.system import linux, stacks
from conformance.runner.system.child import sweep
from conformance.runner.system.protocol import Channel

#: Makes the case that a message of the client asks for.
MakeCase: TypeAlias = Callable[[dict[str, Any], Channel], Case]


def serve(client: Channel, request: dict[str, Any], unsafe: forking.Unsafe | None) -> int:
    """Serve ``client`` until it disconnects; returns the exit code.

    ``request``: {"target", "backend", "spawn", "folder", "path"}, where "spawn" names what must not be forked from a
    server that has imported the trainer: "ranks", "driver" or nothing. ``unsafe`` says why ranks must not be forked
    even before the import.
    """
    faulthandler.enable(file=2)
    stacks.answer_requests(2)
    try:
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        sys.argv[:] = [request["target"]]
        make, hello = _prepare(request, unsafe)
    except Unavailable as missing:
        make, hello = None, {"unavailable": missing.to_dict()}
    except TrainerError as error:
        make, hello = None, {"error": str(error)}
    # From here on the end of the connection ends this process, which first ends its ranks.
    linux.outlive_parent()
    linux.adopt_orphans()
    try:
        client.send(hello)
        if make is not None and hello.get("unsafe") is None:
            with make as make_case:
                _answer(client, make_case)
    except (ClientDisconnected, BrokenPipeError):
        return 1
    return 0


def _prepare(
    request: dict[str, Any], unsafe: forking.Unsafe | None
) -> tuple[AbstractContextManager[MakeCase], dict[str, Any]]:
    """Raises TrainerError, Unavailable."""
    target, backend = request["target"], request["backend"]
    if request["spawn"]:
        rendezvous_host.preload(backend)
        if request["spawn"] == "driver":
            return _launching(lambda: loading.load_for(target, backend)[0]), {}
        return _starting(spawned(target, backend)), {}
    train, declaration = loading.load_for(target, backend)
    rendezvous_host.preload(backend)
    gc.freeze()
    packages = [*declaration.requires, *filter(None, [BACKENDS[backend].package])]
    hello = {
        "declaration": declaration.to_dict(),
        "versions": loading.versions(packages),
        "unsafe": _why_slow(target, unsafe, forking.why_not_fork()),
        "no_gpu": loading.why_no_gpu(backend),
    }
    return (_launching(lambda: train) if declaration.launches_workers else _starting(forked(train))), hello


def _why_slow(target: str, before: forking.Unsafe | None, after: forking.Unsafe | None) -> str | None:
    """The warning if ranks cannot be forked: why they cannot be before, or after, ``target`` is imported."""
    slow = "takes seconds a case, because each rank is a fresh Python that imports torch again: a fork would be unsafe"
    if before is not None:
        cause = "Torch itself causes that, or what every Python here imports, such as a .pth file or sitecustomize."
        return f"Every trainer {slow} even before one is imported, with {before.what}. {cause}"
    if after is not None:
        return (
            f"{target} {slow} after its import, with {after.what}. {after.instead} inside its function, not on import."
        )
    return None


@contextmanager
def _starting(become_rank: RankStarter) -> Iterator[MakeCase]:
    """Cases whose ranks we start."""

    def make_case(message: dict[str, Any], client: Channel) -> Case:
        share = NodeShare.from_dict(message["share"]) if "share" in message else None
        return StartedCase(become_rank, message["spec"], client, share)

    yield make_case


@contextmanager
def _launching(load: Callable[[], Train]) -> Iterator[MakeCase]:
    """Cases whose workers the trainer launches, in its session."""
    session = Session(load)
    try:
        yield lambda message, client: LaunchedCase(load, message["spec"], session.value(), client)
    finally:
        session.end()
        sweep(set())


def _answer(client: Channel, make_case: MakeCase) -> None:
    """Raises ClientDisconnected."""
    while (message := client.receive()) is not None:
        began = monotonic()
        try:
            outcome = make_case(message, client).run(message["time_limit"])
        except SessionFailed as error:
            outcome = Outcome.without_evidence(message["spec"]["world_size"], str(error), monotonic() - began)
        except RendezvousLost as error:
            client.send({"failure": str(error)})
            continue
        client.send_json(outcome.to_json())
