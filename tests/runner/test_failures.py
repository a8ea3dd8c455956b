"""Ranks that raise, leave, die, hang or abort: what is reported of each, and that the next case still runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from conformance.runner.front.client import ForkServer, Outcome, RunnerError
from conformance.runner.rank.environment import NodeShare

LIMIT = 60.0
Write = Callable[..., str]
MakeSpec = Callable[..., dict[str, Any]]


@pytest.fixture
def run(write: Write, make_spec: MakeSpec) -> Callable[..., Outcome]:
    """Run a two-rank case with this in each rank; a second one on the same server ends alike."""

    def run_case(inside: str, time_limit: float = LIMIT, before: str = "") -> Outcome:
        with ForkServer(write(inside, before), "ddp") as server:
            outcome = server.run(make_spec("ddp"), time_limit)
            again = server.run(make_spec("ddp"), time_limit)
        assert [rank.finished for rank in again.ranks] == [rank.finished for rank in outcome.ranks]
        assert again.timed_out == outcome.timed_out
        return outcome

    return run_case


def test_a_rank_that_raises(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        if task.rank == 1:
            raise ValueError("no such luck")
        """
    )
    zero, one = outcome.ranks
    raised = one.events[-1]
    assert raised["event"] == "raised"
    assert (raised["type"], raised["message"]) == ("ValueError", "no such luck")
    assert 'raise ValueError("no such luck")' in raised["traceback"]
    assert "conformance/runner" not in raised["traceback"]
    assert one.exit == "exited 1 before it finished"
    assert not zero.finished
    assert not one.finished
    assert zero.exit.endswith("after rank 1 failed")
    assert (zero.after, one.after) == (1, None)
    assert not outcome.timed_out


@pytest.mark.parametrize(
    ("is_known", "exit"), [(True, "exited 1 before it finished"), (False, "killed after rank 0 failed")]
)
def test_a_rank_that_raises_beside_other_machines(write: Write, make_spec: MakeSpec, is_known: bool, exit: str) -> None:
    """Its end makes its peers raise, so it stays until the front knows that it was the first."""
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


def test_the_causes_of_an_exception_are_reported(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        try:
            {}["key"]
        except KeyError as error:
            raise RuntimeError("wrapped") from error
        """
    )
    traceback = outcome.ranks[0].events[-1]["traceback"]
    assert "KeyError: 'key'" in traceback
    assert "RuntimeError: wrapped" in traceback


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
def test_an_exception_that_cannot_be_shown(run: Callable[..., Outcome], before: str, inside: str) -> None:
    outcome = run(
        f"""
        class E(Exception):
            {before}
        error = None
        {inside}
        raise error
        """
    )
    last = outcome.ranks[0].events[-1]
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
def test_a_function_that_returns_what_has_not_run(run: Callable[..., Outcome], kind: str, before: str) -> None:
    """Its declaration cannot show it, if it wraps an async or generator function."""
    outcome = run("return trains(task)", before=before)
    last = outcome.ranks[0].events[-1]
    assert (last["event"], last["type"]) == ("raised", "TypeError")
    assert last["message"].startswith(f"the trainer's function returned a {kind}, of which nothing has run")
    assert "never awaited" not in outcome.ranks[0].output


@pytest.mark.parametrize("code", ["", "0", "3"])
def test_leaving_in_the_middle_is_not_finishing(run: Callable[..., Outcome], code: str) -> None:
    outcome = run(f"sys.exit({code})")
    for rank in outcome.ranks:
        assert not rank.finished
        assert rank.exit.startswith(f"exited {code or 0} before it finished")
        assert rank.events[-1]["type"] == "SystemExit"


def test_a_rank_in_which_our_code_fails_says_why(run: Callable[..., Outcome]) -> None:
    outcome = run("print('it fails', flush=True); os._exit(70)")
    first = next(rank for rank in outcome.ranks if rank.after is None)
    assert first.exit == "exited 70 before it finished; it last printed: it fails"


def test_leaving_without_a_report_is_not_finishing(run: Callable[..., Outcome]) -> None:
    outcome = run("if task.rank == 0: os._exit(0)")
    assert not outcome.ranks[0].finished
    assert outcome.ranks[0].exit == "exited 0 before it finished"
    assert "after rank 0 failed" in outcome.ranks[1].exit
    assert [rank.after for rank in outcome.ranks] == [None, 0]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_a_rank_that_is_killed(run: Callable[..., Outcome], name: str) -> None:
    outcome = run(f"if task.rank == 0: os.kill(os.getpid(), signal.{name})")
    zero, one = outcome.ranks
    assert zero.exit == f"killed by {name}"
    assert not zero.finished
    assert "after rank 0 failed" in one.exit
    assert not outcome.timed_out


def test_a_rank_that_dies_where_the_kernel_does_not_report_it(run: Callable[..., Outcome]) -> None:
    outcome = run("if task.rank == 0: os._exit(3)", before="del os.pidfd_open")
    assert outcome.ranks[0].exit == "exited 3 before it finished"
    assert "after rank 0 failed" in outcome.ranks[1].exit
    assert not outcome.timed_out


def test_a_crash_in_native_code_shows_the_python_line(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        import ctypes
        if task.rank == 0:
            ctypes.string_at(0)
        """
    )
    assert outcome.ranks[0].exit == "killed by SIGSEGV"
    assert "Segmentation fault" in outcome.ranks[0].output
    assert "in train" in outcome.ranks[0].output


def test_a_rank_that_hangs(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        if task.rank == 1:
            wait_for_godot()
        """,
        time_limit=3.0,
        before="""
        def wait_for_godot():
            threading.Event().wait()
        """,
    )
    zero, one = outcome.ranks
    assert outcome.timed_out
    assert one.exit == "killed at the time limit of 3 s"
    assert "in wait_for_godot" in str(one.stack)
    assert zero.exit == "killed at the time limit of 3 s"
    assert "in train" in str(zero.stack)
    assert not zero.finished
    assert not one.finished
    assert (zero.after, one.after) == (None, None)


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
def test_what_python_waits_for_when_it_exits(run: Callable[..., Outcome], tmp_path: Path, start: str) -> None:
    """Not for daemons, and not for ever for a server that it ends itself."""
    outcome = run(
        f"""
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        manager = multiprocessing.get_context("fork").Manager()
        if task.rank == 0:
            {start.format(tmp_path / "written")}
        """,
        before=LEFT_RUNNING,
    )
    assert [rank.exit for rank in outcome.ranks] == ["exited 0"] * 2
    assert (tmp_path / "written").read_text() == "whole"


def test_what_never_ends_is_named(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        if task.rank == 1:
            threading.Thread(target=threading.Event().wait, name="writer").start()
        """,
        time_limit=3.0,
    )
    assert outcome.timed_out
    assert not outcome.ranks[1].finished
    assert outcome.ranks[0].finished
    assert outcome.ranks[1].exit == (
        "killed at the time limit of 3 s after its function had returned, as Python waits for threads and processes "
        "that are no daemons before it exits, here for writer"
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


def test_a_rank_that_dies_in_a_build_leaves_no_lock(write: Write, make_spec: MakeSpec, tmp_path: Path) -> None:
    """The next one would wait for it until its time limit."""
    lock = tmp_path / "lock"
    target = write(f"assert build({str(lock)!r}) and os.path.exists({str(lock)!r})\nos._exit(3)", BUILD)
    with ForkServer(target, "single") as server:
        for _ in range(2):
            (rank,) = server.run(make_spec("single", 1), LIMIT).ranks
            assert rank.exit == "exited 3 before it finished"
            assert not lock.exists()


def test_a_rank_that_waits_for_a_lock(run: Callable[..., Outcome], tmp_path: Path) -> None:
    (lock := tmp_path / "lock").touch()
    # As one that is left over from a build that was killed long ago.
    os.utime(lock, (0.0, 0.0))
    outcome = run(f"build({str(lock)!r})", before=BUILD, time_limit=1.0)
    assert outcome.timed_out
    for rank in outcome.ranks:
        assert (
            f"killed at the time limit of 1 s while it waited for the lock of a build of a torch extension, {lock}"
            in (rank.exit)
        )
    assert lock.exists()


def test_a_rank_that_prints_without_end_fills_no_disk(run: Callable[..., Outcome]) -> None:
    """What it prints goes nowhere that grows, and the end of it is kept."""
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
    # Where it is asked for its stack in the midst of a line, Python may leave the rest of that line out.
    assert one.output.strip("y\n") == ""
    assert len(one.output) == 20_000
    assert zero.output.endswith("the last line\n")
    assert len(zero.output) == 20_000


def test_a_rank_that_delivered_while_its_peer_hangs(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        if task.rank == 0:
            return
        threading.Event().wait()
        """,
        time_limit=3.0,
    )
    zero, one = outcome.ranks
    assert outcome.timed_out
    assert zero.finished
    assert zero.exit == "exited 0"
    assert zero.stack is None
    assert not one.finished


def test_a_hanging_peer_of_a_rank_that_failed_is_not_a_hang(run: Callable[..., Outcome]) -> None:
    outcome = run(
        """
        if task.rank == 1:
            raise ValueError
        threading.Event().wait()
        """
    )
    assert outcome.ranks[0].exit == "killed after rank 1 failed"
    assert [rank.after for rank in outcome.ranks] == [1, None]
    assert not outcome.timed_out


def test_a_rank_that_aborts_after_it_delivered(run: Callable[..., Outcome]) -> None:
    outcome = run("if task.rank == 0: os._exit = lambda code: os.abort()")
    zero, one = outcome.ranks
    assert zero.finished
    assert zero.exit == "aborted after it delivered: SIGABRT"
    assert one.exit == "exited 0"


def test_a_rank_that_aborts_before_it_delivered(run: Callable[..., Outcome]) -> None:
    outcome = run("if task.rank == 0: os.abort()")
    assert not outcome.ranks[0].finished
    assert outcome.ranks[0].exit == "killed by SIGABRT"


def test_a_case_whose_server_died_is_run_again(write: Write, make_spec: MakeSpec, tmp_path: Path) -> None:
    """The system may have killed it for its memory."""
    flag = tmp_path / "armed"
    flag.touch()
    target = write(
        f"""
        if task.rank == 0 and os.path.exists({str(flag)!r}):
            os.remove({str(flag)!r})
            os.kill(os.getppid(), signal.SIGKILL)
        """
    )
    with ForkServer(target, "ddp") as server:
        assert all(rank.finished for rank in server.run(make_spec("ddp"), LIMIT).ranks)
    assert not flag.exists()


def test_a_server_that_died_twice_is_replaced(write: Write, make_spec: MakeSpec, tmp_path: Path) -> None:
    flag = tmp_path / "armed"
    flag.touch()
    target = write(f"if os.path.exists({str(flag)!r}): os.kill(os.getppid(), signal.SIGKILL)")
    with ForkServer(target, "ddp") as server:
        outcome = server.run(make_spec("ddp"), LIMIT)
        assert [rank.finished for rank in outcome.ranks] == [False, False]
        assert {rank.exit for rank in outcome.ranks} == {"the trainer's server died (killed by SIGKILL)"}
        flag.unlink()
        assert all(rank.finished for rank in server.run(make_spec("ddp"), LIMIT).ranks)


def test_a_rendezvous_that_dies_is_the_harness_failing(write: Write, make_spec: MakeSpec) -> None:
    """That is no fault of the trainer."""
    target = write(
        """
        children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
        if task.rank == 0:
            os.kill(min(map(int, children)), signal.SIGKILL)
        threading.Event().wait()
        """
    )
    with (
        ForkServer(target, "ddp") as server,
        pytest.raises(RunnerError, match=r"^the process that hosts the rendezvous .* SIGKILL"),
    ):
        server.run(make_spec("ddp"), LIMIT)
