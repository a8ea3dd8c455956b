"""Runs scripts of findings, one per core at a time. Each must reproduce its finding, and exit with 1.

python tools/findings.py reports/findings/accelerate_*.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor


def failed(scripts: Sequence[str]) -> Iterator[str]:
    """Yields a line for each script that exits with another code. Prints the output of all, in order."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, script]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for script, done in zip(scripts, pool.map(run, scripts), strict=True):
            print(f"{script}\n{done.stdout}", flush=True)
            if done.returncode != 1:
                yield f"{script}: exited with {done.returncode}, expected 1"


if __name__ == "__main__":
    sys.exit("\n".join(failed(sys.argv[1:])) or 0)
