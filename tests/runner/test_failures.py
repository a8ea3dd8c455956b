"""Ranks that raise, leave, die, hang or abort are reported, and the next case still runs."""

from __future__ import annotations

import os
from dataclasses import asdict

import pytest

from conformance.runner.front.client import ForkServer, Outcome, RunnerError
from conformance.runner.rank.environment import NodeShare

LIMIT = 60.0


@pytest.fixture
def run(write, make_spec):
    """Runs a case with this code in both ranks, and checks that a second run on the same server ends alike."""

    def run_case(inside, time_limit=LIMIT, before=""):
        with ForkServer(write(inside, before), "ddp") as server:
            outcome, again = (server.run(make_spec("ddp"), time_limit) for _ in range(2))
        assert [rank.finished for rank in again.ranks] == [rank.finished for rank in outcome.ranks]
        assert again.timed_out == outcome.timed_out
        return outcome

    return run_case


@pytest.mark.parametrize(
    ("is_known", "exit"), [(True, "exited 1 before it finished"), (False, "killed after rank 0 failed")]
)
def test_a_rank_that_raises_in_a_run_on_several_machines(write, make_spec, is_known, exit):
    """Its end would make its peers raise, so it stays until the front knows that it was the first."""
    with ForkServer(write("raise ValueError"), "single") as server:
        front = server.channel()
        front.send({"spec": make_spec("single", 1), "time_limit": LIMIT, "share": asdict(NodeShare([0]))})
        while (message := front.receive(LIMIT)) != {"failed": 0, "raised": True}:
            assert message is not None
        if is_known:
            front.send({"failed": 0})
        while (message := front.receive(LIMIT)) != {"finished": True}:
            assert message is not None
        front.send({"release": True})
        outcome = Outcome.from_dict(front.receive(LIMIT) or {})
    assert outcome.ranks[0].exit == exit
    assert outcome.ranks[0].events[-1]["event"] == "raised"


def test_an_exception_is_reported_with_its_causes(run):
    outcome = run(
        """
        if task.rank == 1:
            try:
                {}["key"]
            except KeyError as error:
                raise ValueError("no such luck") from error
        """
    )
    zero, one = outcome.ranks
    raised = one.events[-1]
    assert (raised["event"], raised["type"], raised["message"]) == ("raised", "ValueError", "no such luck")
    assert 'raise ValueError("no such luck") from error' in raised["traceback"]
    assert "KeyError: 'key'" in raised["traceback"]
    assert "conformance/runner" not in raised["traceback"]
    assert one.exit == "exited 1 before it finished"
    assert zero.exit.endswith("after rank 1 failed")
    assert (zero.finished, one.finished, zero.after, one.after, outcome.timed_out) == (False, False, 1, None, False)


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("error = None", "for number in range(5000): (new := E(number)).__cause__ = error; error = new"),
        ("def __str__(self): raise KeyboardInterrupt", "error = E()"),
        ("def __str__(self): return 7", "error = E()"),
        ("__traceback__ = property(lambda self: 1 / 0)", "error = E()"),
        ("__class__ = property(lambda self: 1 / 0)", "error = E()"),
        ("pass", "exec(compile('def f(): raise E', '\\ud800', 'exec'), locals()); locals()['f']()"),
    ],
)
def test_an_exception_that_cannot_be_shown(alone, before, inside):
    last = alone(f"class E(Exception):\n    {before}\nerror = None\n{inside}\nraise error").events[-1]
    assert (last["event"], last["type"]) == ("raised", "E")
    assert "in train" in last["traceback"]


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        ("coroutine", "async def trains(task): ..."),
        ("generator", "def trains(task): yield"),
        ("async generator", "async def trains(task): yield"),
    ],
)
def test_a_function_that_returns_a_coroutine_or_generator(alone, kind, before):
    """A wrapper of an async or generator function looks like a plain function."""
    rank = alone("return trains(task)", before)
    last = rank.events[-1]
    assert (last["event"], last["type"]) == ("raised", "TypeError")
    assert last["message"].startswith(f"the trainer's function returned a {kind}, which has not run")
    assert "never awaited" not in rank.output


@pytest.mark.parametrize("code", ["", "0", "3"])
def test_leaving_in_the_middle_is_not_finishing(alone, code):
    rank = alone(f"sys.exit({code})")
    assert not rank.finished
    assert rank.exit == f"exited {code or 0} before it finished"
    assert rank.events[-1]["type"] == "SystemExit"


@pytest.mark.parametrize(
    ("inside", "exit", "before", "printed"),
    [
        ("os._exit(0)", "exited 0 before it finished", "", ""),
        ("os._exit(3)", "exited 3 before it finished", "del os.pidfd_open", ""),
        (
            "print('it fails', flush=True); os._exit(70)",
            "exited 70 before it finished; it last printed: it fails",
            "",
            "",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL", "", ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", "killed by SIGTERM", "", ""),
        ("os.abort()", "killed by SIGABRT", "", "in train"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV", "", "Segmentation fault"),
    ],
)
def test_a_rank_that_dies(run, inside, exit, before, printed):
    """After a failure of the harness's code, the last line gives the reason. One case has no pidfds."""
    outcome = run(f"if task.rank == 0: {inside}", before=before)
    zero, one = outcome.ranks
    assert (zero.finished, zero.exit, zero.after) == (False, exit, None)
    assert printed in zero.output
    assert "after rank 0 failed" in one.exit
    assert (one.after, outcome.timed_out) == (0, False)


def test_ranks_that_hang(run):
    outcome = run(
        "if task.rank == 1: wait_for_godot()",
        time_limit=3.0,
        before="def wait_for_godot(): threading.Event().wait()",
    )
    zero, one = outcome.ranks
    assert outcome.timed_out
    assert "in wait_for_godot" in str(one.stack)
    assert "in train" in str(zero.stack)
    for rank in outcome.ranks:
        assert (rank.finished, rank.exit, rank.after) == (False, "killed at the time limit of 3 s", None)


LEFT_RUNNING = """
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

def write(path, text):
    threading.Event().wait(0.3)
    with open(path, "w") as file:
        file.write(text)

def write_in_a_process(path, text):
    threading.Event().wait(0.3)
    multiprocessing.get_context("fork").Process(target=write, args=(path, text)).start()
"""


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=write, args=('{}', 'whole')).start()",
        "ThreadPoolExecutor(2).submit(write, '{}', 'whole')",
        "multiprocessing.get_context('fork').Process(target=write, args=('{}', 'whole')).start()",
        "threading.Thread(target=write_in_a_process, args=('{}', 'whole')).start()",
    ],
)
def test_a_rank_waits_for_threads_and_processes_like_python_at_exit(alone, tmp_path, start):
    """But not for daemons, nor forever for a server that Python ends itself."""
    rank = alone(
        f"""
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        manager = multiprocessing.get_context("fork").Manager()
        {start.format(tmp_path / "written")}
        """,
        LEFT_RUNNING,
    )
    assert rank.exit == "exited 0"
    assert (tmp_path / "written").read_text() == "whole"


def test_a_thread_that_never_ends_is_named(run):
    outcome = run(
        "if task.rank == 1: threading.Thread(target=threading.Event().wait, name='writer').start()", time_limit=3.0
    )
    zero, one = outcome.ranks
    assert (outcome.timed_out, zero.finished, one.finished) == (True, True, False)
    assert one.exit == (
        "killed at the time limit of 3 s after its function had returned: at exit, Python waits for non-daemon threads "
        "and processes, here writer"
    )


BUILD = """
from torch.utils.file_baton import FileBaton
def build(lock):
    baton = FileBaton(lock)
    if not baton.try_acquire():
        baton.wait()
        return False
    return True
"""


def test_a_rank_that_dies_in_a_build_leaves_no_lock(write, make_spec, tmp_path):
    """The next rank would wait for it until its time limit."""
    lock = tmp_path / "lock"
    target = write(f"assert build({str(lock)!r}) and os.path.exists({str(lock)!r})\nos._exit(3)", BUILD)
    with ForkServer(target, "single") as server:
        for _ in range(2):
            (rank,) = server.run(make_spec("single", 1), LIMIT).ranks
            assert rank.exit == "exited 3 before it finished"
            assert not lock.exists()


def test_a_rank_that_waits_for_a_lock(run, tmp_path):
    (lock := tmp_path / "lock").touch()
    # Like a lock left over from an old, killed build.
    os.utime(lock, (0.0, 0.0))
    outcome = run(f"build({str(lock)!r})", before=BUILD, time_limit=1.0)
    assert outcome.timed_out
    why = f"killed at the time limit of 1 s while it waited for the build lock of a torch extension, {lock}"
    assert all(why in rank.exit for rank in outcome.ranks)
    assert lock.exists()


def test_a_rank_that_prints_forever_fills_no_disk(run):
    """Its output goes into no file, and only its end is kept."""
    outcome = run(
        """
        import stat
        assert not any(stat.S_ISREG(os.fstat(number).st_mode) for number in (1, 2))
        print("the first line")
        for number in range(20):
            print("x" * 100_000)
        print("the last line")
        while task.rank == 1:
            print("y" * 100_000)
        """,
        time_limit=5.0,
    )
    zero, one = outcome.ranks
    assert outcome.timed_out
    # If the request for its stack interrupts a line, Python may omit the rest of that line.
    assert one.output.strip("y\n") == ""
    assert zero.output.endswith("the last line\n")
    assert (len(zero.output), len(one.output)) == (20_000, 20_000)


def test_a_rank_that_delivered_while_its_peer_hangs(run):
    outcome = run("if task.rank == 0: return\nthreading.Event().wait()", time_limit=3.0)
    zero, one = outcome.ranks
    assert (zero.finished, zero.exit, zero.stack) == (True, "exited 0", None)
    assert (outcome.timed_out, one.finished) == (True, False)


def test_a_hanging_peer_of_a_rank_that_failed_is_not_a_hang(run):
    outcome = run("if task.rank == 1: raise ValueError\nthreading.Event().wait()")
    assert outcome.ranks[0].exit == "killed after rank 1 failed"
    assert [rank.after for rank in outcome.ranks] == [1, None]
    assert not outcome.timed_out


def test_a_rank_that_aborts_after_it_delivered(run):
    zero, one = run("if task.rank == 0: os._exit = lambda code: os.abort()").ranks
    assert (zero.finished, zero.exit) == (True, "aborted after it delivered: SIGABRT")
    assert one.exit == "exited 0"


@pytest.mark.parametrize("times", [1, 2])
def test_a_case_whose_server_died_is_run_again_once(write, make_spec, tmp_path, times):
    """The system may have killed it for lack of memory. A server that dies twice is replaced for the next case."""
    for number in range(times):
        (tmp_path / f"armed-{number}").touch()
    target = write(
        f"""
        import pathlib
        for armed in [*pathlib.Path({str(tmp_path)!r}).glob("armed-*")][:1]:
            armed.unlink()
            os.kill(os.getppid(), signal.SIGKILL)
        """
    )
    with ForkServer(target, "single") as server:
        (rank,) = server.run(make_spec("single", 1), LIMIT).ranks
        assert rank.finished == (times == 1)
        assert rank.exit == ("exited 0" if times == 1 else "the trainer's server died (killed by SIGKILL)")
        assert server.run(make_spec("single", 1), LIMIT).ranks[0].finished


def test_a_rendezvous_that_dies_is_a_failure_of_the_harness(ran, write):
    """It is not the trainer's fault."""
    target = write(
        """
        children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
        if task.rank == 0:
            os.kill(min(map(int, children)), signal.SIGKILL)
        threading.Event().wait()
        """
    )
    with pytest.raises(RunnerError, match=r"^the process that hosts the rendezvous .* SIGKILL"):
        ran(target)
