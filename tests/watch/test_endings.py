"""How a watched command ends: signals are its own first, and nothing that it has started outlives its end."""

import os
import signal
import subprocess
import sys

import pytest

SAVES = """
import os, signal, sys

def say(text):
    # Unlike `print`, a handler may do this while the script does it.
    os.write(1, f"{text}\\n".encode())

def save(number, frame):
    say(f"saving {number}")
    open(sys.argv[1]).read()
    say("saved")
    sys.exit(5)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, save)
say("ready")
while True:
    signal.pause()
"""

WAITS = "import signal\nprint('ready', flush=True)\nsignal.pause()\n"


class Watched:
    """A watch in a session of its own, whose command has said that it is ready."""

    def __init__(self, tmp_path, source, *options, wrapped="{}"):
        self.fifo, self.temporary = tmp_path / "fifo", tmp_path / "temporary"
        os.mkfifo(self.fifo)
        self.temporary.mkdir()
        script = tmp_path / "script.py"
        script.write_text(source)
        command = wrapped.format(f"{sys.executable} {script} {self.fifo}")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "conformance", "watch", *options, "--", "bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )
        assert self.line() == "ready\n"

    def line(self):
        return self.process.stdout.readline()

    def send(self, number, to_group):
        (os.killpg if to_group else os.kill)(self.process.pid, number)

    def save(self):
        self.fifo.write_text("go on")

    def end(self):
        """The rest of what is printed, once no process can print more."""
        with self.process:
            return self.process.stdout.read()

    @property
    def left(self):
        return [path.name for path in self.temporary.iterdir() if path.name.startswith("conformance-")]


@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_of_the_script_runs_once_and_is_waited_for(tmp_path, number, to_group):
    watched = Watched(tmp_path, SAVES, wrapped="exec {}")
    watched.send(number, to_group)
    assert watched.line() == f"saving {int(number)}\n"
    watched.save()
    said = watched.end()
    assert said.startswith("saved\nUNDECIDED")
    assert "saving" not in said
    assert f"interrupted by {number.name}" in said
    assert watched.process.returncode == 5
    assert watched.left == []


def test_a_wrapper_ends_with_what_it_runs(tmp_path):
    watched = Watched(tmp_path, SAVES, wrapped="{}; echo after")
    watched.send(signal.SIGTERM, to_group=False)
    assert watched.line() == f"saving {int(signal.SIGTERM)}\n"
    watched.save()
    said = watched.end()
    assert said.startswith("saved\nUNDECIDED")
    assert "after" not in said
    assert watched.process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("to_group", [False, True])
def test_the_second_signal_is_final(tmp_path, to_group):
    watched = Watched(tmp_path, SAVES, "--grace", "600")
    watched.send(signal.SIGTERM, to_group)
    watched.line()
    watched.send(signal.SIGTERM, to_group)
    assert "was killed" in watched.end()
    assert watched.process.returncode == 128 + signal.SIGKILL


def test_a_script_that_does_not_end_in_time_is_killed(tmp_path):
    watched = Watched(tmp_path, SAVES, "--grace", "0")
    watched.send(signal.SIGINT, to_group=False)
    assert "did not end in time" in watched.end()
    assert watched.process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("wrapped", ["{}; echo after", "setsid {}; echo after", "({} &) ; wait; read < {}"])
def test_nothing_outlives_a_watch_that_is_killed(tmp_path, wrapped):
    watched = Watched(tmp_path, WAITS, wrapped=wrapped.replace("read < {}", f"read < {tmp_path / 'fifo'}"))
    watched.process.kill()
    assert watched.end() == ""
    assert watched.left == []


def test_a_signal_before_the_command_is_not_the_supervisors(tmp_path):
    """It has to say what became of the command, and so it must not die of what the group gets."""
    watched = Watched(tmp_path, WAITS, wrapped="exec {}")
    watched.send(signal.SIGHUP, to_group=True)
    assert "interrupted by SIGHUP" in watched.end()
    assert watched.process.returncode == 128 + signal.SIGHUP


def test_signals_that_mean_something_to_the_script_alone_reach_it(tmp_path):
    source = SAVES.replace("signal.SIGINT, signal.SIGTERM", "signal.SIGUSR1, signal.SIGUSR2")
    watched = Watched(tmp_path, source, "--grace", "0", wrapped="exec {}")
    watched.send(signal.SIGUSR1, to_group=False)
    assert watched.line() == f"saving {int(signal.SIGUSR1)}\n"
    watched.save()
    assert watched.end().startswith("saved\n")
    assert watched.process.returncode == 5
