"""No process, zombie or descriptor stays behind, for every end of a case or of the front process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from conformance.runner.front.client import ForkServer, TrainerError, shared

LIMIT = 60.0

FRONT = """
import json, sys
from conformance.runner.front.client import ForkServer
with ForkServer({target!r}, "ddp") as server:
    server.run(json.loads({spec!r}), 600.0)
"""


@pytest.fixture
def open_descriptors(descendants):
    """Counts open descriptors of this process and its descendants; a zombie has none."""

    def count():
        processes = {os.getpid(): Path("/proc/self"), **descendants(os.getpid())}
        found = {}
        for pid, folder in processes.items():
            with suppress(FileNotFoundError):  # It has ended meanwhile.
                found[pid] = len(os.listdir(folder / "fd"))
        return found

    return count


def idle(open_descriptors):
    """The open descriptors after the import of torch and before that of a trainer."""
    shared.close()
    shared.get()
    return open_descriptors()


def assert_settles(open_descriptors, before):
    """Wait for the original state, because an importer ends asynchronously after its last client."""
    end = monotonic() + LIMIT
    while (now := open_descriptors()) != before and monotonic() < end:
        pass
    assert now == before


def test_thirty_cases_leave_nothing_behind(write, make_spec, open_descriptors, tmp_path, monkeypatch):
    # A separate folder, because parallel tests have files in the common one.
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # The next zygote is started with that folder.
    shared.close()
    target = write(
        """
        import subprocess
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        subprocess.Popen(["sleep", "1000"])
        """
    )
    with ForkServer(target, "ddp") as server:
        before = open_descriptors()
        for number in range(30):
            outcome = server.run(make_spec("ddp" if number % 2 else "single", 1 + number % 2), LIMIT)
            assert all(rank.finished for rank in outcome.ranks)
            assert open_descriptors() == before
    shared.close()
    assert tempfile.gettempdir() == str(folder)
    assert os.listdir(folder) == []


def test_a_killed_client_leaves_no_checkpoints(write, make_spec, tmp_path):
    """Otherwise it would have removed them itself."""
    (folder := tmp_path / "checkpoints").mkdir()
    (folder / "0.pt").touch()
    os.mkfifo(gate := tmp_path / "gate")
    target = write(f"open({str(gate)!r}, 'w').close()\nthreading.Event().wait()")
    life = {"stop_after": 1, "stop_inside": 0, "checkpoint_dir": str(folder), "save_after": [], "resume_from": None}
    with ForkServer(target, "single") as server:
        server.channel().send({"spec": {**make_spec("single", 1), "life": life}, "time_limit": LIMIT})
        # The rank opens its end, too.
        gate.read_text()
    assert not folder.exists()


# Once the helper has answered, its loader no longer opens and closes libraries.
HELPER = """
import subprocess
helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
helper.stdin.write(b"x")
helper.stdin.flush()
helper.stdout.read(1)
"""


@pytest.mark.parametrize(
    ("inside", "before"),
    [("if task.rank == 1: os.abort()\nthreading.Event().wait()", ""), ("", HELPER)],
    ids=["ranks that fail", "a helper of the import stays"],
)
def test_a_case_leaves_no_descriptors(write, make_spec, open_descriptors, inside, before):
    with ForkServer(write(inside, before), "ddp") as server:
        opened = open_descriptors()
        server.run(make_spec("ddp"), LIMIT)
        assert open_descriptors() == opened


@pytest.mark.parametrize(
    "then",
    ["", "raise ValueError", "os._exit(3)", "threading.Thread(target=threading.Event().wait, daemon=True).start()"],
)
def test_a_process_that_the_import_started_ends_with_the_run(write, tmp_path, then):
    """Also in its own session, and if the import fails or its process cannot be forked."""
    started = tmp_path / "pid"
    target = write(
        "",
        f"""
        import subprocess
        helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open({str(started)!r}, "w").write(str(helper.pid))
        {then}
        """,
    )
    with suppress(TrainerError), ForkServer(target, "single"):
        pass
    shared.close()
    helper, end = Path("/proc", started.read_text()), monotonic() + LIMIT
    while helper.exists() and monotonic() < end:
        pass
    assert not helper.exists()


def test_servers_leave_nothing_behind(write, open_descriptors):
    good, bad = write(), write("", "raise ValueError")
    before = idle(open_descriptors)
    for _ in range(5):
        with ForkServer(good, "ddp"):
            pass
        with pytest.raises(TrainerError), ForkServer(bad, "ddp"):
            pass
    assert_settles(open_descriptors, before)


@pytest.mark.parametrize("where", ["inside", "before"])
def test_a_killed_front_process_ends_all_its_descendants(write, make_spec, descendants, tmp_path, where):
    """Killed while the ranks train, or during the trainer's import."""
    import json

    os.mkfifo(fifo := tmp_path / "here")
    hang = f"with open({str(fifo)!r}, 'w') as pipe: pipe.write('x')\nthreading.Event().wait()"
    script = FRONT.format(target=write(**{where: hang}), spec=json.dumps(make_spec("ddp")))
    pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen([sys.executable, "-c", script]) as front:
        try:
            # The pipe stays open until both ranks have written, because a rank that cannot write ends.
            arrived, _, _ = select.select([pipe], [], [], LIMIT)
            assert arrived
            processes = [os.pidfd_open(pid) for pid in descendants(front.pid)]
        finally:
            front.kill()
    os.close(pipe)
    assert len(processes) == (2 if where == "before" else 6)
    for process in processes:
        ended, _, _ = select.select([process], [], [], LIMIT)
        assert ended
        os.close(process)


def test_an_interrupted_import_is_not_waited_for(write, monkeypatch):
    def wait(*_):
        raise AssertionError("during the import there is no server to wait for")

    target = write("", f"os.kill({os.getpid()}, signal.SIGINT)\nthreading.Event().wait()")
    shared.get()
    monkeypatch.setattr("conformance.runner.front.zygote_client.ForkedServer.end", wait)
    with pytest.raises(KeyboardInterrupt), ForkServer(target, "single"):
        pass


def test_an_interrupted_case_is_ended(write, make_spec, open_descriptors, tmp_path):
    """Ctrl-C reaches only the front process."""
    front = str(os.getpid())
    target = write(f"os.kill({front}, signal.SIGINT)\nthreading.Event().wait()")
    before = idle(open_descriptors)
    with pytest.raises(KeyboardInterrupt), ForkServer(target, "single") as server:
        server.run(make_spec("single", 1), LIMIT)
    assert_settles(open_descriptors, before)
