"""The files that commands write."""

from __future__ import annotations

from pathlib import Path

RESULTS, REPORT = "conformance-results.jsonl", "conformance-report.html"


def unwritable(file: Path) -> str | None:
    """Why ``file`` cannot be written, if it cannot. Its folder is made."""
    existed = file.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("ab").close()
    except (FileExistsError, NotADirectoryError):
        return f"{file.parent} is not a folder"
    except OSError as error:
        return error.strerror
    if not existed:
        file.unlink()
    return None
