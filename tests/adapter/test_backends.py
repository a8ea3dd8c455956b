"""Backends are entries of one table: with the one that CONTRIBUTING adds, its cases are planned and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import conformance
from conformance.trainers import ring

ROOT = Path(__file__).parents[2]


def test_the_backend_that_contributing_adds_runs(tmp_path: Path) -> None:
    recipe = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a backend\n")[2].partition("\n## ")[0]
    [diff] = re.findall(r"```diff\n(.*?)```", recipe, re.DOTALL)
    shutil.copytree(Path(conformance.__file__).parent, tmp_path / "conformance")
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    trainer = Path(ring.__file__).read_text().replace('backends=("ring",)', 'backends=("tree",)')
    (tmp_path / "tree.py").write_text(trainer)
    command = [sys.executable, "-m", "conformance.cli", "run", "tree.py", "--case", "tree-w2-fp32-momentum"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 PASS (exact)" in ran.stdout
