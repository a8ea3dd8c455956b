"""The server of one trainer: imports it once, then runs cases in processes that are forked from here."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from typing import Any

from conformance.runner import backends, keeper, linux, safety, stacks
from conformance.runner.case import Case, KeeperGone
from conformance.runner.launch import Launch, forked, spawned
from conformance.runner.outcome import Unavailable
from conformance.runner.part import Part
from conformance.runner.peers import ClientGone
from conformance.runner.protocol import Channel
from conformance.trainers.loading import TrainerError


def serve(client: Channel, request: dict[str, Any], unsafe: str | None) -> int:
    """Answer ``client`` until it is gone; the result is the exit code.

    ``request`` says what to serve: {"target", "backend", "spawn", "folder", "path"}. ``unsafe`` says why
    ranks must not be forked even before the trainer is imported.
    """
    faulthandler.enable(file=2)
    stacks.answer_requests(2)
    try:
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        sys.argv[:] = [request["target"]]
        launch, hello = _prepare(request, unsafe)
    except Unavailable as missing:
        launch, hello = None, {"unavailable": missing.to_dict()}
    except TrainerError as error:
        launch, hello = None, {"error": str(error)}
    # From here on the end of the connection ends this process, which then ends its ranks in good order.
    linux.outlive_parent()
    linux.adopt_orphans()
    try:
        client.send(hello)
        if launch is not None and hello.get("unsafe") is None:
            _answer(client, launch)
    except (ClientGone, BrokenPipeError):
        return 1
    return 0


def _prepare(request: dict[str, Any], unsafe: str | None) -> tuple[Launch, dict[str, Any]]:
    """Raises TrainerError, Unavailable."""
    target, backend = request["target"], request["backend"]
    if request["spawn"]:
        keeper.preload(backend)
        return spawned(target, backend), {}
    train, declaration = backends.load_for(target, backend)
    keeper.preload(backend)
    gc.collect()
    gc.freeze()
    packages = [*declaration.requires, *(["horovod"] if backend == "horovod" else [])]
    hello = {
        "declaration": declaration.to_dict(),
        "versions": backends.versions(packages),
        "unsafe": unsafe or safety.why_not_fork(),
        "no_gpu": backends.why_no_gpu(backend),
    }
    return forked(train), hello


def _answer(client: Channel, launch: Launch) -> None:
    """Raises ClientGone."""
    while (message := client.receive()) is not None:
        try:
            part = Part.from_dict(message["part"]) if "part" in message else None
            answer = Case(launch, message["spec"], client, part).run(message["time_limit"]).to_dict()
        except KeeperGone as error:
            answer = {"failure": str(error)}
        client.send(answer)
