"""What a data set holds, without asking it for a sample, which it might make up or count."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_MOST_SAMPLES, _MOST_FIELDS, _MOST_CHARACTERS = 16, 8, 256


def fingerprint(data: Any) -> int | None:
    """Of the first entries of what it has one entry of for each sample: tensors, arrays or lists. None if it has no
    such thing."""
    found = [column for column in map(_bytes, _columns(data)) if column is not None]
    return zlib.crc32(b" ".join(found)) if found else None


def _columns(data: Any) -> Iterator[Any]:
    fields = [data, *getattr(data, "__dict__", {}).values()]
    # A TensorDataset has a tuple of them.
    fields += [one for field in fields if isinstance(field, (tuple, list)) for one in field[:_MOST_FIELDS]]
    for field in fields:
        is_array = (isinstance(field, np.ndarray) or _is_plain(field)) and field.ndim > 0
        if (is_array or isinstance(field, (list, tuple))) and len(field) == len(data):
            yield field[:_MOST_SAMPLES]


def _is_plain(entries: Any) -> bool:
    is_strided = type(entries) is torch.Tensor and entries.layout == torch.strided
    return is_strided and not entries.is_meta and not entries.is_quantized


def _bytes(entries: Any) -> bytes | None:
    """None for what is not the same in two processes, such as where an object lies in memory."""
    if isinstance(entries, torch.Tensor):
        if not _is_plain(entries):
            return None
        return bytes(entries.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    if isinstance(entries, np.ndarray):
        return None if entries.dtype == object else entries.tobytes()
    if isinstance(entries, (list, tuple)):
        parts = [_bytes(one) for one in entries[:_MOST_SAMPLES]]
        return None if None in parts else b",".join(part for part in parts if part is not None)
    if isinstance(entries, (str, bytes, int, float)):
        return repr(entries[:_MOST_CHARACTERS] if isinstance(entries, (str, bytes)) else entries).encode()
    return None
