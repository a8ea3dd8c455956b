"""Rules: which workloads run on which paths in which precisions. To add a workload to the runs, add a rule.

Some paths have their own, fewer rules: those with point-to-point messages, those that shard parameters or optimizer
states, and those for which a framework starts new processes in each case. What a trainer does with averaged gradients
is the same on all paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from conformance.adapter.backends import BACKENDS, Paths
from conformance.cases.case import BETWEEN_FILES, INSIDE_WINDOW, Resumed
from conformance.workloads.data_sets import ANY_ORDER, OWN_ORDER
from conformance.workloads.designs import OF_KINDS
from conformance.workloads.layout import EACH_SAMPLE
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.registry import STANDARD

#: World size and accumulation.
Layout = tuple[int, int]

# Named as in the ids of cases.
_ACC2: Layout = (1, 2)
_W2: Layout = (2, 1)
_W4: Layout = (4, 1)
_W2_ACC2: Layout = (2, 2)
_W3_ACC2: Layout = (3, 2)

SINGLE: tuple[Layout, ...] = ((1, EACH_SAMPLE), (1, 1), *((1, accumulation) for accumulation in (2, 3, 4)))
DISTRIBUTED: tuple[Layout, ...] = tuple(
    (world_size, accumulation) for world_size in (2, 3, 4) for accumulation in (1, 2, 3, 4)
)
_LAYOUTS: dict[Paths, tuple[Layout, ...]] = {
    "single": SINGLE,
    "distributed": DISTRIBUTED,
    "sharded": tuple(layout for layout in DISTRIBUTED if layout[1] in (1, 2)),
    "point-to-point": tuple(layout for layout in DISTRIBUTED if layout[1] in (1, 2)),
    # A framework starts new processes for each case, which takes seconds.
    "launched": (_W2, _W2_ACC2, _W3_ACC2),
}
BACKEND_LAYOUTS: dict[str, tuple[Layout, ...]] = {
    name: (*_LAYOUTS[backend.paths], *backend.more_layouts) for name, backend in BACKENDS.items()
}

_COMMON = ("fp64", "fp32", "bf16", "fp16")
_SCALED = ("fp16", "apex-O1")
BACKEND_PRECISIONS = {name: (*_COMMON, *backend.more_precisions) for name, backend in BACKENDS.items()}

REPRESENTATIVE = frozenset({_ACC2, _W2, _W2_ACC2, _W3_ACC2})
_ACCUMULATED = frozenset({_ACC2, _W2_ACC2})
_EXERCISE = frozenset({*SINGLE[:3], _W2, _W2_ACC2})
# There most workloads have no certified data, or cannot distinguish each bug from the correct answer.
_HARD = frozenset({(3, 3), (3, 4), (4, 4)})
#: Each world size and each accumulation with some others.
_SPREAD = _ACCUMULATED | {(1, 3), _W2, (2, 4), (3, 1), _W4, (4, 3)}
_FURTHER = frozenset({*SINGLE[3:], (2, 3), (4, 2)})
_OF_TWOS = frozenset(layout for layout in _SPREAD if 3 not in layout)
_ANYWHERE = frozenset({*SINGLE[1:], *DISTRIBUTED}) - _HARD


@dataclass(frozen=True)
class Rule:
    """``workload`` runs in ``precisions`` on ``layouts`` (None: all).

    Attributes:
        covering: a run selects only as many of these cases as a covering array needs.
        thorough: only a thorough run selects these cases.
        resumed_at: training stops after so many windows and resumes; ``resumed``: how.
        core: meets every path in the default run; on GPUs only core workloads run.
        on_gpu_only: runs nowhere else.
    """

    workload: str
    precisions: tuple[str, ...] = tuple(PRECISIONS)
    layouts: frozenset[Layout] | None = None
    covering: bool = field(default=False, kw_only=True)
    thorough: bool = field(default=False, kw_only=True)
    core: bool = field(default=False, kw_only=True)
    on_gpu_only: bool = field(default=False, kw_only=True)
    resumed_at: int | None = field(default=None, kw_only=True)
    resumed: Resumed = field(default="once", kw_only=True)


_CORE = ("momentum", "clip-value")
#: The step after the loop is a copy of the one inside, and often lacks what was added there later.
_SHORT = ("short-clip-norm", "short-weighted", "short-adamw", "short-clip-value", "many-short")
_VARIED = (*_CORE, "decay", "two-groups", "adamw", "weighted", "clip-norm")


def _of_kinds() -> Iterator[Rule]:
    """Each recipe with each kind of model."""
    # In 16 bits the bound is too wide to see a clip by norm, or to tell a mean of means from the correct mean. In an
    # eighth of the samples of a window that does not overflow, all experts are used.
    scaled = {"many-tensors": _ACCUMULATED, "many-clip-value": _SPREAD & _OF_TWOS, "many-overflow": _SPREAD - {(2, 4)}}
    # The bound of a clip by norm takes long to derive.
    whole = {"many-clip-norm": _ACCUMULATED | {_W4}, "many-overflow": frozenset[Layout]()}
    for name, (_, recipe) in OF_KINDS.items():
        sizes = STANDARD[name].batch_sizes
        divides = frozenset(layout for layout in _SPREAD if any(size % (layout[0] * layout[1]) == 0 for size in sizes))
        for precisions, layouts in (
            (_SCALED, scaled.get(recipe, frozenset())),
            (("fp32",), whole.get(recipe, _SPREAD)),
            (("fp64",), frozenset() if recipe in whole else frozenset({_W2_ACC2})),
        ):
            yield Rule(name, precisions, layouts & divides, covering=True, thorough=True)


RULES: tuple[Rule, ...] = (
    *(Rule(workload, covering=True, core=True) for workload in _CORE),
    *(Rule(workload, layouts=_ANYWHERE, covering=True) for workload in ("decay", "two-groups", "adamw")),
    # In bf16 the bound is too wide to tell some means of means from the correct mean.
    Rule("weighted", ("fp64", "fp32", *_SCALED), _ANYWHERE, covering=True),
    Rule("clip-norm", layouts=_ANYWHERE - {(1, 3)}, covering=True),
    # Most trainers have branches for accumulation and for a scaler.
    *(Rule(workload, ("fp32",), frozenset({_ACC2, _W2, _W2_ACC2})) for workload in _VARIED),
    *(Rule(workload, _SCALED, _ACCUMULATED) for workload in _VARIED),
    *(Rule(workload, ("fp32", *_SCALED), frozenset({(1, 1), _W2})) for workload in _CORE),
    # Averages of running averages are correct in a window of two.
    Rule("momentum", ("fp32",), frozenset({(1, 3), _W3_ACC2})),
    # A wrong eps shows in fp64 only, and a forward without autocast in bf16.
    Rule("adamw", ("fp64", "bf16"), _ACCUMULATED),
    Rule("adamw", _SCALED, frozenset({_W3_ACC2})),
    Rule("clip-value", ("fp16-compression",), frozenset({_W2_ACC2})),
    Rule("sgd", ("fp32",), REPRESENTATIVE),
    Rule("sgd", _SCALED, _ACCUMULATED),
    Rule("weightless", ("fp32",), frozenset({_ACC2, _W2, _W2_ACC2})),
    Rule("weighted-clip", ("fp32", *_SCALED), _ACCUMULATED),
    Rule("nesterov", ("fp32",), REPRESENTATIVE),
    # In other precisions the bound is too wide to see the schedule.
    Rule("adamw-clip", ("fp64", "fp32"), _ACCUMULATED),
    Rule("adamw-groups", ("fp32",), _ACCUMULATED),
    Rule("adagrad", ("fp32",), frozenset({_ACC2, _W2_ACC2})),
    Rule("adagrad", ("fp64", "fp32"), REPRESENTATIVE, thorough=True),
    # torch refuses it elsewhere, unless the step is compiled.
    Rule("adamw-capturable", ("fp32",), _ACCUMULATED, on_gpu_only=True),
    Rule("two-groups-clip", ("fp32", *_SCALED), _ACCUMULATED),
    Rule("adamw-overflow", _SCALED, _ACCUMULATED),
    Rule("overflow-clip", _SCALED, frozenset({_ACC2, _W2, _W2_ACC2})),
    *(Rule(f"overflow-{more}", _SCALED, _ACCUMULATED) for more in ("clip-value", "weighted")),
    Rule("infinite-loss", _SCALED, REPRESENTATIVE),
    Rule("overflow-in-part", _SCALED, frozenset({_ACC2, (1, 3), _W2_ACC2, _W3_ACC2})),
    Rule("fine-gradients", ("fp32",), _ACCUMULATED | {_W2}),
    Rule("finer-gradients", ("fp64",), _ACCUMULATED),
    Rule("fine-data", ("fp32",), frozenset({_ACC2, _W2, _W2_ACC2})),
    Rule("finer-data", ("fp64",), frozenset({_ACC2, _W2, _W2_ACC2})),
    Rule("cast-weights", ("bf16", *_SCALED), frozenset({_ACC2, _W2, _W2_ACC2})),
    Rule("overflow", _SCALED, REPRESENTATIVE | {(1, 1), _W4}),
    # Not with apex: its scale grows after 2000 steps, and nothing can change that.
    Rule("growing-scale", ("fp16",), REPRESENTATIVE),
    Rule("ranks-start-apart", ("fp32",), frozenset({_W2, _W2_ACC2, _W4})),
    # A trainer's branches for AMP may start and end differently, also the branch for bf16, which has no scaler.
    Rule("ranks-start-apart", ("bf16", *_SCALED), frozenset({_W2_ACC2})),
    *(Rule(workload, ("bf16", *_SCALED), _ACCUMULATED) for workload in ("short-window", "uneven-batch")),
    Rule("short-window", ("fp64", "fp32"), _ACCUMULATED),
    Rule("short-window", ("fp32",), _FURTHER),
    Rule("short-window", ("fp64",), _FURTHER, thorough=True),
    Rule("uneven-batch", ("fp64", "fp32"), frozenset({_ACC2, (1, 4), _W2, _W2_ACC2})),
    # Without accumulation, a trainer that drops a small batch drops a whole window.
    Rule("uneven-batch", ("fp32",), frozenset({(1, 1)})),
    Rule("uneven-ranks", ("fp32",), frozenset({_W2, _W4, _W2_ACC2, _W3_ACC2})),
    # Not with apex, whose trainers do not join ranks.
    Rule("uneven-ranks", ("fp16",), frozenset({_W2_ACC2})),
    *(Rule(workload, ("fp32",), _ACCUMULATED) for workload in _SHORT),
    *(Rule(workload, ("fp32",), frozenset({(1, 4), (2, 4)}), thorough=True) for workload in _SHORT),
    *(Rule(workload, _SCALED, _ACCUMULATED, thorough=True) for workload in ("short-clip-value", "short-weighted")),
    Rule("short-epochs", ("fp32",), _ACCUMULATED | {_W3_ACC2}),
    # Windows that continue across the end of an epoch, which is also correct, are rounded there.
    Rule("short-epochs", _SCALED, frozenset({_W2_ACC2}), thorough=True),
    Rule("uneven-epochs", ("fp32",), _ACCUMULATED),
    Rule("uneven-ranks-epochs", ("fp32",), frozenset({_W2_ACC2})),
    Rule("sampler-pads", ("fp32",), frozenset({_W2_ACC2, _W3_ACC2})),
    Rule("sampler-drops", ("fp32",), frozenset({_W2_ACC2})),
    Rule(OWN_ORDER, ("fp32",), frozenset({(1, 1), _ACC2, _W2, _W2_ACC2})),
    *(Rule(workload, ("fp64", "fp32"), frozenset({_W2, _W4, _W3_ACC2}), thorough=True) for workload in ANY_ORDER),
    Rule("epoch-schedule", ("fp32",), frozenset({(1, 1), _ACC2, _W2, _W2_ACC2})),
    Rule("many-tensors", tuple(name for name in PRECISIONS if name != "bf16"), _ACCUMULATED),
    Rule("many-coarse", ("bf16",), _ACCUMULATED),
    Rule("many-tensors", ("fp32",), frozenset({_W2, _W3_ACC2})),
    Rule("many-groups", ("fp32", *_SCALED), _ACCUMULATED),
    Rule("many-groups", ("fp32",), frozenset({_W3_ACC2})),
    Rule("many-clip-value", ("fp32", *_SCALED), _ACCUMULATED),
    # In 16 bits the bound is too wide to see a clip.
    Rule("many-clip-norm", ("fp64", "fp32"), _ACCUMULATED),
    # In fp16 the bound is too wide to tell a mean of means from the correct mean.
    Rule("many-weighted", ("fp64", "fp32"), _ACCUMULATED),
    Rule("many-weighted", ("fp32",), frozenset({_W3_ACC2})),
    Rule("many-overflow", _SCALED, _ACCUMULATED),
    Rule("frozen", ("fp32",), _ACCUMULATED),
    Rule("frozen", _SCALED, frozenset({_W2_ACC2})),
    *(Rule(workload, ("fp32",), _ACCUMULATED) for workload in ("unfrozen", "unfrozen-clip-value")),
    *(
        Rule(workload, ("fp64", *_SCALED), _ACCUMULATED, thorough=True)
        for workload in ("unfrozen", "unfrozen-clip-value")
    ),
    Rule("sparse", ("fp32",), frozenset({(1, 1), _ACC2, _W2, _W2_ACC2})),
    Rule("unused", ("fp32",), frozenset({(1, 1), _ACC2, _W2, _W2_ACC2})),
    Rule("many-adamw", ("fp32",), frozenset({_ACC2, _W2_ACC2})),
    *_of_kinds(),
    # A clip and a scaler have their own branches for missing gradients, and for sparse ones.
    Rule("unused-clip-value", ("fp32",), _ACCUMULATED),
    Rule("sparse", ("fp16",), _ACCUMULATED),
    Rule("unused", _SCALED, _ACCUMULATED, thorough=True),
    # Their 28 MiB take as long as five other cases.
    Rule("large-tensors", ("fp32",), frozenset({(1, 1), _W2})),
    Rule("large-clip-norm", ("fp32",), frozenset({_W2_ACC2})),
    Rule("two-layers", ("fp32",), frozenset({_ACC2, _W2, _W2_ACC2})),
    Rule("two-layers", ("fp64", "fp32", *_SCALED, "fp16-compression"), _ANYWHERE, thorough=True),
    # Sums over twelve samples need more bits than bf16 has.
    Rule("two-layers", ("bf16",), frozenset({_ACC2, _W2, _W4, _W2_ACC2}), thorough=True),
    *(
        Rule(f"two-layers-{recipe}", precisions, layouts, thorough=True)
        for recipe in ("weighted", "clip-value", "decay")
        for precisions, layouts in ((("fp64", "fp32"), REPRESENTATIVE), (_SCALED, _ACCUMULATED))
    ),
    # In 16 bits the bound is too wide to see a clip.
    Rule("two-layers-clip", ("fp64", "fp32"), REPRESENTATIVE, thorough=True),
    Rule("two-layers-overflow", _SCALED, _ACCUMULATED, thorough=True),
    Rule("buffers", ("fp32",), frozenset({_ACC2, _W2, _W2_ACC2})),
    *(
        Rule(f"buffers-{recipe}", ("fp32",), REPRESENTATIVE, thorough=True)
        for recipe in ("clip-value", "clip-norm", "decay", "weighted")
    ),
    *(
        Rule(f"buffers-{recipe}", _SCALED, _ACCUMULATED, thorough=True)
        for recipe in ("clip-value", "decay", "weighted", "overflow")
    ),
    Rule("ema", ("fp32",), REPRESENTATIVE | {(1, 1)}),
    Rule("swa", ("fp32",), _ACCUMULATED),
    Rule("ema-overflow", _SCALED, _ACCUMULATED),
    Rule("line", ("fp64", "fp32"), _EXERCISE),
    Rule("noisy-line", ("fp32",), _EXERCISE),
    Rule("two-workers", ("fp64",), _EXERCISE),
    # After a change of the learning rate, an overflow, and just before the loss scale grows. The schedule's position
    # shows in two places only: one rate occurs several times.
    Rule("momentum", ("fp32",), _ACCUMULATED, resumed_at=3),
    Rule("momentum", ("fp32",), frozenset({(1, 1), _ACC2, _W2}), resumed_at=4),
    Rule("two-groups", ("fp32",), _ACCUMULATED, resumed_at=3),
    Rule("adamw", ("fp32",), _ACCUMULATED, resumed_at=3),
    # Moments have as many bits as the weights, and so does momentum after a clip that rounds.
    Rule("adamw", ("fp64",), frozenset({_W2_ACC2}), resumed_at=3),
    Rule("many-clip-norm", ("fp64",), frozenset({_W2_ACC2}), resumed_at=4),
    Rule("overflow", ("fp16",), _ACCUMULATED, resumed_at=4),
    Rule("growing-scale", ("fp16",), _ACCUMULATED, resumed_at=3),
    # In the middle of the second epoch, at the end of the first, and in its middle. Elsewhere some faults do not show.
    Rule("many-tensors", ("fp32",), _ACCUMULATED, resumed_at=4),
    Rule("many-tensors", ("fp32",), frozenset({_ACC2}), resumed_at=3),
    Rule("many-tensors", ("fp32",), frozenset({_W2_ACC2}), resumed_at=1),
    *(Rule("many-tensors", ("fp32",), _ACCUMULATED, resumed_at=stop, thorough=True) for stop in (1, 3)),
    # Some save only at the end of an epoch, and fail elsewhere when they accumulate.
    Rule("many-tensors", ("fp32",), frozenset({(1, 1), _W2}), resumed_at=3),
    # Parameters are unfrozen at window 2: earlier, right before it, and after that.
    *(Rule("unfrozen", ("fp32",), _ACCUMULATED, resumed_at=stop) for stop in (1, 2, 3)),
    Rule("frozen", ("fp32",), _ACCUMULATED, resumed_at=3),
    # At the end of the first epoch, and in the middle of the second.
    *(Rule("epoch-schedule", ("fp32",), _ACCUMULATED, resumed_at=stop) for stop in (2, 3)),
    Rule("epoch-schedule", ("fp32",), frozenset({(1, 1)}), resumed_at=2),
    # Windows times accumulation exceeds the number of micro-batches, and fewer samples were read.
    Rule("short-epochs", ("fp32",), _ACCUMULATED, resumed_at=3),
    Rule("sampler-drops", ("fp32",), frozenset({_W2_ACC2}), resumed_at=4),
    # Two epochs repeated a micro-batch.
    Rule("sampler-pads", ("fp32",), frozenset({_W2_ACC2}), resumed_at=4),
    # At the end of an epoch, and in the middle of the next.
    *(Rule(OWN_ORDER, ("fp32",), _ACCUMULATED, resumed_at=stop) for stop in (3, 4)),
    # Each group has its own schedule.
    Rule("many-groups", ("fp32",), _ACCUMULATED, resumed_at=3),
    Rule("clip-value", ("fp32",), _ACCUMULATED, resumed_at=3),
    *(Rule(f"short-{recipe}", ("fp32",), _ACCUMULATED, resumed_at=10) for recipe in ("weighted", "clip-norm")),
    Rule("adagrad", ("fp32",), _ACCUMULATED, resumed_at=3),
    # Weights that no smaller format can represent.
    Rule("cast-weights", ("fp16",), _ACCUMULATED, resumed_at=3),
    Rule("finer-data", ("fp64",), _ACCUMULATED, resumed_at=2),
    Rule("momentum", ("bf16",), _ACCUMULATED, resumed_at=4),
    Rule("cast-weights", ("bf16",), frozenset({_W2_ACC2}), resumed_at=3),
    Rule("buffers", ("fp32",), _ACCUMULATED, resumed_at=3),
    Rule("dropout", ("fp32",), _ACCUMULATED, resumed_at=3),
    *(Rule(average, ("fp32",), _ACCUMULATED, resumed_at=3) for average in ("ema", "swa")),
    Rule("momentum", ("fp32",), _ACCUMULATED, resumed_at=3, resumed="twice"),
    Rule("momentum", ("fp32",), _ACCUMULATED, resumed_at=3, resumed="killed"),
    Rule("momentum", ("fp32",), _ACCUMULATED, resumed_at=3, resumed=BETWEEN_FILES),
    Rule("momentum", ("fp32",), _ACCUMULATED, resumed_at=3, resumed=INSIDE_WINDOW),
    Rule("many-tensors", ("fp32",), _ACCUMULATED, resumed_at=4, resumed=INSIDE_WINDOW),
    # After window 3, rates that start over would be correct. The second epoch is shuffled.
    Rule("momentum", ("fp32",), frozenset({_W2_ACC2}), resumed_at=4, resumed="on-3-ranks"),
    Rule("many-tensors", ("fp32",), frozenset({_W3_ACC2}), resumed_at=4, resumed="on-2-ranks"),
    *(
        rule
        for workload, stop in (("momentum", 3), ("adamw", 3), ("weighted", 4))
        for rule in (
            Rule(workload, ("fp32",), frozenset({_W2_ACC2}), resumed_at=stop, resumed="on-1-rank", thorough=True),
            Rule(workload, ("fp32",), frozenset({_W4, _W3_ACC2}), resumed_at=stop, resumed="on-2-ranks", thorough=True),
        )
    ),
    # Its 400 steps take longer than ten cases of another workload.
    Rule("multivariate", ("fp64",), frozenset({(1, 1), _W2_ACC2})),
    Rule("multivariate", ("fp32",), frozenset({(1, 4), _W4})),
)

#: Every world size and precision, with and without accumulation; and each workload that shows further bugs once.
POINT_TO_POINT_RULES: tuple[Rule, ...] = (
    Rule("momentum", core=True),
    Rule("clip-value", layouts=frozenset({_W4, _W3_ACC2}), core=True),
    *(
        Rule(workload, ("fp32", "fp16"), frozenset({_W3_ACC2}))
        for workload in ("decay", "weighted", "clip-norm", "adamw")
    ),
    Rule("two-groups", ("fp32",), frozenset({_W3_ACC2})),
    Rule("overflow", ("fp16",), frozenset({_W4, _W2_ACC2})),
    Rule("overflow-in-part", ("fp16",), frozenset({_W3_ACC2})),
    Rule("growing-scale", ("fp16",), frozenset({_W3_ACC2})),
    Rule("ranks-start-apart", ("fp32",), frozenset({_W4})),
    Rule("short-window", ("fp64",), frozenset({(4, 2)})),
    Rule("uneven-batch", ("fp32",), frozenset({_W2_ACC2})),
    *(Rule(workload, ("fp32",), frozenset({_W2_ACC2})) for workload in (*_SHORT[:3], "fine-gradients")),
)

#: Each workload where it is most likely to fail, and each precision, world size and accumulation at least once.
LAUNCHED_RULES: tuple[Rule, ...] = (
    Rule("momentum", layouts=frozenset({_W2_ACC2})),
    Rule("momentum", ("fp32", "bf16"), frozenset({_W3_ACC2})),
    Rule("momentum", ("fp32",), frozenset({_W2, _W4})),
    Rule("clip-value", ("fp16",), frozenset({_W2_ACC2})),
    Rule("clip-norm", ("fp32",), frozenset({_W2_ACC2})),
    Rule("weighted", ("fp32",), frozenset({_W2_ACC2})),
    Rule("overflow", ("fp16",), frozenset({_W2_ACC2})),
    Rule("ranks-start-apart", ("fp32",), frozenset({_W2})),
    Rule("short-window", ("fp32",), frozenset({_W2_ACC2})),
    Rule("uneven-batch", ("fp32",), frozenset({_W2})),
    *(Rule(workload, ("fp32",), frozenset({_W2_ACC2}), thorough=True) for workload in _SHORT[:3]),
    *(
        Rule(workload, ("fp32",), frozenset({_W2_ACC2}), thorough=True)
        for workload in ("adamw", "decay", "two-groups", "many-tensors", "many-groups", "short-epochs")
    ),
    Rule("momentum", ("fp32",), frozenset({_W2_ACC2}), resumed_at=3),
    Rule("adamw", ("fp32",), frozenset({_W2_ACC2}), resumed_at=3, thorough=True),
    Rule("many-tensors", ("fp32",), frozenset({_W2_ACC2}), resumed_at=4, thorough=True),
)

_SHARDS_RESUMED: tuple[tuple[int, Resumed], ...] = (
    (4, "twice"),
    (3, "killed"),
    (3, BETWEEN_FILES),
    (4, INSIDE_WINDOW),
    (4, "on-3-ranks"),
)

#: Every world size, with and without accumulation, and every precision; and each workload that can show bugs of ranks
#: that store, clip and step parts of the parameters.
SHARDED_RULES: tuple[Rule, ...] = (
    Rule("momentum", ("fp32",)),
    Rule("momentum", ("fp64", "bf16", "fp16"), frozenset({_W2_ACC2})),
    Rule("momentum", ("bf16",), frozenset({_W4})),
    Rule("weighted", ("fp64", "fp32"), frozenset({_W2_ACC2, _W4})),
    Rule("weighted", ("fp16",), frozenset({_W2_ACC2})),
    Rule("clip-norm", ("fp32", "fp16"), frozenset({_W3_ACC2, _W4})),
    Rule("clip-value", ("bf16", "fp16"), frozenset({_W3_ACC2})),
    Rule("decay", ("fp32",), frozenset({_W3_ACC2})),
    # Not two-groups: torch's fused SGD does not step shards.
    Rule("two-groups-clip", ("fp32",), frozenset({_W3_ACC2})),
    Rule("two-groups-clip", ("fp16",), frozenset({_W2_ACC2})),
    Rule("adamw", ("fp64", "fp32"), frozenset({_W3_ACC2})),
    Rule("overflow", ("fp16",), frozenset({_W3_ACC2, _W4})),
    Rule("overflow-in-part", ("fp16",), frozenset({_W2_ACC2, _W3_ACC2})),
    Rule("growing-scale", ("fp16",), frozenset({_W2_ACC2})),
    Rule("cast-weights", ("bf16", "fp16"), frozenset({_W2})),
    Rule("ranks-start-apart", ("fp32",), frozenset({(3, 1), _W4})),
    Rule("ranks-start-apart", ("bf16",), frozenset({_W2_ACC2})),
    Rule("short-window", ("fp32",), frozenset({_W2_ACC2, (4, 2)})),
    Rule("uneven-batch", ("fp32",), frozenset({_W2})),
    *(Rule(workload, ("fp32",), frozenset({_W2_ACC2})) for workload in (*_SHORT[:3], "fine-gradients")),
    Rule("overflow-weighted", ("fp16",), frozenset({_W2_ACC2}), thorough=True),
    Rule("short-weighted", ("fp32",), frozenset({_W2_ACC2}), resumed_at=10),
    # A Linear with one output has one row, all of it on rank 0 if parameters are sharded by rows.
    Rule("many-shards", ("fp32",), frozenset({_W2_ACC2})),
    Rule("many-shards-clip-value", ("fp16",), frozenset({_W2_ACC2})),
    Rule("many-shards-groups", ("fp32",), frozenset({_W3_ACC2})),
    Rule("many-shards-clip-norm", ("fp32",), frozenset({_W2_ACC2, _W4})),
    Rule("many-shards", ("fp32",), frozenset({_W2_ACC2}), resumed_at=4),
    *(
        Rule("many-shards", ("fp32",), frozenset({_W2_ACC2}), resumed_at=stop, resumed=how)
        for stop, how in _SHARDS_RESUMED
    ),
    Rule("many-shards", ("fp32",), frozenset({_W3_ACC2}), resumed_at=4, resumed="on-2-ranks"),
    *(Rule(workload, ("fp32",), frozenset({_W2_ACC2}), resumed_at=3) for workload in ("adamw", "buffers", "dropout")),
    Rule("overflow", ("fp16",), frozenset({_W2_ACC2}), resumed_at=4),
    Rule("growing-scale", ("fp16",), frozenset({_W2_ACC2}), resumed_at=3),
    # Features that few trainers have here.
    *(Rule(f"many-shards-{kind}", ("fp32",), frozenset({_W2_ACC2})) for kind in ("unfrozen", "unused", "sparse")),
    Rule(OWN_ORDER, ("fp32",), frozenset({_W2_ACC2})),
    Rule("two-layers", ("fp32",), frozenset({_W2, _W3_ACC2}), thorough=True),
    Rule("two-layers", ("bf16",), frozenset({_W2}), thorough=True),
    Rule("buffers", ("fp32",), frozenset({_W2_ACC2}), thorough=True),
    Rule("many-shards-coarse", ("bf16",), frozenset({_W2_ACC2})),
    Rule("many-shards-overflow", ("fp16",), frozenset({_W2_ACC2, _W4})),
)

_RULES: dict[Paths, tuple[Rule, ...]] = {
    "single": RULES,
    "distributed": RULES,
    "sharded": SHARDED_RULES,
    "point-to-point": POINT_TO_POINT_RULES,
    "launched": LAUNCHED_RULES,
}
BACKEND_RULES: dict[str, tuple[Rule, ...]] = {name: _RULES[backend.paths] for name, backend in BACKENDS.items()}
