"""c10d's operators, through which torch.distributed passes all that ranks send each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_KEY = torch._C.DispatchKey.BackendSelect

BELOW = torch._C._dispatch_keyset_full().remove(_KEY)
"""What a kernel hands a call on to: `operator.redispatch(keys & BELOW, *args)`."""


@contextmanager
def intercepted(kernels: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Within this, operators of c10d run these kernels, by name, and are given the dispatch keys as first argument.

    At the one key that every call passes, also from C++, whatever the tensors are and whether or not inference mode is
    on.
    """
    library = torch.library.Library("c10d", "IMPL")
    try:
        for name, kernel in kernels.items():
            library.impl(name, kernel, _KEY.name, with_keyset=True)
        yield
    finally:
        library._destroy()
