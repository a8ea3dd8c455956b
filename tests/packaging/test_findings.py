"""The script of a finding must show it: scripts that do not exit with 1 are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_scripts_have_to_exit_with_1(root: Path, tmp_path: Path) -> None:
    scripts = []
    for code in (1, 0, 1, 3):
        script = tmp_path / f"{len(scripts)}.py"
        script.write_text(f"import sys\nprint('observed: {len(scripts)}')\nsys.exit({code})\n")
        scripts.append(str(script))
    command = [sys.executable, str(root / "tools" / "findings.py")]
    done = subprocess.run([*command, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.split("\n\n")[:-1] == [f"{script}\nobserved: {n}" for n, script in enumerate(scripts)]
    assert done.stderr.splitlines() == [f"{scripts[n]}: exited with {code}, expected 1" for n, code in ((1, 0), (3, 3))]
    done = subprocess.run([*command, scripts[0], scripts[2]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
