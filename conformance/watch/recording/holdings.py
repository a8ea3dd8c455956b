"""What a data set holds, without asking it for a sample, which it might make up or count, and what a batch does."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

MOST_ROWS = 256
_MOST_ELEMENTS = 4096
_MOST_SAMPLES, _MOST_FIELDS, _MOST_CHARACTERS, _MOST_BYTES = 16, 8, 256, 1024


def fingerprint(data: Any) -> int | None:
    """Of the first entries of what it has one entry of for each sample: tensors, arrays or lists; or the name that the
    library `datasets` gives to what one holds. None if it has no such thing."""
    found = [column for column in map(_bytes, _columns(data)) if column is not None]
    name = getattr(data, "_fingerprint", None)
    found += [name.encode()] if isinstance(name, str) else []
    return zlib.crc32(b" ".join(found)) if found else None


def fingerprint_of_whole(data: Any) -> int | None:
    """Of the first entries of what its own are cut from: the data of a `Subset`, and what its tensors or arrays are
    views of. None if there is no such thing, as of a list that was cut."""
    if isinstance(data, Subset):
        return fingerprint(data.dataset)
    found = [whole for whole in map(_whole, _columns(data)) if whole is not None]
    return zlib.crc32(b" ".join(found)) if found else None


def _whole(entries: Any) -> bytes | None:
    if isinstance(entries, (list, tuple)):
        return _whole(entries[0]) if len(entries) else None
    if isinstance(entries, np.ndarray) and isinstance(entries.base, np.ndarray):
        return _bytes(entries.base[:_MOST_SAMPLES]) if entries.base.ndim else None
    if is_plain(entries):
        storage = entries.untyped_storage()
        if storage.nbytes() > entries.nbytes:
            return bytes(torch.empty(0, dtype=torch.uint8, device=entries.device).set_(storage)[:_MOST_BYTES].tolist())
    return None


def _columns(data: Any) -> Iterator[Any]:
    fields = [data, *getattr(data, "__dict__", {}).values()]
    # A TensorDataset has a tuple of them.
    fields += [one for field in fields if isinstance(field, (tuple, list)) for one in field[:_MOST_FIELDS]]
    for field in fields:
        is_array = (isinstance(field, np.ndarray) or is_plain(field)) and field.ndim > 0
        if (is_array or isinstance(field, (list, tuple))) and len(field) == len(data):
            yield field[:_MOST_SAMPLES]


def is_plain(entries: Any) -> bool:
    """Whether it is a tensor whose bytes can be read: no subclass, on a device, and neither sparse nor quantized."""
    is_strided = type(entries) in (torch.Tensor, torch.nn.Parameter) and entries.layout == torch.strided
    return is_strided and not (entries.is_meta or entries.is_quantized or entries.is_nested)


def raw(entries: torch.Tensor) -> torch.Tensor:
    """In the memory of the host, one after another, where those of another type can be read in their place."""
    return entries.detach().cpu().resolve_conj().resolve_neg().contiguous()


def tensors(inputs: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Those among them, and those in lists and dictionaries, as a batch may be one."""
    for one in inputs:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, Mapping):
            yield from tensors(one.values())
        elif isinstance(one, (list, tuple)):
            yield from tensors(one)


def fingerprints(batch: torch.Tensor) -> list[int]:
    """One for each row: of all of its elements, or of some that are spread over it."""
    rows = batch.reshape(len(batch), -1)
    # An even distance may be that of two lines of an image, the margins of which are alike.
    some = raw(rows[:, :: ceil(rows.shape[1] / _MOST_ELEMENTS) | 1])
    some = some.view(torch.uint8) if some.dtype != torch.bool else some
    return [zlib.crc32(bytes(row)) for row in some.numpy()]


def _bytes(entries: Any) -> bytes | None:
    """None for what is not the same in two processes, such as where an object lies in memory."""
    if isinstance(entries, torch.Tensor):
        if not is_plain(entries):
            return None
        return bytes(raw(entries).flatten().view(torch.uint8).numpy())
    if isinstance(entries, np.ndarray):
        return None if entries.dtype == object else entries.tobytes()
    if isinstance(entries, (list, tuple)):
        parts = [_bytes(one) for one in entries[:_MOST_SAMPLES]]
        return None if None in parts else b",".join(part for part in parts if part is not None)
    if isinstance(entries, (str, bytes, int, float)):
        return repr(entries[:_MOST_CHARACTERS] if isinstance(entries, (str, bytes)) else entries).encode()
    return None
