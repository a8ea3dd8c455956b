"""Trainers that launch their workers themselves: the results of workers, and reports of failures."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent, indent

import pytest

import conformance
from conformance.runner.front.client import ForkServer
from conformance.trace.events import check_all

LIMIT = 60.0

# Workers are forked from the driver, which has imported torch, unlike the workers of frameworks' sessions.
TEMPLATE = """
import multiprocessing, os, signal, tempfile, threading
from contextlib import contextmanager
import torch
import torch.distributed as dist
import conformance
from conformance import Job, trainer


@contextmanager
def session():
    with tempfile.TemporaryDirectory() as folder:
        yield {{"folder": folder, "pid": os.getpid()}}


@trainer(backends=["ddp"], launches_workers=True, session=session)
def train(job: Job) -> None:
    start = multiprocessing.get_context("fork").Process
    workers = [start(target=work, args=(job.ticket, rank, job.session["folder"])) for rank in range(job.world_size)]
    for worker in workers:
        worker.start()
{driver}
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"a worker ended with {{worker.exitcode}}")


def work(ticket, rank, folder):
    store = f"file://{{folder}}/{{ticket['token']}}"
    with conformance.enter(ticket, rank) as task:
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=task.world_size)
        model = torch.nn.parallel.DistributedDataParallel(task.model())
        optimizer = task.optimizer(model.parameters())
{inside}
        for batch in task.dataloader():
            optimizer.zero_grad()
            task.loss(model(batch.inputs), batch).backward()
            optimizer.step()
"""

# One worker that is both ranks in turn.
BY_TURNS = """
import conformance
from conformance import Job, trainer


@trainer(backends=["ddp"], launches_workers=True)
def train(job: Job) -> None:
    replicas = [Replica(job.ticket, rank) for rank in range(job.world_size)]
    for _ in range(job.steps):
        for replica in replicas:
            replica.step()
    for replica in replicas:
        replica.entry.finish()
        replica.entry.close()


class Replica:
    def __init__(self, ticket, rank):
        self.entry = conformance.Entry(ticket, rank)
        with self.entry.working() as self.task:
            self.model = self.task.model()
            self.optimizer = self.task.optimizer(self.model.parameters())
            self.batches = iter(self.task.dataloader())

    def step(self):
        with self.entry.working():
            self.work()

    def work(self):
{inside}
        batch = next(self.batches)
        self.optimizer.zero_grad()
        self.task.loss(self.model(batch.inputs), batch).backward()
        self.optimizer.step()
"""


@pytest.fixture
def serve(tmp_path):
    """Starts a server of the template's trainer, with ``inside`` in each worker, and ``driver`` in the driver after it
    started them. ``instead``: a text of the template and its replacement."""
    with ExitStack() as stack:

        def start(inside="", driver="", template=TEMPLATE, instead=("", "")):
            path = tmp_path / "trainer_0.py"
            inside, driver = (indent(dedent(code), by) for code, by in ((inside, " " * 8), (driver, " " * 4)))
            path.write_text(template.replace(*instead, 1).format(inside=inside, driver=driver))
            return stack.enter_context(ForkServer(str(path), "ddp"))

        yield start


@pytest.fixture
def run(serve, make_spec):
    def run_case(inside="", driver="", time_limit=LIMIT, **template):
        return serve(inside, driver, **template).run(make_spec("ddp"), time_limit)

    return run_case


def test_a_process_forked_by_the_driver_does_not_wait_like_the_driver(run):
    forks = "if not (child := os.fork()): return\nassert os.waitpid(child, 0)[1] == 0"
    assert [rank.finished for rank in run(driver=forks).ranks] == [True, True]


def test_each_worker_is_a_rank(serve, make_spec):
    server = serve()
    outcomes = [server.run(make_spec("ddp"), LIMIT) for _ in range(2)]
    for outcome in outcomes:
        assert [rank.exit for rank in outcome.ranks] == ["exited 0", "exited 0"]
        for number, rank in enumerate(outcome.ranks):
            assert rank.finished
            kinds = [event["event"] for event in rank.events]
            assert (kinds[0], kinds[-1], kinds.count("step")) == ("started", "finished", 3)
            assert {event["rank"] for event in rank.events} == {number}
            [step, *_] = [event for event in rank.events if event["event"] == "step"]
            assert step["where"][0].startswith("trainer_")
            assert next(event for event in rank.events if event["event"] == "topology")["world_size"] == 2
    pids = {rank.events[0]["pid"] for outcome in outcomes for rank in outcome.ranks}
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_worker_that_is_several_ranks_in_turn(run):
    rows = []
    for number, rank in enumerate(run(template=BY_TURNS).ranks):
        assert rank.finished
        assert {event["rank"] for event in rank.events} == {number}
        kinds = [event["event"] for event in rank.events]
        assert (kinds.count("forward"), kinds.count("step"), kinds.count("foreign_optimizer")) == (3, 3, 0)
        assert [event["backward"] for event in rank.events if event["event"] == "backward_begin"] == [0, 1, 2]
        rows.append([event["rows"] for event in rank.events if event["event"] == "forward"])
    assert rows[0] != rows[1]


@pytest.mark.parametrize(("template", "number"), [(TEMPLATE, "rank"), (BY_TURNS, "self.task.rank")])
def test_a_worker_that_raises(run, template, number):
    """Also if one worker is all ranks in turn."""
    zero, one = run(f'if {number} == 1: raise ValueError("no such luck")', template=template).ranks
    raised = one.events[-1]
    assert (raised["event"], raised["type"], raised["message"]) == ("raised", "ValueError", "no such luck")
    assert 'raise ValueError("no such luck")' in raised["traceback"]
    assert (zero.finished, one.finished, zero.after, one.after) == (False, False, 1, None)
    assert "ValueError: no such luck" in one.output


def test_a_worker_that_dies(run):
    zero, one = run("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)").ranks
    assert one.exit.startswith("the worker of rank 1 disconnected before it finished")
    assert (zero.after, one.after) == (1, None)


@pytest.mark.parametrize("fails", ["os.kill(os.getpid(), signal.SIGKILL)", 'raise ValueError("no such luck")'])
def test_a_worker_that_fails_counts_as_earlier_than_its_peers(run, fails):
    """The server, which rank 1 stops temporarily, gets both reports at once."""
    zero, one = run(f"""
        if rank == 1:
            import subprocess, time
            with open(f"/proc/{{os.getppid()}}/stat") as stat:
                server = int(stat.read().rpartition(")")[2].split()[1])
            os.kill(server, signal.SIGSTOP)
            subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {{server}}"])
            time.sleep(1)
            {fails}
    """).ranks
    assert zero.events[-1]["event"] == "raised"
    assert (zero.after, one.after) == (1, None)


def test_a_worker_that_hangs_is_ended_and_its_stack_reported(run):
    outcome = run("if rank == 1: threading.Event().wait()", time_limit=3.0)
    one = outcome.ranks[1]
    assert outcome.timed_out
    assert one.exit.startswith("killed at the time limit of 3 s")
    assert "in work" in str(one.stack)
    [pid] = [event["pid"] for event in one.events if event["event"] == "started"]
    assert not Path(f"/proc/{pid}").exists()


def test_a_worker_that_writes_into_its_connection(run):
    """Its peer waits for it, but the harness does not wait for the peer."""
    outcome = run(r"""
        if rank == 1:
            import stat
            for name in os.listdir("/proc/self/fd"):
                try:
                    if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                        os.write(int(name), b"no event\n")
                except OSError:
                    pass
        threading.Event().wait()
    """)
    assert not outcome.timed_out
    assert outcome.ranks[1].exit.startswith("the evidence of rank 1 has a message that is not an event")
    assert [rank.after for rank in outcome.ranks] == [1, None]


NOTHING = ("worker.start()", "pass")
FOLDER = "with tempfile.TemporaryDirectory() as folder:"


def test_a_driver_that_launches_nothing(run):
    for rank in run(driver='raise OSError("no cluster")', instead=NOTHING).ranks:
        assert (rank.finished, rank.exit) == (
            False,
            f"no worker entered the case as rank {rank.rank}; the trainer's function raised OSError: no cluster",
        )
        assert "OSError: no cluster" in rank.output


def test_a_driver_that_declines_the_case(run):
    for rank in run(driver='raise conformance.Unsupported("no workers of two")', instead=NOTHING).ranks:
        [event] = rank.events
        check_all([event], rank.rank)
        told = (event["event"], event["type"], event["message"], event["declined"])
        assert told == ("raised", "Unsupported", "no workers of two", True)


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (("worker.start()", "threading.Event().wait()"), "killed because it had not started after 2 s"),
        (
            ("with tempfile.TemporaryDirectory() as folder:", "if not threading.Event().wait():"),
            "session had not started",
        ),
    ],
    ids=["the driver before a worker enters", "the session"],
)
def test_a_hang_before_any_rank_has_started(run, instead, said):
    outcome = run(time_limit=2.0, instead=instead)
    assert outcome.timed_out
    assert all(said in rank.exit for rank in outcome.ranks)


def test_a_driver_that_returns_too_early(run):
    for rank in run(driver="for worker in workers:\n    worker.kill()\nreturn").ranks:
        # A worker may have been faster than the kill.
        assert rank.exit in (
            f"no worker entered the case as rank {rank.rank}; the trainer's function returned",
            f"the worker of rank {rank.rank} disconnected before it finished",
        )


def test_a_run_fails_if_the_function_raises_after_its_workers_finished(run):
    raises = (
        'for worker in workers:\n    worker.join()\nraise RuntimeError("cannot fetch the result:\\n  the disk is full")'
    )
    for rank in run(driver=raises).ranks:
        assert (rank.events[-1]["event"], rank.finished) == ("finished", False)
        assert rank.exit == "the trainer's function raised RuntimeError: cannot fetch the result: the disk is full"


def test_a_rank_is_entered_once(run):
    outcome = run("""
        for number, error in ((rank, RuntimeError), (2, ValueError)):
            try:
                with conformance.enter(ticket, number):
                    pass
            except error as refused:
                print(refused, flush=True)
    """)
    taken = "another worker has entered as this rank, or the case is over"
    for rank in outcome.ranks:
        assert rank.finished
        assert f"cannot enter the case as rank {rank.rank}: {taken}" in rank.output
        assert "rank 2 is not in this case; its ranks are 0 to 1" in rank.output


def test_the_session_lasts_for_all_cases_and_ends_with_the_server(serve, make_spec):
    server = serve(driver='print("session", job.session["pid"], job.session["folder"], flush=True)')
    printed = [server.run(make_spec("ddp"), LIMIT).ranks[0].output.split() for _ in range(2)]
    assert printed[0] == printed[1]
    _, pid, folder = printed[0]
    assert Path(folder).is_dir()
    os.kill(int(pid), 0)
    server.__exit__()
    assert not Path(folder).exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_session_that_cannot_start(run):
    outcome = run(instead=(FOLDER, "with open('/no/such') as folder:"))
    [exit] = {rank.exit for rank in outcome.ranks}
    assert exit.startswith("the trainer's session raised FileNotFoundError")


def test_a_trainer_that_starts_a_thread_on_import(serve, make_spec):
    thread = "import conformance\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    server = serve(instead=("import conformance\n", thread))
    assert server.why_slow is not None
    assert all(rank.finished for rank in server.run(make_spec("ddp"), LIMIT).ranks)


def test_enter_outside_of_a_case():
    ticket = {"host": "127.0.0.1", "port": 1, "world_size": 1, "token": "", "trainer_file": None}
    with pytest.raises(RuntimeError, match="cannot enter the case as rank 0"), conformance.enter(ticket, 0):
        pass
