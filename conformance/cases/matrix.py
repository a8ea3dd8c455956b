"""The cases of a backend that a trainer can run, and which of them a run selects.

A workload that shows something no other shows always runs. From those that can run almost anywhere, it selects a
covering array: each path meets each precision, and each workload meets each world size, accumulation and precision, if
any case has the two. In a thorough run any three of these values meet, where a kind of model and a recipe count as
two.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import TypeVar

from covertable import make

from conformance.adapter.backends import BACKENDS
from conformance.adapter.declaration import Declaration
from conformance.cases.case import BETWEEN_FILES, INSIDE_WINDOW, Case, Device
from conformance.cases.rules import BACKEND_LAYOUTS, BACKEND_PRECISIONS, BACKEND_RULES, Rule
from conformance.workloads.data_sets import OWN_ORDER
from conformance.workloads.designs import OF_KINDS, UNEVEN_BATCHES
from conformance.workloads.model import Counting, WithDropout
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.registry import STANDARD, asking, can_have_own_scale

C = TypeVar("C", bound=Hashable)
#: A case's value in each dimension.
Values = Mapping[str, Hashable]


def covering(cases: Mapping[C, Values], strength: int, taken: Container[C], closely: Sequence[str] = ()) -> set[C]:
    """Selects cases that, with those taken, cover every combination of ``strength`` values that any case has.

    Args:
        cases: all cases, in the same dimensions. No two have the same values.
        taken: cases that run anyway.
        closely: dimensions whose values must all meet, not only ``strength`` of them.

    Raises:
        ValueError: two cases have the same values.
    """
    if not cases:
        return set()
    case_of = {frozenset(values.items()): case for case, values in cases.items()}
    if len(case_of) < len(cases):
        raise ValueError("two cases have the same values")
    dimensions = list(next(iter(cases.values())))
    parts = {
        frozenset(some)
        for values in cases.values()
        for size in range(len(dimensions) + 1)
        for some in combinations(values.items(), size)
    }

    def can_be(row: Values) -> bool | None:
        """Whether a row is a case; None if it can become one."""
        known = frozenset(row.items())
        return known in parts and (known in case_of or None)

    rows = make(
        {name: list(dict.fromkeys(values[name] for values in cases.values())) for name in dimensions},
        strength=min(strength, len(dimensions)),
        presets=[values for case, values in cases.items() if case in taken],
        sub_models=[{"fields": list(closely), "strength": len(closely)}] if closely else [],
        constraints=[{"operator": "fn", "requires": (), "evaluate": can_be}],
    )
    return {case_of[frozenset(row.items())] for row in rows}


@dataclass(frozen=True)
class Planned:
    """A case of the matrix.

    Attributes:
        chosen: the run includes it, or reports why it cannot run.
        undeclared: the missing feature that the trainer must declare; None if the case can run.
        unsupported: the same as a sentence.
    """

    case: Case
    chosen: bool
    undeclared: str | None = None
    unsupported: str | None = None


def plan(
    declaration: Declaration, backend: str, device: Device = "cpu", *, thorough: bool = False
) -> Iterator[Planned]:
    """All cases of one backend for a trainer, and one entry for each feature that the trainer does not support.

    On a GPU only the core workloads run, and none with Horovod or Ray: the arithmetic is the same as on the CPU. A
    precision that needs a GPU gets no entry if the trainer does not support it.
    """
    has_own_scale = declaration.loss_scale == "own"
    cases = {
        replace(case, own_scale=has_own_scale and case.arithmetic.scaled): rules
        for case, rules in _cases(backend, device).items()
        if not case.arithmetic.on_gpu_only or case.precision in declaration.precisions
    }
    lacking = {case: next(_lacking(case, declaration), None) for case in cases}
    able = {case: rules for case, rules in cases.items() if lacking[case] is None}
    chosen = _chosen(able, strength=3) if thorough else _chosen(_quick(able), strength=2)
    refused: set[str] = set()
    for case, need in lacking.items():
        if need is None:
            yield Planned(case, case in chosen)
            continue
        what, needed, declared = need
        undeclared = f"{what} {needed}"
        if undeclared not in refused:
            refused.add(undeclared)
            names = f" (supported: {', '.join(map(str, declared))})" if declared else ""
            reason = f"not supported by this trainer: {undeclared}{names}"
            yield Planned(case, True, undeclared, reason)


@cache
def possible(backend: str) -> int:
    """The number of cases on this backend, on the CPU, for a trainer that supports everything."""
    return len(_cases(backend, "cpu"))


def _cases(backend: str, device: Device) -> dict[Case, list[Rule]]:
    """All cases, each with its rules."""
    cases: dict[Case, list[Rule]] = {}
    for layout in BACKEND_LAYOUTS[backend]:
        for rule in BACKEND_RULES[backend]:
            if rule.layouts is not None and layout not in rule.layouts:
                continue
            for precision in BACKEND_PRECISIONS[backend]:
                if precision in rule.precisions and _runs_on(device, backend, rule, precision):
                    case = Case(backend, *layout, precision, rule.workload, device, rule.resumed_at, rule.resumed)
                    cases.setdefault(case, []).append(rule)
    return cases


def _quick(cases: Mapping[Case, Sequence[Rule]]) -> dict[Case, list[Rule]]:
    """The cases without those that only a thorough run selects."""
    quick = {case: [rule for rule in rules if not rule.thorough] for case, rules in cases.items()}
    return {case: rules for case, rules in quick.items() if rules}


def _chosen(cases: Mapping[Case, Sequence[Rule]], strength: int) -> set[Case]:
    """The cases that must run, and others that complete a covering array of ``strength``."""
    must = {case for case, rules in cases.items() if not all(rule.covering for rule in rules)}
    core = [case for case, rules in cases.items() if any(rule.core for rule in rules)]
    on_paths = {case: {"path": case.path, "precision": case.precision, "workload": case.workload} for case in core}
    must |= covering(on_paths, strength, must)
    models = {case: _of_model(case) for case in cases if case.resumed_at is None}
    return must | covering(models, strength, must, _PATH_AND_PRECISION)


#: Each path meets each precision.
_PATH_AND_PRECISION = ("world_size", "accumulation", "precision")


def _of_model(case: Case) -> Values:
    kind, recipe = OF_KINDS.get(case.workload, ("", case.workload))
    return {"kind": kind, "recipe": recipe, **{name: getattr(case, name) for name in _PATH_AND_PRECISION}}


def _runs_on(device: Device, backend: str, rule: Rule, precision: str) -> bool:
    if PRECISIONS[precision].on_gpu_only:
        return device == "cuda"
    if device == "cpu":
        return not rule.on_gpu_only
    return (rule.core or rule.on_gpu_only) and BACKENDS[backend].on_gpu


def _lacking(case: Case, declaration: Declaration) -> Iterator[tuple[str, object, Sequence[object]]]:
    """The features that a case needs and the trainer does not support, each with the supported values of its kind."""
    return (need for need in _needs(case, declaration) if need[1] not in need[2])


def declared(case: Case) -> set[str]:
    """The features of a case that only trainers have that declare them."""
    return {f"{what} {needed}" for what, needed, _ in _lacking(case, Declaration())}


def _needs(case: Case, declaration: Declaration) -> Iterator[tuple[str, object, Sequence[object]]]:
    yield "backend", case.backend, declaration.backends
    yield "layout", case.layout, declaration.layouts
    yield "precision", case.precision, declaration.precisions
    for world_size in case.world_sizes:
        if world_size > 1:
            yield "world size", world_size, declaration.world_sizes
    if case.accumulation > 1:
        yield "accumulation", case.accumulation, declaration.accumulations
    workload = asking(case.workload)
    if STANDARD[case.workload].in_whole_shares:
        yield "last_batch", "join", [declaration.last_batch] if declaration.last_batch else []
    if case.workload == UNEVEN_BATCHES:
        # A stream of samples has no smaller batches at the ends of epochs.
        yield "last_batch of", "each epoch", ["each epoch"] if declaration.last_batch else []
    if case.workload == OWN_ORDER:
        yield "own", "sample order", ["sample order"] if declaration.own_order else []
    if case.resumed_at is not None:
        yield "resuming", "training", ["training"] if declaration.resume else []
        if case.resumed in ("killed", BETWEEN_FILES):
            yield "crash", "recovery", ["recovery"] if declaration.survives_kill else []
        if case.resumed == INSIDE_WINDOW:
            yield "resuming inside", "windows", ["windows"] if declaration.resumes_inside_windows else []
        if case.world_sizes[1] != case.world_size:
            yield "resuming with another", "world size", ["world size"] if declaration.elastic else []
    yield "loss", workload.loss, declaration.losses
    yield "optimizer", type(workload.optimizer).__name__.lower(), declaration.optimizers
    if any((workload.schedule, *(group.schedule for group in workload.groups))):
        yield "schedule by", workload.schedule_by, declaration.schedules
    yield "model", workload.model.name, declaration.models
    if workload.unfreeze_at is not None:
        yield "unfreezing", "parameters", ["parameters"] if declaration.unfreezes else []
    if isinstance(workload.model, Counting):
        yield "updated", "buffers", ["buffers"] if declaration.buffers else []
    if isinstance(workload.model, WithDropout):
        yield "restoring", "random state", ["random state"] if declaration.random_state else []
    if workload.model.may_go_unused:
        yield "unused", "parameters", ["parameters"] if declaration.unused_parameters else []
    if workload.model.has_sparse_gradients:
        yield "sparse", "gradients", ["gradients"] if declaration.sparse else []
    if workload.groups:
        yield "number of parameter groups", 1 + len(workload.groups), declaration.parameter_groups
    if workload.clip is not None:
        yield "clip", workload.clip.kind, declaration.clips
    if workload.average is not None:
        yield "averaging weights by", workload.average.kind, declaration.averages
    if case.arithmetic.scaled and not can_have_own_scale(case.workload, workload.model):
        yield "the task's", "loss scale", ["loss scale"] if declaration.loss_scale == "task" else []
