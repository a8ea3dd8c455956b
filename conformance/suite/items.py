"""Collects the suite's items: one for each planned case of each trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import ALL, every_trainer, stated
from conformance.cases.case import Case, Device
from conformance.cases.matrix import plan
from conformance.cases.rules import BACKEND_LAYOUTS
from conformance.results.result_lines import Verdict, quoted
from conformance.runner.front.client import TrainerError, Unavailable
from conformance.suite.selection import selected, selects_nothing
from conformance.suite.servers import Servers

REFERENCE = (
    *("single", "batched", "accumulated", "averaged", "ddp", "horovod", "horovod_plain"),
    *("fsdp2", "fsdp2_hybrid", "zero_redundancy"),
    *("parameter_server", "ring", "ring_gather"),
    *("apex_single", "apex_ddp", "apex_horovod"),
)


@dataclass(frozen=True)
class Item:
    """One planned case, and the reason if it is not run.

    ``verdict`` is UNSUPPORTED or UNAVAILABLE for a case that is listed but not run. ``declared``: how many cases the
    trainer supports on this backend, on the CPU; ``chosen``, ``undeclared``: see `Planned`; ``option``: see `Servers`.
    """

    target: str
    trainer: str
    case: Case
    chosen: bool = True
    verdict: Verdict | None = None
    reason: str = ""
    declared: int = 0
    undeclared: str | None = None
    option: str = ""

    @property
    def command(self) -> str:
        return f"conformance run{self.option} {quoted(self.target)} --case {self.case.id}"


@dataclass(frozen=True)
class BadInput:
    """A problem that keeps a trainer from running at all: one clear line."""

    target: str
    line: str

    #: The end of its item's id, by which the engine recognises it: before tests run, workers send only ids.
    MARK: ClassVar[str] = ": cannot be run"


def collect(
    servers: Servers,
    targets: Sequence[str],
    backends: Sequence[str],
    patterns: Sequence[str],
    *,
    thorough: bool = False,
) -> list[Item | BadInput]:
    """The items of ``targets`` (none: the reference trainers) on ``backends`` (none: all that they support).

    ``patterns`` select among all cases, as in `selection`. Without patterns, the plan's chosen cases are taken, more
    for a ``thorough`` run. A trainer that cannot be loaded becomes a BadInput, as does a pattern that selects nothing;
    with a BadInput, nothing else is collected.
    """
    items: list[Item] = []
    wrong: list[BadInput] = []
    try:
        targets = every_trainer(targets)
    except TrainerError as error:
        return [BadInput(ALL, str(error))]
    for target in dict.fromkeys(targets) or REFERENCE:
        try:
            named = bool(targets and backends)
            items += _of(servers, target, backends or tuple(BACKEND_LAYOUTS), named=named, thorough=thorough)
        except TrainerError as error:
            wrong.append(BadInput(target, str(error)))
    if wrong:
        return [*wrong]
    known = list(dict.fromkeys(item.case for item in items))
    patterns = tuple(dict.fromkeys(patterns))
    by_pattern = {pattern: selected(pattern, known) for pattern in patterns}
    idle = [pattern for pattern, cases in by_pattern.items() if not cases]
    if idle:
        return [BadInput(pattern, selects_nothing(pattern, known)) for pattern in idle]
    if patterns:
        wanted = set[Case]().union(*by_pattern.values())
        chosen = [item for item in items if item.case in wanted]
    else:
        chosen = [item for item in items if item.chosen]
    if chosen and all(servers.why_not(item.case) is not None for item in chosen):
        first = chosen[0]
        line = f"none of the selected cases can run; for example {first.case.id}: {servers.why_not(first.case)}"
        return [BadInput(first.target, line)]
    return [*_with_distinct_names(chosen)]


def _with_distinct_names(items: Sequence[Item]) -> list[Item]:
    """The same items; trainers that share a name get their targets as names."""
    targets: dict[str, set[str]] = {}
    for item in items:
        targets.setdefault(item.trainer, set()).add(item.target)
    return [item if len(targets[item.trainer]) == 1 else replace(item, trainer=item.target) for item in items]


def _of(servers: Servers, target: str, backends: Sequence[str], *, named: bool, thorough: bool) -> Iterator[Item]:
    """Raises TrainerError."""
    declaration = stated(target)
    for backend in backends:
        if declaration is not None and backend not in declaration.backends and not named:
            continue
        missing: Unavailable | None = None
        gpus, refused = {"devices": 0, "reason": ""}, dict[str, str]()
        try:
            server = servers.get(target, backend)
            declaration, gpus, refused = server.declaration, server.gpus, server.refused
        except Unavailable as error:
            missing, declaration = error, error.declaration or declaration
        if declaration is None:
            raise TrainerError(f"{target}: {missing}")
        if backend not in declaration.backends and not named:
            continue
        plans = {device: [*plan(declaration, backend, device, thorough=thorough)] for device in get_args(Device)}
        declared = sum(planned.undeclared is None for planned in plans["cpu"])
        for device, of_device in plans.items():
            for planned in of_device:
                name = declaration.name or target
                item = Item(target, name, planned.case, planned.chosen, declared=declared, option=servers.option)
                if planned.unsupported is not None:
                    # Unsupported features were already reported for the CPU.
                    if device == "cpu" or planned.case.arithmetic.on_gpu_only:
                        item = replace(item, undeclared=planned.undeclared)
                        yield _not_run(item, "UNSUPPORTED", planned.unsupported)
                elif missing is not None:
                    yield _not_run(item, "UNAVAILABLE", str(missing))
                else:
                    case = planned.case
                    reason = refused.get(case.precision) or servers.why_not(case) or _why_not_there(case, gpus)
                    yield item if reason is None else _not_run(item, "UNAVAILABLE", reason)


def _why_not_there(case: Case, gpus: Mapping[str, Any]) -> str | None:
    """Why a case cannot run on these GPUs, or None."""
    if case.device == "cpu":
        return None
    devices = gpus["devices"]
    if not devices:
        return f"no CUDA device: {gpus['reason']}"
    if case.world_size > devices and not BACKENDS[case.backend].shares_gpus:
        return (
            f"point-to-point messages on GPUs use NCCL, which needs one GPU for each of {case.world_size} ranks; "
            f"{'only one is' if devices == 1 else f'only {devices} are'} available"
        )
    return None


def _not_run(item: Item, verdict: Verdict, reason: str) -> Item:
    return replace(item, verdict=verdict, reason=reason)
