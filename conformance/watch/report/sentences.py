"""The sentences of a watch, by the codes of `properties.FACTS`, `Finding.says` and `Finding.effect`.

`{loss:g}` formats a number as Python does, `{passes:pass}` counts: "1 pass", "3 passes", `{factor:times}` is "0.75x" or
"1/1024", `{factor:size}` is "0.75x the correct one" or "1,024x too small". A list is joined by commas, and
`{places:of micro-batch}` is "micro-batches 2, 3".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from string import Formatter
from typing import Any

from conformance.watch.judging.findings import Said
from conformance.watch.judging.properties import Property
from conformance.watch.verdict import Row

_NUMBER = re.compile(r"[-+.,\d]*[a-zA-Z%]?")
_MOST_NAMED = 3
_SMALL = 0.1
"""Factors below this are easier to read as fractions."""
_OF = "of "
_TOO_LARGE = 10
_LARGE = 1000
"""Factors above this are easier to read without a power of ten."""


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith(_OF):
            noun = format_spec.removeprefix(_OF)
            return f"{noun if len(value) == 1 else noun + _ending(noun)} {self.format_field(value, '')}"
        if isinstance(value, (list, tuple)):
            named = [self.format_field(one, format_spec) for one in value[:_MOST_NAMED]]
            return ", ".join([*named, *(["..."] if len(value) > _MOST_NAMED else [])])
        if format_spec == "times":
            return f"1/{1 / value:,.0f}" if 0 < value < _SMALL else f"{_factor(value)}x"
        if format_spec == "size":
            if 0 < value < _SMALL:
                return f"{_factor(1 / value)}x too small"
            return f"{_factor(value)}x too large" if value >= _TOO_LARGE else f"{_factor(value)}x the correct one"
        if format_spec == "share":
            return f"{100 * value:.2g}%" if value < 1 else f"{value:.3g}x"
        if not format_spec:
            return _rounded(value) if isinstance(value, float) else str(value)
        if _NUMBER.fullmatch(format_spec):
            return format(value, format_spec)
        return f"{value} {format_spec}{'' if value == 1 else _ending(format_spec)}"


def _ending(noun: str) -> str:
    return "es" if noun.endswith(("ch", "sh", "s")) else "s"


def _factor(number: float) -> str:
    return f"{number:,.0f}" if _LARGE <= number < inf else _rounded(number)


def _rounded(number: float) -> str:
    """With three digits, or as many as show that it is not 1."""
    return next((text for digits in (3, 4, 5, 6) if (text := f"{number:.{digits}g}") != "1"), "1")


def value(row: Row) -> str:
    """What a proven row shows, in a few words."""
    if row.of == Property.RANKS and row.ranks == 1:
        return "one process, nothing to average"
    own = _VALUES_OF_PARTS.get((row.of, row.value)) if row.has_parts else None
    return own or _VALUES[row.of, row.value]


def sentence(says: Said) -> str:
    """The sentence of a code, with its values. Raises KeyError for an unknown code or a missing value."""
    return _Words().vformat(WORDS[says.code], (), says.values)


def observed(says: Said) -> str | None:
    """How much of each micro-batch a step uses, for titles that do not say it."""
    return f"factors of micro-batches in the step: {says.values['table']}" if says.code in _OF_TABLES else None


_OF_TABLES = {
    "micro-batches-missing",
    "micro-batches-own",
    "ranks-missing",
    "divided-again",
    "summed-again",
    "added-again",
    "old-in-step",
}
"""Titles that leave the factors to `observed`."""


WORDS: Mapping[str, str] = {
    # How the gradients of the ranks enter a step.
    "ranks.sum": "gradients are summed over {ranks:rank}: the update is {ranks}x their mean",
    "ranks.own": "each rank uses only its own gradients",
    "ranks.own-some": "ranks update {parameters} of {all} parameters with different gradients: {names}",
    "ranks.parts-summed": "{parameters} of {all} parameters have a part on each rank, whose gradients sum up "
    "{losses:loss} and are not divided: {names}",
    "ranks.one-loss-averaged": "only one rank has a loss, but {parameters} of {all} parameters have the mean over "
    "{ranks:rank} of the parts of its gradient, not their sum: {names}",
    "ranks.parts": "{parameters} of {all} parameters differ between ranks but use the mean of all ranks: {names}",
    "ranks.some": "only some ranks have an optimizer ({type}) of these parameters",
    "ranks.factor": "the update is {factor:.4g}x the mean gradient",
    "ranks.weighted": "ranks have different weights in the average ({table})",
    "ranks.left-out": "the average omits the gradients of some ranks ({table})",
    "ranks.run-out": "the update is not the mean of all ranks ({table}); some ranks may have no data left",
    "ranks.groups": "gradients are averaged over groups of {size} of {ranks:rank}",
    "ranks.some-parameters": "gradients of some parameters have {times:.4g}x the factor of the others: {named}",
    "ranks.by-parameter": "gradients are different multiples of the mean, by parameter ({table})",
    "ranks.varies": "only some steps seem to have a wrong factor",
    "ranks.hook": "a communication hook changes the averaged gradients: {hooks}",
    "ranks.layout": "the watch does not support this sharding layout",
    "ranks.missing": "only {seen} of {ranks:rank} created an optimizer",
    "ranks.holders": "only some ranks have an optimizer ({type}) of these parameters of a wrapped model: the watch "
    "does not see the gradients of the others",
    "ranks.turns": "ranks step at different times",
    "ranks.no-group": "the {started:process} of the launcher formed no process group",
    "ranks.order": "the optimizers of the ranks have different parameter orders",
    "ranks.sample": "ranks update a parameter in different windows, so the watch cannot compare them",
    # What became of gradients between the backward pass and the step.
    "changed": "gradients changed before the step, by more than a factor for each backward pass",
    "changed.some": "gradients of {some} of {all:parameter} changed before the step, by no single factor: {names}",
    "changed.alike": "gradients changed before the step; some backward passes are too similar to tell apart",
    "changed.few": "gradients changed before the step; too few parameters show how",
    "changed.long": "a step uses more backward passes than the watch records",
    "changed.coarse": "the gradients are too coarse or too small to show their factor",
    "changed.by-hand": "the script wrote the gradients of a step to `.grad`",
    "changed.before": "no backward pass came between the creation of the optimizer and its step",
    "changed.captured": "the watch does not follow gradients of torch.autograd.grad",
    "changed.by-element": "gradients were clipped by value",
    "changed.not-finite": "the script replaced gradients that are not finite",
    "changed.otherwise": "the optimizer does not read its gradients from `.grad`",
    "changed.weights": "weights are infinite or NaN",
    "idle.coarse": "{count} with gradients too coarse to judge",
    "idle.not-finite": "{count} with infinite or NaN gradients",
    "micro.weighted": "backward passes have different weights ({table})",
    "clearing.kept": "the step also uses changed gradients of earlier steps ({table})",
    "clearing.again": "two steps use the same gradient; the script changes weights between them",
    "clearing.shared": "two optimizers use one gradient for the same parameters",
    "clearing.restored": "a step leaves out some of its backward passes ({table})",
    "clearing.several-weights": "the weights changed between two backward passes of one step",
    "clearing.late": "a step ran between a forward and its backward pass",
    "clearing.zeroed": "computed gradients were set to zero before the step",
    "loss-scale.own-optimizer": "the script's own optimizer gets gradients with the loss scale {scale:g}",
    "clipping.hooks": "tensor hooks change gradients before they are averaged",
    "coverage.unreached": "an optimizer updates parameters that no backward pass reached",
    # Whether the ranks agree.
    "agreement.rounding": "the weights of the ranks differ by rounding",
    "agreement.weights": "{apart} of {all} parameters differ between ranks: {names}",
    "agreement.parameters": "the optimizers of the ranks have different parameters",
    "agreement.buffers": "{apart} of {all} buffers differ between ranks: {names}",
    "agreement.frozen": "{apart} of {all} parameters that are frozen, or in no optimizer of a rank, differ between "
    "ranks: {names}",
    "agreement.between": "the script changes weights between steps",
    "coverage.some-steps": "only some steps of the optimizer have gradients",
    # What is wrong with the gradients of a step.
    "no-gradient": "a step had no gradients",
    "step-first": "the step comes before its backward pass: the first of {steps:step} has no gradients",
    "no-backward": "a step had no backward pass since the last one",
    "unscaled-old": "gradients were not cleared: new ones were added to unscaled old ones",
    "overflow-replaced": "gradients overflowed at the loss scale {scale:g}, and the script replaced them",
    "ranks-by-factor": "gradients on rank {rank} are {ratio}x those on rank {other}, in {parameters:parameter}",
    "some-not-scaled": "a backward pass has no loss scale, but others of its step have {scale:g}",
    "several-scales": "the backward passes of a step have several loss scales: {scales}",
    "still-scaled": "gradients were not divided by the loss scale {scale:g} before the step",
    "unscaled-twice": "gradients were divided by the loss scale {scale:g} twice",
    "unscaled-by-another": "gradients with the loss scale {scale:g} were divided by {divisor:g}",
    "never-scaled": "gradients were divided by the loss scale {scale:g}, but no loss was scaled",
    "divided-twice": "each loss was divided by {passes}, and the accumulated gradients again",
    "ranks.divided-by-count": "each loss is divided by a count over all ranks, but the gradients are averaged too",
    "averaged-twice": "the mean over {ranks} ranks was divided by {ranks} again",
    "divided-by-all-and-averaged": "losses were divided by the {targets:g} targets of all ranks, then averaged",
    "some-divided-twice": "gradients of some parameters are divided by {divisor:.4g} twice, the others once: {named}",
    "not-sent": "only rank {rank} updates {count:parameter}, and the other ranks never get the new weights: {names}",
    "joined-twice": "the mean of the {left:rank} with data was multiplied by {ranks}/{left} twice",
    "own-gradients": "the step used only this rank's gradients",
    "clipped-then-averaged": "each rank clipped its own gradients before the average: factors {factors}",
    "clipped-by-value-then-averaged": "each rank clipped its own gradients by value before the average",
    "not-cleared-in-closure": "the closure does not clear gradients: each call adds to those of the calls before",
    "not-cleared": "gradients were not cleared: the step also used those of earlier steps",
    "infinite-kept": "gradients overflowed and were not cleared: {passes:backward pass} added to them",
    "used-again": "{again} of {used} parameters reused the gradient of an earlier step: {names}",
    "exchanged": "parameters got each other's gradients: {names} got those of {others}",
    "parts-averaged": "{parameters} of {all} parameters differ between ranks but use the mean of all ranks: {names}",
    "old-in-step": "gradients were not cleared: the step has those of earlier steps",
    "micro-batches-missing": "the step lacks {places:of micro-batch}",
    "micro-batches-own": "gradients of {places:of micro-batch} were not averaged over the ranks",
    "ranks-missing": "rank {rank} steps without gradients of some ranks",
    "divided-again": "the accumulated gradients were divided after each micro-batch",
    "summed-again": "the accumulated gradients were summed over the ranks after each micro-batch",
    "added-again": "each micro-batch added the accumulated gradients again",
    "some-not-averaged": "the gradients of {parameters} of {all} parameters were not averaged over the ranks: {names}",
    "some-not-summed": "the gradients of {parameters} of {all} parameters were not summed over the stages: {names}",
    # What is wrong between the ranks.
    "some-skip": "some ranks stepped and others skipped",
    "some-step": "{stepping} of {ranks} ranks stepped",
    "step-at-other-times": "ranks step after different numbers of backward passes: {passes}",
    "rates-differ": "ranks have different learning rates in parameter group {group}: {rates}",
    "scales-differ": "ranks have different loss scales, from {low:g} to {high:g}",
    "some-clip": "ranks {clipping} clipped the gradients of this step, ranks {others} did not",
    "returned-differ": "{parameters} of {all} parameters have different gradients of `autograd.grad` on the ranks: "
    "{names}",
    "used-differ": "{parameters} of {all} parameters have different gradients on the ranks: {names}",
    "weights-start-apart": "{apart} of {all} parameters start with different weights on the ranks: {names}",
    "weights-differ": "{apart} of {all} parameters differ between ranks before step {step}: {names}",
    # What it does to the update.
    "factor": "the update is {factor:size}",
    "parameters-shorter": "each gradient of {parameters} of {all:parameter} is {times:size}",
    "moves-late": "the gradients of the last {passes:backward pass} are never used",
    "moves-nothing": "the step changes 0 of {parameters:parameter}",
    "moves-no-more": "the optimizer stops after {steps:step}",
    "moves-twice": "the weights use one gradient twice",
    "made-up": "{lost} of {all} gradients come from no backward pass",
    "counts-again": "the gradients of the previous step are added {factor}x more",
    "times-as-long": "the norm of the gradients is at least {times}x the correct one",
    "ranks-in-update": "the update of rank {rank} has the gradients of {used} of {ranks} ranks",
    "rank-counts": "one rank's gradient counts up to {times:times} as much as another's",
    "pass-counts": "one backward pass counts up to {times:times} as much as another",
    "stale": "{stale} of {all} gradients are stale",
    "follow-others": "{parameters} of {all} parameters use gradients of other parameters",
    "lost-gradients": "the update of rank {rank} lacks {lost} of {all} gradients",
    "parameters-own": "{parameters} of {all} parameters use the gradients of 1 of {ranks} ranks",
    "ranks-stay": "the weights of {skipped} of {ranks} ranks do not change",
    "steps-farther": "the update of one rank is {times}x another's",
    "rank-stays": "one rank steps, and the learning rate of another is 0",
    "ranks-longer": "{without} of {ranks} ranks use gradients that are not clipped",
    "differ-by": "these weights differ by {share:share} (norm of the difference / norm of the weights)",
    "steps-of-some": "only some ranks change their weights in {steps:step}",
    # What was not seen.
    "recorder-failed": "a part of the recorder failed ({observer}): {error}",
    "recorder-ended": "{reason}",
    "foreign-file": "a file in the folder of the records is from no recorder: {name}",
    "processes-unknown": "not all processes are known: {reason}",
    "no-account": "a process has no entry in the ledger",
    "records-unreadable": "the records of process {pid} cannot be read after step {step}: {reason}",
    "account-lost": "the watch lost the entry of process {pid} after step {step}",
    "recorder-not-started": "the recorder could not start in process {pid}: {reason}",
    "records-stopped": "the recording of process {pid} stopped after step {step}: {reason}",
    "records-missing": "process {pid} lacks {missing:record} after step {step}",
    "ledger-written": "the script wrote to the ledger of the watch",
    "records-unjudged": "the records cannot be judged completely: {reason}",
    "unreached": "process {pid} ({command}) used torch without a recorder: start it with the same environment, "
    "without -I and -E",
    "outlived": "process {pid} ({command}) still ran when the command ended",
    "supervisor-killed": "the process that supervises the command was killed",
    "command-failed": "the command failed: {ending}",
    "no-torch": "no process of the command imported torch",
    # What the user has stated.
    "expected": "expected {of}={value}",
    "never-shown": "expected {of}={value}, but saw only {usual}",
    # Weights that change between two steps.
    "between.of-one": "rank {rank} overwrites the weights of all {ranks:rank} after each step",
    "between.summed": "the weights of {ranks:rank} are summed after each step and not divided: {names}",
    "between.lost": "{steps:step} of each other rank are lost",
    "between.times": "these weights grow {ranks} times with each step",
    # Data.
    "data.same-inputs": "All ranks read the same inputs in {alike} of {forwards:forward pass}",
    "data.same-inputs.effect": "the {ranks} ranks compute the same batches",
    "data.same-epoch": "another rank read {share:.0%} of a rank's samples in the same epoch",
    "data.same-epoch.effect": "An epoch has {share:.0%} of the samples more than once",
    "data.same-samples": "Two ranks have {share:.0%} of their samples in common",
    "data.same-micro-batches": "{passes} of {all} backward passes of a step gave the same gradients",
    "data.same-order": "{times} consecutive epochs start with the same {samples:sample}",
    "data.same-order.effect": "{again} of these {times} epochs repeat the first one",
    "data.same-shuffle": "{times} consecutive epochs start with the same {samples:sample}",
    "data.cut-twice": "{samples:sample} repeat in later epochs, each only on its own rank",
    "data.cut-twice.effect": "An epoch reads 1/{ranks} of the data",
    # Order of calls in a window, and clipping.
    "clearing.other-passes": "{count} of {steps:step} also use an earlier backward pass",
    "clip.after-step": "clipping comes after the step, before the next backward pass",
    "clip.before-passes": "clipping comes before the backward pass, when there are no gradients",
    "clip.between-passes": "clipping comes between two backward passes of a step",
    "clip.clipped-again": "clipped gradients are accumulated and clipped again",
    "clip.not-by-norm": "no gradient is clipped: the norm is at least {norm}, the limit {limit:g}",
    "clip.not-by-value": "no gradient is clipped: the norm is at least {norm}, the limit of an element {limit:g}",
    "clip.passes-unclipped": "the gradients of {passes} of {all:backward pass} are not clipped",
    "clip.used-up": "clipping gets an exhausted iterator of parameters",
    "clipping.aside": "steps use unclipped gradients; clipped gradients reach no step",
    "clipping.before-change": "gradients change after clipping, by up to {ratio:.3g}x",
    "clipping.unheld": "a clip's norm includes {count:parameter} of no optimizer; the others have {ratio:.3g}x of it",
    "clipping.before-last-pass": "clipping comes before the last backward pass (limit {limit:g})",
    "clipping.by-value": "gradients are clipped by value, to {limit:g}",
    "clipping.nothing": "a clip call gets no tensor with a gradient",
    "clipping.parts": "clipping covers {clipped} of {all:parameter} in {calls:call}, never all at once",
    "finite.of": "the gradients of {wrong} of {all:parameter} are NaN or infinite",
    "finite.step": "a step uses gradients that are not finite",
    "loss-scale.left": "losses are multiplied by {scale:g}, and gradients are not divided by it",
    "loss-scale.restarts": "{scalers} new scalers start at {scale:g} again, without what the updates changed",
    "loss-scale.not-updated": "the scaler has no update between two steps: the loss scale stays {scale:g}",
    "loss-scale.not-finite": "a step gets gradients that are not finite; the script may discard it",
    "passes.contains": "a backward pass includes the loss of an earlier one again",
    "passes.repeat": "a loss is computed twice from the same outputs, and both go backward",
    "passes.before": "the first step also uses the gradients of a backward pass before the training",
    "passes.extra": "{passes} of {all:backward pass} of the step are not of its window",
    "passes.evaluated": "the step also uses uncleared gradients of an evaluation",
    "passes.evaluated-of": "{passes} of {all:backward pass} of the step are in evaluation mode",
    "passes.scaled": "the gradients of {passes} of {all:backward pass} are not divided by {scale:g}",
    "passes.twice": "the gradients of {passes} of {all:backward pass} are added twice",
    "passes.unreduced": "gradients of {parameters:parameter} are not reduced yet: {names}",
    "passes.unreduced-of": "{parameters} of {all:parameter} lack gradients of this window",
    "passes.unscaled-between": "gradients are unscaled between two backward passes of a step",
    # Loss scale and schedules
    "clipping.scaled-norm": "Gradients are clipped to {limit:g} before the loss scale {scale:g} is divided out",
    "clipping.scaled-value": "Elements are clipped to {limit:g} before the loss scale {scale:g} is divided out",
    "clip.scaled.effect": "Each clipped value is {scale:size}",
    "clip.left.effect": "Each gradient is {left:size} after clipping",
    "rate.negative": "The learning rate is {rate:.3g}",
    "rate.negative.effect": "A negative rate steps uphill: the loss grows",
    "schedule.before-step": "{name} steps between the backward pass and the optimizer's step",
    "schedule.each-pass": "{name} steps after each of {passes} backward passes, not once after the optimizer's step",
    "schedule.before-step.effect": "The step's learning rate is {after:.3g} instead of {before:.3g}",
    "schedule.ends-early": "{name} steps {often:.2g} times for each step of its optimizer",
    "schedule.ends-early.effect": "The learning rate is 0 in the last {still} of {steps:step}",
    "schedule.of-another": "{name} belongs to an optimizer that never steps: another one updates its parameters",
    "schedule.of-another.effect": "The learning rate stays {rate:g} in {steps:step}",
    "schedule.never-steps": "{name} never steps in {steps:step}: the learning rate stays {rates:g}",
    "schedule.steps-often": "{name} steps {often:.2g} times for each step of its optimizer",
    "schedule.past-its-end": "{name} was made for {made_for:step}, but steps {times:time}",
    "schedule.before-first-step": "{name} steps {times:time} before the first step of its optimizer",
    "schedule.several": "{name} and another schedule are of one optimizer, while another optimizer has none",
    "schedule.without-steps": "{name} steps {times:time} after the last step of its optimizer",
    "schedule.zero-rate": "The learning rate of some parameters is 0 in all {steps:step}",
    "schedule.low-rate": "The learning rate is below 1e-4 of its maximum {most:.3g} in {low} of {steps:step}",
    # Denominators.
    "ranks.means-added": "the gradients of the ranks are summed, not averaged",
    "micro-batches.sum": "the losses of {passes} micro-batches are summed but not divided",
    "micro-batches.short": "a short window is divided by {number} instead of {passes}",
    "micro-batches.long": "a window continues from one epoch into the next, and is divided by {number} instead of "
    "{passes}",
    "micro-batches.divided": "each loss is divided by {number}, but its step has {passes:backward pass}: the "
    "update is {times:size}",
    "micro-batches.divided-by-ranks": "losses are divided by {ranks}, the number of ranks, and gradients are averaged",
    "micro-batches.divided-twice": "each of {number} losses is divided by {number} twice",
    "micro-batches.last-only": "{batches} batches are loaded, but only one loss, divided by {batches}, goes backward",
    "micro-batches.uneven": "some losses of a step weigh {times:times} of the others",
    "micro-batches.means": "each loss is the mean of its own micro-batch ({least} to {most} targets), not of the "
    "window",
    "denominator.apart": "means over different numbers of targets count the same: a target weighs up to {times}x as "
    "much as another",
    "denominator.constant": "sums are divided by a constant: the weights of a step's targets add up to {least} to "
    "{most} instead of 1",
    "micro-batches.target-weighs": "a target weighs up to {times}x as much as another in the update",
    "micro-batches.times-ranks": "each loss is multiplied by {ranks}, the number of ranks",
    "micro-batches.total": "the weights of a step's targets add up to {weight} instead of 1",
    "micro-batches.totals": "the weights of a step's targets add up to {least} to {most} instead of 1",
    # coverage, detached, discarded, owners
    "coverage.unheld": "{count} of {all} parameters with gradients belong to no optimizer: {names}",
    "coverage.outdated": "the optimizer lacks {count:parameter} of the model ({names}), and has {idle} of no model",
    "coverage.zero-gradient": "the gradients of {count} of {all} parameters are exactly 0 in {step:step}: {names}",
    "coverage.no-gradient": "{count} of {all} parameters of the optimizer have no gradient in any step: {names}",
    "coverage.without-state": "the checkpoint of the weights has an optimizer state that is not loaded",
    "coverage.of-no-step": "no step on any rank uses the gradients of {count} of {all:parameter}: {names}",
    "coverage.left-out": "no step uses the gradients of {count} of {all} parameters of the optimizer: {names}",
    "coverage.no-more-steps": "the optimizer stops after {steps:step}, with {passes:backward pass} still to come",
    "clearing.part": "gradients of {parameters:parameter} were cleared before a step used that backward pass: {names}",
    "clearing.discarded": "{passes:backward pass} cleared before any step used them, in {windows} of {steps:step}",
    "held.replaced": "{count:parameter} got no gradient in {steps:step}, but as many in no optimizer did: {names}",
    "held.unfrozen": "{count:parameter} were unfrozen during training but belong to no optimizer: {names}",
    "coverage.copies": "the optimizer steps copies, and the first elements of {count:parameter} never change: {names}",
    "held.stays": "no step changes {count:parameter} of the model",
    "held.stale": "FSDP2 still uses the old weights of {count:parameter}: call `set_reshard_after_backward(True)`",
    "held.old": "gradients are stale: their weights are {steps:step} old",
    "from-the-model.cut-off": "the losses of {passes:backward pass} depend on no parameter",
    "from-the-model.idle": "the weights do not change in {steps:step}",
    "clip-something.copies": "clipping gets {count} tensors without gradients instead of the optimizer's parameters",
    "clip-something.nothing": "no gradient is clipped to {limit:g}",
    "used.cleared-before": "gradients were cleared before a step used them",
    "used.step-without": "{steps:step} without gradients: this line clears them after the backward pass",
    "used.lost": "{passes} of {of:backward pass} change no weight",
}

_VALUES_OF_PARTS: Mapping[tuple[Property, str], str] = {
    (Property.RANKS, "mean"): "each replica and part: the gradient of all samples",
    (Property.AGREEMENT, "equal"): "replicas have the same weights",
}
"""If ranks have parts of some parameters, as in tensor parallelism."""

_VALUES: Mapping[tuple[Property, str], str] = {
    (Property.RANKS, "mean"): "the mean of all ranks",
    (Property.RANKS, "sum"): "the sum of all ranks",
    (Property.RANKS, "own"): "each rank's own gradients",
    (Property.RANKS, "weighted"): "a weighted sum of the ranks",
    (Property.MICRO_BATCHES, "mean"): "each that reached a step counts once",
    (Property.MICRO_BATCHES, "sum"): "each that reached a step counts once, as a sum",
    (Property.MICRO_BATCHES, "weighted"): "each micro-batch has its weight",
    (Property.DENOMINATOR, "targets"): "each target has the same weight",
    (Property.DENOMINATOR, "means"): "each mean has the same weight",
    (Property.CLEARING, "each-step"): "gradients are cleared for each step",
    (Property.CLEARING, "kept"): "some gradients are kept",
    (Property.CLEARING, "discarded"): "some gradients are discarded",
    (Property.LOSS_SCALE, "once"): "losses are scaled, gradients unscaled once",
    (Property.LOSS_SCALE, "own"): "scaled by the script",
    (Property.CLIPPING, "whole"): "all gradients are clipped together",
    (Property.CLIPPING, "parts"): "gradients are clipped in parts",
    (Property.CLIPPING, "early"): "gradients are clipped early",
    (Property.AGREEMENT, "equal"): "all ranks have the same weights",
    (Property.AGREEMENT, "apart"): "the ranks may differ",
    (Property.DATA, "other"): "different samples",
    (Property.DATA, "same"): "the same samples",
    (Property.SCHEDULE, "after-step"): "each after the optimizer's step",
    (Property.SCHEDULE, "any"): "at any time",
    (Property.COVERAGE, "all"): "all have an optimizer and gradients",
    (Property.COVERAGE, "part"): "some have no optimizer or gradient",
}
