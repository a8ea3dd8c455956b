"""Runs one rank of a case: calls the trainer's function, sends the recorder's events, and waits for its peers."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from multiprocessing import active_children, util

# Imported by name, before a trainer can replace them.
from os import getpid, read
from typing import TYPE_CHECKING, Any, NoReturn

from conformance.adapter.loading import Train, place_of
from conformance.runner.rank.killing import killed_in_save
from conformance.runner.rank.preparing import preload, remember, report_locks, separate_groups
from conformance.runner.rank.reporting import DESCRIPTORS_LOST, Sender, described, exit_code
from conformance.runner.rank.requirements import load_for
from conformance.runner.system import stacks
from conformance.runner.system.child import fresh_python
from conformance.runner.system.descriptors import Known, nameless_file

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


def wait_for_the_rest(notify: Callable[[Mapping[str, Any]], object]) -> None:
    """Wait, after the trainer's function has returned, for non-daemon threads and processes, as Python does at exit.
    ``notify`` gets their names, if any.

    A rank leaves without Python's teardown, which would also run the exit handlers of libraries.
    """
    own = threading.current_thread()
    threads = [thread.name for thread in threading.enumerate() if thread is not own and not thread.daemon]
    processes = _processes()
    if threads or processes:
        notify({"event": "leaving", "waits_for": [*threads, *processes]})
    try:
        if threads:
            # Executors have idle threads, which end only on this call.
            threading._shutdown()  # type: ignore[attr-defined]
        # A thread may have started more processes.
        if _processes():
            util._exit_function()  # type: ignore[attr-defined]
    except Exception:
        # Python prints such errors too, and continues.
        traceback.print_exc()


def _processes() -> list[str]:
    return [child.name for child in active_children() if not child.daemon]


@dataclass(frozen=True)
class Pipes:
    """A rank's descriptors: it writes evidence, notices and stack; the end of release lets it leave."""

    evidence: int
    notices: int
    release: int
    stack: int


#: Keeps recorders, and with them process groups: other ranks may need the groups' connections until all have finished,
#: and freeing a group joins its threads, which takes some 15 ms per case.
_never_freed: list[Recorder] = []


def run(load: Callable[[], Train], spec: dict[str, Any], rank: int, pipes: Pipes) -> int:
    """Run the function that ``load`` returns as rank ``rank``; returns the exit code.

    The rank's environment variables must be set.
    """
    import torch

    from conformance.trace.recorder import Recorder

    faulthandler.enable(file=2)
    stacks.answer_requests(pipes.stack)
    torch.set_num_threads(1)
    separate_groups()
    send = Sender(pipes.evidence, pipes.notices)
    report_locks(send.notify)
    release = Known.of(pipes.release)
    recorder = Recorder(killed_in_save(send, spec, rank), spec, rank)
    _never_freed.append(recorder)
    process = getpid()
    code = attempt(load, spec, rank, recorder, lambda: wait_for_the_rest(send.notify))
    if getpid() != process:
        # This process was forked by the trainer, which may wait for its end, and nobody releases it.
        return code or 0
    if send.has_ended:
        return DESCRIPTORS_LOST if send.lost else 1
    # The end of this process breaks its peers' connections. After an exception it waits too, so the peers raise later.
    if release.is_intact:
        read(pipes.release, 1)
    return code or 0


def attempt(
    load: Callable[[], Train], spec: dict[str, Any], rank: int, recorder: Recorder, wait: Callable[[], None]
) -> int | None:
    """Run the function that ``load`` returns, recorded, and ``wait`` for its threads and processes; returns the exit
    code if it raised, else None."""
    from torch import manual_seed

    from conformance.adapter.task import Task
    from conformance.trace.seams.ours import Aside, ours
    from conformance.workloads.model import WithDropout

    try:
        # This starts the time limit, because loading, such as an import, is the trainer's own work.
        recorder.note("started", pid=getpid())
        train = load()
        recorder.sites.trainer_file = file_of(train)
        with recorder:
            task = Task(spec, rank, recorder)
            if spec["model"]["kind"] == WithDropout.name:
                # torch starts all ranks alike, and then those that restore the state of rank 0 look right.
                manual_seed(rank)
            call(train, task)
            wait()
            recorder.finished()
    except BaseException as error:
        ours.look(late=True)
        with Aside():
            what = described(error)
            if ours.late and not what["declined"]:
                what["message"] += f" (the trainer replaced {', '.join(ours.late)})"
            recorder.raised(**what)
            return exit_code(error)
    return None


def call(function: Callable[[Any], object], argument: object) -> None:
    """Call a trainer.

    Raises TypeError if it returned a coroutine or generator, which has not run yet.
    """
    returned = function(argument)
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            # Prevents Python's warning that nobody awaits it.
            returned.close()
        kind = type(returned).__name__.replace("_", " ")
        raise TypeError(
            f"the trainer's function returned a {kind}, which has not run; write a plain `def train(task)` that runs "
            "it to the end"
        )


def file_of(train: Train) -> str | None:
    """The file of the trainer's function, as its frames name it; None for a callable that is not a function."""
    code = getattr(inspect.unwrap(train), "__code__", None)
    return None if code is None else code.co_filename


def spawn(target: str, backend: str, spec: dict[str, Any], rank: int, pipes: Pipes) -> NoReturn:
    """Become the rank in a fresh interpreter, which imports torch and the trainer itself."""
    job = nameless_file()
    values = {"backend": backend, "spec": spec, "rank": rank, "pipes": asdict(pipes)}
    os.write(job, json.dumps(values).encode())
    os.lseek(job, 0, os.SEEK_SET)
    for descriptor in (job, *astuple(pipes)):
        os.set_inheritable(descriptor, True)
    os.execv(sys.executable, fresh_python(__name__, str(job), target))


def main(descriptor: str, target: str) -> None:
    """The entry point of the interpreter that `spawn` starts; ``descriptor``: that of its job file."""
    sys.argv[:] = [place_of(target)]
    with open(int(descriptor), encoding="utf-8") as file:
        job = json.load(file)
    pipes = Pipes(**job["pipes"])
    stacks.answer_requests(pipes.stack)

    def load() -> Train:
        return load_for(target, job["backend"])[0]

    preload()
    remember()
    gc.enable()
    code = run(load, job["spec"], job["rank"], pipes)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
