"""`conformance watch` as a command: verdict and exit code, options, and written files."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from conformance.watch import watching
from conformance.watch.reading import Reader
from conformance.watch.watching import watch
from fixtures.watched import HERE
from tools import results_schema as schema

REPORT, SECRET = "conformance-watch.html", "s3cret"
WRONG = """
import os, sys, time, torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(int(os.environ.get("STEPS", 3))):
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    time.sleep(float(os.environ.get("PAUSE", 0)))
print("done")
"""
RIGHT = WRONG.replace("optimizer.step()\n", "optimizer.step()\n    optimizer.zero_grad()\n")
# Reports that it runs, and waits until it may end.
WAITING = "import sys; open(sys.argv[1], 'w').close(); open(sys.argv[2]).close()"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(WRONG)
    (tmp_path / "scripts" / "right.py").write_text(RIGHT)
    (tmp_path / "out").mkdir()
    return tmp_path


def command(*script, options=("--output", "out")):
    return [sys.executable, "-m", "conformance", "watch", *options, "--", *script]


def ended(folder, *script, options=("--output", "out"), **variables):
    given, env = command(*script, options=options), {**os.environ, **variables}
    return subprocess.run(given, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def python(source):
    return sys.executable, "-c", source


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("print(1)", "UNDECIDED: no process of the command imported torch"),
        ("import torch", "UNDECIDED: No step of a torch optimizer was seen"),
    ],
)
def test_a_script_without_steps_is_undecided(folder, source, says):
    done = ended(folder, *python(source))
    assert says in done.stdout
    assert done.returncode == 4


@pytest.mark.parametrize(
    ("options", "steps", "judged"), [(("--steps", "2"), "3", 2), (("--stop", "--every", "5"), "10", 2)]
)
def test_it_watches_as_many_steps_as_asked(folder, options, steps, judged):
    """Without a terminal, there is no progress line."""
    done = ended(folder, sys.executable, "scripts/right.py", options=options, STEPS=steps)
    assert done.stdout.startswith(f"done\nCONFORMS: right.py: {judged} of {judged} steps")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\r" not in done.stdout


@pytest.mark.parametrize(
    ("script", "most"),
    [("right/plain_loop", 14), ("wrong/divided_twice", 25), ("wrong/clip_before_unscale", 25)],
)
def test_a_verdict_fits_on_one_screen(folder, script, most):
    shutil.copy(HERE / f"{script}.py", folder / "train.py")
    done = ended(folder, sys.executable, "train.py", COLUMNS="80")
    _, verdict, *said = re.split("^(CONFORMS|DOES NOT CONFORM)", done.stdout, flags=re.MULTILINE)
    assert (verdict == "CONFORMS") == script.startswith("right")
    assert 5 < len("".join(said).rstrip().splitlines()) <= most, done.stdout


def test_stop_ends_the_script_at_the_first_violation(folder):
    done = ended(folder, sys.executable, "scripts/train.py", options=("--stop",), STEPS="100000", PAUSE="0.05")
    assert done.returncode == 1
    assert "conformance explain watch/cleared" in done.stdout
    assert "done" not in done.stdout
    assert "ended at the first violation (--stop)" in done.stderr


def test_a_terminal_shows_a_progress_line_on_stderr(folder):
    ours, theirs = pty.openpty()
    env = {**os.environ, "STEPS": "40", "PAUSE": "0.05"}
    given = command(sys.executable, "scripts/right.py")
    with subprocess.Popen(given, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 65536):
                seen += part
        except OSError:
            pass  # On Linux, this means that the other end is closed.
        out = process.stdout.read()
    text = seen.decode()
    assert "\rwatching: " in text
    assert " correct, 0 problems, " in text
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text
    assert b"watching:" not in out
    assert out.startswith(b"done\nCONFORMS: right.py: 40 of 40 steps")


def test_ctrl_c_waits_until_read_records_are_judged(monkeypatch):
    read, seen = Reader.read, []

    def interrupted(reader):
        if not seen:
            seen.append("began")
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("ended")
        return read(reader)

    monkeypatch.setattr(Reader, "read", interrupted)
    # Not Python, which exits with 1 if a signal comes while it starts.
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


def test_the_judging_process_needs_no_torch():
    """Importing it takes seconds, and memory for a second copy."""
    modules = ("judging.watch_judge", "watching", "report.watch_page", "report.junit")
    imported = ", ".join(f"conformance.watch.{one}" for one in modules)
    source = f"import sys; sys.modules['torch'] = None; import conformance.cli.watch, {imported}"
    subprocess.run([sys.executable, "-c", source], check=True)


class Waiting:
    """A watch whose script runs until `goes_on`."""

    def __init__(self, folder, *options):
        pipes = [folder / "running", folder / "may-end"]
        for pipe in pipes:
            os.mkfifo(pipe)
        given = command(*python(WAITING), *map(str, pipes), options=("--output", "out", *options))
        self.process = subprocess.Popen(given, cwd=folder, stdout=subprocess.PIPE, text=True)
        pipes[0].open().close()
        self._gate = pipes[1]

    def goes_on(self):
        self._gate.open("w").close()
        return self.process.communicate(timeout=300)[0]


def test_a_watch_that_does_not_end_removes_old_files(folder):
    """A command that cannot be started leaves them."""
    old = folder / "out" / REPORT, folder / "a.xml"
    for file in old:
        file.write_text("old")
    done = ended(folder, "./nothing", options=("--output", "out", "--junit", "a.xml"))
    assert (done.returncode, [file.read_text() for file in old]) == (2, ["old", "old"])
    assert done.stderr.startswith("conformance: ")
    watch = Waiting(folder, "--junit", "a.xml")
    watch.process.kill()
    watch.goes_on()
    assert [file.exists() for file in old] == [False, False]


def test_two_watches_into_one_folder_leave_two_reports(folder):
    watch = Waiting(folder)
    ended(folder, *python("'the second'"))
    first = (folder / "out" / REPORT).read_text()
    assert "the second" in first
    assert "Report: out/conformance-watch-2.html" in watch.goes_on()
    assert (folder / "out" / REPORT).read_text() == first
    assert "may-end" in (folder / "out" / "conformance-watch-2.html").read_text()


def test_a_later_watch_replaces_the_report_of_an_earlier_one(folder):
    for words in ("'one'", "'two'"):
        ended(folder, *python(words))
    assert os.listdir(folder / "out") == [REPORT]
    assert "two" in (folder / "out" / REPORT).read_text()


FORMATS = ("--output", "out", "--markdown", "a.md", "--junit", "a.xml", "--sarif", "a.sarif")


def test_files_are_not_written_through_symbolic_links(folder):
    elsewhere, names = folder / "elsewhere", ("out/" + REPORT, "a.md", "a.xml", "a.sarif")
    elsewhere.write_text("mine")
    for name in names:
        (folder / name).symlink_to(elsewhere)
    ended(folder, *python(""), options=FORMATS)
    assert elsewhere.read_text() == "mine"
    assert [name for name in names if (folder / name).is_symlink() or (folder / name).read_text() == "mine"] == []


def test_json_is_all_that_it_prints(folder):
    done = ended(folder, sys.executable, "scripts/train.py", options=("--format", "json", "--output", "out"))
    document = json.loads(done.stdout)
    Draft202012Validator(json.loads((schema.OUTPUTS / "watch.json").read_text())).validate(document)
    assert done.stderr == f"done\n\nReport: out/{REPORT}\n"
    [problem] = document["problems"]
    assert (document["verdict"], document["exit_code"], done.returncode) == ("DOES NOT CONFORM", 0, 1)
    assert (problem["law"], problem["file"], problem["line"]) == ("watch/cleared", "scripts/train.py", 7)
    assert {of["property"]: of["state"] for of in document["properties"]}["clearing"] == "WRONG"


def test_files_that_cannot_be_written_and_commands_that_cannot_start_are_usage_errors(folder):
    done = ended(folder, "true", options=("--junit", "scripts/train.py/a.xml"))
    assert done.returncode == 2
    done = ended(folder, f"TOKEN={SECRET}", "python")
    assert done.stderr.startswith("conformance: TOKEN=REDACTED cannot be started")
    done = ended(folder, "scripts/train.py", "--fast")
    assert done.returncode == 2
    assert done.stderr.endswith("write: conformance watch -- python scripts/train.py --fast\n")


def test_written_files_have_relative_paths_and_hide_secrets(folder):
    (folder / "scripts" / "train.py").write_text(f"{WRONG}raise SystemExit(7)")
    script, summary = str(folder / "scripts" / "train.py"), folder / "summary.md"
    done = ended(
        folder, "env", f"HF_TOKEN={SECRET}", sys.executable, script, "--key", SECRET, "--max-tokens", "512",
        f"--repo=https://me:{SECRET}@host/x", options=FORMATS, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary),
    )  # fmt: skip
    assert "exit code 7: env HF_TOKEN=REDACTED" in done.stderr
    assert "the script itself failed with exit code 7" in done.stderr
    texts = {file: (folder / file).read_text() for file in ("out/" + REPORT, "a.md", "a.xml", "a.sarif")}
    for text in texts.values():
        assert "scripts/train.py --key REDACTED --max-tokens 512 --repo=https://REDACTED@host/x" in text
        assert SECRET not in text
        assert str(folder) not in text
    assert SECRET not in done.stdout + done.stderr
    assert '<h1 class="t-bad">train.py does not conform</h1>' in texts["out/" + REPORT]
    assert texts["a.md"] == summary.read_text()
    assert "7 | optimizer.step()" in texts["a.md"]
    assert ElementTree.fromstring(texts["a.xml"]).findall(".//failure")
    [result] = json.loads(texts["a.sarif"])["runs"][0]["results"]
    assert result["ruleId"] == "watch/cleared"
    assert "::error file=scripts/train.py,line=7,title=" in done.stdout
    assert done.returncode == 7
