"""What a rank begins with: processes, models, wrappers and optimizers."""

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
"""What the optimizers of torch.optim keep in their state. A trainer may keep more there, which they do not read."""


class Started(
    Event, noted="when the process has started; in a case that is resumed, of two processes, which number objects anew"
):
    pid: int


class Topology(
    Event, noted="at the first optimizer step, the first message or collective of several ranks, or the end"
):
    world_size: Annotated[int, "the number of ranks that the trainer connected"]
    rank_reached: Annotated[int, "the rank of this process among them"]
    via: Annotated[Literal["torch.distributed", "horovod"] | None, "null if neither is initialised"]


class Model(Event, noted="when the recorder begins to watch a model"):
    model: int
    shapes: Annotated[Sequence[Numbers], "of its parameters"]


class Shards(
    Event,
    noted="before a forward, a step or the end, where parameters are split over the ranks and that has changed",
):
    held: Annotated[
        Numbers | None,
        "the positions of the elements that this rank holds, among those of all parameters; null if it holds all. The "
        "others are null in its weights and gradients",
    ]


class Wrap(Event, noted="after a watched model is wrapped in DDP"):
    model: int
    wrapper: Annotated[str, "the wrapper's class"]
    find_unused: Annotated[bool, "its `find_unused_parameters`"]


class Zero(
    Event,
    noted="after DeepSpeed has made an engine for a watched model, if its settings leave no doubt what it will send",
    label="DeepSpeed's engine (ZeRO stage {stage})",
):
    stage: Annotated[int, "of ZeRO"]
    in_each_micro_batch: Annotated[bool, "whether it averages gradients in each micro-batch, or in the last one only"]
    share: Annotated[
        int, "how many elements of the weights each rank gives to all others after a step; parts are filled up to that"
    ]
    gradient_width: Annotated[int, "bytes of an element of the gradients that are averaged"]
    weight_width: Annotated[int, "bytes of an element of the weights that are put together"]


class ApexInitialize(Event, noted="after `apex.amp.initialize`"):
    models: Annotated[int, "the number that was passed"]
    optimizers: Annotated[int, "the number that was passed"]


class Optimizer(Event, noted="before the first event that mentions an optimizer that holds watched parameters"):
    optimizer: int
    type: Annotated[str, "its class"]
    parameters: Annotated[Numbers, "those that it holds"]
    trainable: Annotated[Numbers, "those of them that require gradients"]
    horovod: Annotated[bool, "whether it is a Horovod optimizer"]
    backward_passes_per_step: Annotated[int | None, "Horovod's setting, null for another optimizer"]
    state: Annotated[bool, "whether it has any yet"]
    algorithm: Annotated[
        str | None, "the optimizer of torch that its class is, or is derived from; left out if it is none of torch's"
    ] = None
    # The schema and the check of its fields know `dict` only.
    groups: Annotated[
        Sequence[dict], "of each group with watched parameters, the settings that are numbers, by their names"  # type: ignore[type-arg]
    ] = ()


class Start(Event, noted="before training begins"):
    weights: Annotated[Vector | None, "null if no forward of the model was seen"]
