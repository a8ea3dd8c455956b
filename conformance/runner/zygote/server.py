"""The server of one trainer and backend: runs cases in forked processes, and keeps their shared session."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from conformance.adapter.backends import BACKENDS
from conformance.adapter.declaration import session_of
from conformance.adapter.loading import Import, Train, TrainerError, imported
from conformance.runner.case import rendezvous_host
from conformance.runner.case.launched import LaunchedCase, make_importable_for_workers
from conformance.runner.case.started import Case, ClientDisconnected, StartedCase
from conformance.runner.case.supervision import START_LIMIT
from conformance.runner.outcome import Outcome, RunnerError, Unavailable
from conformance.runner.rank import rank
from conformance.runner.rank.environment import LOOPBACK
from conformance.runner.rank.reporting import described
from conformance.runner.rank.requirements import load_for, refused, versions, why_no_gpu
from conformance.runner.system import patches
from conformance.runner.system.child import Child, adopt_orphans, outlive_parent, sweep
from conformance.runner.system.protocol import Channel
from conformance.runner.zygote import forking

# Seconds to leave the session's context before it is killed.
_END_LIMIT = 8.0


class SessionFailed(Exception):
    """The session could not be entered. `str()` is one line. ``timed_out``: it took too long."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Session:
    """The session of the trainer that ``load`` returns, such as a local cluster, which its cases share.

    A separate process enters it on first use, and again if it has died.
    """

    def __init__(self, load: Callable[[], Train]) -> None:
        self._load = load
        self._child: Child | None = None
        self._value: Any = None
        # Closing this ends the session.
        self._channel: Channel

    def value(self, limit: float) -> Any:
        """The value that the session yields. Raises SessionFailed, also after ``limit`` seconds."""
        if self._child is not None and self._child.poll() is not None:
            self.end()
        if self._child is None:
            self._start(limit)
        return self._value

    def end(self) -> None:
        """Leave the session, and end everything it has started."""
        if self._child is not None:
            self._channel.close()
            self._child.end(_END_LIMIT)
            self._child = None

    def _start(self, limit: float) -> None:
        self._channel, server = map(Channel, socket.socketpair())

        def body() -> int:
            self._channel.close()
            return _enter(self._load, server)

        self._child = Child(body)
        server.close()
        timed_out = False
        try:
            answer = self._channel.receive(limit) or {"failed": "ended before it started"}
        except TimeoutError:
            answer, timed_out = {"failed": f"had not started after {limit:g} s"}, True
        if "failed" in answer:
            self.end()
            raise SessionFailed(f"the trainer's session {answer['failed']}", timed_out=timed_out)
        self._value = answer["value"]


def _enter(load: Callable[[], Train], server: Channel) -> int:
    """Stay in the session until ``server`` disconnects; returns the exit code."""
    make_importable_for_workers()
    with ExitStack() as stack:
        try:
            session = session_of(load()) or nullcontext
            value = stack.enter_context(session())
        except BaseException as error:
            what = described(error)
            print(what["traceback"], flush=True)
            server.send({"failed": " ".join(f"raised {what['type']}: {what['message']}".split())})
        else:
            server.send({"value": value})
            server.receive()
    return 0


#: Makes the case of a client's request.
MakeCase: TypeAlias = Callable[[dict[str, Any], Channel], Case]


def serve(
    client: Channel, request: dict[str, Any], unsafe: forking.Unsafe | None = None, imported: Import = imported
) -> int:
    """Serve ``client`` until it disconnects; returns the exit code.

    ``request``: {"target", "backend", "spawn"}; "spawn" names the processes that must import the trainer themselves
    instead of being forked after its import: "ranks", "driver" or None. ``unsafe``: why ranks must not be forked even
    before the import; ``imported`` returns the imported trainer.
    """
    faulthandler.enable(file=2)
    with ExitStack() as closing:
        make_case = None
        try:
            make_case, hello = _prepare(request, unsafe, imported, closing)
        except Unavailable as missing:
            hello = {"unavailable": missing.to_dict()}
        except TrainerError as error:
            hello = {"error": str(error)}
        # From here on, this process first ends its ranks when its connection ends.
        outlive_parent()
        adopt_orphans()
        try:
            client.send(hello)
            if make_case is None:
                # The importer stays as long as this process, so the next client needs no new import.
                client.receive()
            elif hello.get("why_slow") is None:
                _answer(client, make_case)
        except (ClientDisconnected, BrokenPipeError):
            return 1
    return 0


def move(request: Mapping[str, Any]) -> None:
    """Take over the client's folder and paths to import a trainer. ``request``: {"folder", "path", "place"}."""
    os.chdir(request["folder"])
    sys.path[:] = request["path"]
    sys.argv[:] = [request["place"]]


def _prepare(
    request: dict[str, Any], unsafe: forking.Unsafe | None, imported: Import, closing: ExitStack
) -> tuple[MakeCase, dict[str, Any]]:
    """The function that makes cases, and the first message. ``closing``: ends what cases share.

    Raises TrainerError, Unavailable.
    """
    target, backend = request["target"], request["backend"]
    if request["spawn"]:
        rendezvous_host.preload(backend)
        if request["spawn"] == "driver":
            return _launched(lambda: load_for(target, backend)[0], closing), {}
        return partial(StartedCase, partial(rank.spawn, target, backend), start_limit=START_LIMIT), {}
    train, declaration = load_for(target, backend, imported)
    needs_loopback = declaration.launches_workers or BACKENDS[backend].paths != "single"
    if needs_loopback and (reason := rendezvous_host.why_down(LOOPBACK)) is not None:
        raise Unavailable(reason, None, declaration)
    rendezvous_host.preload(backend)
    gc.freeze()
    packages = [*declaration.requires, *filter(None, [BACKENDS[backend].package])]
    hello = {
        "declaration": declaration.to_dict(),
        "versions": versions(packages),
        "why_slow": _why_slow(target, unsafe, forking.why_not_fork()),
        "no_gpu": why_no_gpu(backend),
        "refused": refused(backend),
    }

    def load() -> Train:
        patches.do_again()
        return train

    if declaration.launches_workers:
        return _launched(load, closing), hello
    return partial(StartedCase, partial(rank.run, load)), hello


def _launched(load: Callable[[], Train], closing: ExitStack) -> MakeCase:
    """A function that makes cases whose workers the trainer launches, in its session."""
    session = Session(load)
    closing.callback(sweep, set())
    closing.callback(session.end)
    return lambda request, client: LaunchedCase(load, session.value(request["time_limit"]), request, client)


def _why_slow(target: str, before: forking.Unsafe | None, after: forking.Unsafe | None) -> str | None:
    """The warning if ranks cannot be forked: why not before, or after, ``target`` is imported; None if they can."""
    slow = "takes seconds per case, because each rank starts a fresh Python that imports torch: forks are unsafe"
    if before is not None:
        cause = "The cause is torch, or a module that every Python here imports, such as a .pth file or sitecustomize."
        return f"Every trainer {slow} even before its import, with {before.what}. {cause}"
    if after is not None:
        return (
            f"{target} {slow} after its import, with {after.what}. {after.instead} inside its function, not on import."
        )
    return None


def _answer(client: Channel, make_case: MakeCase) -> None:
    """Run the cases that the client requests. Raises ClientDisconnected."""
    while (request := client.receive()) is not None:
        began = monotonic()
        try:
            outcome = make_case(request, client).run()
        except ClientDisconnected:
            _remove_checkpoints(request["spec"])
            raise
        except SessionFailed as error:
            size = request["spec"]["world_size"]
            outcome = Outcome.without_evidence(size, str(error), monotonic() - began, timed_out=error.timed_out)
        except RunnerError as error:
            client.send({"failure": str(error)})
            continue
        client.send_json(outcome.to_json())


def _remove_checkpoints(spec: Mapping[str, Any]) -> None:
    """Remove the checkpoints of a resumed case, which a killed client has left."""
    life = spec.get("life", {})
    for folder in filter(None, [life.get("checkpoint_dir"), life.get("resume_from")]):
        shutil.rmtree(folder, ignore_errors=True)
