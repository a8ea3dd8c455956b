"""Events of a rank's start: processes, models, wrappers and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from conformance.trace.events.event import Event, Numbers, Vector

KEPT_BY_TORCH = frozenset(
    {
        *("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "mu_product", "momentum_buffer"),
        *("sum", "square_avg", "acc_delta", "grad_avg", "mu", "ax", "eta", "prev", "step_size"),
        *("variance", "row_var", "col_var", "func_evals", "n_iter", "d", "t", "al", "ro", "H_diag"),
        *("old_dirs", "old_stps", "prev_flat_grad", "prev_loss"),
    }
)
"""The entries of state that the optimizers of torch.optim use. A trainer's own entries there have no effect on them."""


class Started(
    Event, noted="when a process has started; a resumed case has two processes, which number objects separately"
):
    pid: int


class Topology(
    Event, noted="at the first optimizer step, at the first message or collective of several ranks, or at the end"
):
    world_size: Annotated[int, "the number of ranks that the trainer connected"]
    rank_reached: Annotated[int, "the rank of this process among them"]
    via: Annotated[Literal["torch.distributed", "horovod"] | None, "null if neither is initialised"]


class Model(Event, noted="when the recorder begins to watch a model"):
    model: int
    shapes: Annotated[Sequence[Numbers], "of its parameters"]


class Shards(
    Event,
    noted="before a forward, a step or the end, if parameters are split over the ranks and the split has changed",
):
    held: Annotated[
        Numbers | None,
        "positions of the elements that this rank holds, among those of all parameters; null if it holds all. Weights "
        "and gradients are null at all other positions",
    ]


class Wrap(Event, noted="after a watched model is wrapped in DDP"):
    model: int
    wrapper: Annotated[str, "the wrapper's class"]
    find_unused: Annotated[bool, "its `find_unused_parameters`"]


class Zero(
    Event,
    noted="after DeepSpeed has made an engine for a watched model, if its settings determine its communication",
    label="DeepSpeed's engine (ZeRO stage {stage})",
):
    stage: Annotated[int, "stage of ZeRO"]
    in_each_micro_batch: Annotated[bool, "whether it averages gradients in each micro-batch, or only in the last"]
    share: Annotated[int, "elements of the weights, with padding, that each rank sends to all others after a step"]
    gradient_width: Annotated[int, "bytes per element of the averaged gradients"]
    weight_width: Annotated[int, "bytes per element of the gathered weights"]


class ApexInitialize(Event, noted="after `apex.amp.initialize`"):
    models: Annotated[int, "number of models passed"]
    optimizers: Annotated[int, "number of optimizers passed"]


class Optimizer(Event, noted="before the first event that mentions an optimizer of watched parameters"):
    optimizer: int
    type: Annotated[str, "its class"]
    parameters: Annotated[Numbers, "its watched parameters"]
    trainable: Annotated[Numbers, "its watched parameters that require gradients"]
    horovod: Annotated[bool, "whether it is a Horovod optimizer"]
    backward_passes_per_step: Annotated[int | None, "Horovod's setting, null for other optimizers"]
    state: Annotated[bool, "whether it has any state yet"]
    algorithm: Annotated[
        str | None, "the torch.optim class that its class is or derives from; left out for other optimizers"
    ] = None
    # The schema and the check of its fields support only plain `dict`.
    groups: Annotated[
        Sequence[dict], "numeric settings, by name, of each group with watched parameters"  # type: ignore[type-arg]
    ] = ()


class Start(Event, noted="before training begins"):
    weights: Annotated[Vector | None, "null if no forward of the model was seen"]
