"""Fingerprints of data sets and batches. Never asks a data set for a sample, which it might generate or count."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

MOST_ROWS = 256
_MOST_ELEMENTS = 4096
_MOST_SAMPLES, _MOST_FIELDS, _MOST_CHARACTERS, _MOST_BYTES = 16, 8, 256, 1024
_MOST_PLACES = 256
_SETTINGS = (str, int, float, Path)
_DEEPEST = 4
"""Levels of lists in lists, and of data sets in data sets."""


def fingerprint(data: Any) -> int | None:
    """A fingerprint of a data set's content: the first entries of attributes with one entry for each sample (tensors,
    arrays or lists), inner data sets, and the fingerprint of the library `datasets`. None if there is none of these."""
    return _summary(lambda: _held(data, 0))


def settings(data: Any) -> int | None:
    """A fingerprint of a data set's attributes that are numbers, texts or paths. None if there are none."""
    return _summary(lambda: b" ".join(_text(field) for field in vars(data).values() if isinstance(field, _SETTINGS)))


def fingerprint_of_whole(data: Any) -> int | None:
    """A fingerprint of the data that a data set is cut from: the data of a `Subset`, and the bases of tensors and
    arrays that are views. None if unknown, as for slices of lists."""
    if type(data) is Subset:
        return fingerprint(data.dataset)
    return _summary(lambda: b" ".join(filter(None, map(_whole, _columns(data)))))


def _summary(read: Callable[[], bytes | None]) -> int | None:
    try:
        found = read()
    except Exception:
        # A data set of the script may raise on any access; then its content is unknown.
        return None
    return zlib.crc32(found) if found else None


def _held(data: Any, depth: int) -> bytes | None:
    if depth == _DEEPEST:
        return None
    if type(data) is Subset:
        whole, places = _held(data.dataset, depth + 1), data.indices
        return None if whole is None else whole + np.asarray(places[:: len(places) // _MOST_PLACES or 1]).tobytes()
    inner = [_held(field, depth + 1) for field in _fields(data) if _is_data(field)]
    name = getattr(data, "__dict__", {}).get("_fingerprint")
    found = [*map(_bytes, _columns(data)), *inner, _text(name) if isinstance(name, str) else None]
    return b" ".join(one for one in found if one is not None) or None


def _fields(data: Any) -> list[Any]:
    """Its attributes, and the entries of lists in these: a TensorDataset has a tuple of tensors."""
    fields = [*getattr(data, "__dict__", {}).values()]
    return fields + [one for field in fields if type(field) in (tuple, list) for one in field[:_MOST_FIELDS]]


def _columns(data: Any) -> Iterator[Any]:
    number = len(data)
    for field in (data, *_fields(data)):
        is_array = (isinstance(field, np.ndarray) or is_plain(field)) and field.ndim > 0
        if (is_array or type(field) in (list, tuple)) and len(field) == number:
            yield field[:_MOST_SAMPLES]


def _is_data(field: Any) -> bool:
    """Whether it is a data set of any class, but not a list or array."""
    kind = type(field)
    if issubclass(kind, (torch.Tensor, np.ndarray, list, tuple, dict, str)):
        return False
    has_samples = hasattr(kind, "__getitem__") and hasattr(kind, "__len__") and "__dict__" in dir(kind)
    return has_samples or isinstance(field, Dataset)


def _text(field: Any) -> bytes:
    text = str(field)
    if len(text) > 2 * _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}{text[-_MOST_CHARACTERS:]}{len(text)}"
    return text.encode(errors="backslashreplace")


def _whole(entries: Any) -> bytes | None:
    if type(entries) in (list, tuple):
        return _whole(entries[0]) if len(entries) else None
    if isinstance(entries, np.ndarray) and isinstance(entries.base, np.ndarray):
        return _bytes(entries.base[:_MOST_SAMPLES]) if entries.base.ndim else None
    if is_plain(entries):
        storage = entries.untyped_storage()
        if storage.nbytes() > entries.nbytes:
            return bytes(torch.empty(0, dtype=torch.uint8, device=entries.device).set_(storage)[:_MOST_BYTES].tolist())
    return None


def is_plain(entries: Any) -> bool:
    """Whether it is a tensor with readable bytes: no subclass, on a device, neither sparse, nested nor quantized."""
    is_strided = type(entries) in (torch.Tensor, torch.nn.Parameter) and entries.layout == torch.strided
    return is_strided and not (entries.is_meta or entries.is_quantized or entries.is_nested)


def raw(entries: torch.Tensor) -> torch.Tensor:
    """The tensor in contiguous memory of the host, whose bytes can be read as another type."""
    return entries.detach().cpu().resolve_conj().resolve_neg().contiguous()


def tensors(inputs: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the inputs, also those in lists and dictionaries."""
    for one in inputs:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, Mapping):
            yield from tensors(one.values())
        elif isinstance(one, (list, tuple)):
            yield from tensors(one)


def fingerprints(batch: torch.Tensor) -> list[int]:
    """A fingerprint of each row: of all its elements, or of some that are spread over it."""
    rows = batch.reshape(len(batch), -1)
    some = raw(rows[:, :: _distance(rows.shape[1])])
    some = some.view(torch.uint8) if some.dtype != torch.bool else some
    return [zlib.crc32(bytes(row)) for row in some.numpy()]


def joint_fingerprints(batch: torch.Tensor, *others: torch.Tensor) -> list[int]:
    """A fingerprint of all other inputs for each row of a batch: of the same row, or of all rows if their numbers
    differ."""
    found = [fingerprints(other) for other in others]
    rows = [one if len(one) == len(batch) else [zlib.crc32(repr(one).encode())] * len(batch) for one in found]
    return [zlib.crc32(repr(row).encode()) for row in zip(*rows, strict=True)]


def _distance(elements: int) -> int:
    """The distance of the elements to read. Odd, so it is not that of lines of an image, whose margins are equal."""
    return ceil(elements / _MOST_ELEMENTS) | 1


def _bytes(entries: Any, depth: int = 0) -> bytes | None:
    """The bytes of entries; None if they differ between processes, such as addresses of objects."""
    if isinstance(entries, torch.Tensor):
        if not is_plain(entries):
            return None
        return bytes(raw(entries.flatten()[:: _distance(entries.numel())]).view(torch.uint8).numpy())
    if isinstance(entries, np.ndarray):
        return None if entries.dtype == object else entries.reshape(-1)[:: _distance(entries.size)].tobytes()
    if type(entries) is dict:
        entries = [*islice(entries.items(), _MOST_SAMPLES)]
    if type(entries) in (list, tuple):
        if depth == _DEEPEST:
            return None
        parts = [_bytes(one, depth + 1) for one in entries[:_MOST_SAMPLES]]
        return None if None in parts else b",".join(part for part in parts if part is not None)
    if isinstance(entries, bytes):
        entries = entries[:_MOST_CHARACTERS]
    if isinstance(entries, (*_SETTINGS, bytes)):
        return _text(entries)
    return None
