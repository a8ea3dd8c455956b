"""What the suite collects: one item for each planned case of each trainer, and the servers that run them."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

from conformance.adapter.declaration import Declaration
from conformance.adapter.loading import stated
from conformance.cases.case import Case, Device
from conformance.cases.matrix import BACKEND_LAYOUTS, plan
from conformance.results.records import Verdict
from conformance.runner.front.client import ForkServer, Outcome, TrainerError, Unavailable

APEX = ("apex_single", "apex_ddp", "apex_horovod")
REFERENCE = (
    *("single", "batched", "accumulated", "ddp", "horovod", "horovod_plain"),
    *("parameter_server", "ring", "ring_gather"),
    *APEX,
)


@dataclass(frozen=True)
class Item:
    """One planned case, and why it is not run, if it is not.

    ``verdict`` is UNSUPPORTED or UNAVAILABLE for a case that is listed but not run. ``option``: see `Servers`.
    """

    target: str
    trainer: str
    case: Case
    verdict: Verdict | None = None
    reason: str = ""
    option: str = ""

    @property
    def command(self) -> str:
        return f"conformance run{self.option} {shlex.quote(self.target)} --case {self.case.id}"


@dataclass(frozen=True)
class BadInput:
    """What keeps a trainer from being run at all: one clear line."""

    target: str
    line: str

    #: Ends the id of its item, by which the engine knows it: only ids cross from a worker before anything runs.
    MARK: ClassVar[str] = ": cannot be run"


class Server(Protocol):
    """What runs the cases of one trainer and backend: a `ForkServer`, or several of them on as many machines."""

    declaration: Declaration
    versions: dict[str, str]
    gpus: dict[str, Any]
    mode: Literal["fork", "spawn"]
    mode_reason: str | None

    def __enter__(self) -> Server:
        """Raises TrainerError, Unavailable, RunnerError."""

    def __exit__(self, *error: object) -> None: ...

    def run(self, spec: dict[str, Any], time_limit: float) -> Outcome:
        """Raises RunnerError."""


class SlowPath(UserWarning):
    """Why the cases of a trainer take long, and what to do: a warning, since pytest brings those from its workers."""


class Servers:
    """The fork servers of this process, one for each trainer and backend, started when they are first needed.

    Attributes:
        option: what a command line needs besides to run cases in the same place.
        hosts: the machines that ranks run on, where it is not just this one.
    """

    option: str = ""
    hosts: Sequence[str] = ()

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[tuple[str, str], Server] = {}

    def get(self, target: str, backend: str) -> Server:
        """Raises TrainerError, Unavailable, RunnerError."""
        if (target, backend) not in self._servers:
            self._servers[target, backend] = self._stack.enter_context(self.open(target, backend))
        return self._servers[target, backend]

    def open(self, target: str, backend: str) -> Server:
        """A server that is not started yet."""
        return ForkServer(target, backend)

    @property
    def slow(self) -> list[str]:
        """Why servers that run cannot fork their ranks, and what to do; each reason once."""
        reasons = [server.mode_reason for server in self._servers.values()]
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))

    def why_not(self, case: Case) -> str | None:
        """Why a case cannot be run here, whatever the trainer."""
        return None

    def close(self) -> None:
        self._servers.clear()
        self._stack.close()


def collect(
    servers: Servers, targets: Sequence[str], backends: Sequence[str], patterns: Sequence[str]
) -> list[Item | BadInput]:
    """All items of ``targets`` (none: the reference trainers) on ``backends`` (none: all that they declare).

    ``patterns`` select cases by id, or by the beginning of an id; none selects all. A trainer that cannot be loaded
    becomes a BadInput, and so does a selected id that no trainer has: then nothing else is collected.
    """
    items: list[Item] = []
    wrong: list[BadInput] = []
    for target in dict.fromkeys(targets) or REFERENCE:
        try:
            items += _of(servers, target, backends or tuple(BACKEND_LAYOUTS), named=bool(targets and backends))
        except TrainerError as error:
            wrong.append(BadInput(target, str(error)))
    if wrong:
        return [*wrong]
    known = list(dict.fromkeys(item.case.id for item in items))
    patterns = tuple(dict.fromkeys(patterns))
    unknown = [BadInput(p, _no_such_case(p, known)) for p in patterns if not any(selects(p, id) for id in known)]
    if unknown:
        return [*unknown]
    chosen = [item for item in items if not patterns or any(selects(p, item.case.id) for p in patterns)]
    if chosen and all(servers.why_not(item.case) is not None for item in chosen):
        first = chosen[0]
        line = f"none of the chosen cases can be run; of {first.case.id}: {servers.why_not(first.case)}"
        return [BadInput(first.target, line)]
    return [*_told_apart(chosen)]


def _told_apart(items: Sequence[Item]) -> list[Item]:
    """The same items; trainers of one name are called by their targets."""
    targets: dict[str, set[str]] = {}
    for item in items:
        targets.setdefault(item.trainer, set()).add(item.target)
    return [item if len(targets[item.trainer]) == 1 else replace(item, trainer=item.target) for item in items]


def selects(pattern: str, case_id: str) -> bool:
    return case_id == pattern or case_id.startswith(f"{pattern}-")


def _of(servers: Servers, target: str, backends: Sequence[str], *, named: bool) -> Iterator[Item]:
    """Raises TrainerError."""
    declaration = stated(target)
    for backend in backends:
        if declaration is not None and backend not in declaration.backends and not named:
            continue
        missing: Unavailable | None = None
        gpus = {"devices": 0, "reason": ""}
        try:
            server = servers.get(target, backend)
            declaration, gpus = server.declaration, server.gpus
        except Unavailable as error:
            missing, declaration = error, error.declaration or declaration
        if declaration is None:
            raise TrainerError(f"{target}: {missing}")
        if backend not in declaration.backends and not named:
            continue
        devices: tuple[Device, ...] = ("cpu", "cuda")
        for device in devices:
            for planned in plan(declaration, backend, device):
                item = Item(target, declaration.name or target, planned.case, option=servers.option)
                if planned.unsupported is not None:
                    # What is not declared was told for the CPU already.
                    if device == "cpu" or planned.case.arithmetic.on_gpu_only:
                        yield _not_run(item, "UNSUPPORTED", planned.unsupported)
                elif missing is not None:
                    yield _not_run(item, "UNAVAILABLE", str(missing))
                elif (reason := servers.why_not(planned.case)) is not None:
                    yield _not_run(item, "UNAVAILABLE", reason)
                elif device == "cuda" and not gpus["devices"]:
                    yield _not_run(item, "UNAVAILABLE", f"no CUDA device: {gpus['reason']}")
                else:
                    yield item


def _not_run(item: Item, verdict: Verdict, reason: str) -> Item:
    return replace(item, verdict=verdict, reason=reason)


def _no_such_case(pattern: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(pattern, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"no case {pattern} is planned for these trainers{hint}"
