"""Runs a script as its reader will, and looks whether it shows what the case shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.report.text import visible
from conformance.repro.kinds import TIMEOUT, Calls, Counts, Ending, Reading, Shows
from conformance.runner.rank.environment import base_environment

#: A script trains a few windows; its processes import torch.
TIME_LIMIT = 120
_FORBIDDEN = 'raise ImportError("a standalone script imports no {}")\n'


@dataclass(frozen=True)
class Run:
    """How a script ended; ``output`` is all that it printed."""

    code: int | None
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.strip().splitlines() or ["it printed nothing"]


def run(script: Path, folder: Path) -> Run:
    """Run a script, as if it were in ``folder``, in a fresh process in which our package cannot be imported."""
    package = __name__.partition(".")[0]
    with tempfile.TemporaryDirectory() as forbidden:
        Path(forbidden, f"{package}.py").write_text(_FORBIDDEN.format(package))
        path = os.pathsep.join([forbidden, str(folder.resolve())])
        environment = {**base_environment(os.environ), "PYTHONPATH": path}
        command = [sys.executable, str(script)]
        try:
            ended = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT
            )
        except subprocess.TimeoutExpired as expired:
            return Run(None, (expired.stdout or b"").decode(errors="replace"))
    return Run(ended.returncode, ended.stdout.decode(errors="replace"))


def is_shown(ran: Run, shows: Shows, names: Sequence[str]) -> bool:
    """Whether a script exits with 1 for what was wrong in the case: the same value, or the same end. ``names``: of the
    values."""
    if ran.code != 1:
        return False
    if isinstance(shows, Ending):
        # Which rank raises first is a race.
        return any(_plain(one) in _plain(ran.output) for one in shows.errors or [TIMEOUT])
    if isinstance(shows, Calls | Counts):
        return ran.lines[-1] == "the trainer is wrong here"
    if isinstance(shows, Reading):
        observed = (f"observed {value!r}," for value in shows.weights)
        return "samples once;" in ran.output or any(one in ran.output for one in observed)
    if not shows.seen:
        return "expected the same values on all ranks" in ran.output
    observed = (f"{names[index]} on rank {rank}: observed {value!r}," for rank, index, value in shows.seen)
    return any(one in ran.output for one in observed)


def _plain(text: str) -> str:
    """Without folders, which a run may have for itself, and the numbers of ports, processes and lines; what no stream
    can encode as the escapes that Python prints."""
    return re.sub(r"\d+", "0", re.sub(r"/[^\s'\"]*/", "/", visible(text)))
