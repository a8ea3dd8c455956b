"""What a node of a graph has saved for its backward."""

from __future__ import annotations

from typing import Any


def saved(node: Any, name: str) -> Any:
    """What `node` has saved by this name; None if it has not, or if hooks keep it: they may compute it again as
    checkpointing does, read it from a disk, or hand it out only once. A Python number is never with them."""
    # Torch 2.6 does not tell whether there are hooks.
    if getattr(getattr(node, f"_raw_saved_{name}", None), "unpack_hook", None) is not None:
        return None
    return getattr(node, f"_saved_{name}", None)
