"""The kinds of event that a rank reports, and how their values are written.

Every event is a plain dict that begins with

    event, rank, seq: its kind, and its number among the rank's events, from 0
    time: seconds of the monotonic clock, which is the same for all ranks of a machine
    window, micro_batch: those of the last training forward, null before the first (`conformance.trace.state.progress`)
    where: [file, line, function] of the innermost call in the user's code, null when there is none
    called_from: the same in the trainer's own file; only there when it differs from `where`

Values are what JSON holds; a float is written exactly (the float64 of a float32), one that is not finite as a
string. Weights and gradients are those of the watched model: all elements of its parameters, weight then bias, null
where there is none. They are null as a whole for models of more than 4096 elements, which are not read.

`parameters` are places in `model.parameters()`; optimizer, scaler, scheduler and model are numbers in order of first
sight.
"""

from __future__ import annotations

from typing import TypeAlias

Event: TypeAlias = dict[str, object]

KINDS: dict[str, str] = {
    "started": "the process runs: {pid}",
    "topology": (
        "what was reached, noted at the first optimizer step, or message after a forward, or at the end: {world_size, "
        "rank_reached, via}; "
        "`via` is 'torch.distributed', 'horovod', or null when neither was initialised"
    ),
    "model": "a model is watched: {model, shapes}",
    "wrap": "DDP was put around a watched model: {model, wrapper, find_unused}",
    "apex_initialize": "apex.amp.initialize returned: {models, optimizers}, how many of each",
    "optimizer": (
        "an optimizer of watched parameters, right before the first event that mentions it: {optimizer, type, "
        "parameters, trainable, horovod, backward_passes_per_step, state}; `trainable` are the parameters that require "
        "gradients, `horovod` whether it is Horovod's, `state` whether it already has one"
    ),
    "start": "right before the first training forward: {weights}",
    "autocast_enter": "an enabled autocast region begins: {device, dtype, enabled}",
    "autocast_exit": "an enabled autocast region ends: {device, dtype, enabled}",
    "forward": (
        "a forward of the watched model in training mode with gradients enabled, and not within a backward, is about "
        "to run: {forward, rows, wrapper, syncs, computes, weights}; `forward` counts from 0, `rows` are indices into "
        "the distinct rows of samples.x in order of first appearance, null for a row that is not among them; `wrapper` "
        "is the class of the wrapper that it comes through, `syncs` whether DDP is to average in its backward; both "
        "null without one; `computes` is the dtype that the model computes in, null where it may cast by itself; "
        "`weights` are those that a window begins with, null within one"
    ),
    "loss_scaled": "GradScaler.scale of an enabled scaler: {scaler, scale}",
    "backward_begin": (
        "a backward that accumulates gradients is about to run: {backward, root, syncs, gradients}; `backward` counts "
        "from 0, a graph that is gone through again has the same `root`; `syncs` is DDP's flag at this moment, null "
        "without DDP; `gradients` are 'none', 'zero' or 'some' before it, null without a watched model"
    ),
    "backward_end": (
        "it has run: {backward, forwards, scaled}; `forwards` are the numbers of the forwards that it went through, "
        "`scaled` the loss scale that the loss carried, by a GradScaler or by hand, null for none"
    ),
    "autograd_grad": (
        "torch.autograd.grad has run through forwards of the watched model: {forwards}; these are their numbers"
    ),
    "collective": (
        "this rank is about to enter a collective: {op, bytes, elements, reduce, group, via, phase, during, of}; "
        "`bytes` and `elements` are what this rank puts in, `group` the ranks, `via` 'c10d' or 'horovod', `phase` "
        "'construction' until the first training forward, then 'training'; `during` is what it happens in ('forward', "
        "'backward', 'synchronize', 'step', or null), `of` what it carries: 'gradients' or 'parameters' of the watched "
        "model, or null"
    ),
    "send": (
        "this rank is about to send a message to another one: {bytes, elements, peer, group, tag, via, phase, during, "
        "of}; `peer` is the other rank, `via` 'c10d', the rest as for a collective"
    ),
    "receive": (
        "this rank is about to receive one: {bytes, elements, peer, group, tag, via, phase, during, of}; `bytes` and "
        "`elements` are those of the buffer that it is to come into, `peer` null for from anyone"
    ),
    "no_sync_enter": "DDP's no_sync begins: {}",
    "no_sync_exit": "DDP's no_sync ends: {}",
    "synchronize": "Horovod's optimizer.synchronize begins: {optimizer, in_step}; `in_step` when its own step calls it",
    "skip_synchronize_enter": "Horovod's skip_synchronize begins: {optimizer}",
    "skip_synchronize_exit": "Horovod's skip_synchronize ends: {optimizer}",
    "unscale": (
        "GradScaler.unscale_ of an enabled scaler has run: {scaler, optimizer, scale, implicit, found_inf}; `implicit` "
        "when the scaler's own step called it"
    ),
    "clip": (
        "gradients were clipped by a function of torch: {kind, threshold, norm_type, norm, parameters, gradients}; "
        "`kind` is 'norm' or 'value', `norm` the total norm that clipping by norm saw, `gradients` those before"
    ),
    "norm": "torch.nn.utils.get_total_norm of gradients, called by itself: {norm, parameters}",
    "gradient_change": (
        "gradients were changed by something else: {parameters, factor, since}; noticed at the next event, after the "
        "event `since`, which is when they were known last; `factor` is what all were multiplied by, null if there "
        "is no such factor; in a model too large to be read, by hand or not, only some parameters are looked at"
    ),
    "zero_grad": (
        "gradients are about to be cleared, or, 'by' 'hand', were found to have been: {by, optimizer, parameters, "
        "set_to_none}; `by` is 'optimizer', 'model' or 'hand', `optimizer` null but for the first"
    ),
    "scaler_step": (
        "GradScaler.step of an enabled scaler begins: {scaler, optimizer, scale, state}; `state` is a digest of what "
        "the optimizer keeps for its parameters, null in a model too large to be read"
    ),
    "scale_loss_enter": "apex.amp.scale_loss begins: {delay_unscale, optimizers, scale}",
    "scale_loss_exit": (
        "apex.amp.scale_loss ends: {delay_unscale, optimizers, scale, scale_after}; `scale_after` is the scale of the "
        "next one, lower if gradients overflowed"
    ),
    "state_init": (
        "an optimizer step before the first training forward, on no gradients but zeros, as Horovod's "
        "broadcast_optimizer_state takes one: {weights}, after it"
    ),
    "step": (
        "an optimizer step that was applied: {step, forwards, gradients, weights, lr, scale, optimizer, parameters, "
        "synchronizes}; `step` counts from 0, `forwards` those so far; `gradients` as the optimizer saw them, null for "
        "parameters that it does not hold, `weights` of the whole model after the step; `scale` is the loss scale, "
        "null unless a GradScaler that is enabled called the step; `synchronizes` whether a step of Horovod's "
        "optimizer waits for the averages itself, null for another optimizer"
    ),
    "skip": (
        "an enabled GradScaler or apex was asked to step and did not: {forwards, scale, gradients_finite, gradients, "
        "weights, optimizer, state}; `state` as in scaler_step"
    ),
    "update": (
        "GradScaler.update of an enabled scaler: {scale_before, scale_after, growth_factor, backoff_factor, "
        "growth_interval, scaler}, but for the first two and the last the scaler's own settings"
    ),
    "schedule": (
        "a learning-rate scheduler stepped: {scheduler, optimizer, lr_before, lr_after, initial}; the learning rates "
        "of each of the optimizer's groups, `initial` for the step that a scheduler takes when it is made"
    ),
    "foreign_optimizer": (
        "an optimizer stepped that holds no parameter of the watched model, noted once for each: {optimizer, shapes}"
    ),
    "finished": "the trainer's function returned: {weights}",
    "raised": "the trainer's function raised: {type, message, traceback, at}; `at` is `time` when it did",
}
