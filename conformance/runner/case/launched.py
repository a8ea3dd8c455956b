"""Runs a case whose workers the trainer starts itself. Its function runs in one process, the driver; the worker that
enters as a rank is that rank."""

from __future__ import annotations

import faulthandler
import importlib.machinery
import os
import secrets
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from conformance.adapter.declaration import Job
from conformance.adapter.loading import Train
from conformance.runner.case import rendezvous_host
from conformance.runner.case.member import RankMember
from conformance.runner.case.started import Case
from conformance.runner.case.supervision import DRIVER, Failure
from conformance.runner.outcome import RankOutcome
from conformance.runner.rank.environment import LOOPBACK
from conformance.runner.rank.rank import Pipes, call, file_of
from conformance.runner.rank.reporting import DESCRIPTORS_LOST, NOTICES, Sender, described, exit_code
from conformance.runner.system import stacks
from conformance.runner.system.child import is_exiting
from conformance.runner.system.descriptors import Known
from conformance.runner.system.protocol import Caller, Callers, Channel, Lines, to_json


def drive(load: Callable[[], Train], job: Job, pipes: Pipes) -> int:
    """Run the function that ``load`` returns as the driver; returns the exit code."""
    faulthandler.enable(file=2)
    stacks.answer_requests(pipes.stack)
    make_importable_for_workers()
    send = Sender(pipes.evidence, pipes.notices)
    release = Known.of(pipes.release)
    process = os.getpid()
    send({"event": "started", "pid": process})
    try:
        train = load()
        pickle_by_value(train)
        call(train, replace(job, ticket={**job.ticket, "trainer_file": file_of(train)}))
    except BaseException as error:
        what = described(error)
        print(what["traceback"], file=sys.stderr, flush=True)
        send({"event": "raised", **what, "at": monotonic()})
        return exit_code(error)
    if os.getpid() != process:
        # This process was forked by the trainer, which may wait for its end.
        return 0
    send({"event": "finished"})
    if send.has_ended:
        return DESCRIPTORS_LOST if send.lost else 1
    # Frameworks end their workers with the driver, so the driver waits for the workers' last events.
    if release.is_intact:
        os.read(pipes.release, 1)
    return 0


def make_importable_for_workers() -> None:
    """Let every Python started from here import the same modules as this process."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))


def pickle_by_value(train: Train) -> None:
    """Have cloudpickle send the trainer's functions by value if a worker could not import their module.

    The harness names the module of a file (`importing.from_path`), so workers cannot import it. Functions of a module
    outside `sys.modules` are pickled by value.
    """
    name = train.__module__
    if "." not in name and importlib.machinery.PathFinder.find_spec(name) is None:
        sys.modules.pop(name, None)


_LONGEST_STACK = 20_000
#: Names of the exceptions that torch's and Horovod's collectives raise when a rank is gone.
_OF_LOST_PEERS = ("RuntimeError", "Dist", "Connection", "HorovodInternalError")


class Worker(RankMember):
    """A rank that a process enters (`conformance.enter`). The process ends when the harness hangs up.

    lost_a_peer: whether it raised an exception as ranks do when another rank is gone.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._channel: Channel | None = None
        self._has_exited = False
        self._stack = ""
        self._pid: int | None = None
        self.lost_a_peer = False

    @property
    def has_exited(self) -> bool:
        return self._has_exited

    @property
    def failure(self) -> Failure | None:
        failure = super().failure
        # If no worker entered, the driver is at fault.
        if failure is None or not (self.started or self.malformed):
            return None
        # The first failure counts, raised or not: a framework ends all workers when one raises.
        return failure._replace(raised=False)

    def enter(self, channel: Channel, spec: dict[str, Any]) -> bool:
        """Let the process at the other end be this rank; False if the rank is taken or the process is gone."""
        if self._channel is not None or self._has_exited:
            return False
        try:
            channel.send(spec)
        except OSError:
            return False
        self._channel = channel
        return True

    def refuse(self) -> None:
        """Admit no worker from now on."""
        if self._channel is None:
            self._has_exited = True

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def fileno(self) -> int:
        return -1 if self._channel is None else self._channel.fileno()

    def read(self) -> bool:
        if self._channel is None or not self._channel.fill():
            self._has_exited = True
            self._fail(monotonic())
            return False
        try:
            while self._channel.holds_message and (message := self._channel.receive()) is not None:
                self._take(message)
        except (ValueError, RecursionError):
            self._reject("has a message that is not an event")
        return True

    def note_earlier_failure(self, at: float) -> None:
        """Note a failure as of ``at`` if the process raised for its own reason, or dies or hung up without raising."""
        if self._channel is None or self._has_exited or self._failed_at is not None or self.killed_because:
            return
        poll = select.poll()
        poll.register(self._channel, select.POLLRDHUP)
        is_gone = bool(poll.poll(0)) or (self._pid is not None and is_exiting(self._pid))
        self._read_all()
        if not self.lost_a_peer if self.raised else is_gone:
            self._failed_at = at

    def kill(self, because: str) -> None:
        if not self._has_exited:
            self.killed_because = because
            self.refuse()
            if self._channel is not None:
                self._channel.cut()

    def ask_for_stack(self) -> bool:
        if self._channel is None or self._has_exited:
            return False
        try:
            self._channel.send({"ask": "stack"})
        except OSError:
            return False
        return True

    def stack_size(self) -> int:
        self._read_all()
        return len(self._stack)

    def _read_all(self) -> None:
        while self._channel is not None and self._channel.is_readable(0.0) and self.read():
            continue

    def _take(self, message: dict[str, Any]) -> None:
        if isinstance(stack := message.get("stack"), str):
            self._stack += stack
            return
        # Clocks of different machines cannot be compared.
        message.pop("at", None)
        if message.get("event") == "started":
            self._pid = message.get("pid")
        self._add(to_json(message))
        if message.get("event") == "raised":
            self.lost_a_peer = str(message.get("type")).startswith(_OF_LOST_PEERS)
        if message.get("event") in NOTICES:
            self._note({**message, "at": monotonic()})

    def _printed(self) -> tuple[str, str]:
        """No output, because the framework captures that of its workers, and may pass it on to the driver."""
        return "", self._stack[-_LONGEST_STACK:]

    def _exit(self, after: int | None) -> str:
        if not self.started:
            return f"no worker entered the case as rank {self.rank}"
        if self.killed_because:
            return f"killed {self.killed_because}"
        if self.delivered:
            return "exited 0"
        text = "exited 1 before it finished"
        if not self.raised:
            text = f"the worker of rank {self.rank} disconnected before it finished"
        return text if after is None else f"{text}, after rank {after} failed"


class LaunchedCase(Case):
    """A case whose driver calls the function that ``load`` returns; ``session`` is the value of its session."""

    def __init__(self, load: Callable[[], Train], session: Any, request: dict[str, Any], client: Channel) -> None:
        super().__init__(request, client)
        self._load = load
        self._session = session
        self._token = secrets.token_hex(16)

    def _start(self, hold: int) -> None:
        world_size = int(self._spec["world_size"])
        self._callers = Callers(rendezvous_host.listen(LOOPBACK), self._token)
        self._clearing.callback(self._callers.close)
        self._workers = [Worker(rank) for rank in range(world_size)]
        for worker in self._workers:
            self._clearing.callback(worker.close)
        self._members += self._workers
        host, port = self._callers.address
        ticket = {"host": host, "port": port, "world_size": world_size, "token": self._token}
        folders = [self._spec.get("life", {}).get(kind) for kind in ("checkpoint_dir", "resume_from")]
        saved = [None if folder is None else Path(folder) for folder in folders]
        job = Job(world_size, int(self._spec["steps"]), ticket, self._session, *saved)

        def become(pipes: Pipes) -> int:
            self._callers.close()
            return drive(self._load, job, pipes)

        self._driver = self._fork(DRIVER, hold, become)

    def _watch(self) -> None:
        self._listen_to(self._callers, self._admit)
        super()._watch()

    def _admit(self) -> bool:
        """Let waiting workers enter; always True, because more may come."""
        with suppress(TimeoutError):
            while (caller := self._callers.next(monotonic())) is not None:
                worker = self._called(caller)
                if worker is None or not worker.enter(caller.channel, self._spec):
                    caller.channel.close()
                else:
                    self._listen_to(worker, partial(self._hear, worker))
        return True

    def _hear(self, worker: Worker) -> bool:
        """Read a worker's reports. If it raised because it lost a peer, failures of its peers count as earlier: their
        reports may arrive later, and a dying process closes its connections in any order."""
        began = monotonic()
        more = worker.read()
        for other in self._workers if worker.lost_a_peer else ():
            if other is not worker:
                other.note_earlier_failure(began)
        return more

    def _called(self, caller: Caller) -> Worker | None:
        """The worker of the rank that a caller asks for."""
        match caller.message:
            case {"rank": int(rank)} if 0 <= rank < len(self._workers):
                return self._workers[rank]
        return None

    def _note_exits(self) -> None:
        super()._note_exits()
        if self._driver.delivered or self._driver.has_exited:
            # A worker that connected before the driver ended may still enter.
            self._admit()
            for worker in self._workers:
                worker.refuse()

    def _outcomes(self, first_failed: int | None) -> tuple[RankOutcome, ...]:
        *ranks, trainer = super()._outcomes(first_failed)
        return tuple(_with_driver(rank, trainer) for rank in ranks)


def _with_driver(rank: RankOutcome, driver: RankOutcome) -> RankOutcome:
    """The outcome of a rank together with the driver's: no rank is finished before the trainer's function returns."""
    output = driver.output
    if rank.finished and driver.finished:
        return replace(rank, output=output)
    has_entered = bool(rank.events)
    if rank.finished:
        return replace(rank, finished=False, exit=_how_it_ended(driver), stack=driver.stack, output=output)
    if not has_entered and (declined := _declined(driver)) is not None:
        return replace(rank, events=Lines([_as_of(rank.rank, declined)]), output=output)
    if has_entered and rank.events[-1]["event"] == "raised":
        return replace(rank, output=output)
    exit = rank.exit if driver.finished and has_entered else f"{rank.exit}; {_how_it_ended(driver)}"
    return replace(rank, exit=exit, stack=rank.stack if has_entered else driver.stack, output=output)


def _declined(driver: RankOutcome) -> dict[str, Any] | None:
    """The event with which the trainer's function declined the case, if it did."""
    last = driver.events[-1] if driver.events else {}
    return last if last.get("declined") else None


def _as_of(rank: int, raised: dict[str, Any]) -> bytes:
    """The driver's `raised` event as the only event of a rank."""
    at = {"rank": rank, "seq": 0, "time": 0.0, "window": None, "micro_batch": None, "where": None}
    return to_json({**at, **{name: value for name, value in raised.items() if name != "at"}})


def _how_it_ended(driver: RankOutcome) -> str:
    """How the trainer's function ended, in words."""
    if driver.finished:
        return "the trainer's function returned"
    raised = driver.events[-1] if driver.events and driver.events[-1]["event"] == "raised" else None
    if raised is None:
        return f"the process of the trainer's function {driver.exit}"
    # Frameworks put the reason last, below their own traceback.
    message = " ".join(raised["message"].split())
    return f"the trainer's function raised {raised['type']}: {message}".rstrip(": ")
