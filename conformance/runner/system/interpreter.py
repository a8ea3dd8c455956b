"""How we start a fresh Python: same interpreter, same search path."""

from __future__ import annotations

import sys

# `python -m` would put the current folder first, where a user's own `torch/` or `types.py` may lie.
_BOOT = "import gc, sys; gc.disable(); sys.path[:] = sys.argv[3:]; from {module} import main; main(*sys.argv[1:3])"


def command(module: str, first: str, second: str) -> list[str]:
    """The command line that calls ``main(first, second)`` of ``module`` with this process's ``sys.path``.

    The garbage collector is off, as the `gc` module advises for processes that fork: imports make hardly any garbage,
    and looking for it takes an eighth of their time. ``main`` must switch it on.
    """
    return [sys.executable, "-c", _BOOT.format(module=module), first, second, *map(str, sys.path)]
