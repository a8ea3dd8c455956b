"""Runs cases on a trainer's server, for the suite. Imports no torch.

A resumed case has two lives: its ranks run in fresh processes up to the stop, and then in other fresh processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from conformance.adapter.declaration import Declaration
from conformance.adapter.loading import TrainerError
from conformance.runner.case.supervision import BUILD_LIMIT, LEAVE_LIMIT, START_LIMIT
from conformance.runner.front.zygote_client import ServerStarter, Serving, shared
from conformance.runner.outcome import ImporterLost, Outcome, RankOutcome, RunnerError, Unavailable, ZygoteLost
from conformance.runner.rank.killing import BETWEEN_FILES, KILLED, KILLS
from conformance.runner.system.descriptors import last_line
from conformance.runner.system.protocol import Channel
from conformance.trace.lives import as_resumed

__all__ = ["ForkServer", "Outcome", "RankOutcome", "RunnerError", "TrainerError", "Unavailable", "shared"]

IMPORT_LIMIT = 120.0
# Seconds beyond its own limits after which a silent server counts as dead.
SLACK = 30.0
# Seconds for a server to end.
_END_LIMIT = 10.0


class ForkServer:
    """A process that has imported torch and one trainer, and runs each case in processes forked from it.

        with ForkServer("my_trainer.py", backend="ddp") as server:
            outcome = server.run(spec, time_limit=60.0)

    Entering it, or `start`, raises TrainerError, one line about a problem of the trainer; Unavailable if a requirement
    of the backend or trainer is missing; RunnerError if the harness itself fails.

    Attributes:
        declaration: what the trainer supports.
        why_slow: why ranks cannot be forked, the cost, and what to do; None if they can.
        versions: of python, torch, horovod (if it is the backend) and the trainer's requirements.
        gpus: {"devices": number of CUDA devices that ranks can use, "reason": why there are none, or None}.
        refused: precisions that the backend refuses on this machine, each with the reason.
    """

    declaration: Declaration
    why_slow: str | None
    versions: dict[str, str]
    gpus: dict[str, Any]
    refused: dict[str, str]

    def __init__(
        self,
        trainer: str,
        backend: str,
        import_limit: float = IMPORT_LIMIT,
        starter: Callable[[], ServerStarter] = shared.get,
    ) -> None:
        self._trainer = trainer
        self._backend = backend
        self._import_limit = import_limit
        self._get_starter = starter
        self._server: Serving | None = None

    def __enter__(self) -> ForkServer:
        self.channel()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server. If this raises, the server still lasts until `close`, to spare others a new import."""
        self._start()

    def close(self) -> None:
        """End the process, even if `start` raised."""
        self._end(_END_LIMIT)

    def run(self, spec: dict[str, Any], time_limit: float) -> Outcome:
        """Run one case in fresh processes.

        ``time_limit``: seconds for the trainer's function, after which ranks are killed. If the server itself dies, the
        case is run again in a new one; if that dies too, each rank's `exit` says so. Raises RunnerError if the harness
        itself fails.
        """
        self.channel()
        began = monotonic()
        try:
            answer = self._answer(spec, time_limit)
            if answer is None:
                # The death may have nothing to do with this case, such as when the system ran out of memory.
                self.abandon()
                answer = self._answer(spec, time_limit)
            how = self.abandon() if answer is None else ""
        except TimeoutError:
            answer, how = None, self.abandon(0.0)
        except (TrainerError, Unavailable) as error:
            raise RunnerError(f"the trainer's server died and cannot be restarted: {error}") from error
        except BaseException:
            self._end(_END_LIMIT)
            raise
        if answer is None:
            return Outcome.without_evidence(spec["world_size"], how, monotonic() - began)
        if "failure" in answer:
            raise RunnerError(answer["failure"])
        return Outcome.from_dict(answer).placed(spec)

    def _answer(self, spec: dict[str, Any], time_limit: float) -> dict[str, Any] | None:
        """The server's answer for a case; None if it died. Raises TimeoutError, and the errors of `__enter__`."""
        channel = self.channel()
        try:
            channel.send({"spec": spec, "time_limit": time_limit})
        except BrokenPipeError:
            return None
        # The session, the start of the ranks and their work each have the time limit.
        return channel.receive(3 * time_limit + START_LIMIT + BUILD_LIMIT + LEAVE_LIMIT + SLACK)

    def channel(self) -> Channel:
        """The connection to the server, which is started if necessary. Raises the errors of `__enter__`."""
        if self._server is not None:
            return self._server.channel
        try:
            return self._start().channel
        except BaseException:
            self.close()
            raise

    def abandon(self, patience: float = _END_LIMIT) -> str:
        """End a server that has hung up, or any server with a ``patience`` of 0; returns how it ended."""
        printed = self._last_printed()
        return f"the trainer's server died ({self._end(patience)}){printed}"

    def _start(self) -> Serving:
        """Raises TrainerError, Unavailable, RunnerError."""
        try:
            return self._begin()
        except ZygoteLost:
            # The system may have killed it when memory was short, which may be over by now.
            try:
                return self._begin()
            except ImporterLost as error:
                raise TrainerError(
                    f"{self._trainer}: the process that imported it died twice: memory is short, or the import limits "
                    "the process or replaces functions it needs"
                ) from error

    def _begin(self) -> Serving:
        """Raises TrainerError, Unavailable, RunnerError."""
        starter = self._get_starter()
        server, hello = self._serve(starter, spawn=None)
        self.declaration = Declaration.from_dict(hello["declaration"])
        self.versions = {**starter.versions, **hello["versions"]}
        self.gpus = starter.gpus
        if self.gpus["devices"] and hello["no_gpu"] is not None:
            self.gpus = {"devices": 0, "reason": hello["no_gpu"]}
        self.refused = hello["refused"]
        self.why_slow = hello["why_slow"]
        if self.why_slow is not None:
            self._end(_END_LIMIT)
            server, _ = self._serve(starter, spawn="driver" if self.declaration.launches_workers else "ranks")
        return server

    def _serve(
        self, starter: ServerStarter, *, spawn: Literal["ranks", "driver"] | None
    ) -> tuple[Serving, dict[str, Any]]:
        """Start a server; returns it and its first message. Raises TrainerError, Unavailable, RunnerError."""
        self._server = server = starter.serve(self._trainer, self._backend, spawn=spawn, limit=self._import_limit)
        try:
            hello = server.channel.receive(self._import_limit)
        except TimeoutError as error:
            how = self.abandon(0.0)
            raise TrainerError(f"{self._trainer}: not ready after {self._import_limit:g} s; {how}") from error
        except BaseException:
            self._end(0.0)
            raise
        if hello is None:
            raise TrainerError(f"{self._trainer}: {self.abandon()}")
        if "error" in hello:
            raise TrainerError(hello["error"])
        if "unavailable" in hello:
            raise Unavailable.from_dict(hello["unavailable"])
        return server, hello

    def _last_printed(self) -> str:
        printed = "" if self._server is None else last_line(self._server.process.last_output())
        return f"; it last printed: {printed}" if printed else ""

    def _end(self, patience: float) -> str:
        """End the server; returns how it ended. Never raises."""
        server, self._server = self._server, None
        if server is None:
            return "it was not running"
        server.channel.close()
        try:
            return server.process.end(patience)
        except RunnerError as error:
            # It ends by itself with its connection, and no other process can wait for it.
            return str(error)


Run = Callable[[dict[str, Any], float], Outcome]

#: The prefix of folders for checkpoints.
CHECKPOINTS = "conformance-checkpoints-"


def run_case(run: Run, spec: dict[str, Any], time_limit: float) -> Outcome:
    """Run a case with ``run``: once, or once per life of a resumed case. ``time_limit``: seconds for each.

    A life in which a rank fails is the last, unless the case wanted it killed. Raises RunnerError.
    """
    if spec["resumed_at"] is None:
        return run(spec, time_limit)
    try:
        folder = tempfile.TemporaryDirectory(prefix=CHECKPOINTS, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunnerError(f"cannot make a folder for checkpoints: {error.strerror}") from error
    with folder as name:
        return _run_lives(lambda **life: run(_life(spec, **life), time_limit), spec, name)


def _run_lives(run: Callable[..., Outcome], spec: dict[str, Any], folder: str) -> Outcome:
    stop: int = spec["resumed_at"]
    if spec["resumed"] in KILLS:
        again = stop + 1 if spec["resumed"] == BETWEEN_FILES else 2 * stop
        first = run(checkpoint_dir=folder, save_after=[stop, again])
        if first.ranks[0].exit != KILLED:
            return first
        if spec["resumed"] == BETWEEN_FILES:
            # The complete file may be all that the second checkpoint needs.
            second = run(resume_from=folder)
            resumed_at = {_first_window(rank) for rank in second.ranks}
            return first.up_to(again if resumed_at == {again} else stop).followed_by(second)
        first = first.up_to(stop)
    else:
        inside: int = spec.get("resumed_inside", 0)
        first = run(stop_after=stop, stop_inside=inside, checkpoint_dir=folder, save_after=[stop])
        if not all(rank.finished for rank in first.ranks):
            return first
    if spec["resumed"] == "twice":
        saved = _contents(folder)
        earlier = run(resume_from=folder)
        if not all(rank.finished for rank in earlier.ranks):
            return first.followed_by(earlier)
        now = _contents(folder)
        altered = tuple(sorted(name for name, content in saved.items() if now.get(name) != content))
        both = first.followed_by(earlier)
        first = replace(first, seconds=both.seconds, altered=altered, earlier=both)
    return first.followed_by(run(resume_from=folder))


def _first_window(rank: RankOutcome) -> int | None:
    return next((event["window"] for event in rank.events if event["window"] is not None), None)


def _contents(folder: str) -> dict[str, bytes]:
    """A digest of each file in a folder."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).digest() for path in files}


def _life(spec: dict[str, Any], **life: Any) -> dict[str, Any]:
    through: dict[str, Any] = {
        "stop_after": None,
        "stop_inside": 0,
        "checkpoint_dir": None,
        "save_after": [],
        "resume_from": None,
    }
    return {**(as_resumed(spec) if "resume_from" in life else spec), "life": {**through, **life}}
