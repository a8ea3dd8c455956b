"""The line that lives while a script runs, `--stop`, `--every` and what is written for CI, as one command."""

import json
import os
import pty
import subprocess
import sys
from xml.etree import ElementTree

WRONG = """
    import os, sys, time, torch
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(int(sys.argv[1])):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        time.sleep(0.05)
    print("done")
"""
RIGHT = WRONG.replace("optimizer.step()\n", "optimizer.step()\n        optimizer.zero_grad()\n")


def command(tmp_path, source, steps, *options):
    script = tmp_path / "train.py"
    script.write_text("\n".join(line[4:] for line in source.splitlines()))
    return [sys.executable, "-m", "conformance", "watch", *options, "--", sys.executable, str(script), str(steps)]


def run(*given, **more):
    return subprocess.run(command(*given), capture_output=True, text=True, timeout=300, check=False, **more)


def test_on_a_terminal_a_line_on_stderr_says_how_it_stands(tmp_path):
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(tmp_path, RIGHT, 40), stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 65536):
                seen += part
        except OSError:
            pass  # The other end is closed: so it is said on Linux.
        out = process.stdout.read()
    text = seen.decode()
    assert "\rwatching: " in text
    assert " right, 0 problems, " in text
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text
    assert b"watching:" not in out
    assert out.startswith(b"done\nCONFORMS: 40 of 40 steps")


def test_elsewhere_there_is_no_such_line(tmp_path):
    ended = run(tmp_path, RIGHT, 3)
    assert "watching:" not in ended.stdout + ended.stderr
    assert "\r" not in ended.stdout + ended.stderr


def test_stop_ends_the_script_at_the_first_violation(tmp_path):
    ended = run(tmp_path, WRONG, 100_000, "--stop")
    assert ended.returncode == 1
    assert "(watch/cleared)" in ended.stdout
    assert "done" not in ended.stdout
    assert "ended at the first violation (--stop)" in ended.stderr


def test_stop_lets_a_right_script_come_to_its_end(tmp_path):
    ended = run(tmp_path, RIGHT, 3, "--stop")
    assert ended.returncode == 0
    assert ended.stderr == ""


def test_every_looks_at_one_window_of_so_many(tmp_path):
    ended = run(tmp_path, RIGHT, 10, "--every", "5")
    assert "CONFORMS: 2 of 2 steps" in ended.stdout
    # Of eight numbers a single step shows too little: the first one is right.
    wrong = run(tmp_path, WRONG, 20, "--every", "5")
    assert "(watch/cleared)" in wrong.stdout


def test_the_files_that_are_asked_for_are_written(tmp_path):
    names = {"--output": "page", "--markdown": "a.md", "--junit": "a.xml", "--sarif": "a.sarif"}
    options = [word for name, file in names.items() for word in (name, str(tmp_path / file))]
    summary = tmp_path / "summary.md"
    more = {**os.environ, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    ended = run(tmp_path, WRONG, 3, *options, env=more)
    assert "DOES NOT CONFORM" in (tmp_path / "page" / "conformance-watch.html").read_text()
    assert (tmp_path / "a.md").read_text() == summary.read_text()
    assert "7 | optimizer.step()" in summary.read_text()
    assert ElementTree.parse(tmp_path / "a.xml").findall(".//failure")
    [result] = json.loads((tmp_path / "a.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "watch/cleared"
    assert f"::error file={tmp_path / 'train.py'},line=7,title=" in ended.stdout


def test_what_cannot_be_written_or_started_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert run(tmp_path, RIGHT, 1, "--junit", str(tmp_path / "file" / "a.xml")).returncode == 2
    ended = subprocess.run(
        [sys.executable, "-m", "conformance", "watch", "--", str(tmp_path / "nothing")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("conformance: ")
