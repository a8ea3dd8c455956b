"""The standard certified workloads: each shows bugs that plain SGD on a plain mean hides."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from conformance.workloads.certified import Recipe
from conformance.workloads.model import Counting, Linear, TwoLayers, WithDropout
from conformance.workloads.outliers import bias_alone, first_losses, last_target, weights_alone
from conformance.workloads.workload import SGD, Adagrad, AdamW, Average, Clip, Group, LossScale

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
#: One multiplier per optimizer step: it alternates, so an offset of one step always shows.
SCHEDULE = (Fraction(1), HALF, Fraction(1), HALF, HALF, Fraction(1), HALF, Fraction(1))
#: For as many steps as `LONG`.
_LONG_SCHEDULE = (*SCHEDULE, HALF, Fraction(1), HALF, Fraction(1))
#: State that a trainer loses after ten steps shows.
LONG = 12
GROWING = "growing-scale"
ADAGRAD = Adagrad(lr=HALF, lr_decay=HALF, eps=Fraction(1, 8), weight_decay=Fraction(1, 8))
ADAMW = AdamW(lr=Fraction(1, 8), weight_decay=Fraction(1, 8))
#: With a decay of 1/2, one that is swapped with its complement would not show.
EMA = Average("ema", Fraction(3, 4))

_MOMENTUM = SGD(HALF, momentum=HALF)
_SMALL_SCALE = LossScale(Fraction(2**5))
#: Settings that several recipes share.
_WEIGHTED: dict[str, Any] = {
    "weights": (0, 0, 1, 1, 2, 4, 4),
    "totals": (HALF, Fraction(2), HALF, HALF, Fraction(2), HALF),
    "model": Linear(2, bias=True),
    "spread": 1,
}
_FINE: dict[str, Any] = {"grid": Fraction(1, 8), "residual": QUARTER, "spread": 3, "largest_weight": 2}
_OVERFLOW: dict[str, Any] = {"schedule": SCHEDULE, "spread": 3, "scale": LossScale(Fraction(2**7), growth_interval=3)}
_CLIP_VALUE: dict[str, Any] = {
    "clip": Clip("value", Fraction(1)),
    "scale": _SMALL_SCALE,
    "grid": Fraction(1, 8),
    "largest_weight": 2,
}


def _of_bits(bits: int) -> dict[str, Any]:
    """Residuals that need so many bits, and sums of a whole batch that may need twice as many."""
    unit = Fraction(1, 2 ** (bits - 1))
    return {"bits": 2 * bits, "grid": unit / 2, "residual": unit, "spread": 2**bits}


def _short(size: int, accumulation: int) -> int:
    """The samples of a short last window: at least one micro-batch is missing."""
    return size // 3 if accumulation == 3 else size // 2


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("sgd", "Plain SGD.", SGD(HALF), spread=3, scale=LossScale(Fraction(2**5))),
        Recipe(
            "momentum",
            "Momentum and a learning-rate schedule.",
            _MOMENTUM,
            schedule=SCHEDULE,
            spread=3,
            scale=_SMALL_SCALE,
        ),
        Recipe(
            "nesterov",
            "Nesterov momentum and a learning-rate schedule, without a clip.",
            SGD(HALF, momentum=HALF, nesterov=True),
            kernel="foreach",
            schedule=SCHEDULE,
            spread=3,
            grid=Fraction(1, 8),
            scale=_SMALL_SCALE,
        ),
        Recipe(
            "two-groups",
            "Two parameter groups: the bias has twice the learning rate and no weight decay.",
            SGD(HALF, momentum=HALF, weight_decay=HALF),
            groups=(Group(Fraction(1), Fraction(0)),),
            kernel="fused",
            schedule=SCHEDULE,
            **_FINE,
        ),
        Recipe(
            "two-groups-clip",
            "Two parameter groups, and clipping by the norm of both together that is active only in the fifth step.",
            SGD(HALF, momentum=HALF, weight_decay=HALF),
            groups=(Group(Fraction(1), Fraction(0)),),
            schedule=SCHEDULE,
            clip=Clip("norm", Fraction(4)),
            steeper_at=(4,),
            **_FINE,
            scale=_SMALL_SCALE,
        ),
        Recipe(
            "clip-value",
            "Nesterov momentum and active clipping by value.",
            SGD(Fraction(1), momentum=HALF, nesterov=True),
            **_CLIP_VALUE,
            seed=282,
        ),
        Recipe(
            "decay",
            "Momentum with dampening, weight decay and a learning-rate schedule.",
            SGD(Fraction(1), momentum=HALF, dampening=HALF, weight_decay=HALF),
            schedule=SCHEDULE,
            **_FINE,
        ),
        Recipe(
            "weighted",
            "A weighted mean over the global batch, whose weight differs from window to window; momentum.",
            _MOMENTUM,
            **_WEIGHTED,
            seed=9,
        ),
        Recipe(
            "weightless",
            "A weighted mean; the first half of one window has weight zero, and the last half of another.",
            _MOMENTUM,
            **_WEIGHTED,
            first_half_empty_at=3,
            last_half_empty_at=2,
            seed=4,
        ),
        Recipe(
            "weighted-clip",
            "A weighted mean, and active clipping by value: gradients must be divided by the weight before the clip.",
            SGD(Fraction(1), momentum=HALF),
            clip=Clip("value", Fraction(1)),
            **_WEIGHTED,
            seed=17,
        ),
        Recipe(
            "overflow",
            "One sample on the last rank overflows fp16: all ranks must skip that step together.",
            _MOMENTUM,
            **_OVERFLOW,
            outliers={2: last_target},
        ),
        Recipe(
            "overflow-clip",
            # No schedule: its behaviour on a skipped step is open, and clipping is exact for one choice only.
            "A window that overflows fp16, and clipping by norm that is active two steps later.",
            _MOMENTUM,
            clip=Clip("norm", Fraction(8)),
            steeper_at=(4,),
            largest_weight=8,
            scale=_SMALL_SCALE,
            outliers={2: last_target},
        ),
        Recipe(
            "overflow-clip-value",
            "A window that overflows fp16, and clipping by value, which makes infinite gradients finite.",
            SGD(Fraction(1), momentum=HALF, nesterov=True),
            **_CLIP_VALUE,
            outliers={2: last_target},
        ),
        Recipe(
            "infinite-loss",
            "The losses of two samples on the first rank are infinite: all ranks must skip that step together.",
            _MOMENTUM,
            **_OVERFLOW,
            outliers={2: first_losses},
        ),
        Recipe(
            "overflow-weighted",
            "A window that overflows fp16, and a weighted mean whose weight differs from window to window.",
            _MOMENTUM,
            **_WEIGHTED,
            outliers={2: last_target},
            seed=3,
        ),
        Recipe(
            "overflow-in-part",
            # Plain SGD: with momentum, an optimizer of one parameter would move it by its buffer.
            "The weights' gradients overflow and the bias's is zero; in the last window it is the other way round.",
            SGD(HALF),
            spread=3,
            scale=_SMALL_SCALE,
            outliers={2: weights_alone, 5: bias_alone},
        ),
        Recipe(
            GROWING,
            "The loss scale doubles every second step, with a learning-rate schedule.",
            _MOMENTUM,
            schedule=SCHEDULE,
            spread=3,
            scale=LossScale(Fraction(2**4), growth_interval=2),
        ),
        Recipe(
            "clip-norm",
            "Clipping by norm that is active only in the fifth step: until then all is exact, then the root rounds.",
            _MOMENTUM,
            schedule=SCHEDULE,
            clip=Clip("norm", Fraction(8)),
            steeper_at=(4,),
            largest_weight=8,
            seed=4,
            scale=_SMALL_SCALE,
        ),
        Recipe(
            "short-window",
            "The last accumulation window is short.",
            _MOMENTUM,
            short=_short,
        ),
        Recipe(
            "short-clip-value",
            "Twelve windows, the last one short, and clipping by value that is active there; momentum and a schedule.",
            SGD(Fraction(1), momentum=HALF),
            schedule=_LONG_SCHEDULE,
            steps=LONG,
            short=_short,
            **_CLIP_VALUE,
            seed=29,
        ),
        Recipe(
            "short-clip-norm",
            "Twelve windows, the last one short, and clipping by norm that is active there and in the tenth.",
            _MOMENTUM,
            schedule=_LONG_SCHEDULE,
            steps=LONG,
            short=_short,
            clip=Clip("norm", Fraction(8)),
            steeper_at=(9, LONG - 1),
            largest_weight=8,
            scale=_SMALL_SCALE,
            seed=2,
        ),
        Recipe(
            "short-weighted",
            "Twelve windows, the last one short, and a weighted mean whose weight differs from window to window.",
            _MOMENTUM,
            steps=LONG,
            short=_short,
            **_WEIGHTED | {"totals": (HALF, Fraction(2)), "spread": 3},
            grid=Fraction(1, 8),
            residual=QUARTER,
            bits=10,
            seed=2,
        ),
        Recipe(
            "uneven-batch",
            "The last micro-batch is smaller than the others.",
            _MOMENTUM,
            short=lambda size, accumulation: 12,
            batch_sizes=(16,),
        ),
        Recipe(
            "uneven-ranks",
            "In the last window some ranks have no samples left.",
            _MOMENTUM,
            # The window is whole on one of two ranks, two of three, or two of four.
            short=lambda size, accumulation: size // 3 * 2 if size % 3 == 0 else size // 2,
            batch_sizes=(16, 18),
            in_whole_shares=True,
        ),
        Recipe(
            "ranks-start-apart",
            "Ranks have different weights until a broadcast makes them equal.",
            _MOMENTUM,
            ranks_start_apart=True,
        ),
        Recipe(
            "fine-data",
            "Weights, features and targets that fit fp32 and no 16-bit format.",
            _MOMENTUM,
            fine=Fraction(1, 2**12),
        ),
        Recipe(
            "finer-data",
            "Weights, features and targets that fit fp64 and no smaller format.",
            _MOMENTUM,
            fine=Fraction(1, 2**30),
        ),
        Recipe(
            "fine-gradients",
            "Gradients and momentum that fit fp32 and no 16-bit format.",
            _MOMENTUM,
            **_of_bits(13),
        ),
        Recipe(
            "finer-gradients",
            "Gradients and momentum that fit fp64 and no smaller format.",
            _MOMENTUM,
            **_of_bits(30),
        ),
        Recipe(
            "cast-weights",
            "Weights that a cast to 16 bits changes: shows a forward without autocast, or weights kept in 16 bits.",
            _MOMENTUM,
            fine=Fraction(3, 2**16),
            cast=True,
        ),
    )
}


def _like(base: str, name: str, summary: str, **changes: Any) -> Recipe:
    """A workload with the data, clip and schedule of ``base``."""
    return replace(RECIPES[base], name=name, summary=summary, data_of=RECIPES[base], **changes)


DERIVED: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _like(
            "sgd", "adamw", "AdamW with decoupled weight decay; judged by its rounding-error bound.", optimizer=ADAMW
        ),
        _like(
            "two-groups-clip",
            "adamw-groups",
            "As adamw-clip; the bias has twice the learning rate and no weight decay.",
            optimizer=ADAMW,
            groups=(Group(2 * ADAMW.lr, Fraction(0)),),
        ),
        _like(
            "sgd",
            "adamw-capturable",
            "AdamW as for CUDA graphs: its scalars are tensors, which round more.",
            optimizer=ADAMW,
            kernel="capturable",
        ),
        _like(
            "sgd",
            "adagrad",
            "Adagrad with decays of the rate and of the weights; judged by its bound.",
            optimizer=ADAGRAD,
        ),
        _like("clip-norm", "adamw-clip", "AdamW with a learning-rate schedule and clipping by norm.", optimizer=ADAMW),
        _like(
            "short-clip-norm",
            "short-adamw",
            "AdamW with a schedule; twelve windows, the last one short.",
            optimizer=ADAMW,
            clip=None,
        ),
        _like(
            "overflow",
            "adamw-overflow",
            "AdamW and a window that overflows fp16: a skipped step leaves weights and moments unchanged.",
            optimizer=ADAMW,
            schedule=None,
        ),
        _like(
            "momentum",
            "buffers",
            "A model that counts its training samples and sums the squares of their inputs in buffers.",
            model=Counting(3),
        ),
        *(
            _like(
                base,
                f"buffers-{base}",
                f"As {base}; the model counts its samples, as in buffers.",
                model=Counting(RECIPES[base].model.features),
            )
            for base in ("clip-value", "clip-norm", "decay", "weighted", "overflow")
        ),
        *(
            _like(base, name, f"As {base}, with {what} of the weights that is evaluated.", average=average)
            for base, name, what, average in (
                ("momentum", "ema", "an exponential moving average", EMA),
                ("momentum", "swa", "a mean", Average("swa")),
                ("overflow", "ema-overflow", "an exponential moving average", EMA),
            )
        ),
        _like(
            "momentum",
            "dropout",
            "A model that draws random numbers in training, and uses none.",
            model=WithDropout(3, bias=True),
        ),
    )
}

#: Few steps with small numbers, because products need bits.
_TWO_LAYERS = Recipe(
    "",
    "",
    SGD(Fraction(2), momentum=HALF),
    TwoLayers(),
    grid=HALF,
    residual=HALF,
    spread=1,
    largest_weight=2,
    steps=4,
    scale=_SMALL_SCALE,
    batch_sizes=(8, 12),
)
TWO_LAYERS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        replace(
            _TWO_LAYERS,
            name="two-layers",
            summary="A product of two matrices: the gradient of each depends on the other; a schedule.",
            optimizer=SGD(QUARTER),
            schedule=SCHEDULE,
            grid=QUARTER,
            residual=Fraction(1),
            spread=3,
            seed=3,
        ),
        replace(
            _TWO_LAYERS,
            name="two-layers-weighted",
            summary="A product of two matrices, and a weighted mean whose weight differs from window to window.",
            weights=(0, 0, 1, 1, 2, 4, 4),
            totals=(HALF, Fraction(2), HALF, HALF),
        ),
        replace(
            _TWO_LAYERS,
            name="two-layers-decay",
            summary="A product of two matrices, momentum and weight decay.",
            optimizer=SGD(HALF, momentum=HALF, weight_decay=Fraction(1)),
            grid=QUARTER,
            residual=Fraction(1),
            spread=2,
        ),
        replace(
            _TWO_LAYERS,
            name="two-layers-clip-value",
            summary="A product of two matrices, and active clipping by value in both.",
            optimizer=SGD(Fraction(1), momentum=HALF),
            clip=Clip("value", Fraction(2)),
            spread=3,
        ),
        replace(
            _TWO_LAYERS,
            name="two-layers-clip",
            summary="A product of two matrices, and clipping by the norm of both that is active in the third step.",
            optimizer=_MOMENTUM,
            clip=Clip("norm", Fraction(8)),
            residual=Fraction(1),
            spread=2,
            steeper_at=(2,),
        ),
        replace(
            _TWO_LAYERS,
            name="two-layers-overflow",
            summary="A product of two matrices, and a sample on the last rank that overflows fp16.",
            optimizer=SGD(Fraction(1), momentum=HALF),
            residual=Fraction(1),
            spread=2,
            outliers={1: last_target},
            seed=1,
            batch_sizes=(8,),
        ),
    )
}
