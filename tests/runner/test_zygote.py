"""The process that all others are forked from: shared, replaced when it died, clear when it cannot start."""

from __future__ import annotations

import os
import select
import signal

import pytest

from conformance.runner.front.client import RunnerError
from conformance.runner.front.zygote_client import ZygoteClient, shared

LIMIT = 60.0


def test_all_servers_share_one():
    assert shared.get() is shared.get()


def test_one_that_died_is_replaced(write, ran, descendants):
    before = shared.get()
    # Other tests in this process may have left one of their own: multiprocessing's resource tracker stays to the end.
    below = descendants(os.getpid()).items()
    (pid,) = (pid for pid, folder in below if b"conformance.runner.zygote" in (folder / "cmdline").read_bytes())
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)
    (rank,) = ran(write(), "single").ranks
    assert rank.finished
    assert shared.get() is not before


def test_one_that_cannot_start(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('built for another machine')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunnerError, match=r"^the process that imports torch .* built for another machine$"):
        ZygoteClient()
