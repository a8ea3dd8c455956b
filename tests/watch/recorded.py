"""What a recorder writes while a test trains."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.watch.ledger import Ledger
from conformance.watch.lines import decoded
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.records import Record


@contextmanager
def records_in(folder: Path) -> Iterator[list[Record]]:
    """The list has all records of the block once it is left."""
    Ledger.made(folder)
    found: list[Record] = []
    with recorded(str(folder), Settings()):
        yield found
    files = sorted(folder.glob("*.jsonl"), key=lambda path: int(path.name.split(".")[-2]))
    found += [decoded(line) for path in files for line in path.read_bytes().splitlines()]
