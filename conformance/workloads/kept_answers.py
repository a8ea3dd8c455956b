"""Answers that depend only on a case and on the code that computes them, kept on disk from run to run."""

from __future__ import annotations

import lzma
import os
import pickle
import shutil
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
SHIPPED = Path(__file__).with_name("answers.xz")
"""Answers of the default run, in a released package only; `tools/answers.py` writes it."""
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
        """Keeps answers in the user's cache, ``XDG_CACHE_HOME`` or ``~/.cache``, if it can be written. A new cache
        starts with the answers that the package ships."""
        with suppress(OSError, RuntimeError):
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "trainer-conformance", "answers")
            own = home / version()
            if not own.is_dir():
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
                for name, answer in shipped().items():
                    _write(own / name, answer)
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
    """Identifies what computes answers: the code of this package, and numpy's random numbers.

    Fractions are exact in each Python. NumPy may change its stream of random numbers, but not without another draw
    here; an array of NumPy 2 cannot always be read by NumPy 1.
    """
    files = sorted(file for name in COMPUTED_BY for file in (_PACKAGE / name).rglob("*.py"))
    generator = np.random.default_rng(0)
    draws = [
        generator.integers(1000, size=50),
        generator.choice(50, 20, replace=False),
        generator.permutation(50),
        generator.standard_normal(50),
        generator.uniform(size=50),
    ]
    numpy = [np.__version__.partition(".")[0].encode(), *(draw.tobytes() for draw in draws)]
    return _digest(b"".join(map(_digest, numpy + [file.read_bytes() for file in files]))).hex()


def shipped() -> dict[str, bytes]:
    """The answers that the package ships, by the names of their files; none if another code has computed them."""
    if not SHIPPED.is_file():
        return {}
    made_by, answers = pickle.loads(lzma.decompress(SHIPPED.read_bytes()))
    return dict(answers) if made_by == version() else {}


def ship(folder: Path) -> None:
    """Writes the answers of this folder, which `Answers.keep` made, into the package."""
    answers = {file.name: file.read_bytes()[_DIGEST:] for file in sorted(folder.iterdir())}
    SHIPPED.write_bytes(lzma.compress(pickle.dumps((version(), answers), pickle.HIGHEST_PROTOCOL)))


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
