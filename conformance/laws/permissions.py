"""Permissions: what no law may flag, however unusual it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Permission:
    """Something that trainers may do.

    says: a sentence with MAY. variant: the file in fixtures/variants with a trainer that does it and passes.
    """

    name: str
    says: str
    variant: str


PERMISSIONS: tuple[Permission, ...] = (
    Permission("accumulation left out", "DDP MAY be used without accumulation.", "ddp_without_accumulation.patch"),
    Permission("activations recomputed", "A backward MAY run the forward again.", "recomputes_activations.patch"),
    Permission(
        "all-reduce by hand",
        "Ranks MAY average their gradients by hand, also before the loss scale is divided out.",
        "averaged_by_hand.py",
    ),
    Permission(
        "all-reduce by Horovod, by hand",
        "Gradients MAY be averaged by Horovod without its optimizer.",
        "horovod_averages_by_hand.patch",
    ),
    Permission(
        "clip at a scaled threshold",
        "Gradients that carry the loss scale MAY be clipped at the threshold times the scale.",
        "clipped_at_scaled_threshold.patch",
    ),
    Permission("clip by hand", "Gradients MAY be clipped by hand after they are unscaled.", "clipped_by_hand.patch"),
    Permission(
        "clip for each group", "The parameters MAY be clipped in several groups, each once.", "clipped_per_group.patch"
    ),
    Permission("closure.py", "The step MAY be given a closure that does the forwards and backwards.", "closure.py"),
    Permission("communication hook", "DDP's all-reduce MAY be issued by a communication hook.", "comm_hook.patch"),
    Permission("division of gradients", "Gradients MAY be divided instead of the losses.", "divided_gradients.patch"),
    Permission(
        "division of the loss", "The loss MAY be divided after it is scaled, or before.", "scaled_after_division.patch"
    ),
    Permission("evaluation", "The model MAY be evaluated between steps.", "evaluates_between_steps.patch"),
    Permission("frozen parameters", "Parameters MAY be frozen.", "frozen_parameter.patch"),
    Permission(
        "fused optimizer",
        "An optimizer MAY unscale and skip in its own kernel, when the scaler calls it.",
        "fused_optimizer.patch",
    ),
    Permission(
        "gradient penalty",
        "A loss MAY contain the gradient of another loss, or be followed by it.",
        "gradient_penalty.patch",
    ),
    Permission(
        "gradient penalty, by itself",
        "A micro-batch MAY go forward again for a gradient that `torch.autograd.grad` takes.",
        "penalty_on_a_forward_of_its_own.patch",
    ),
    Permission(
        "Horovod, plain step",
        "Horovod's step MAY synchronize by itself if nothing reads or changes gradients before it.",
        "horovod_plain_step.patch",
    ),
    Permission(
        "Horovod, scaling",
        "A loss MAY be scaled before or after Horovod's `synchronize()`.",
        "horovod_scaled_after_synchronize.patch",
    ),
    Permission(
        "Horovod, synchronize first",
        "`synchronize()` of Horovod's optimizer MAY be called although nothing is clipped.",
        "horovod_synchronize_first.patch",
    ),
    Permission(
        "inner module",
        "Micro-batches that stay local MAY go through the module inside DDP instead of `no_sync()`.",
        "inner_module_before_the_last.patch",
    ),
    Permission(
        "moving average", "A moving average of the weights MAY be kept after each step.", "averages_weights.patch"
    ),
    Permission(
        "one backward for a window",
        "The losses of a window MAY be added up for one backward.",
        "one_backward_over_window.patch",
    ),
    Permission(
        "other collectives",
        "Ranks MAY exchange values that do not enter the training, such as losses for a log.",
        "reduces_loss_for_logging.patch",
    ),
    Permission(
        "overflow agreed on",
        "Ranks MAY unscale before they average if they exchange which of them overflowed.",
        "overflow_agreed.patch",
    ),
    Permission("own loss scaler", "A scaler MAY have the trainer's own settings.", "own_grad_scaler.patch"),
    Permission(
        "messages from rank to rank",
        "Gradients MAY be averaged by messages from rank to rank, in pieces.",
        "ring_per_parameter.patch",
    ),
    Permission("parameter server", "A rank MAY gather, average and broadcast the gradients.", "parameter_server.patch"),
    Permission(
        "scale as gradient",
        "The scale MAY be passed to `backward()` as its initial gradient.",
        "scale_as_gradient.patch",
    ),
    Permission("scaled by hand", "The loss MAY be multiplied by the scale by hand.", "scaled_by_hand.patch"),
    Permission(
        "server that steps",
        "On the backend parameter-server one rank MAY take the steps for all and send them the weights.",
        "server_takes_any_worker.patch",
    ),
    Permission(
        "several optimizers",
        "Several optimizers MAY be unscaled and stepped one after the other, with one `update()` at the end.",
        "several_optimizers.patch",
    ),
    Permission("sync by flag", "DDP's flag MAY be set instead of `no_sync()`.", "synchronizes_by_flag.patch"),
    Permission(
        "unscaled by hand",
        "A trainer MAY unscale and check gradients by hand and step without the scaler.",
        "unscaled_by_hand.patch",
    ),
    Permission(
        "unscaled without a clip",
        "`unscale_` MAY be called although nothing is clipped.",
        "unscaled_without_clipping.patch",
    ),
    Permission("unused parameters", "An optimizer MAY hold parameters that no forward uses.", "unused_parameter.patch"),
    Permission(
        "window at once", "The micro-batches of a window MAY go forward together.", "window_in_one_forward.patch"
    ),
    Permission(
        "zero_grad at the end", "Gradients MAY be cleared before a window or after its step.", "zero_grad_last.patch"
    ),
    Permission("zero_grad to zero", "Gradients MAY be cleared to zero instead of None.", "zero_grad_to_zero.patch"),
)
