"""Answers that depend only on a case and on the code that computes them, kept on disk from run to run."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_PACKAGE = Path(__file__).parents[1]
COMPUTED_BY = ("adapter", "oracle", "workloads")
"""The packages whose code computes the answers."""
_DIGEST = 20
_MOST_VERSIONS = 3
_MOST_FILES = 30_000
"""Of a version; an answer takes 8 kB on average."""


@dataclass
class Answers:
    """Where answers are kept; None: nowhere, each process computes its own."""

    folder: Path | None = None

    def get(self, key: tuple[object, ...], compute: Callable[[], T]) -> T:
        """The answer of this key, whose representation must determine it. What `compute` raises is not kept."""
        if self.folder is None:
            return compute()
        file = self.folder / _digest(repr(key).encode()).hex()
        with suppress(OSError):
            kept = file.read_bytes()
            # A file may be torn after a crash.
            if kept[:_DIGEST] == _digest(kept[_DIGEST:]):
                found: T = pickle.loads(kept[_DIGEST:])
                return found
        answer = compute()
        with suppress(OSError):
            _write(file, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        return answer

    def keep(self) -> None:
        """Keeps answers in the user's cache, ``XDG_CACHE_HOME`` or ``~/.cache``, if it can be written."""
        with suppress(OSError, RuntimeError):
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "trainer-conformance", "answers")
            own = home / version()
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.utime(own)
            for folder in sorted(home.iterdir(), key=_age, reverse=True)[_MOST_VERSIONS:]:
                shutil.rmtree(folder, ignore_errors=True)
            files = sorted(own.iterdir(), key=_age, reverse=True)
            for file in files[_MOST_FILES // 2 :] if len(files) > _MOST_FILES else ():
                file.unlink(missing_ok=True)
            self.folder = own


ANSWERS = Answers()
"""Those of this process."""


@cache
def version() -> str:
    """Identifies the code that computes answers: of this package, Python, and numpy with its random numbers."""
    files = sorted(file for name in COMPUTED_BY for file in (_PACKAGE / name).rglob("*.py"))
    code = [f"{sys.version} {np.__version__}".encode(), *(file.read_bytes() for file in files)]
    return _digest(b"".join(map(_digest, code))).hex()


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()


def _write(file: Path, answer: bytes) -> None:
    """Another process may write the same file, or read it now."""
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as new:
        try:
            new.write(_digest(answer) + answer)
            new.flush()
        except OSError:
            Path(new.name).unlink()
            raise
    os.replace(new.name, file)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
