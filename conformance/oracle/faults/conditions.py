"""What must hold for a problem if a trainer can have a fault in it."""

from __future__ import annotations

from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD


def distributed(problem: Problem) -> bool:
    return problem.layout.world_size > 1


def accumulating(problem: Problem) -> bool:
    return problem.layout.accumulation > 1


def runs_out(problem: Problem) -> bool:
    """Whether some ranks have no data left at the end."""
    return any(window.with_data < window.world_size for window in problem.windows)


def decays(problem: Problem) -> bool:
    workload = problem.workload
    return bool(workload.optimizer.weight_decay) and (workload.steps > 1 or any(workload.start))


def has_momentum(problem: Problem) -> bool:
    optimizer = problem.workload.optimizer
    return isinstance(optimizer, SGD) and bool(optimizer.momentum) and problem.workload.steps > 1


def clips(problem: Problem) -> bool:
    return problem.workload.clip is not None


def has_groups(problem: Problem) -> bool:
    return bool(problem.workload.groups)


def invites_groups(problem: Problem) -> bool:
    """Whether there is one group, and parameters that trainers like to make several of."""
    workload = problem.workload
    return not workload.groups and len({tensor.group(2) for tensor in workload.model.tensors}) > 1


def has_epochs(problem: Problem) -> bool:
    return len(problem.ends) > 1 and problem.workload.windows_of_epoch > 1


def schedules(problem: Problem) -> bool:
    workload = problem.workload
    return bool(workload.schedules) and workload.schedule_by == "step" and workload.steps > 1
