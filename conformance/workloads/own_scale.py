"""The same training in smaller numbers, for trainers that begin with a loss scale of their own.

A model that is linear in its parameters trains alike in any unit of its outputs. With the start, the targets and
whatever else has this unit divided by a power of two, weights and gradients are divided by it, and at a loss scale that
is multiplied by it the scaled gradients are the same.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from conformance.workloads.model import Model
from conformance.workloads.outliers import has_infinite_loss
from conformance.workloads.recipes import GROWING
from conformance.workloads.workload import SGD, Adagrad, Group, Optimizer, Sample, Workload

#: With which `torch.amp.GradScaler` and most frameworks begin.
OWN_SCALE = Fraction(2**16)


def can_have_own_scale(workload: str, model: Model) -> bool:
    """Whether the model is linear in the parameters, and the workload is not about when the loss scale grows."""
    return len(model.layers) == 1 and workload != GROWING


def at_own_scale(workload: Workload) -> Workload:
    """``workload``, which can have it, at OWN_SCALE, in the unit in which scaled gradients are those of before."""
    unit = workload.scale.init_scale / OWN_SCALE
    return replace(
        workload,
        batches=tuple(tuple(_sample(sample, unit) for sample in batch) for batch in workload.batches),
        start=tuple(value * unit for value in workload.start),
        optimizer=_optimizer(workload.optimizer, unit),
        groups=tuple(_group(group, workload.optimizer, unit) for group in workload.groups),
        clip=workload.clip and replace(workload.clip, threshold=workload.clip.threshold * unit),
        scale=replace(workload.scale, init_scale=OWN_SCALE),
    )


def _sample(sample: Sample, unit: Fraction) -> Sample:
    # An infinite loss must stay infinite.
    return sample if has_infinite_loss(sample) else replace(sample, y=sample.y * unit)


def _optimizer(optimizer: Optimizer, unit: Fraction) -> Optimizer:
    """Steps along gradients have their unit. Those along quotients have none, but for the rate and the epsilon."""
    if isinstance(optimizer, SGD):
        return optimizer
    own = replace(optimizer, lr=optimizer.lr * unit, eps=optimizer.eps * unit)
    # AdamW's decay is multiplied by the rate.
    return own if isinstance(own, Adagrad) else replace(own, weight_decay=own.weight_decay / unit)


def _group(group: Group, optimizer: Optimizer, unit: Fraction) -> Group:
    if isinstance(optimizer, SGD):
        return group
    decay = group.weight_decay if isinstance(optimizer, Adagrad) else group.weight_decay / unit
    return replace(group, lr=group.lr * unit, weight_decay=decay)
