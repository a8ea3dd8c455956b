"""The default matrix: a run can judge each of its cases."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields, replace
from functools import cache
from itertools import combinations

import pytest
import torch

from conformance.adapter.backends import BACKENDS
from conformance.adapter.declaration import (
    AVERAGES,
    BACKEND_NAMES,
    CLIPS,
    LAYOUTS,
    LOSSES,
    PRECISIONS,
    SCHEDULES,
    Declaration,
)
from conformance.cases import matrix
from conformance.cases.case import Case
from conformance.cases.matrix import plan, possible
from conformance.cases.rules import (
    BACKEND_LAYOUTS,
    BACKEND_PRECISIONS,
    BACKEND_RULES,
    POINT_TO_POINT_RULES,
    RULES,
    Rule,
)
from conformance.oracle.accepted_readings import readings
from conformance.oracle.power import PROBE, power
from conformance.oracle.recurrence import Recurrence, ScalerHistory
from conformance.workloads import precision as formats
from conformance.workloads.data_sets import ANY_ORDER
from conformance.workloads.designs import OF_KINDS
from conformance.workloads.registry import asking

EVERYTHING = Declaration(
    backends=BACKEND_NAMES,
    precisions=PRECISIONS,
    layouts=LAYOUTS,
    losses=LOSSES,
    clips=CLIPS,
    schedules=SCHEDULES,
    averages=AVERAGES,
    last_window="step",
    last_batch="join",
    **dict.fromkeys(("resume", "survives_kill", "resumes_inside_windows", "random_state", "elastic"), True),
    **dict.fromkeys(("unfreezes", "unused_parameters", "buffers", "sparse", "own_order"), True),
)
NOT_RESUMED = dict.fromkeys(("survives_kill", "resumes_inside_windows", "random_state", "elastic"), False)
#: Backends on which an ability has its own numbers.
SHOWN_PATHS = ("single", "distributed", "sharded")
#: Their roots, quotients or data are rounded, so they are judged by bounds.
BOUNDED = {
    *("adamw", "adamw-capturable", "adamw-clip", "adamw-groups", "adamw-overflow", "adagrad", "many-adamw"),
    *("clip-norm", "two-groups-clip", "overflow-clip", "two-layers-clip", "short-clip-norm", "short-adamw"),
    *(f"{kind}-clip-norm" for kind in ("many", "many-shards", "frozen", "unused", "groups", "large", "buffers")),
    *("line", "noisy-line", "two-workers", "multivariate"),
}
#: torch supports them only on GPUs.
ON_GPUS = {"adamw-capturable"}
#: Windows that overflow.
SKIPPED = {
    "ema-overflow": {2},
    **{name: {2} for name in ("overflow", "overflow-clip", "overflow-clip-value", "infinite-loss", "adamw-overflow")},
    "buffers-overflow": {2},
    "overflow-weighted": {2},
    "overflow-in-part": {2, 5},
    **{name: {1, 4} for name in ("many-overflow", "frozen-overflow", "groups-overflow", "sparse-overflow")},
    "many-shards-overflow": {1, 4},
    "unused-overflow": {2, 3},
    "large-overflow": {1, 2},
    "two-layers-overflow": {1},
}
#: Their sums overflow, a single sample does not: the trainer decides how many samples it sums in fp16.
IN_PART = {name: ScalerHistory(frozenset(SKIPPED[name])) for name in ("overflow-in-part", "many-shards-overflow")}
HORIZON = 16
DDP = [planned.case for planned in plan(EVERYTHING, "ddp")]


@cache
def everything():
    """All cases on the CPU, and those that exist only on GPUs."""
    on_gpus = [planned for backend in BACKEND_NAMES for planned in plan(EVERYTHING, backend, "cuda")]
    return [planned for backend in BACKEND_NAMES for planned in plan(EVERYTHING, backend)] + [
        planned for planned in on_gpus if planned.case.arithmetic.on_gpu_only or planned.case.workload in ON_GPUS
    ]


def device(precision, workload):
    return "cuda" if formats.PRECISIONS[precision].on_gpu_only or workload in ON_GPUS else "cpu"


@cache
def by_workload_and_precision():
    """The layouts of all cases; backends share them, as the oracle does not depend on backends."""
    layouts = defaultdict(set)
    for planned in everything():
        case = planned.case
        layouts[case.workload, case.precision].add((case.world_size, case.accumulation))
    return layouts


def test_ids_are_unique():
    ids = Counter(planned.case.id for planned in everything())
    assert [name for name, count in ids.items() if count > 1] == []
    assert len({planned.case for planned in everything()}) == len(ids)


def test_a_trainer_that_declares_everything_is_spared_nothing():
    assert [planned.unsupported for planned in everything() if planned.unsupported] == []
    missing = {
        Case(
            backend, *layout, precision, rule.workload, device(precision, rule.workload), rule.resumed_at, rule.resumed
        ).id
        for backend in BACKEND_NAMES
        for rule in BACKEND_RULES[backend]
        for layout in BACKEND_LAYOUTS[backend]
        if rule.layouts is None or layout in rule.layouts
        for precision in BACKEND_PRECISIONS[backend]
        if precision in rule.precisions and (BACKENDS[backend].on_gpu or rule.workload not in ON_GPUS)
    }
    assert sorted(missing) == sorted(planned.case.id for planned in everything())


def test_every_rule_and_precision_is_used():
    pairs = set(by_workload_and_precision())
    rules = {rule.workload for rules in BACKEND_RULES.values() for rule in rules}
    assert {workload for workload, _ in pairs} == rules
    assert {precision for _, precision in pairs} == set(PRECISIONS)
    for backend in BACKEND_NAMES:
        for rule in BACKEND_RULES[backend]:
            for layout in rule.layouts or ():
                assert any(
                    layout in BACKEND_LAYOUTS[other]
                    for other in BACKEND_NAMES
                    if BACKEND_RULES[other] is BACKEND_RULES[backend]
                ), rule


def test_core_workloads_run_on_every_path_in_every_precision():
    core = [rule for rule in RULES if rule.core]
    assert {rule.workload for rule in core} == {"momentum", "clip-value"}
    planned = {planned.case for planned in everything()}
    for backend in ("single", "ddp", "horovod"):
        for layout in BACKEND_LAYOUTS[backend]:
            for precision in BACKEND_PRECISIONS[backend]:
                for rule in core:
                    assert Case(backend, *layout, precision, rule.workload, device(precision, rule.workload)) in planned


def test_world_sizes_and_accumulations_of_the_distributed_paths():
    for backend in ("ddp", "horovod"):
        assert {(world, accumulation) for world, accumulation in BACKEND_LAYOUTS[backend]} == {
            (world, accumulation) for world in (2, 3, 4) for accumulation in (1, 2, 3, 4)
        }
    assert {case.layout for case in matrix._cases("single", "cpu")} == set(LAYOUTS)


@pytest.mark.parametrize("backend", ["parameter-server", "ring", "ring-gather"])
def test_point_to_point_paths_have_fewer_cases_that_cover_the_same(backend):
    """Each world size with and without accumulation in each precision, and the abilities that few workloads show."""
    planned = [planned.case for planned in plan(EVERYTHING, backend)]
    assert len(planned) == 52
    covered = {(case.world_size, case.accumulation > 1, case.precision) for case in planned}
    assert covered == {
        (world, more, p) for world in (2, 3, 4) for more in (False, True) for p in BACKEND_PRECISIONS[backend]
    }
    assert {case.workload for case in planned} == {rule.workload for rule in POINT_TO_POINT_RULES}
    # Other paths have these cases as well.
    others = {(case.world_size, case.accumulation, case.precision, case.workload) for case in DDP}
    assert {(c.world_size, c.accumulation, c.precision, c.workload) for c in planned} <= others


@pytest.mark.parametrize("backend", ["fsdp2", "zero-redundancy"])
def test_sharded_paths_have_few_cases_of_every_shape_and_precision(backend):
    cases = [planned.case for planned in plan(EVERYTHING, backend)]
    assert len(cases) == 73
    assert {(case.world_size, case.accumulation) for case in cases} == set(BACKEND_LAYOUTS[backend])
    assert {case.precision for case in cases} == set(BACKEND_PRECISIONS[backend])
    elsewhere = {(case.workload, case.precision) for case in DDP}
    alike = {(case.workload, case.precision) for case in cases if not case.workload.startswith("many-shards")}
    assert alike <= elsewhere


def test_a_rank_that_starts_apart_owns_rows():
    """If parameters are sharded by rows, the weights of a rank without rows never count."""
    cases = [planned.case for planned in plan(EVERYTHING, "fsdp2")]
    apart = [case for case in cases if case.problem.workload.ranks_start_apart]
    assert any(
        len(torch.zeros(tensor.shape).chunk(case.world_size)) == case.world_size
        for case in apart
        for tensor in case.problem.workload.model.tensors
    )


@pytest.mark.parametrize("backend", ["ray", "ray-train"])
def test_a_backend_that_launches_runs_every_shape_and_precision_and_nothing_of_its_own(backend):
    cases = [planned.case for planned in plan(EVERYTHING, backend)]
    assert {(case.world_size, case.accumulation) for case in cases} == set(BACKEND_LAYOUTS[backend])
    accumulated = {case.precision for case in cases if case.layout == "accumulated" and case.world_size == 2}
    assert accumulated == set(BACKEND_PRECISIONS[backend])
    elsewhere = {replace(planned.case, backend=backend) for planned in plan(EVERYTHING, "ddp")}
    assert set(cases) <= elsewhere


def test_on_gpus_the_core_workloads_run_and_what_there_is_there_alone():
    cases = [planned.case for planned in plan(EVERYTHING, "ddp", "cuda")]
    assert {case.workload for case in cases if not case.arithmetic.on_gpu_only} == {"momentum", "clip-value", *ON_GPUS}
    assert {case.device for case in cases} == {"cuda"}
    assert all(case.id.startswith("cuda-ddp-") for case in cases)
    # For Horovod only apex; compression is Horovod's.
    assert {planned.case.precision for planned in plan(EVERYTHING, "horovod", "cuda")} == {"apex-O1"}
    compressed = {planned.case.backend for planned in everything() if planned.case.precision == "fp16-compression"}
    assert compressed == {"horovod"}


def test_apex_runs_on_gpus_only_and_with_every_backend_that_it_names():
    """With fp16's workloads and numbers, except the one whose scale has to grow and the one whose ranks have
    to be joined."""
    with_apex = [backend for backend in BACKEND_NAMES if "apex-O1" in BACKEND_PRECISIONS[backend]]
    assert with_apex == ["single", "ddp", "horovod"]
    assert replace(formats.PRECISIONS["apex-O1"], name="fp16", amp="torch") == formats.PRECISIONS["fp16"]
    on_cpu = [planned.case for backend in BACKEND_NAMES for planned in plan(EVERYTHING, backend)]
    assert "apex-O1" not in {case.precision for case in on_cpu}
    for backend in with_apex:
        on_gpu = [planned.case for planned in plan(EVERYTHING, backend, "cuda")]
        apex = {(case.path, case.workload) for case in on_gpu if case.precision == "apex-O1"}
        fp16 = {(f"cuda-{c.path}", c.workload) for c in on_cpu if (c.backend, c.precision) == (backend, "fp16")}
        assert apex == {one for one in fp16 if one[1] not in ("growing-scale", "uneven-ranks")}


def test_apex_is_not_missed_in_a_trainer_that_does_not_declare_it():
    without = replace(EVERYTHING, precisions=("fp32", "fp16"))
    assert "apex-O1" not in {planned.case.precision for planned in plan(without, "ddp", "cuda")}
    declared = replace(EVERYTHING, precisions=("apex-O1",), clips=())
    reasons = [entry.unsupported for entry in plan(declared, "ddp", "cuda") if entry.case.precision == "apex-O1"]
    assert [reason for reason in reasons if reason] == [
        f"not supported by this trainer: clip {kind}" for kind in ("value", "norm")
    ]


@pytest.mark.parametrize(
    ("changes", "backend", "reason"),
    [
        ({"backends": ("single",)}, "ddp", "backend ddp (supported: single)"),
        ({"layouts": ("batched",)}, "ddp", "layout accumulated (supported: batched)"),
        ({"precisions": ("fp32", "bf16")}, "ddp", "precision fp16 (supported: fp32, bf16)"),
        ({"world_sizes": (2, 4)}, "ddp", "world size 3 (supported: 2, 4)"),
        ({"accumulations": (2,)}, "ddp", "accumulation 4 (supported: 2)"),
        ({"losses": ("mean",)}, "ddp", "loss weighted (supported: mean)"),
        ({"clips": ()}, "ddp", "clip norm"),
        ({"optimizers": ("sgd", "adamw")}, "ddp", "optimizer adagrad (supported: sgd, adamw)"),
        ({"schedules": ("step",)}, "ddp", "schedule by epoch (supported: step)"),
        ({"schedules": ()}, "ddp", "schedule by step"),
        ({"parameter_groups": (1,)}, "ddp", "number of parameter groups 2 (supported: 1)"),
        ({"models": ("linear",)}, "ddp", "model many-tensors (supported: linear)"),
        ({"unused_parameters": False}, "ddp", "unused parameters"),
        ({"buffers": False}, "ddp", "updated buffers"),
        ({"averages": ("swa",)}, "ddp", "averaging weights by ema (supported: swa)"),
        ({"sparse": False}, "ddp", "sparse gradients"),
        ({"unfreezes": False}, "ddp", "unfreezing parameters"),
        ({"last_batch": "use"}, "ddp", "last_batch join (supported: use)"),
        ({"last_batch": None}, "horovod", "last_batch join"),
    ],
)
def test_what_is_not_declared_is_on_the_list_once_and_not_run(changes, backend, reason):
    planned = list(plan(replace(EVERYTHING, **changes), backend))
    reasons = Counter(entry.unsupported for entry in planned if entry.unsupported)
    assert reasons[f"not supported by this trainer: {reason}"] == 1
    assert set(reasons.values()) == {1}
    run = {entry.case for entry in planned if not entry.unsupported}
    assert run < {entry.case for entry in plan(EVERYTHING, backend)} or not run
    for entry in planned:
        if entry.unsupported:
            assert entry.case not in run


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_who_declares_everything_has_all_that_is_possible(backend):
    assert possible(backend) == sum(1 for _ in plan(EVERYTHING, backend))


def test_nothing_that_is_declared_is_lost_with_what_is_not():
    fewer = replace(EVERYTHING, precisions=("fp32",), world_sizes=(2,), clips=("value",))
    kept = {entry.case for entry in plan(fewer, "ddp") if not entry.unsupported}
    assert kept == {
        entry.case
        for entry in plan(EVERYTHING, "ddp")
        if entry.case.precision == "fp32"
        and entry.case.world_size == 2
        and entry.case.world_sizes[1] in (1, 2)
        and getattr(asking(entry.case.workload).clip, "kind", None) != "norm"
    }


def test_a_rule_that_cannot_be_built_is_an_error_and_not_a_gap(monkeypatch):
    rule = Rule("line", ("fp32",), frozenset({(3, 1)}))
    monkeypatch.setitem(matrix.BACKEND_RULES, "ddp", (rule,))
    [planned] = plan(EVERYTHING, "ddp")
    with pytest.raises(ValueError, match="workload line: no global batch divides over 3 ranks"):
        assert planned.case.problem


def combined(cases, strength):
    """Any two or three values of a case's fields, except backend and device; a workload is a kind of
    model and a recipe."""
    fields = ("layout", "world_size", "accumulation", "precision")
    met = set()
    for case in cases:
        kind, recipe = OF_KINDS.get(case.workload, ("", case.workload))
        values = {"kind": kind, "recipe": recipe, **{name: getattr(case, name) for name in fields}}
        met |= set(combinations(values.items(), strength))
    return met


#: Declarations; the values that remain in each must still meet.
DECLARATIONS = {
    "everything": {},
    "one precision": {"precisions": ("fp16",)},
    "few": {"precisions": ("fp64", "bf16"), "world_sizes": (2, 4), "accumulations": (3,), "losses": ("mean",)},
    "no clips": {"clips": (), "parameter_groups": (1,)},
}


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("declared", DECLARATIONS)
def test_the_default_run_has_every_pair_that_any_case_has(declared, backend):
    planned = [entry for entry in plan(replace(EVERYTHING, **DECLARATIONS[declared]), backend) if not entry.undeclared]
    thorough = {case for case, rules in matrix._cases(backend, "cpu").items() if all(rule.thorough for rule in rules)}
    assert combined((entry.case for entry in planned if entry.chosen), 2) == combined(
        (entry.case for entry in planned if entry.case not in thorough), 2
    )


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("declared", DECLARATIONS)
def test_a_thorough_run_has_every_triple_that_any_case_has(declared, backend):
    declaration = replace(EVERYTHING, **DECLARATIONS[declared])
    planned = [entry for entry in plan(declaration, backend, thorough=True) if not entry.undeclared]
    chosen = {entry.case for entry in planned if entry.chosen}
    assert combined(chosen, 3) == combined((entry.case for entry in planned), 3)
    assert chosen >= {entry.case for entry in planned if entry.case.resumed_at is not None}


def test_a_thorough_run_has_each_recipe_with_each_kind_of_model_on_two_and_four_ranks():
    chosen = [entry.case for entry in plan(EVERYTHING, "ddp", thorough=True) if entry.chosen]
    met = combined(chosen, 3)
    for kind in ("frozen", "unused", "groups", "large", "sparse"):
        recipes = {recipe for other, recipe in OF_KINDS.values() if other == kind}
        assert recipes
        for recipe in recipes:
            for world_size in (2, 4):
                assert (("kind", kind), ("recipe", recipe), ("world_size", world_size)) in met
    recipes = ("clip-value", "decay", "weighted", "overflow")
    assert {f"{kind}-{recipe}" for kind in ("buffers", "two-layers") for recipe in recipes} < {
        case.workload for case in chosen
    }


def test_in_the_default_run_every_precision_and_the_core_workloads_meet_every_path():
    for backend in ("single", "ddp", "horovod"):
        chosen = [entry.case for entry in plan(EVERYTHING, backend) if entry.chosen]
        cells = {(case.world_size, case.accumulation, case.precision) for case in chosen}
        assert cells == {
            (*layout, precision)
            for layout in BACKEND_LAYOUTS[backend]
            for precision in BACKEND_PRECISIONS[backend]
            if not formats.PRECISIONS[precision].on_gpu_only
        }
        for workload in (rule.workload for rule in RULES if rule.core):
            paths = {(case.world_size, case.accumulation) for case in chosen if case.workload == workload}
            assert paths == set(BACKEND_LAYOUTS[backend])


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_the_default_run_has_what_must_run(backend):
    chosen = {entry.case for entry in plan(EVERYTHING, backend) if entry.chosen}
    for rule in BACKEND_RULES[backend]:
        must = {
            Case(backend, *layout, precision, rule.workload, resumed_at=rule.resumed_at, resumed=rule.resumed)
            for layout in BACKEND_LAYOUTS[backend]
            if rule.layouts is None or layout in rule.layouts
            for precision in BACKEND_PRECISIONS[backend]
            if precision in rule.precisions and not formats.PRECISIONS[precision].on_gpu_only
        }
        assert must <= chosen or rule.covering or rule.thorough or rule.workload in ON_GPUS


@pytest.mark.parametrize("backend", ["ddp", "horovod"])
def test_the_default_run_is_small_and_always_the_same(backend):
    first, again = list(plan(EVERYTHING, backend)), list(plan(EVERYTHING, backend))
    assert first == again
    assert sum(entry.chosen for entry in first) < len(first) / 2


#: Abilities without a case, and why.
CASELESS = {
    "launches_workers": "it says how ranks are started, and their cases are those of the backend",
    ("single", "elastic"): "there is one rank, before a stop and after it",
}
SWITCHES = [field.name for field in fields(Declaration) if field.type == "bool"]


@pytest.mark.parametrize("backend", [name for name in BACKEND_NAMES if BACKENDS[name].paths in SHOWN_PATHS])
@pytest.mark.parametrize("switch", SWITCHES)
def test_the_default_run_has_a_case_for_each_ability_that_can_be_declared(backend, switch):
    chosen = [entry.case for entry in plan(EVERYTHING, backend) if entry.chosen]
    without = Declaration(**{**vars(EVERYTHING), switch: False, **({} if switch != "resume" else NOT_RESUMED)})
    shown = [case for case in chosen if next(matrix._lacking(case, without), None)]
    assert bool(shown) != (switch in CASELESS or (backend, switch) in CASELESS)


def resumed():
    """Each resumed case, once for all backends."""
    found = {
        (case.workload, case.precision, case.layout, case.world_size, case.resumed_at, case.resumed): case
        for case in (planned.case for planned in everything())
        if case.resumed_at is not None
    }
    return found.values()


@pytest.mark.parametrize("case", resumed(), ids=lambda case: case.id)
def test_where_training_is_resumed_no_element_is_where_it_began_or_at_rest(case):
    """State that a rank does not restore shows in each of its elements. In the step before the stop, an element at
    rest has no momentum, and a frozen one has none to lose."""
    workload = case.problem.workload
    start, steps = workload.start, [*Recurrence(case.problem).steps(case.resumed_at)]
    before, last = (step.weights for step in steps[-2:]) if len(steps) > 1 else (None, steps[-1].weights)
    for number, (at, radius, first) in enumerate(zip(last.center, last.radius, start, strict=True)):
        if not workload.trains(workload.model.tensor_of[number], case.resumed_at - 1):
            continue
        was, more = (before.center[number], before.radius[number]) if before else (first, 0)
        assert abs(at - first) > radius, workload.model.elements[number]
        assert abs(at - was) > radius + more, workload.model.elements[number]


@pytest.mark.in_turn
@pytest.mark.parametrize("case", resumed(), ids=lambda case: case.id)
def test_every_case_that_is_resumed_can_be_judged(case):
    strictest = readings(case.problem)[0]
    nearest = power(strictest, strictest.recurrence().run(), HORIZON)
    assert nearest.sufficient, (nearest.fault.name, float(nearest.gap))


#: apex has fp16's cases and numbers.
PAIRS = sorted((workload, precision) for workload, precision in by_workload_and_precision() if precision != "apex-O1")


def judged(workload, precision):
    """The correct answer for every layout of the pair."""
    for layout in sorted(by_workload_and_precision()[workload, precision]):
        yield Case("ddp", *layout, precision, workload)


@pytest.mark.in_turn
@pytest.mark.parametrize(("workload", "precision"), PAIRS)
def test_every_case_can_be_judged(workload, precision):
    """Exact where expected, with all overflows decided, and distinguishable from every catalogued fault."""
    for case in judged(workload, precision):
        limit = HORIZON if workload == "multivariate" else None
        strictest, job = readings(case.problem)[0], case.problem.workload
        right = strictest.recurrence(IN_PART.get(workload)).run(limit)
        is_bounded = workload in BOUNDED or (workload in ANY_ORDER and case.world_size == 3)
        assert right.certificate.exact != is_bounded, (case.id, right.certificate.reason)
        assert len(right.steps) == (limit or job.steps) - len(right.skips)
        assert right.skips == SKIPPED.get(workload, set()), case.id
        assert ("possible" in right.overflows) == (workload in IN_PART), case.id
        assert len(right.overflows) == (job.steps if case.arithmetic.scaled else 0)

        nearest = power(strictest, right, HORIZON)
        assert nearest is not None
        assert nearest.sufficient, (case.id, nearest.fault.name, float(nearest.gap))

        moved = next(strictest.recurrence(right.history, PROBE).steps(1))
        assert moved.gradient.center != right.steps[0].gradient.center, case.id
        # An answer this far from the correct one is in no enclosure of a wrong one.
        assert not moved.gradient.holds(right.steps[0].gradient.center), case.id


@pytest.mark.in_turn
@pytest.mark.parametrize(("workload", "precision"), PAIRS)
def test_every_other_reading_can_be_judged(workload, precision):
    """Where several answers are accepted, each is distinguishable from every catalogued fault."""
    for case in judged(workload, precision):
        first, *others = readings(case.problem)
        assert not first.deviations
        for reading in others:
            if precision == "fp16-compression" and reading.averages_early:
                continue  # Compressing a running average rounds too often for a useful bound.
            right = reading.recurrence(IN_PART.get(workload)).run()
            nearest = power(reading, right, HORIZON)
            assert nearest is not None
            assert nearest.sufficient, (case.id, reading.ways, nearest.fault.name, float(nearest.gap))
