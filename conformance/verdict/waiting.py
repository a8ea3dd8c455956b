"""What a rank that hangs waits for, as its stack shows."""

from __future__ import annotations

import re

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)', re.MULTILINE)
# A call that waits: the end of its file's name, its function, and what it waits for.
_WAITS = [
    (re.compile(rf"(^|[/\\]){file}$"), re.compile(rf"{function}$"), what)
    for file, function, what in (
        (r"torch/utils/file_baton\.py", "wait", "the lock file of a build of a torch extension"),
        (r"filelock/.*\.py", "acquire", "a lock file"),
        (r"distributed_c10d\.py", "(init_process_group|new_group|_new_group_with_tag)", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(barrier|monitored_barrier)", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(all_|broadcast|reduce|gather|scatter).*", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(send|recv)", "another rank in {}"),
        (r"torch/autograd/graph\.py", "_engine_run_backward", "its backward, in which ranks may wait for each other"),
        (r"horovod/torch/mpi_ops\.py", "synchronize", "the other ranks in hvd.{}"),
        (r"subprocess\.py", "(wait|_wait|communicate|_communicate)", "another process"),
        (r"multiprocessing/.*\.py", "(join|wait|poll|recv.*|get)", "another process"),
        (r"queue\.py", "(get|put)", "a queue"),
        (r"(socket|ssl|selectors|urllib/request|http/client)\.py", ".*", "the network"),
        (r"threading\.py", "(wait|join|_wait_for_tstate_lock|acquire)", "another thread"),
    )
]


def waits_for(stack: str, trainer_frame: str) -> str | None:
    """What the calls below the line of the trainer wait for; None if they are not known to wait.

    ``stack``: faulthandler's, the most recent call first. ``trainer_frame``: the text of the trainer's innermost frame.
    """
    thread = next((part for part in re.split(r"\n\s*\n", stack) if trainer_frame in part), "")
    below = list(_FRAME.finditer(thread.partition(trainer_frame)[0]))
    # The outermost call says more than what it is made of.
    for frame in reversed(below):
        for file, function, what in _WAITS:
            if file.search(frame["file"]) and function.match(frame["function"]):
                return what.format(frame["function"])
    return None
