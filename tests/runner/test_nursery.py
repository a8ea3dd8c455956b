"""One process imports torch for several workers, and forks a zygote for each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.runner.front.client import ForkServer, RunnerError
from conformance.runner.front.zygote_handle import Zygote, _Shared
from conformance.runner.front.zygote_process import Joined, Nursery

LIMIT = 60.0
Write = Callable[..., str]
MakeSpec = Callable[..., dict[str, Any]]
Descendants = Callable[[int], dict[int, Path]]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OF_THE_FRONT", "before")
        nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(autouse=True)
def of_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_FRONT", "before")


@pytest.fixture
def joined(nursery: Nursery) -> Iterator[_Shared]:
    """What a worker has that was told of the nursery."""
    joined = _Shared()
    joined.join(nursery.address)
    yield joined
    joined.close()


def nurseries(descendants: Descendants) -> set[int]:
    return {pid for pid, folder in descendants(os.getpid()).items() if b".nursery" in (folder / "cmdline").read_bytes()}


def test_zygotes_are_forked_from_it(nursery: Nursery, descendants: Descendants) -> None:
    (ancestor, *_) = sorted(nurseries(descendants))
    before = set(descendants(ancestor))
    first, second = (Zygote(Joined(nursery.address)) for _ in range(2))
    assert len(set(descendants(ancestor)) - before) == 2
    assert first.versions == second.versions
    assert first.running and second.running
    first.close()
    assert second.running
    second.close()
    assert not any(Path("/proc", str(pid), "exe").exists() for pid in set(descendants(ancestor)) - before)


def test_it_runs_cases(joined: _Shared, write: Write, make_spec: MakeSpec) -> None:
    with ForkServer(write(), "ddp", starter=joined.get) as server:
        outcome = server.run(make_spec("ddp", 2), LIMIT)
    assert [rank.finished for rank in outcome.ranks] == [True, True]


def test_its_zygotes_have_the_environments_of_their_workers(
    joined: _Shared, write: Write, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "later")
    monkeypatch.delenv("OF_THE_FRONT")
    target = write("print(os.environ.get('OF_THE_WORKER'), os.environ.get('OF_THE_FRONT'))")
    with ForkServer(target, "single", starter=joined.get) as server:
        (rank,) = server.run(make_spec("single", 1), LIMIT).ranks
    assert rank.output == "later None\n"


def test_a_zygote_that_died_is_replaced_from_it(joined: _Shared, descendants: Descendants) -> None:
    (ancestor, *_) = sorted(nurseries(descendants))
    elsewhere = set(descendants(ancestor))
    before = joined.get()
    (pid,) = set(descendants(ancestor)) - elsewhere
    os.kill(pid, signal.SIGKILL)
    assert before._process.channel.receive(LIMIT) is None
    assert not before.running
    after = joined.get()
    assert after is not before
    assert len(set(descendants(ancestor)) - elsewhere - {pid}) == 1


def test_what_is_said_of_a_zygote_that_is_gone(joined: _Shared, write: Write, descendants: Descendants) -> None:
    (ancestor, *_) = sorted(nurseries(descendants))
    elsewhere = set(descendants(ancestor))
    zygote = joined.get()
    (pid,) = set(descendants(ancestor)) - elsewhere
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunnerError, match=r"^the process that imports torch ended; it last printed: nothing$"):
        zygote.serve(write(), "single", spawn=None)


def test_without_it_a_worker_starts_its_own(descendants: Descendants) -> None:
    gone = Nursery()
    gone.close()
    shared = _Shared()
    shared.join(gone.address)
    before = set(descendants(os.getpid()))
    assert shared.get().running
    assert len(set(descendants(os.getpid())) - before) == 1
    shared.close()


def test_why_torch_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('built for another machine')")
    monkeypatch.syspath_prepend(tmp_path)
    nursery = Nursery()
    shared = _Shared()
    shared.join(nursery.address)
    with pytest.raises(RunnerError, match=r"^the process that imports torch .* built for another machine$"):
        shared.get()
    nursery.close()
