"""`conformance watch` of a script: its own output and exit code, and the verdict."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from conformance.watch import watching
from conformance.watch.reading import Reader
from conformance.watch.watching import watch

LOOP = """
    import os, torch
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.rand(1).item())
"""


def watched(tmp_path, source, *options, watch=True):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "conformance", "watch", *options, "--"] if watch else []
    return subprocess.run(
        [*command, sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_right_script_conforms_and_prints_what_it_prints(tmp_path):
    ended, plain = watched(tmp_path, LOOP), watched(tmp_path, LOOP, watch=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith(plain.stdout)
    assert "CONFORMS: 3 of 3 steps" in ended.stdout
    assert ended.stderr == ""


def test_it_watches_as_many_steps_as_asked(tmp_path):
    ended = watched(tmp_path, LOOP, "--steps", "2")
    assert "CONFORMS: 2 of 2 steps" in ended.stdout


def test_ctrl_c_ends_the_script_and_leaves_a_verdict(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(LOOP) + "print('ready', flush=True)\nimport time\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "conformance", "watch", "--", sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.stdout.readline() != "ready\n":
            pass
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert "UNDECIDED: the command failed: ended by SIGTERM" in out
    assert "interrupted by SIGTERM" in err
    assert process.returncode == 128 + signal.SIGTERM


def test_ctrl_c_waits_until_what_is_read_is_judged(monkeypatch):
    read, seen = Reader.read, []

    def interrupted(reader):
        if not seen:
            seen.append("began")
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("ended")
        return read(reader)

    monkeypatch.setattr(Reader, "read", interrupted)
    # Python exits with 1 where a signal comes while it starts.
    watched = watch(["sleep", "600"])
    assert (watched.by, watched.code, seen) == (signal.SIGINT, -signal.SIGINT, ["began", "ended"])


def test_a_signal_that_comes_while_the_command_starts_is_passed_on(monkeypatch):
    start = subprocess.Popen

    def interrupted(*arguments, **options):
        process = start(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(watching.subprocess, "Popen", interrupted)
    watched = watch(["sleep", "600"])
    assert (watched.by, watched.code) == (signal.SIGINT, -signal.SIGINT)


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        (
            LOOP.replace("optimizer.zero_grad()", "pass"),
            1,
            ["(watch/cleared)", "at: train.py:8", "8 | optimizer.step()", "rank 0"],
        ),
        (LOOP + "    raise SystemExit(7)", 7, ["the script itself failed with exit code 7"]),
        ("print(1)", 4, ["UNDECIDED: no process of the command imported torch"]),
        ("import torch", 4, ["UNDECIDED: No step of a torch optimizer was seen"]),
    ],
)
def test_others(tmp_path, source, code, says):
    ended = watched(tmp_path, source)
    assert [one for one in says if one not in ended.stdout + ended.stderr] == []
    assert ended.returncode == code


def test_the_judging_process_needs_no_torch():
    """It takes seconds to import, and a second copy of it."""
    modules = "judging.judge, conformance.watch.watching, conformance.watch.report.html, conformance.watch.report.junit"
    source = f"import sys; sys.modules['torch'] = None; import conformance.cli.watch, conformance.watch.{modules}"
    subprocess.run([sys.executable, "-c", source], check=True)
