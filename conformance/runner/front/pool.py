"""A warm pool: the ranks of one backend and world size, which stay up and run spec after spec.

A case in fresh processes costs a tenth of a second and more, most of it spent on processes and connections. Where
thousands of small runs are wanted, and each of them is known to leave the process as it found it, this is for them.
What raises, dies or hangs costs the pool its ranks; the next run starts others.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Self

from conformance.runner.case.supervision import GRACE, LEAVE_LIMIT, START_LIMIT
from conformance.runner.front.client import ForkServer, Outcome, RankOutcome
from conformance.runner.outcome import RunnerError
from conformance.runner.rank.warm import POOL
from conformance.runner.system.protocol import Channel

# Seconds; for as long as anybody might want to keep a pool.
_FOR_EVER = 1e6


@dataclass
class _Warm:
    """The ranks that are up: how to talk to each, its process, and what becomes of all when they end."""

    channels: list[Channel]
    processes: list[int]
    ended: Future[Outcome]
    closing: ExitStack


@dataclass(frozen=True)
class _Heard:
    """What one rank said of one run. ``last``: "finished", "raised", "late", or "gone" when it hung up."""

    events: tuple[dict[str, Any], ...]
    last: str


class Pool:
    """Ranks of ``world_size`` that have imported ``trainer``, started when they are first needed.

        with Pool("my_trainer.py", "ddp", 2) as pool:
            outcome = pool.run(spec, time_limit=10.0)

    Entering raises what `ForkServer` raises. ``restarts`` counts the ranks that had to be replaced.
    """

    def __init__(self, trainer: str, backend: str, world_size: int) -> None:
        self._server = ForkServer(trainer, backend)
        self._backend = backend
        self._world_size = world_size
        self._warm: _Warm | None = None
        self.restarts = 0

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._warm is not None:
            self._end(self._warm)
        self._server.__exit__(*error)

    def run(self, spec: dict[str, Any], time_limit: float) -> Outcome:
        """Run one spec of this backend and world size; the ranks have ``time_limit`` seconds for it.

        Raises RunnerError when the harness itself fails.
        """
        warm = self._warm or self._start()
        began = monotonic()
        for channel in warm.channels:
            # The others get their spec all the same: what becomes of them then shows that a rank is gone.
            with suppress(BrokenPipeError, ConnectionResetError):
                channel.send(spec)
        # All at once: a rank whose events nobody takes stops, and its peers with it.
        with ThreadPoolExecutor(self._world_size) as readers:
            heard = list(readers.map(lambda channel: _listen(channel, began + time_limit), warm.channels))
        if all(one.last == "finished" for one in heard):
            ranks = [RankOutcome(rank, one.events, True, "exited 0", "", None) for rank, one in enumerate(heard)]
            return Outcome(tuple(ranks), monotonic() - began, timed_out=False)
        self.restarts += 1
        ended = self._end(warm, hangs=any(one.last == "late" for one in heard))
        ranks = [
            replace(rank, events=one.events, finished=one.last == "finished")
            for rank, one in zip(ended.ranks, heard, strict=True)
        ]
        return Outcome(tuple(ranks), monotonic() - began, timed_out=any(one.last == "late" for one in heard))

    def _start(self) -> _Warm:
        """Raises RunnerError."""
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-"))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(Path(folder) / "ranks"))
            listener.listen(self._world_size)
            listener.settimeout(START_LIMIT)
            spec = {
                "case": f"pool of {self._backend}, world size {self._world_size}",
                "backend": self._backend,
                "world_size": self._world_size,
                POOL: listener.getsockname(),
            }
            threads = stack.enter_context(ThreadPoolExecutor(1))
            ended = threads.submit(self._server.run, spec, _FOR_EVER)
            found: dict[int, tuple[Channel, int]] = {}
            for _ in range(self._world_size):
                channel = Channel(_accept(listener, ended))
                stack.callback(channel.close)
                hello = channel.receive(START_LIMIT)
                if hello is None:
                    raise RunnerError(f"a rank of the {spec['case']} ended before it began")
                found[hello["rank"]] = channel, hello["pid"]
            channels, processes = zip(*(found[rank] for rank in range(self._world_size)), strict=True)
            self._warm = _Warm([*channels], [*processes], ended, stack.pop_all())
        return self._warm

    def _end(self, warm: _Warm, *, hangs: bool = False) -> Outcome:
        """Hang up on the ranks, and wait for all to be gone. One that ``hangs`` has to be killed."""
        self._warm = None
        with warm.closing:
            if hangs:
                for process in warm.processes:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            for channel in warm.channels:
                channel.close()
            return warm.ended.result(GRACE + 2 * LEAVE_LIMIT)


def _accept(listener: socket.socket, ended: Future[Outcome]) -> socket.socket:
    """Raises RunnerError."""
    try:
        return listener.accept()[0]
    except TimeoutError as error:
        how = ended.result() if ended.done() else "it is still starting"
        raise RunnerError(f"a rank of the pool did not come up: {how}") from error


def _listen(channel: Channel, deadline: float) -> _Heard:
    """Take in one rank's events, up to the last one of this run."""
    events: list[dict[str, Any]] = []
    while True:
        try:
            event = channel.receive(deadline - monotonic())
        except TimeoutError:
            return _Heard(tuple(events), "late")
        if event is None:
            return _Heard(tuple(events), "gone")
        # Moments by the system's clock are for whoever watches over the process.
        event.pop("at", None)
        events.append(event)
        if event["event"] in ("finished", "raised"):
            return _Heard(tuple(events), event["event"])
