"""Runs small trainings under a watch or a recorder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import conformance
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.reading import Reader
from conformance.watch.record_lines import decoded
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.records import Record


def network(outputs: int = 1) -> nn.Sequential:
    """A small model with six inputs."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs))


def loss(model: nn.Module, rows: int = 8) -> torch.Tensor:
    return model(torch.randn(rows, 6)).square().mean()


def watched(train: Callable[..., object], *args: object, **options: object) -> Findings:
    """The findings of `conformance.watching()` in a training."""
    torch.manual_seed(0)
    with conformance.watching(check=False) as watch:
        train(*args, **options)
    return watch.findings


def judged_by(judge: Judge, folder: Path, train: Callable[[], object], **settings: int) -> Findings:
    """The findings of this judge in a training, with these settings of the recorder."""
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    Ledger.made(folder)
    with recorded(str(folder), Settings(**settings)):
        train()
    Reader(folder, judge).finish()
    return judge.finish()


@contextmanager
def recording_in(folder: Path, optimizer: torch.optim.Optimizer) -> Iterator[Recording]:
    """A recorder of a training with this optimizer."""
    Ledger.made(folder)
    with recorded(str(folder), Settings()) as recording:
        recording.optimizer(optimizer)
        yield recording


@contextmanager
def records_in(folder: Path) -> Iterator[list[Record]]:
    """The records of the block; the list is filled when the block ends."""
    Ledger.made(folder)
    found: list[Record] = []
    with recorded(str(folder), Settings()):
        yield found
    files = sorted(folder.glob("*.jsonl"), key=lambda path: int(path.name.split(".")[-2]))
    found += [decoded(line) for path in files for line in path.read_bytes().splitlines()]
