"""Trainers in files, and the command line in this process or in its own."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import engine, main
from conformance.runner.front.client import shared

#: The textbook loop; `{before}` runs in each rank first, `{inside}` in each window before its backward passes.
TEMPLATE = """
import os, sys, time
from contextlib import nullcontext
import torch
import torch.distributed as dist
from conformance import Task, trainer

@trainer(backends=["single", "ddp"], precisions=["fp32", "fp16"])
def train(task: Task) -> None:
{before}
    model = wrapped = task.model()
    if task.world_size > 1:
        dist.init_process_group(task.collective_backend)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()
    for window in task.windows():
        optimizer.zero_grad()
{inside}
        for batch in window:
            last = batch is window[-1]
            with nullcontext() if last or task.world_size == 1 else wrapped.no_sync():
                with task.autocast():
                    loss = task.loss(wrapped(batch.inputs), batch) / len(window)
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            scheduler.step()
"""

LIMIT = 120
#: Seconds until a line of progress, which a slow machine would print in some tests.
NEVER = 1e6
_COMMAND = f"import sys; from conformance.cli import engine, main; engine.PAUSE = {NEVER}; sys.exit(main())"


@pytest.fixture(scope="session", autouse=True)
def zygote_is_ended() -> Iterator[None]:
    yield
    shared.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[..., str]:
    """Writes a trainer to a file in the current folder; returns its target."""
    numbers = itertools.count()

    def write_trainer(before: str = "", inside: str = "", *, name: str | None = None) -> str:
        path = Path(name or f"trainer_{next(numbers)}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            TEMPLATE.format(
                before=textwrap.indent(textwrap.dedent(before), " " * 4),
                inside=textwrap.indent(textwrap.dedent(inside), " " * 8),
            )
        )
        return str(path)

    return write_trainer


@dataclass(frozen=True)
class Ended:
    """The result of a command line: its exit code and output."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """Its only line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def conformance(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """Calls the command line in this process, one case at a time unless ``-n`` is given."""
    monkeypatch.setattr(engine, "PAUSE", NEVER)

    def called(*arguments: str) -> Ended:
        capfd.readouterr()
        more = ["-n", "1"] if arguments[:1] == ("run",) and "-n" not in arguments else []
        try:
            code = main([*arguments, *more])
        except SystemExit as exited:
            code = int(exited.code or 0)
        captured = capfd.readouterr()
        return Ended(code, captured.out, captured.err)

    return called


@pytest.fixture
def cases(folder: Path) -> Callable[..., dict[tuple[str, str], dict[str, Any]]]:
    """The cases in the results file, by trainer and id."""

    def read(output: str = ".") -> dict[tuple[str, str], dict[str, Any]]:
        lines = [json.loads(line) for line in Path(output, "conformance-results.jsonl").read_text().splitlines()]
        return {(line["trainer"], line["id"]): line for line in lines if line["kind"] == "case"}

    return read


class Command:
    """`conformance` in its own process group, as a terminal would start it, with all its processes."""

    def __init__(self, arguments: tuple[str, ...], **more: Any) -> None:
        self._mark = f"CONFORMANCE_TEST={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        environment = {**os.environ, name: value, **more.pop("env", {})}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *arguments],
            env=environment,
            start_new_session=True,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )

    def ended(self) -> Ended:
        out, err = self.process.communicate(timeout=LIMIT)
        return Ended(self.process.returncode, out or "", err or "")

    def handles(self) -> list[int]:
        """A descriptor for each process of this run, ready to read once that process has ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(os.pidfd_open(int(folder.name)))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found


@pytest.fixture
def as_from_a_terminal() -> Iterator[None]:
    """New processes inherit no ignored signals: `nohup` ignores SIGHUP, and the `&` of a script SIGINT."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = [number for number in ending if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        # It still does nothing here, but a new program gets a signal's default instead of a handler.
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def command(folder: Path, as_from_a_terminal: None) -> Iterator[Callable[..., Command]]:
    """Starts the command line in its own process."""
    started: list[Command] = []

    def start(*arguments: str, **more: Any) -> Command:
        started.append(Command(arguments, **more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def all_gone() -> Callable[[list[int]], bool]:
    """Waits for the processes of these handles; returns whether all ended."""

    def wait(handles: list[int]) -> bool:
        gone = []
        for handle in handles:
            gone.append(bool(select.select([handle], [], [], LIMIT)[0]))
            os.close(handle)
        return all(gone)

    return wait


@pytest.fixture
def gate(folder: Path) -> Path:
    """A named pipe: a trainer that opens it waits until the test opens it too."""
    path = folder / "gate"
    os.mkfifo(path)
    return path
