"""What is published of a trainer's output names no folder of the machine that it ran on."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest

from conformance.verdict.paths import shortened, text_of


def test_packages_library_and_working_folder_are_relative():
    lines = [os.path.join(sysconfig.get_path(name), "a", "b.py") for name in ("purelib", "stdlib")]
    lines.append(os.path.join(os.getcwd(), "my", "loop.py"))
    assert shortened("\n".join(lines)) == "a/b.py\na/b.py\nmy/loop.py"


def test_other_text_stays():
    assert shortened("a b /elsewhere/c.py") == "a b /elsewhere/c.py"


def test_the_working_folder_is_the_one_of_now(tmp_path, monkeypatch):
    assert shortened(f"{tmp_path}/loop.py") == f"{tmp_path}/loop.py"
    monkeypatch.chdir(tmp_path)
    assert shortened(f"{tmp_path}/loop.py") == "loop.py"


def test_packages_that_are_shared_from_elsewhere_are_none_of_the_trainer(tmp_path):
    """Such as those of the system, or of a user."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    code = f"from conformance.verdict.paths import shortened; print(shortened({os.path.join(folder, 'a', 'b.py')!r}))"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "a/b.py\n"


def test_the_text_of_a_line_is_that_in_which_files_agree(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "my_loop.py").write_text("  first\n    second  \n\n  last\n")
    monkeypatch.chdir(folders[1])
    assert text_of("my_loop.py", 2, None) is None
    text = "  first\n    second\n\n  last"
    assert [text_of("my_loop.py", line, folders[0]) for line in (2, 4)] == [text, text]
    assert [text_of("my_loop.py", line, folders[0]) for line in (3, 5, 9)] == [None] * 3
    (folders[1] / "my_loop.py").write_text("  first\n    second\n\n  last")
    assert text_of("my_loop.py", 2, folders[0]) == text
    (folders[1] / "my_loop.py").write_text("first\nanother\n")
    assert text_of("my_loop.py", 2, folders[0]) is None
    # A text always has a line after the third.
    assert text_of("my_loop.py", 2, None) == "first\nanother\n\n"


@pytest.mark.parametrize("name", ["\ud800.py", "a\0b.py"])
def test_what_no_file_can_be_named_has_no_text(name, tmp_path):
    """A trainer may give its code objects any name of a file."""
    assert text_of(name, 1, tmp_path) is None
