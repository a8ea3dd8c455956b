"""Results files that can be read and not shown: anybody may have written them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance.results import ResultsError


@contextmanager
def blamed_on(files: Sequence[Path]) -> Iterator[None]:
    """The block renders what was read from these files. What their lines say may fit no report, although each of them
    is well-formed; that is no bug of ours.

    Raises ResultsError.
    """
    try:
        yield
    except (ResultsError, OSError):
        raise
    except Exception as error:
        what = f"damaged ({type(error).__name__}: {error})"
        if len(files) == 1:
            raise ResultsError(f"{files[0]} cannot be rendered: it is {what}") from error
        names = ", ".join(map(str, files))
        raise ResultsError(
            f"{names} cannot be rendered: one of them is {what}; `conformance report` on each says which"
        ) from error
