"""What to change, where, and what happens otherwise, by the codes of `properties.FACTS` and `Finding.says`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, Said

Way: TypeAlias = Literal["no_sync", "aside", "wrapper", "by hand"]
"""How gradients should have been averaged: under `no_sync()`, by a wrapper that this line does not call, by a wrapper,
or by hand."""


def way(finding: Finding, findings: Findings) -> Way:
    """How the script averages the gradients that a finding is about."""
    scene = findings.scenes.get(finding.key)
    calls = [record for done in scene.of.values() for record in done] if scene else []
    here = [record for record in calls if getattr(record, "site", None) == finding.site]
    if any(isinstance(record, records.Backward) and record.waits for record in here):
        return "no_sync"
    if finding.optimizer not in findings.wrapped:
        return "by hand"
    is_aside = any(isinstance(record, records.Entered) and not record.wrapped for record in here)
    return "aside" if is_aside else "wrapper"


def fix(finding: Finding, findings: Findings) -> str:
    """What to change."""
    of_ways = FIXES_OF_WAYS.get(finding.says.code, {})
    return of_ways.get(way(finding, findings)) or fixed(finding.says) or finding.text.fix


def fixed(says: Said) -> str:
    """What to change, if the fact is not intended; "" if unknown."""
    return FIXES.get(says.code, "")


def edit(says: Said, way: Way = "by hand") -> str:
    """Where code changes, as in `conformance.report.edits`; "" if only the law of a finding says it."""
    return "change it" if way == "aside" and says.code in FIXES_OF_WAYS else EDITS.get(says.code, "")


def effect(says: Said) -> str | None:
    """What an open fact does to training, if it is not intended."""
    return EFFECTS.get(says.code)


_AFTER_THE_LAST = "divide, reduce or add gradients once, after the last backward pass of the step"
_CLIP_AFTER = "clip after the gradients are averaged over the ranks"
_TIMES_RANKS = "multiply each loss by the number of ranks, because the gradients are averaged over them"

_DIVIDE = (
    "add the division by the number of ranks below exchange; "
    "add the division by the number of ranks above unscale|clip|step"
)
_SUM_STAGES = "sum `p.grad` of these over the stages; do not divide: each stage has another part of one gradient"

FIXES: Mapping[str, str] = {
    "own-gradients": "all-reduce `p.grad` before the step, and divide it by the number of ranks",
    "some-not-averaged": "all-reduce `p.grad` of these too, and divide it by the number of ranks",
    "some-not-summed": _SUM_STAGES,
    "ranks.one-loss-averaged": _SUM_STAGES,
    "ranks-missing": "average over all ranks that have the same parameter: check the process group",
    "returned-differ": "all-reduce what `torch.autograd.grad` returns, and divide it by the number of ranks",
    "parts-averaged": "do not average the gradients of parts, such as experts; if ranks have one model, broadcast it",
    "not-cleared-in-closure": "call `optimizer.zero_grad()` at the start of the closure",
    "micro-batches-own": "end `no_sync()` before the forward pass of the last micro-batch",
    "micro-batches-missing": "do not clear or replace gradients between the backward passes of a step",
    "divided-again": _AFTER_THE_LAST,
    "summed-again": _AFTER_THE_LAST,
    "added-again": _AFTER_THE_LAST,
    "still-scaled": "step with `scaler.step(optimizer)`, which unscales first",
    "unscaled-twice": "`scaler.step(optimizer)` divides, unless `scaler.unscale_(optimizer)` did: remove the division "
    "by hand",
    "unscaled-by-another": "call `scaler.update()` once, after the steps of all optimizers",
    "never-scaled": "call `scaler.scale(loss).backward()`",
    "some-not-scaled": "call `scaler.scale(loss).backward()` for each loss of a step",
    "some-divided-twice": "divide each parameter once, also one that several modules share",
    "weights-start-apart": "broadcast the weights of rank 0 before the first step, as DDP does when it wraps a model",
    "not-sent": "broadcast the weights after each step, as `ZeroRedundancyOptimizer.step()` does",
    "step-first": "call `optimizer.step()` after `loss.backward()`",
    "joined-twice": "remove one of the factors: `Join` can divide by the ranks with data",
    "infinite-kept": "call `optimizer.zero_grad()` in skipped steps too",
    "clipped-then-averaged": _CLIP_AFTER,
    "clipped-by-value-then-averaged": _CLIP_AFTER,
    "some-clip": "clip on every rank, not on some only",
    "clip.after-step": "move the clip call between `loss.backward()` and `optimizer.step()`",
    "clip.used-up": "pass a new `model.parameters()` to each call",
    "ranks.means-added": "divide the sum over ranks by their number",
    "ranks.divided-by-count": _TIMES_RANKS,
    "divided-by-all-and-averaged": _TIMES_RANKS,
    "micro-batches.sum": "divide each loss by the number of micro-batches in its step",
    "micro-batches.divided-twice": "divide each loss by the number of micro-batches once; remove the other division",
    "micro-batches.long": "step after the last micro-batch of each epoch, and divide by the number in this window",
    "micro-batches.divided": "divide each loss by the number of backward passes of its own step",
    "micro-batches.divided-by-ranks": "do not divide by the number of ranks: the average over them does",
    "micro-batches.total": "divide by the number of targets in the step, over all ranks and micro-batches",
    "micro-batches.totals": "divide by the number of targets in the step, over all ranks and micro-batches",
    "micro-batches.times-ranks": "do not multiply the loss by the number of ranks",
    "passes.before": "call `optimizer.zero_grad()` before the training",
    "passes.evaluated": "call `optimizer.zero_grad()` after the evaluation",
    "clearing.discarded": "clear only after a step, or before the first backward pass of a step",
    "clearing.part": "clear only after a step, or before the first backward pass of a step",
    "clearing.late": "step after the backward passes of all losses, not between forward and backward",
    "clearing.several-weights": "call `optimizer.zero_grad()` after the weights change, before the next backward pass",
    "clearing.other-passes": "call `optimizer.zero_grad()` before the first `loss.backward()` of each step",
    "clipping.before-last-pass": "move the clip call after the last `loss.backward()` of the step",
    "clipping.aside": "clip the parameters that the optimizer steps",
    "clipping.nothing": "clip after the backward pass, and the parameters that the optimizer steps",
    "clipping.parts": "pass `model.parameters()` to one clip call",
    "clipping.scaled-norm": "call `scaler.unscale_(optimizer)` once, before `clip_grad_norm_`",
    "clipping.scaled-value": "call `scaler.unscale_(optimizer)` once, before `clip_grad_value_`",
    "clipping.unheld": "pass them to the optimizer, or clip without them: `optimizer.zero_grad()` skips them",
    "coverage.zero-gradient": "train what multiplies them too: a frozen 0 passes no gradient on",
    "coverage.no-gradient": "remove them from the optimizer, or use them in the loss",
    "coverage.outdated": "create the optimizer after all layers are added or replaced",
    "held.replaced": "make the optimizer from the model that computes the loss, after it is moved, copied or wrapped",
    "coverage.unheld": "create the optimizer with them, after the model has all its layers, or freeze them with "
    "`requires_grad_(False)`",
    "coverage.without-state": "call `optimizer.load_state_dict` too",
    "coverage.left-out": "give all of them their gradients, or remove them from the optimizer",
    "coverage.copies": "copy the new weights into the model after each step",
    "data.same-micro-batches": "load a new batch for each backward pass",
    "data.same-order": "call `sampler.set_epoch(epoch)` at the start of each epoch",
    "data.same-shuffle": "draw a new order in each epoch: do not set the same seed again",
    "data.same-samples": "give each rank its own part: `DistributedSampler(dataset)`",
    "denominator.constant": "divide by the number of targets in the step, not by a constant",
    "denominator.apart": "divide by the targets of all ranks and micro-batches of the step; if gradients are averaged "
    "over the ranks, multiply by their number",
    "loss-scale.left": "divide the gradients by the scale before they are clipped and used",
    "loss-scale.restarts": "create the scaler once, before the loop",
    "loss-scale.not-updated": "keep one scaler, and call `scaler.update()` after each step",
    "ranks.own": "all-reduce `p.grad` before the step, and divide it by the number of ranks",
    "ranks.sum": "divide `p.grad` by the number of ranks",
    "schedule.each-pass": "call `scheduler.step()` once, after `optimizer.step()`",
    "schedule.before-step": "call `scheduler.step()` after `optimizer.step()`",
    "schedule.past-its-end": "call `scheduler.step()` once per epoch, or create the schedule for all its steps",
    "schedule.low-rate": "create the schedule for the number of steps that it makes",
    "schedule.zero-rate": "give these parameters a learning rate, or freeze them",
    "schedule.never-steps": "call `scheduler.step()` after each step or epoch",
    "schedule.steps-often": "call `scheduler.step()` once for each step",
    "schedule.several": "create each schedule with the optimizer that it is meant for",
}
"""What to change, by the code of a fact, or of `Finding.says` where the fix of the law is less exact."""

_LEAVE = "leave `no_sync()` before the forward pass of the last micro-batch"
_CALL_IT = "call the model that DDP returns, not the module inside it (`model.module`)"

FIXES_OF_WAYS: Mapping[str, Mapping[Way, str]] = {
    "own-gradients": {"no_sync": _LEAVE, "aside": _CALL_IT},
    "some-not-averaged": {
        "no_sync": _LEAVE,
        "aside": _CALL_IT,
        "wrapper": "all-reduce `p.grad` of these too: DDP averages only the parameters with `requires_grad` that the "
        "model had when it was wrapped",
    },
    "ranks-missing": {"no_sync": _LEAVE, "aside": _CALL_IT},
    "returned-differ": {
        "wrapper": "call `loss.backward()`: DDP does not average what `torch.autograd.grad` returns",
    },
}
"""The same by how the script averages."""

EDITS: Mapping[str, str] = {
    "not-cleared-in-closure": "add `optimizer.zero_grad()` above backward",
    "some-not-scaled": "change it to `scaler.scale({}).backward()`",
    "micro-batches-own": "find `no_sync` at or above no_sync|forward",
    "micro-batches-missing": "zero_grad below step",
    "micro-batches.sum": "change backward to `({} / micro_batches).backward()`",
    "micro-batches.divided": "find the division at or above it",
    "micro-batches.divided-by-ranks": "find the division at or above it",
    "micro-batches.total": "find the division at or above it",
    "micro-batches.totals": "find the division at or above it",
    "denominator.constant": "find the division at or above it",
    "data.same-micro-batches": "find the loaded batch at or above it",
    "micro-batches.divided-twice": "find the two divisions at or above it",
    "micro-batches.times-ranks": "find the loss at or above it",
    "weights-start-apart": "add the broadcast of the weights below optimizer",
    "some-not-summed": "add the sum over the stages above clip|step",
    "ranks.sum": _DIVIDE,
    "ranks.means-added": _DIVIDE,
    "ranks.divided-by-count": "change backward to `({} * torch.distributed.get_world_size()).backward()`",
    "divided-by-all-and-averaged": "change backward to `({} * torch.distributed.get_world_size()).backward()`",
    "clipped-then-averaged": "clip right above step",
    "clipped-by-value-then-averaged": "clip right above step",
    "some-clip": "change clip",
    "unscaled-by-another": "update below step",
    "unscaled-twice": "remove the division by hand between backward and step; "
    "find the division by hand at or above step",
    "infinite-kept": "zero_grad also if skipped; zero_grad below step",
    "still-scaled": "change step to `scaler.step({})`",
    "never-scaled": "change backward to `scaler.scale({}).backward()`",
    "clip.after-step": "it above step",
    "clip.before-passes": "it above step",
    "clipping.before-last-pass": "it above step",
    "coverage.unheld": "change it",
    "coverage.no-gradient": "change it",
    "coverage.outdated": "find the replaced layers from it",
    "coverage.without-state": "add the load of the optimizer's state below it",
    "data.same-order": "add `sampler.set_epoch(epoch)` above it",
    "schedule.before-step": "it below step",
    "schedule.each-pass": "it below step",
}
"""Where code changes, by the code of a fact, or of `Finding.says` where the law is less exact."""

EFFECTS: Mapping[str, str] = {
    "coverage.unheld": "no optimizer changes them",
    "coverage.no-gradient": "the optimizer never changes them",
    "coverage.outdated": "the new ones keep their initial weights: they never train",
    "coverage.left-out": "their gradients are computed and never used",
    "coverage.copies": "the model that is evaluated and saved keeps its old weights",
    "coverage.without-state": "the optimizer resumes without its moments, its step count and its learning rates",
    "data.same-samples": "these samples count more than others",
}
