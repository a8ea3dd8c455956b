"""For frameworks that save at the end of an epoch alone."""

from itertools import accumulate

from conformance import Task, Unsupported


def epochs_until_stop(task: Task) -> int:
    """How many epochs to train: all, if there is no stop. Raises `Unsupported` for a stop inside an epoch."""
    ends = [*accumulate(len(list(epoch.windows())) for epoch in task.epochs())]
    if task.stop_after is None:
        return len(ends)
    if task.stop_after not in ends:
        raise Unsupported("a stop inside an epoch, as it saves at the end of an epoch alone")
    return 1 + ends.index(task.stop_after)
