"""Writes files whole or not at all."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex


def write(file: Path, text: str) -> None:
    """Replaces `file` by `text` in UTF-8, with lone surrogates escaped. A symbolic link is replaced, not followed: it
    may lead anywhere.

    Raises OSError.
    """
    if not is_replaced(file):
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    new = file.with_name(f".conformance-{token_hex(8)}")
    try:
        with new.open("x", encoding="utf-8", errors="backslashreplace") as opened:
            opened.write(text)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def is_replaced(file: Path) -> bool:
    """Whether another file can take its place: not that of a device or a pipe, such as /dev/stdout."""
    folder = file.parent.resolve()
    is_system = folder == Path("/dev") or folder.is_relative_to("/proc")
    return not is_system and (file.is_symlink() or file.is_file() or not file.exists())
