"""Prefixes in the one store of a case, so that it looks new to each process group that a trainer sets up."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any


def separate_groups() -> None:
    """Give each `init_process_group` of this process its own prefix in the store.

    With torchrun's defaults rank 0 hosts a new store each time. Ours outlives a destroyed group, so the next group
    would find the old addresses and hang (as it does with `torchrun --standalone`).
    """
    # The attribute `torch.distributed.rendezvous` is a function of the same name.
    module: Any = import_module("torch.distributed.rendezvous")
    store: Any = import_module("torch.distributed").PrefixStore
    create = module._create_c10d_store
    numbers = itertools.count()

    def create_with_prefix(*arguments: Any, **options: Any) -> Any:
        return store(f"group-{next(numbers)}", create(*arguments, **options))

    module._create_c10d_store = create_with_prefix
