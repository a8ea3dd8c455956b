"""The driver of one case: the process that runs the function of a trainer that launches its workers itself."""

from __future__ import annotations

import faulthandler
import importlib.machinery
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from conformance.adapter.declaration import Job
from conformance.adapter.loading import Train
from conformance.runner.rank.rank import Pipes, call, file_of
from conformance.runner.rank.reporting import DESCRIPTORS_LOST, Sender, described, exit_code
from conformance.runner.system import stacks
from conformance.runner.system.descriptors import Known


def run(load: Callable[[], Train], job: Job, pipes: Pipes) -> int:
    """Run the function that ``load`` returns; the result is the exit code."""
    faulthandler.enable(file=2)
    stacks.answer_requests(pipes.stack)
    make_importable_for_workers()
    send = Sender(pipes.evidence, pipes.notices)
    release = Known.of(pipes.release)
    process = os.getpid()
    send({"event": "started", "pid": process})
    try:
        train = load()
        pickle_by_value(train)
        call(train, replace(job, ticket={**job.ticket, "trainer_file": file_of(train)}))
    except BaseException as error:
        what = described(error)
        print(what["traceback"], file=sys.stderr, flush=True)
        send({"event": "raised", **what, "at": monotonic()})
        return exit_code(error)
    if os.getpid() != process:
        # A process that the trainer forked, and for which it may wait.
        return 0
    send({"event": "finished"})
    if send.has_ended:
        return DESCRIPTORS_LOST if send.lost else 1
    # Frameworks end their workers with the driver, so give the workers time to send their last events.
    if release.is_intact:
        os.read(pipes.release, 1)
    return 0


def make_importable_for_workers() -> None:
    """Let every Python started from here import the same modules as this process."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))


def pickle_by_value(train: Train) -> None:
    """Have cloudpickle send the trainer's functions by value if a worker could not import their module.

    We give the module of a file its name (`importing.from_path`). Functions of a module that is not in `sys.modules`
    are pickled by value.
    """
    name = train.__module__
    if "." not in name and importlib.machinery.PathFinder.find_spec(name) is None:
        sys.modules.pop(name, None)
