"""What is published of a trainer's output names no folder of the machine that it ran on."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

from conformance.verdict.paths import shortened


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
