"""Which workloads run on which paths in which precisions.

Two core workloads, one clipped and one not, run on every path in every precision. The others vary one thing each and
run on paths that are representative for it. Paths in which the ranks talk to each other one by one, or in which a
framework starts new processes for each case, have fewer rules of their own: what a path does with averaged gradients
is the same whoever averages them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from conformance.adapter.backends import BACKENDS, Paths
from conformance.adapter.declaration import Declaration
from conformance.cases.case import Case, Device
from conformance.workloads.layout import LayoutKind
from conformance.workloads.precision import PRECISIONS

#: Its kind, world size and accumulation.
Layout = tuple[LayoutKind, int, int]

SINGLE: tuple[Layout, ...] = (
    ("samples", 1, 1),
    ("batched", 1, 1),
    *(("accumulated", 1, accumulation) for accumulation in (2, 3, 4)),
)
DISTRIBUTED: tuple[Layout, ...] = tuple(
    ("batched" if accumulation == 1 else "accumulated", world_size, accumulation)
    for world_size in (2, 3, 4)
    for accumulation in (1, 2, 3, 4)
)
POINT_TO_POINT: tuple[Layout, ...] = tuple(layout for layout in DISTRIBUTED if layout[2] in (1, 2))
#: Where a framework starts new processes for each case, which takes seconds.
LAUNCHED: tuple[Layout, ...] = (("batched", 2, 1), ("accumulated", 2, 2), ("accumulated", 3, 2))
_LAYOUTS: dict[Paths, tuple[Layout, ...]] = {
    "single": SINGLE,
    "distributed": DISTRIBUTED,
    "point-to-point": POINT_TO_POINT,
    "launched": LAUNCHED,
}
BACKEND_LAYOUTS: dict[str, tuple[Layout, ...]] = {
    name: (*_LAYOUTS[backend.paths], *backend.more_layouts) for name, backend in BACKENDS.items()
}

_COMMON = ("fp64", "fp32", "bf16", "fp16")
BACKEND_PRECISIONS = {name: (*_COMMON, *backend.more_precisions) for name, backend in BACKENDS.items()}

ACCUMULATING = frozenset(layout for layout in (*SINGLE, *DISTRIBUTED) if layout[0] == "accumulated")
REPRESENTATIVE = frozenset[Layout](
    {("accumulated", 1, 2), ("batched", 2, 1), ("accumulated", 2, 2), ("accumulated", 3, 2)}
)
EXERCISE = frozenset[Layout](
    {("samples", 1, 1), ("batched", 1, 1), ("accumulated", 1, 2), ("batched", 2, 1), ("accumulated", 2, 2)}
)


@dataclass(frozen=True)
class Rule:
    """Run ``workload`` in ``precisions`` on ``layouts`` (None: all)."""

    workload: str
    precisions: tuple[str, ...] = tuple(PRECISIONS)
    layouts: frozenset[Layout] | None = None
    core: bool = field(default=False, kw_only=True)


#: Adding a workload to the default run is adding a rule.
RULES: tuple[Rule, ...] = (
    Rule("momentum", core=True),
    Rule("clip-value", core=True),
    Rule("sgd", layouts=REPRESENTATIVE),
    Rule("decay", layouts=REPRESENTATIVE),
    Rule("weighted", layouts=REPRESENTATIVE),
    Rule("clip-norm", layouts=REPRESENTATIVE),
    Rule("adamw", layouts=REPRESENTATIVE),
    Rule("overflow", ("fp16", "apex-O1"), REPRESENTATIVE | {("batched", 1, 1), ("batched", 4, 1)}),
    # Not for apex, whose scale grows after 2000 steps, which nothing can change.
    Rule("growing-scale", ("fp16",), REPRESENTATIVE),
    Rule(
        "ranks-start-apart",
        ("fp32",),
        frozenset({("batched", 2, 1), ("accumulated", 2, 2), ("batched", 4, 1)}),
    ),
    Rule(
        "short-window",
        ("fp64", "fp32"),
        frozenset(layout for layout in ACCUMULATING if layout[1] == 1)
        | {("accumulated", 2, 2), ("accumulated", 2, 3), ("accumulated", 4, 2)},
    ),
    Rule(
        "uneven-batch",
        ("fp64", "fp32"),
        frozenset({("accumulated", 1, 2), ("accumulated", 1, 4), ("batched", 2, 1), ("accumulated", 2, 2)}),
    ),
    Rule("line", ("fp64", "fp32"), EXERCISE),
    Rule("noisy-line", ("fp64", "fp32"), EXERCISE),
    Rule("two-workers", ("fp64", "fp32"), EXERCISE),
    # With 400 steps it costs more than ten cases of another workload.
    Rule("multivariate", ("fp64",), frozenset({("batched", 1, 1), ("accumulated", 2, 2)})),
    Rule("multivariate", ("fp32",), frozenset({("accumulated", 1, 4), ("batched", 4, 1)})),
)

#: Every world size and precision, with and without accumulation; and once each workload that can show more.
POINT_TO_POINT_RULES: tuple[Rule, ...] = (
    Rule("momentum", core=True),
    Rule("clip-value", layouts=frozenset({("batched", 4, 1), ("accumulated", 3, 2)}), core=True),
    *(
        Rule(workload, ("fp32", "fp16"), frozenset({("accumulated", 3, 2)}))
        for workload in ("decay", "weighted", "clip-norm", "adamw")
    ),
    Rule("overflow", ("fp16",), frozenset({("batched", 4, 1), ("accumulated", 2, 2)})),
    Rule("growing-scale", ("fp16",), frozenset({("accumulated", 3, 2)})),
    Rule("ranks-start-apart", ("fp32",), frozenset({("batched", 4, 1)})),
    Rule("short-window", ("fp64",), frozenset({("accumulated", 4, 2)})),
    Rule("uneven-batch", ("fp32",), frozenset({("accumulated", 2, 2)})),
)


_TWO = frozenset[Layout]({("batched", 2, 1)})
_TWO_WINDOWED = frozenset[Layout]({("accumulated", 2, 2)})
_THREE_WINDOWED = frozenset[Layout]({("accumulated", 3, 2)})
_FOUR = frozenset[Layout]({("batched", 4, 1)})

#: Each workload where it is most likely to fail, and each precision, world size and accumulation at least once.
LAUNCHED_RULES: tuple[Rule, ...] = (
    Rule("momentum", layouts=_TWO_WINDOWED),
    Rule("momentum", ("fp32", "bf16"), _THREE_WINDOWED),
    Rule("momentum", ("fp32",), _TWO | _FOUR),
    Rule("clip-value", ("fp16",), _TWO_WINDOWED),
    Rule("clip-norm", ("fp32",), _TWO_WINDOWED),
    Rule("weighted", ("fp32",), _TWO_WINDOWED),
    Rule("overflow", ("fp16",), _TWO_WINDOWED),
    Rule("ranks-start-apart", ("fp32",), _TWO),
    Rule("short-window", ("fp32",), _TWO_WINDOWED),
    Rule("uneven-batch", ("fp32",), _TWO),
)

_RULES: dict[Paths, tuple[Rule, ...]] = {
    "single": RULES,
    "distributed": RULES,
    "point-to-point": POINT_TO_POINT_RULES,
    "launched": LAUNCHED_RULES,
}
BACKEND_RULES: dict[str, tuple[Rule, ...]] = {name: _RULES[backend.paths] for name, backend in BACKENDS.items()}


@dataclass(frozen=True)
class Planned:
    """A case that is on the list. ``unsupported`` says which declaration keeps it from being run."""

    case: Case
    unsupported: str | None = None


def plan(declaration: Declaration, backend: str, device: Device = "cpu") -> Iterator[Planned]:
    """All cases of one backend for a trainer, and one entry for each thing that the trainer does not declare.

    A rule whose workload does not divide over one of its layouts is a ValueError: no case goes missing unnoticed.

    What runs on the CPU runs on a GPU with the core workloads only, and not with Horovod or Ray: the arithmetic is the
    same there. A precision that there is on a GPU only is not missed in a trainer that does not declare it.
    """
    refused: set[str] = set()
    for layout in BACKEND_LAYOUTS[backend]:
        for rule in BACKEND_RULES[backend]:
            if rule.layouts is not None and layout not in rule.layouts:
                continue
            for precision in BACKEND_PRECISIONS[backend]:
                if precision not in rule.precisions or not _runs_on(device, backend, rule, precision):
                    continue
                if PRECISIONS[precision].on_gpu_only and precision not in declaration.precisions:
                    continue
                case = Case(backend, *layout, precision, rule.workload, device)
                reason = _unsupported(case, declaration)
                if reason is None:
                    yield Planned(case)
                elif reason not in refused:
                    refused.add(reason)
                    yield Planned(case, reason)


def _runs_on(device: Device, backend: str, rule: Rule, precision: str) -> bool:
    if PRECISIONS[precision].on_gpu_only:
        return device == "cuda"
    return device == "cpu" or (rule.core and BACKENDS[backend].on_gpu)


def _unsupported(case: Case, declaration: Declaration) -> str | None:
    if case.backend not in declaration.backends:
        return _not_declared("backend", case.backend, declaration.backends)
    if case.layout not in declaration.layouts:
        return _not_declared("layout", case.layout, declaration.layouts)
    if case.precision not in declaration.precisions:
        return _not_declared("precision", case.precision, declaration.precisions)
    if case.world_size > 1 and case.world_size not in declaration.world_sizes:
        return _not_declared("world size", str(case.world_size), map(str, declaration.world_sizes))
    if case.accumulation > 1 and case.accumulation not in declaration.accumulations:
        return _not_declared("accumulation", str(case.accumulation), map(str, declaration.accumulations))
    workload = case.problem.workload
    if workload.loss not in declaration.losses:
        return _not_declared("loss", workload.loss, declaration.losses)
    if workload.clip is not None and workload.clip.kind not in declaration.clips:
        return _not_declared("clip", workload.clip.kind, declaration.clips)
    return None


def _not_declared(what: str, name: str, declared: Iterator[str] | tuple[str, ...]) -> str:
    return f"the trainer does not declare the {what} {name} (it declares: {', '.join(declared) or 'none'})"
