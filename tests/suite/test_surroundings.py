"""A user's folder, terminal and project do not disturb a run, nor does the plugin disturb them."""

from __future__ import annotations

import getpass
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASE = "single-batched-fp32-momentum"


def test_foreign_files_and_options(command, write):
    """Modules that hide installed ones, the project's pytest settings, the user's own options."""
    for name in ("conftest", "random", "types", "torch", "numpy", "pytest", "jinja2"):
        Path(f"{name}.py").write_text(f"raise RuntimeError('{name}.py was imported')\n")
    Path("pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    Path("sub").mkdir()
    Path("sub/test_theirs.py").write_text("def test_theirs(): assert False\n")
    target = write(
        "import subprocess\n"
        "assert 'PYTHONSAFEPATH' not in os.environ\n"
        "subprocess.run([sys.executable, '-c', 'import torch'], check=False)",
        name="elsewhere/mine.py",
    )
    script = Path(sys.executable).with_name("conformance")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment |= {"PYTEST_ADDOPTS": "--no-such-option", "PYTEST_PLUGINS": "no_such_plugin"}
    ended = subprocess.run(
        [script, "run", target, "-n", "2", "--case", CASE], capture_output=True, text=True, env=environment, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert "CONFORMS: mine.py: The only case passed." in ended.stdout


def test_progress_bar_in_a_terminal(command, write):
    ours, theirs = pty.openpty()
    run = command("run", write(), "--case", CASE, "-n", "1", stdout=theirs, env={"TERM": "xterm", "COLUMNS": "100"})
    os.close(theirs)
    shown = b""
    while chunk := read(ours):
        shown += chunk
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert run.ended().code == 0
    assert "collecting cases" in text
    assert "judging cases" in text
    assert "1/1" in text
    last = text.rpartition("judging cases")[2]
    assert "CONFORMS: trainer_0.py: The only case passed." in last
    assert "Report: conformance-report.html" in last


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        # Linux raises this when the other end is closed.
        return b""


def test_no_progress_bar_elsewhere(conformance, write):
    ended = conformance("run", write(), "--case", CASE)
    assert "judging" not in ended.out
    assert "\x1b" not in ended.out
    assert not ended.out.startswith("\n")


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
def test_nobody_reads_or_nothing_is_open(command, write, closed):
    """The report is written and the exit code is correct, even if the output is lost."""
    descriptors = {"stdout": [1], "stderr": [2], "both": [0, 1, 2]}[closed]

    def close():
        for descriptor in descriptors:
            os.close(descriptor)

    ended = command("run", write(), "--case", CASE, "-n", "1", preexec_fn=close).ended()
    assert ended.code == 0
    assert ended.err == ""
    assert Path("conformance-results.jsonl").read_text().count("\n") == 3
    assert "The only case passed" in Path("conformance-report.html").read_text()


def test_a_reader_that_leaves_early(command, write):
    run = command("run", write(), "--case", CASE, "-n", "1")
    run.process.stdout.close()
    run.process.stdout = None
    ended = run.ended()
    assert (ended.code, ended.err) == (0, "")
    assert Path("conformance-results.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_characters(command, write, encoding):
    target = write("raise ValueError('\N{GREEK SMALL LETTER LAMDA}')")
    ended = command(
        "run", target, "--case", CASE, "-n", "1", env={"PYTHONIOENCODING": encoding}, encoding=encoding
    ).ended()
    assert (ended.code, ended.err) == (1, "")
    assert "x CRASH" in ended.out
    assert "raised ValueError: \\u03bb" in ended.out
    assert "Report: conformance-report.html" in ended.out


def test_the_plugin_loads_nothing_heavy():
    code = "import conformance.plugin, sys; assert not {'torch', 'numpy', 'conformance.suite'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_front_process_never_imports_torch(write, command):
    """pytest, the CLI, the oracle, the verdict and the report do not import it."""
    target = write()
    code = (
        "import sys; from conformance.cli import main; "
        f"code = main(['run', {target!r}, '--case', {CASE!r}, '-n', '1']); "
        "assert code == 0, code; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=120)


def test_options_of_other_projects_do_not_clash(pytester):
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            for option in ("--trainer", "--backend", "--case", "--time-limit"):
                parser.addoption(option, default="theirs")
        """
    )
    pytester.makepyfile(
        """
        def test_theirs(pytestconfig):
            names = ("trainer", "backend", "case", "time_limit")
            assert [pytestconfig.getoption(name) for name in names] == ["theirs"] * 4
        """
    )
    pytester.runpytest("-q").assert_outcomes(passed=1)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_folder_for_temporary_files_that_others_use(command, write, tmp_path_factory, processes):
    """A run needs nothing there, such as the folder of another user's pytest, and leaves nothing."""
    folder = tmp_path_factory.mktemp("temporary")
    # Pytest cannot use this, like the folder of another user.
    (folder / f"pytest-of-{getpass.getuser()}").touch()
    before = list(folder.iterdir())
    ended = command("run", write(), "--case", CASE, "-n", processes, env={"TMPDIR": str(folder)}).ended()
    assert (ended.code, ended.err) == (0, ""), ended.out
    assert list(folder.iterdir()) == before


def test_a_long_path_to_temporary_files(command, write, tmp_path):
    """No socket can have an address there."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    ended = command("run", write(), "--case", CASE, "-n", "2", env={"TMPDIR": str(folder)}).ended()
    assert (ended.code, ended.err) == (0, ""), ended.out
    assert not list(folder.glob("conformance-*"))


def test_a_terminal_without_a_width(conformance, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert "amp/unscale-before-clip" in conformance("laws").out
