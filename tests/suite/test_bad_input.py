"""Errors in the call: exit code 2, one line on standard error that says what to do, and nothing runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ONE = """from conformance import trainer
@trainer
def {name}(task): ...
"""

FILES = {
    "plain.py": "def train(task): ...\n",
    "one.py": ONE.format(name="train"),
    "two.py": ONE.format(name="first") + ONE.format(name="second"),
    "broken.py": "\n\ndef train(:\n",
    "misses.py": "\nimport no_such_module_anywhere\n",
    "raises.py": "\n\nraise ValueError('not today')\n",
    "exits.py": "import os\nos._exit(7)\n",
    "declares.py": "from conformance import trainer\n@trainer(backends=['dpp'])\ndef train(task): ...\n",
    "notes.txt": "not Python\n",
}

MISTAKES = {
    "no such file": (["nosuch.py"], "nosuch.py: no such file"),
    "a similar file": (["tow.py"], "tow.py: no such file; did you mean two.py?"),
    "no file but a pipe": (["pipe.py"], "pipe.py: no such file"),
    "no such folder": (["nosuch/one.py"], "nosuch/one.py: no such file (nor a folder nosuch)"),
    "a folder": (["folder"], "folder: this is a folder: name a .py file in it, or package.module:function"),
    "a folder's path": (["./folder"], "./folder: this is a folder: name a .py file in it"),
    "not Python": (["./notes.txt"], "not a Python file"),
    "no trainer in it": (
        ["plain.py"],
        (
            "plain.py: no @trainer function in it; to watch a script: conformance watch -- python plain.py; "
            "to make an adapter: conformance init plain.py"
        ),
    ),
    "several trainers": (["two.py"], "2 @trainer functions in it, name one of two.py:first, two.py:second"),
    "no such function": (["two.py:frist"], "two.py: no function 'frist' in it; did you mean 'first'?"),
    "not decorated": (["plain.py:train"], "plain.py: train is not decorated with @trainer(...)"),
    "syntax error": (["broken.py"], "broken.py:3: SyntaxError: invalid syntax"),
    "import error": (["misses.py"], "misses.py:2: ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
    "raises on import": (["raises.py"], "raises.py:3: ValueError: not today"),
    "exits on import": (["exits.py"], "exits.py: import ended the process (exited 7)"),
    "unknown module": (["nosuchpackage.module"], "no such module"),
    "unknown reference": (["dpp"], "dpp: no such module; did you mean 'ddp'?"),
    "unknown backend in the trainer": (["declares.py"], "unknown backend 'dpp'"),
    "empty": ([""], "neither a Python file nor a module name"),
    "unknown backend": (["one.py", "--backend", "dpp"], "argument --backend: invalid choice: 'dpp'"),
    "unknown case": (
        ["one.py", "--case", "single-batched-fp32-momentun"],
        "momentun for these trainers; did you mean 'single-batched-fp32-momentum'?",
    ),
    "case of another trainer": (["one.py", "--case", "horovod-w2-fp32-sgd"], "no case matches horovod-w2-fp32-sgd for"),
    "end of a name": (["one.py", "--case", "batched-fp32-momentum"], "did you mean '*batched-fp32-momentum'?"),
    "no time": (["one.py", "--time-limit", "0"], "argument --time-limit: '0' is not a time limit; write seconds"),
    "negative time": (["one.py", "--time-limit=-1"], "argument --time-limit: '-1' is not a time limit"),
    "endless time": (["one.py", "--time-limit", "inf"], "argument --time-limit: 'inf' is not a time limit"),
    "time in words": (["one.py", "--time-limit", "long"], "argument --time-limit: 'long' is not a time limit"),
    "no process": (
        ["one.py", "-n", "0"],
        "argument -n/--processes: '0' is not a number of processes; write a whole number of at least 1",
    ),
    "output is a file": (["one.py", "--output", "notes.txt"], "notes.txt is not a folder; name another folder"),
    "output in a file": (["one.py", "--output", "notes.txt/x"], "notes.txt/x is not a folder; name another folder"),
    "output not writable": (["one.py", "--output", "/proc/nowhere"], "cannot write /proc/nowhere/"),
    "report is a folder": (
        ["one.py", "--output", "taken"],
        "cannot write taken/conformance-report.html: Is a directory",
    ),
    "another kind of badge": (["one.py", "--badge", "a.png"], "a badge is no .png file; name it FILE.svg or FILE.json"),
    "unknown option": (["one.py", "--cases", "x"], "unrecognized arguments: --cases"),
}


@pytest.fixture(autouse=True)
def files(folder):
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("folder").mkdir()
    os.mkfifo("pipe.py")
    Path("taken/conformance-report.html").mkdir(parents=True)


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_one_line(conformance, arguments, said):
    ended = conformance("run", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.line.startswith("conformance: ")
    assert said in ended.line


def test_an_import_that_hangs(conformance):
    Path("waits.py").write_text("import threading\nthreading.Event().wait()\n")
    ended = conformance("run", "waits.py", "--time-limit", "2")
    assert (ended.code, ended.out) == (2, "")
    assert ended.line.startswith("conformance: waits.py: import took longer than 2 s at ")
    assert ended.line.endswith("waits.py:2")


def test_a_line_for_each_mistake_and_nothing_runs(conformance, write):
    Path("conformance-results.jsonl").write_text("earlier results\n")
    good = write("raise SystemExit('it ran')")
    ended = conformance("run", "nosuch.py", good, "broken.py")
    assert (ended.code, ended.out) == (2, "")
    assert [line.partition(":")[2].split(":")[0].strip() for line in ended.err.splitlines()] == [
        "nosuch.py",
        str(Path("broken.py").resolve()),
    ]
    assert Path("conformance-results.jsonl").read_text() == "earlier results\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["list"],
            "arguments are required: trainers | cases | workloads | laws | backends; see: conformance list --help",
        ),
        (["rnu"], "there is no command 'rnu'; did you mean 'run'?"),
        (["nothing-like-it"], "there is no command 'nothing-like-it'; see: conformance --help"),
        (["report"], "the following arguments are required: results; see: conformance report --help"),
        (["report", "nosuch.jsonl"], "cannot read nosuch.jsonl: No such file or directory"),
        (["report", ""], "cannot read .: Is a directory"),
        (["report", "x" * 5000], ": File name too long"),
        (["report", "pipe.py"], "cannot read pipe.py: it is not a file"),
        (["report", "/dev/zero"], "cannot read /dev/zero: it is not a file"),
        (["report", "folder"], "cannot read folder: Is a directory"),
        (["report", "notes.txt"], "notes.txt: line 1 is not the header of a results file of trainer-conformance"),
    ],
)
def test_other_commands(conformance, arguments, said):
    ended = conformance(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.line.startswith("conformance: ")
    assert said in ended.line
