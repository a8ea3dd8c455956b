"""Names in commands for a shell."""

from __future__ import annotations

import shlex


def quoted(target: str) -> str:
    """A target as a shell takes it; bytes that are no UTF-8 as bash, zsh and ksh write them."""
    if target.isprintable():
        return shlex.quote(target)
    # A results file may name a target that no file can have.
    names = ("surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass" for char in target)
    text = b"".join(char.encode("utf-8", name) for char, name in zip(target, names, strict=True))
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in text)
    return f"$'{''.join(plain)}'"
