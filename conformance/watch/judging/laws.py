"""What a watch holds a script to, by name."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.watch.judging.properties import Property


@dataclass(frozen=True)
class Law:
    """property, value: what a script that breaks it shows; None if no value makes it right. says: one sentence. why:
    what goes wrong. fix: what to do. follows: laws that explain it if they were broken in an earlier step."""

    id: str
    property: Property
    value: str | None
    says: str
    why: str
    fix: str
    follows: tuple[str, ...] = ()


AS_EXPECTED = "watch/as-expected"
"""The law of all properties: what the user states is so."""

LAWS: dict[str, Law] = {
    law.id: law
    for law in (
        Law(
            AS_EXPECTED,
            Property.RANKS,
            None,
            "A script MUST do what `--expect` states.",
            "The expectation or the script is wrong.",
            "change the expectation, or the script",
        ),
        Law(
            "watch/averaged",
            Property.RANKS,
            "own",
            "A step MUST use the average of the gradients of all ranks.",
            "The update is not that of all samples, and ranks that follow their own data alone drift apart.",
            "call the wrapped model (`ddp(x)`), outside `no_sync()` in the last micro-batch, or all-reduce `p.grad`",
        ),
        Law(
            "watch/every-backward",
            Property.MICRO_BATCHES,
            "weighted",
            "A step MUST use every backward pass since the last one, each with the same factor.",
            "Micro-batches or ranks that are left out, or count more than others, bias the gradient.",
            "accumulate under `no_sync()` in all micro-batches but the last, and go through the wrapper in all of them",
        ),
        Law(
            "watch/backward-once",
            Property.MICRO_BATCHES,
            "weighted",
            "A loss MUST go backward once in a window.",
            "Its gradient is added up again, so that earlier micro-batches count more.",
            "`loss.backward()` of each micro-batch by itself, and `.item()` or `.detach()` for a running total",
        ),
        Law(
            "watch/divided-once",
            Property.MICRO_BATCHES,
            "weighted",
            "The sum over the micro-batches of a window MUST be divided by their number at most once.",
            "The update is too small by their number.",
            "divide either each loss or the gradients",
        ),
        Law(
            "watch/means-averaged",
            Property.RANKS,
            "sum",
            "Means over the samples of ranks or micro-batches MUST be averaged, not summed up.",
            "The update is too large by their number, and changes with it.",
            "divide each loss by the number of micro-batches in its window, and the sum over ranks by their number",
        ),
        Law(
            "watch/cleared",
            Property.CLEARING,
            "kept",
            "Gradients MUST be cleared between a step and the next backward pass.",
            "The step uses gradients of earlier windows again, which are stale.",
            "call `optimizer.zero_grad()` once after each step, or before the first backward pass of each window",
        ),
        Law(
            "watch/used",
            Property.CLEARING,
            "discarded",
            "The gradients of every backward pass MUST reach a step.",
            "What is cleared before a step is computed for nothing, and its samples are never learned.",
            "clear only after a step, or before the first backward pass of a window",
        ),
        Law(
            "watch/fresh",
            Property.CLEARING,
            "kept",
            "A step MUST have a backward pass since the last one.",
            "It moves the weights once more along a gradient that was used already.",
            "step once per window",
        ),
        Law(
            "watch/unscaled",
            Property.LOSS_SCALE,
            "own",
            "Gradients MUST be divided by the loss scale exactly once before a step.",
            "The update or the clipping is wrong by the factor of the loss scale.",
            "`scaler.unscale_(optimizer)` once before clipping, then `scaler.step(optimizer)`, which does it otherwise",
        ),
        Law(
            "watch/own-gradient",
            Property.RANKS,
            None,
            "Each parameter MUST be stepped with its own gradient.",
            "It moves along a direction that was computed for another one.",
            "take gradients out of a buffer in the order, and with the sizes, that they were put in with",
        ),
        Law(
            "watch/averaged-once",
            Property.RANKS,
            "weighted",
            "The sum over ranks MUST be divided by their number at most once.",
            "The update is too small by the number of ranks.",
            "leave out the division by the world size: the wrapper has averaged",
        ),
        Law(
            "watch/one-factor",
            Property.CLIPPING,
            "early",
            "All ranks and all parameters that are clipped together MUST be scaled by one factor.",
            "The direction of the update is no longer that of the gradient.",
            "one loss scale and one divisor for all; clip after averaging, with one limit, all parameters in one call",
        ),
        Law(
            "watch/clip-whole-window",
            Property.CLIPPING,
            "early",
            "Clipping MUST come after the last backward pass of a window.",
            "What is added later is not clipped, and the norm that was compared is of a part.",
            "clip once, right before the step",
        ),
        Law(
            "watch/clip-something",
            Property.CLIPPING,
            "parts",
            "Clipping MUST be given parameters with gradients.",
            "Nothing that is used is clipped: a generator of parameters was used up, or the call comes too early.",
            "pass `model.parameters()` afresh, right before the step",
        ),
        Law(
            "watch/unscale-before-clip",
            Property.CLIPPING,
            "early",
            "Gradients MUST be unscaled before they are clipped.",
            "Scaled gradients, thousands of times too large, are compared with the limit.",
            "`scaler.unscale_(optimizer)` before `clip_grad_norm_` or `clip_grad_value_`",
        ),
        Law(
            "watch/unscale-whole-window",
            Property.LOSS_SCALE,
            "own",
            "`unscale_` MUST come after the last backward pass of a window.",
            "What is added later still carries the loss scale.",
            "`scaler.unscale_(optimizer)` once, after the last micro-batch",
        ),
        Law(
            "watch/one-scale",
            Property.LOSS_SCALE,
            "own",
            "All backward passes of a window MUST carry the same loss scale, on all ranks.",
            "One division cannot undo several scales.",
            "scale each loss of a window by the same scaler, and call `scaler.update()` once per step, after it",
        ),
        Law(
            "watch/schedule-after-step",
            Property.SCHEDULE,
            "any",
            "A scheduler MUST step after its optimizer, and as often as it is made for.",
            "A step uses the next learning rate, or one from past the end of the schedule, such as 0 or less.",
            "`optimizer.step()`, then `scheduler.step()`, once for each step or epoch",
        ),
        Law(
            "watch/schedule-of-what-steps",
            Property.SCHEDULE,
            "any",
            "A scheduler MUST be one of the optimizer that steps.",
            "The optimizer was made again since, and the rates of the steps stay what they are.",
            "make the scheduler after the optimizer that steps, and of that one",
        ),
        Law(
            "watch/from-the-model",
            Property.COVERAGE,
            "part",
            "A loss that goes backward MUST come from the model.",
            "`.item()`, `.data` or `.detach()` has cut the graph, so that no parameter gets a gradient.",
            "call `backward()` of what the loss function returns; `requires_grad=True` does not bring the graph back",
        ),
        Law(
            "watch/finite",
            Property.LOSS_SCALE,
            None,
            "A step MUST NOT use gradients that are not finite.",
            "One NaN or infinity makes all weights NaN.",
            "skip the step, as GradScaler does, or find the cause with `torch.autograd.set_detect_anomaly(True)`",
        ),
        Law(
            "watch/has-gradient",
            Property.COVERAGE,
            "part",
            "A step MUST have gradients.",
            "The parameters that the optimizer holds are not those that the loss depends on.",
            "give the optimizer the parameters of the model that trains, after it is moved, wrapped or copied",
        ),
        Law(
            "watch/same-weights",
            Property.AGREEMENT,
            "apart",
            "The weights of all ranks MUST be equal before each step.",
            "The average of gradients of different models belongs to none of them.",
            "broadcast weights and states of optimizers before training, and average all gradients, in one order",
            follows=(
                "watch/averaged",
                "watch/own-gradient",
                "watch/one-factor",
                "watch/one-scale",
                "watch/same-rates",
                "watch/same-steps",
            ),
        ),
        Law(
            "watch/same-rates",
            Property.AGREEMENT,
            "apart",
            "The learning rates of all ranks MUST be equal.",
            "The ranks' weights drift apart.",
            "compute the learning rate from what all ranks share",
        ),
        Law(
            "watch/same-steps",
            Property.AGREEMENT,
            "apart",
            "All ranks MUST step and skip together.",
            "Their weights and optimizer states drift apart, or a collective waits forever.",
            "decide about steps from values that all ranks share",
        ),
        Law(
            "watch/own-data",
            Property.DATA,
            "same",
            "Each rank MUST train on data of its own.",
            "What one rank adds, another one has, too: an epoch takes as long as on one rank.",
            "`DistributedSampler(dataset)`, with one seed for all ranks; if each draws at random, a seed for each",
        ),
        Law(
            "watch/dealt-once",
            Property.DATA,
            "same",
            "A sampler that deals data out to the ranks MUST be given all data.",
            "What each rank has is dealt out again, so that an epoch leaves most of the data out.",
            "give `DistributedSampler` the whole data set on each rank, or one of `num_replicas=1` its part",
        ),
        Law(
            "watch/new-order",
            Property.DATA,
            "same",
            "Each epoch SHOULD have an order of its own.",
            "Without `set_epoch`, every epoch repeats the batches of the first.",
            "`sampler.set_epoch(epoch)` at the beginning of each epoch",
        ),
        Law(
            "watch/mean-of-all",
            Property.MICRO_BATCHES,
            "weighted",
            "The mean over a window MUST be that over all its targets, not one of means over other numbers.",
            "A target in a small micro-batch counts more than one in a large one.",
            "sum up the losses (`reduction='sum'`), and divide by the number of targets in the whole window",
        ),
        Law(
            "watch/held",
            Property.COVERAGE,
            "part",
            "Parameters that get gradients MUST be those that an optimizer holds.",
            "The optimizer steps tensors that the model no longer uses, and the model never changes.",
            "create the optimizer after the model is moved, copied or wrapped",
        ),
        Law(
            "watch/window-length",
            Property.MICRO_BATCHES,
            "weighted",
            "A loss MUST be divided by the true number of micro-batches in its window.",
            "A shorter window divided by the nominal length counts too little.",
            "divide by the number of micro-batches that the window really has",
        ),
    )
}
