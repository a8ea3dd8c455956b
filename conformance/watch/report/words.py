"""The sentences of a watch: one for each code of `properties.FACTS`, of `Finding.says` and of `Finding.effect`.

`{loss:g}` formats a number as Python does, `{passes:pass}` counts: "1 pass", "3 passes". A list is joined by commas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from conformance.watch.judging.findings import Said

_NUMBER = re.compile(r"[-+.,\d]*[a-zA-Z%]?")
_MOST_NAMED = 3


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, (list, tuple)):
            named = [self.format_field(one, format_spec) for one in value[:_MOST_NAMED]]
            return ", ".join([*named, *(["..."] if len(value) > _MOST_NAMED else [])])
        if not format_spec:
            return f"{value:.3g}" if isinstance(value, float) else str(value)
        if _NUMBER.fullmatch(format_spec):
            return format(value, format_spec)
        ending = "es" if format_spec.endswith(("ch", "sh", "s")) else "s"
        return f"{value} {format_spec}{'' if value == 1 else ending}"


def sentence(says: Said) -> str:
    """The sentence of a code, with its values. Raises KeyError for an unknown code or a value that is missing."""
    return _Words().vformat(WORDS[says.code], (), says.values)


WORDS: Mapping[str, str] = {
    # How the gradients of the ranks enter a step.
    "ranks.sum": "gradients are summed over {ranks:rank}, so the update is {ranks} times the mean",
    "ranks.own": "each rank steps on its own gradients",
    "ranks.own-some": "ranks step {parameters} of {all} parameters on different gradients: {names}",
    "ranks.parts": "{parameters} of {all} parameters differ from rank to rank, and use a mean of all ranks: {names}",
    "ranks.some": "an optimizer ({type}) of these parameters exists on some ranks only",
    "ranks.factor": "the update is {factor:.4g} times the mean of the gradients",
    "ranks.weighted": "ranks count with different weights ({table})",
    "ranks.left-out": "all ranks leave out the gradients of some ranks ({table})",
    "ranks.run-out": "some ranks may have run out of data, and the step is not the mean of all ranks",
    "ranks.groups": "gradients are averaged over groups of {size} of {ranks:rank}",
    "ranks.some-parameters": "the gradients of some parameters have another factor than the rest: {names}",
    "ranks.varies": "the factor of the gradients looks wrong in some steps, and not in others",
    "ranks.hook": "a communication hook changes what is averaged: {hooks}",
    "ranks.layout": "parameters are split over the ranks in a layout that the watch cannot follow",
    "ranks.missing": "only {seen} of {ranks:rank} made an optimizer",
    "ranks.turns": "ranks step at different times",
    "ranks.no-group": "the launcher started {started:process}, which never formed a process group",
    "ranks.order": "the ranks give their optimizers the parameters in different orders",
    "ranks.sample": "the ranks step a parameter in different windows, so they cannot be compared",
    # What became of gradients between the backward pass and the step.
    "changed": "gradients changed between backward pass and step, and not by a factor for each pass",
    "changed.alike": "gradients changed before the step, and some passes are too alike to tell apart",
    "changed.few": "gradients changed before the step, and there are too few parameters to tell how",
    "changed.long": "a step uses more backward passes than the watch keeps",
    "changed.coarse": "the gradients are too coarse or too small to tell by which factor they were used",
    "changed.by-hand": "the script wrote gradients into `.grad`, or computed them before it made the optimizer",
    "changed.captured": "gradients come from torch.autograd.grad, which the watch does not follow",
    "changed.by-element": "gradients were clipped by value, element by element",
    "changed.not-finite": "the script replaced gradients that are not finite",
    "changed.otherwise": "the optimizer does not read its gradients from `.grad`",
    "changed.weights": "weights are infinite or NaN",
    "micro.weighted": "backward passes count with different weights ({table})",
    "clearing.kept": "the step also uses gradients of earlier windows, changed by the script ({table})",
    "clearing.again": "two steps use the same gradient, and the script changes weights between them",
    "clearing.shared": "two optimizers step the same parameters with one gradient",
    "clearing.restored": "the step uses gradients that the script has put back ({table})",
    "clearing.several-weights": "the weights changed between two backward passes of one step",
    "clearing.late": "a step came between a forward and its backward pass",
    "clearing.zeroed": "computed gradients were set to zero before the step",
    "loss-scale.own-optimizer": "the script's own optimizer gets gradients that still carry the loss scale {scale:g}",
    "clipping.hooks": "tensor hooks change gradients before they are averaged",
    "coverage.unreached": "an optimizer steps parameters that no backward pass has reached",
    # Whether the ranks agree.
    "agreement.rounding": "the weights of the ranks differ by a rounding",
    "agreement.weights": "{apart} of {all} parameters differ between ranks: {names}",
    "agreement.parameters": "the optimizers of the ranks hold different parameters",
    "agreement.buffers": "{apart} of {all} buffers differ between ranks: {names}",
    "agreement.frozen": "{apart} of {all} frozen parameters differ between ranks: {names}",
    "agreement.between": "the script changes weights between steps",
    "coverage.some-steps": "the optimizer steps without gradients in some steps, and with gradients in others",
    # What is wrong with the gradients of a step.
    "no-gradient": "a step had no gradients",
    "no-backward": "a step had no backward pass since the last one",
    "unscaled-old": "gradients were not cleared: those of the step before, without the loss scale, were added to",
    "overflow-replaced": "gradients overflowed at the loss scale {scale:g}, and the script replaced them",
    "ranks-by-factor": "rank {rank} used {ratio} times what rank {other} used, in {parameters:parameter}",
    "several-scales": "backward passes of one window carry several loss scales: {scales}",
    "still-scaled": "the step used gradients that still carry the loss scale {scale:g}",
    "unscaled-twice": "gradients were divided by the loss scale {scale:g} twice",
    "unscaled-by-another": "gradients carry the loss scale {scale:g} and were divided by {divisor:g}",
    "never-scaled": "gradients were divided by the loss scale {scale:g}, which no loss was multiplied with",
    "divided-twice": "each loss was divided by {passes}, and the sum of their gradients again",
    "ranks.divided-by-count": "each loss is divided by a count of all ranks, and the gradients are averaged over them",
    "averaged-twice": "the mean over {ranks} ranks was divided by {ranks} again",
    "divided-by-all-and-averaged": "sums were divided by the {targets:g} targets of all ranks, then averaged",
    "own-gradients": "the step used this rank's gradients only",
    "clipped-then-averaged": "each rank clipped its own gradients, by {factors}, before they were averaged",
    "clipped-by-value-then-averaged": "each rank clipped its own gradients by value, before they were averaged",
    "not-cleared": "gradients were not cleared: the step also used those of earlier windows",
    "used-again": "{again} of {used} parameters used the gradient of an earlier step again: {names}",
    "exchanged": "parameters got each other's gradients: {names} those of {others}",
    "old-in-step": "gradients were not cleared: those of earlier windows are in the step ({table})",
    "micro-batches-missing": "missing in the step: micro-batch {places} ({table})",
    "micro-batches-own": "not averaged over the ranks: micro-batch {places} ({table})",
    "ranks-missing": "gradients of some ranks are missing in the step ({table})",
    "divided-again": "the accumulated gradients were divided after each micro-batch ({table})",
    "summed-again": "the accumulated gradients were summed over the ranks after each micro-batch ({table})",
    "added-again": "the accumulated gradients were added again with each micro-batch ({table})",
    "some-not-averaged": "{parameters} of {all} parameters were not averaged over the ranks: {names}",
    # What is wrong between the ranks.
    "some-skip": "some ranks stepped and others skipped",
    "some-step": "{stepping} of {ranks} ranks stepped",
    "step-at-other-times": "ranks stepped after {passes} backward passes",
    "rates-differ": "the learning rates of parameter group {group} differ: {rates}",
    "scales-differ": "the loss scales of the ranks differ, from {low:g} to {high:g}",
    "some-clip": "ranks {clipping} clipped the gradients of this step, and ranks {others} did not",
    "used-differ": "{parameters} of {all} parameters step on different gradients on the ranks: {names}",
    "weights-differ": "{apart} of {all} parameters differ between ranks before step {step}: {names}",
    # What it does to the update.
    "factor": "the update is {factor} times what it should be",
    "moves-nothing": "0 of {parameters:parameter} move",
    "moves-twice": "the weights move along one gradient twice",
    "made-up": "{lost} of {all} gradients are made up",
    "counts-again": "the gradients of the step before count {factor} times more",
    "times-as-long": "the gradients are at least {times} times as long as those of this window",
    "ranks-in-update": "the gradients of {used} of {ranks} ranks are in the update of rank {rank}",
    "rank-counts": "a rank counts up to {times} times as much as another",
    "pass-counts": "a backward pass counts up to {times} times as much as another",
    "stale": "{stale} of {all} gradients are stale",
    "follow-others": "{parameters} of {all} parameters follow gradients of other parameters",
    "lost-gradients": "{lost} of {all} gradients are not in the update of rank {rank}",
    "parameters-own": "{parameters} of {all} parameters follow the gradients of 1 of {ranks} ranks",
    "ranks-stay": "the weights of {skipped} of {ranks} ranks stay as they are",
    "steps-farther": "one rank steps {times} times as far as another",
    "rank-stays": "one rank steps, and another one's rate is 0",
    "ranks-longer": "{without} of {ranks} ranks step with longer gradients",
    "differ-by": "these weights differ by {share:.2g} of their size",
    "steps-of-some": "the weights of some ranks only change in {steps:step}",
    # What was not seen.
    "recorder-failed": "a part of the recorder failed ({observer}): {error}",
    "recorder-ended": "{reason}",
    "foreign-file": "the folder of the records holds a file that no recorder wrote: {name}",
    "processes-unknown": "not all processes are known: {reason}",
    "no-account": "a process has no account in the ledger, so nothing is known of it",
    "records-unreadable": "the records of process {pid} cannot be read after step {step}: {reason}",
    "account-lost": "nothing is known of process {pid} after step {step}: its account was lost",
    "recorder-not-started": "the recorder could not start in process {pid}: {reason}",
    "records-stopped": "nothing is recorded of process {pid} after step {step}: {reason}",
    "records-missing": "nothing is recorded of process {pid} after step {step}: {missing:record} missing",
    "ledger-written": "the script has written into the ledger of the watch",
    "records-unjudged": "the records cannot be judged to their end: {reason}",
    "unreached": "process {pid} ({command}) used torch without a recorder: start it with the command's environment, "
    "without -I and -E",
    "outlived": "the command ended before process {pid} ({command}), which may train on",
    "supervisor-killed": "the process that supervises the command was killed",
    "command-failed": "the command failed: {ending}",
    "no-torch": "no process of the command imported torch on this machine",
    # What the user has stated.
    "expected": "expected {of}={value}",
    "never-shown": "{of}={value} was expected, and only {usual} was seen",
    # Data.
    "data.same-inputs": "All ranks read the same inputs in {alike} of {forwards:forward}",
    "data.same-inputs.effect": "{ranks} ranks train on 1/{ranks} of the samples that they could",
    "data.same-epoch": "{share:.0%} of a rank's samples came on another rank in the same epoch",
    "data.same-epoch.effect": "{share:.0%} of the samples count more than once an epoch",
    "data.same-samples": "Two ranks have {share:.0%} of their samples in common",
    "data.same-micro-batches": "{passes} of {all} backward passes of a step gave the same gradients",
    "data.same-order": "{times} epochs in a row began with the same {samples:sample}, each as number {epoch}",
    "data.same-order.effect": "{times} epochs read the same batches",
    "data.cut-twice": "{samples:sample} came again in later epochs, each only on its own rank",
    "data.cut-twice.effect": "An epoch reads 1/{ranks} of the data",
    # Order of calls in a window, and clipping.
    "clearing.other-passes": "{count} of {steps:step} also use an earlier backward pass ({at})",
    "clip.after-step": "clipping comes after the step and before the next backward pass",
    "clip.before-passes": "clipping comes before the backward pass, when there are no gradients",
    "clip.between-passes": "clipping comes between two backward passes of a window",
    "clip.clipped-again": "clipped gradients are added up and clipped again",
    "clip.not-by-norm": "no gradient is clipped: the step uses a norm of at least {norm}, and the limit is {limit:g}",
    "clip.not-by-value": "no gradient is clipped: the step uses a norm of at least {norm}, "
    "and the limit of an element is {limit:g}",
    "clip.passes-unclipped": "the gradients of {passes} of {all:backward pass} are not clipped",
    "clip.used-up": "clipping gets a generator of parameters that is used up",
    "clipping.aside": "clipped gradients reach no step, and steps use gradients that are not clipped ({at})",
    "clipping.before-change": "gradients change after clipping: by a factor of up to {ratio:.3g}",
    "clipping.before-last-pass": "clipping comes before the last backward pass (limit {limit:g})",
    "clipping.by-value": "gradients are clipped element by element, to {limit:g}",
    "clipping.nothing": "a clip call gets nothing that has a gradient",
    "clipping.parts": "clipping covers {clipped} of {all:parameter} in {calls:call}, never all at once",
    "finite.of": "the gradients of {wrong} of {all:parameter} are NaN or infinite",
    "finite.step": "a step uses gradients that are not finite",
    "loss-scale.not-finite": "a step gets gradients that are not finite, which the script may discard",
    "passes.contains": "a backward pass goes through the loss of an earlier one again",
    "passes.evaluated": "the step also uses gradients of an evaluation, which were not cleared",
    "passes.evaluated-of": "{passes} of {all:backward pass} of the step are in evaluation mode",
    "passes.scaled": "the gradients of {passes} of {all:backward pass} are not divided by {scale:g}",
    "passes.stale": "{stale} of {all:gradient} are of earlier weights",
    "passes.stale-closure": "a closure is called {calls:time} at several weights and computes no gradient",
    "passes.twice": "the gradients of {passes} of {all:backward pass} are added up twice",
    "passes.unreduced": "gradients of {parameters:parameter} are not reduced yet: {names}",
    "passes.unreduced-of": "{parameters} of {all:parameter} lack gradients of this window",
    "passes.unscaled-between": "unscale_ comes between two backward passes of a window",
    # Loss scale and schedules
    "clipping.scaled-norm": "Clipping compares the norm of gradients times {scale:g} with {limit:g}",
    "clipping.scaled-value": "Clipping compares elements of gradients times {scale:g} with {limit:g}",
    "clip.scaled.effect": "What is compared with the limit is {scale:g}x of the correct value",
    "clip.left.effect": "Gradients after clipping are {left:.3g}x of the correct ones",
    "rate.negative": "The learning rate is {rate:.3g}",
    "rate.negative.effect": "A negative rate steps uphill: the loss grows",
    "schedule.before-step": "{name} steps between the backward pass and the optimizer's step",
    "schedule.before-step.effect": "The step's learning rate is {after:.3g} instead of {before:.3g}",
    "schedule.ends-early": "{name} steps {often:.2g} times for each step of its optimizer",
    "schedule.ends-early.effect": "The learning rate is 0 in the last {still} of {steps:step}",
    "schedule.of-another": "{name} steps for an optimizer that never does: another one steps its parameters",
    "schedule.of-another.effect": "The learning rate stays {rate:g} in {steps:step}",
    "schedule.never-steps": "{name} never steps in {steps:step}: the learning rate stays {rates:g}",
    "schedule.steps-often": "{name} steps {often:.2g} times for each step of its optimizer",
    "schedule.past-its-end": "{name} is made for {made_for:step} and steps {times:time}",
    "schedule.before-first-step": "{name} steps {times:time} before the first step of its optimizer",
    "schedule.without-steps": "{name} steps {times:time} after the last step of its optimizer",
    "schedule.zero-rate": "The learning rate of some parameters is 0 in all {steps:step}",
    "schedule.low-rate": "The learning rate is below 1e-4 of its maximum {most:.3g} in {low} of {steps:step}",
    # Denominators.
    "ranks.means-added": "the update is {times:g} times the mean over all targets: the ranks' means are added up",
    "ranks.divided-by-all": "losses are divided by {targets:target} of all ranks, and averaged over ranks again",
    "micro-batches.sum": "losses of {passes} micro-batches are added up, and nothing divides them",
    "micro-batches.short": "a window of {passes:micro-batch} divides each loss by {number}",
    "micro-batches.divided": "each loss is divided by {number}, and its window has {passes:backward pass}",
    "micro-batches.divided-twice": "each of {number} losses is divided by {number} twice",
    "micro-batches.last-only": "{batches} batches are loaded, but only one loss, divided by {batches}, goes backward",
    "micro-batches.uneven": "some losses of a window count {times:g} times as much as the others",
    "micro-batches.means": "micro-batches of {least} to {most} targets count alike: a target weighs {times}x another",
    "micro-batches.target-weighs": "the largest weight of a target in the update is {times} times the smallest",
    "micro-batches.times-ranks": "each loss is multiplied by {ranks}, which is also the number of ranks",
    "micro-batches.total": "the targets of a step weigh {weight} together, and 1 in a mean",
    "micro-batches.totals": "the targets of a step weigh {least} to {most} together, and 1 in a mean",
    "times-the-mean": "the update is {times} times the mean",
    # coverage, detached, discarded, owners
    "coverage.unheld": "{count:parameter} with gradients in no optimizer: {names}",
    "coverage.no-gradient": "{count} of {all} parameters of the optimizer have no gradient in any step: {names}",
    "coverage.no-more-gradient": "{count} of {all} parameters of the optimizer get none after step {step}: {names}",
    "coverage.no-more-steps": "the optimizer stops after {steps:step}, before {passes:backward pass}",
    "clearing.discarded": "{passes:backward pass} cleared before a step used them, in {windows} of {steps:step}",
    "held.replaced": "{count:parameter} got no gradient in {steps:step}, as many in no optimizer did: {names}",
    "held.unfrozen": "no optimizer got {count:parameter}, unfrozen while others trained: {names}",
    "held.stays": "no step changes {count:parameter} of the model",
    "held.stale": "FSDP2 still uses the old weights of {count:parameter}: call `set_reshard_after_backward(True)`",
    "held.old": "gradients are of weights that are {steps:step} old",
    "from-the-model.cut-off": "no graph leads from the losses of {passes:backward pass} to a parameter",
    "from-the-model.idle": "no weight changes in {steps:step}",
    "clip-something.copies": "clipping gets {count} tensors without gradients, not the parameters of the optimizer",
    "clip-something.nothing": "no gradient is clipped to {limit:g}",
    "used.cleared-before": "{passes:backward pass} cleared before a step used them, for {steps:step}",
    "used.step-without": "{steps:step} without gradients: this line clears them after the backward pass",
    "used.lost": "the gradients of {passes:backward pass} are in no update",
}
