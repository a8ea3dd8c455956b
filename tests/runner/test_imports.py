"""Trainers that cannot be imported, or whose backend is missing, end with one clear line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from conformance.runner.front.client import ForkServer, TrainerError, Unavailable

#: The code of an import, and its error.
TROUBLE = {
    "raises": ("raise ValueError('bad day')", r":\d+: ValueError: bad day"),
    "raises what no handler expects": ("raise type('Unusual', (BaseException,), {})('day')", r":\d+: Unusual: day"),
    "leaves": ("sys.exit(3)", r":\d+: SystemExit: 3"),
    "misspelt": ("def :", r":\d+: SyntaxError"),
    "ends the process": ("print('goodbye'); os._exit(3)", r".*ended the process \(exited 3\).*goodbye"),
    "crashes": ("import ctypes; ctypes.string_at(0)", r".*process \(killed by SIGSEGV\) at .*trainer_0\.py:\d+$"),
    "hangs": ("threading.Event().wait()", r".*took longer than 2 s at .*trainer_0\.py:\d+"),
    "hangs deaf": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); threading.Event().wait()",
        r".*took longer than 2 s$",
    ),
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_an_import_that_fails(write, kind):
    source, message = TROUBLE[kind]
    server = ForkServer(write("", source), "ddp", import_limit=2.0 if "hangs" in kind else 60.0)
    with pytest.raises(TrainerError, match=rf"trainer_0\.py{message}") as caught, server:
        pass
    assert "\n" not in str(caught.value)


REPLACES = """
import json, pathlib, re, socket, time
from pathlib import Path

def replaced(*arguments, **options):
    raise RuntimeError("not here")

def replace():
    json.loads = json.dumps = os.close = os.dup2 = os.fork = os.fstat = os.getpid = os.kill = os.waitpid = replaced
    os.write = socket.socket = socket.create_connection = threading.Lock = time.sleep = replaced
    re.compile = pathlib.Path.open = pathlib.Path.exists = sys._getframe = replaced
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.path.extend([None, Path("."), b"x"])
"""


@pytest.mark.parametrize("where", ["import", "rank"])
def test_a_trainer_that_replaces_functions_the_harness_needs(write, make_spec, where):
    """The harness uses the originals; the ranks have the import's replacements."""
    before, inside = {"import": ("replace()", ""), "rank": ("", "replace()\n")}[where]
    inside += "assert os.waitpid is replaced and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN"
    with ForkServer(write(inside, REPLACES + before), "single") as server:
        for _ in range(2):
            (rank,) = server.run(make_spec("single", 1), 60.0).ranks
            assert (rank.finished, rank.exit) == (True, "exited 0"), rank.events[-1]


def test_a_removed_working_folder(alone):
    rank = alone("", "import tempfile\nos.chdir(folder := tempfile.mkdtemp())\nos.rmdir(folder)")
    assert rank.finished
    assert [event for event in rank.events if event["event"] == "observer_failed"] == []


def test_the_output_of_an_import_is_not_shown(write, capfd):
    with ForkServer(write("", "print('loading'); print('warning', file=sys.stderr)"), "ddp"):
        pass
    assert capfd.readouterr() == ("", "")


def test_the_output_of_an_import_fills_no_disk(write):
    """Only the end is kept, although a program that the import has started prints forever."""
    endless = """
        import stat, subprocess
        print("x" * 10_000_000, flush=True)
        # The last output is known even if the endless program starts late.
        subprocess.run("yes goodbye | head -c 8000000", shell=True)
        subprocess.Popen(["yes", "goodbye"])
        files = [os.stat(f"/proc/self/fd/{number}") for number in (1, 2)]
        assert not [file for file in files if stat.S_ISREG(file.st_mode) and file.st_size > 100_000]
        """
    with ForkServer(write("", endless), "single"):
        pass
    with (
        pytest.raises(TrainerError, match=r"it last printed: goodbye$"),
        ForkServer(write("", f"{endless}\n        os._exit(3)"), "single"),
    ):
        pass


def test_a_missing_file():
    with pytest.raises(TrainerError, match=r"nowhere\.py"), ForkServer("nowhere.py", "ddp"):
        pass


@pytest.mark.parametrize("on_import", [False, True])
def test_a_missing_requirement(tmp_path, on_import):
    above, inside = ("import no_such_framework", "...") if on_import else ("", "import no_such_framework")
    (path := tmp_path / "needs.py").write_text(
        f"{above}\nfrom conformance import Task, trainer\n"
        f"@trainer(requires=['no_such_framework'])\ndef train(task: Task) -> None: {inside}\n"
    )
    with pytest.raises(Unavailable) as caught, ForkServer(str(path), "single"):
        pass
    assert caught.value.reason == "no_such_framework is not installed"
    assert caught.value.command == "pip install no_such_framework"
    assert on_import or caught.value.declaration.name == "needs"


@pytest.mark.parametrize("imports_it", [False, True])
def test_horovod_that_cannot_be_imported(write, horovod, tmp_path, monkeypatch, imports_it):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    target = horovod() if imports_it else write()
    with pytest.raises(Unavailable) as caught, ForkServer(target, "horovod"):
        pass
    assert caught.value.reason == "Horovod cannot be imported: built for another torch"
    assert "horovod" in caught.value.command


def test_loopback_that_is_down(write, make_spec):
    """As in a new network namespace; cases of one process still run."""
    new_user, new_network = 0x10000000, 0x40000000
    target = write("", f"import ctypes\nassert not ctypes.CDLL(None).unshare({new_user | new_network})")
    reason = r"^the loopback interface is down: connecting to 127.0.0.1 fails \(Network is unreachable\).*set lo up$"
    with pytest.raises(Unavailable, match=reason), ForkServer(target, "ddp"):
        pass
    with ForkServer(target, "single") as server:
        assert server.run(make_spec("single", 1), 60.0).ranks[0].finished


def test_the_front_process_does_not_import_torch():
    script = "import conformance.runner.front.client, sys; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert printed.stdout == "False\n"


def test_a_users_folder_hides_no_module(tmp_path, write):
    """Users may run this from a checkout of torch or Horovod."""
    (tmp_path / "json.py").write_text("raise ImportError('not the one you want')")
    script = f"""
import sys
from conformance.runner.front.client import ForkServer
with ForkServer({write()!r}, "single") as server:
    print(server.why_slow)
"""
    path: list[Any] = [folder for folder in sys.path if folder]
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{script}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert printed.stdout == "None\n", printed.stderr
