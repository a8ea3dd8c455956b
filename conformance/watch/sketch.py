"""Linear sketches: two projections of a tensor on fixed directions of signs, and its 2-norm.

The elements in their order are cut into blocks of `BLOCK`. Element j of block i has the sign a[i] b[j] in a direction,
so that a direction is of rank one, and the same for all tensors: a process keeps one b and the longest a. Being
linear, the sketch of a sum of gradients is the sum of their sketches, up to rounding; docs/numerics.md bounds that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

BLOCK = 1024
WIDTH = 3
"""Numbers in a sketch."""

_PART = 4096
_MOST_LENGTHS = 32


@dataclass
class Taken:
    """What is computed at once of a tensor, as it may change: a projection of each block (2, blocks), and the norm."""

    blocks: torch.Tensor
    norm: torch.Tensor


@dataclass
class Sketching:
    """The directions, on each device and in each precision where they were needed."""

    _columns: dict[tuple[torch.device, torch.dtype], torch.Tensor] = field(default_factory=dict)
    _rows: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    _lengths: dict[tuple[torch.device, tuple[int, ...]], tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict
    )

    def take(self, tensor: torch.Tensor) -> Taken:
        """tensor: of any shape, dense or sparse, on any device; complex ones are read as pairs of reals."""
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.layout != torch.strided:
            return self._of_sparse(tensor)
        flat = tensor.reshape(-1)
        if flat.dtype not in (torch.float32, torch.float64):
            flat = flat.float()
        b = self._column(flat.device, flat.dtype)
        whole = flat.numel() // BLOCK
        parts = []
        if whole:
            parts.append(b @ flat[: whole * BLOCK].view(whole, BLOCK).t())
        rest = flat[whole * BLOCK :]
        if rest.numel() or not whole:
            parts.append((b[:, : rest.numel()] @ rest)[:, None])
        return Taken(parts[0] if len(parts) == 1 else torch.cat(parts, 1), torch.linalg.vector_norm(flat))

    def finish(self, taken: Sequence[Taken]) -> torch.Tensor:
        """(n, 3), double: the two projections and the norm of each tensor, all of one device."""
        device = taken[0].blocks.device
        lengths = tuple(one.blocks.shape[1] for one in taken)
        rows, owner = self._weighing(device, lengths)
        weighed = torch.cat([one.blocks for one in taken], 1).double() * rows
        result = torch.zeros(len(taken), WIDTH, dtype=torch.float64, device=device)
        result[:, :2].index_add_(0, owner, weighed.t())
        result[:, 2] = torch.stack([one.norm for one in taken]).double()
        return result

    def _of_sparse(self, tensor: torch.Tensor) -> Taken:
        tensor = (tensor if tensor.layout == torch.sparse_coo else tensor.to_sparse_coo()).coalesce()
        values = tensor.values().double()
        width = values[0].numel() if values.shape[0] else 1
        strides = torch.ones(tensor.sparse_dim(), dtype=torch.long, device=values.device)
        for dimension in range(tensor.sparse_dim() - 1, 0, -1):
            strides[dimension - 1] = strides[dimension] * tensor.shape[dimension]
        start = (tensor.indices() * strides[:, None]).sum(0) * width
        at = (start[:, None] + torch.arange(width, device=values.device)).reshape(-1)
        b = self._column(values.device, torch.float64)[:, at % BLOCK]
        count = max(1, -(-tensor.numel() // BLOCK))
        blocks = torch.zeros(2, count, dtype=torch.float64, device=values.device)
        blocks.index_add_(1, at // BLOCK, b * values.reshape(-1))
        return Taken(blocks, torch.linalg.vector_norm(values))

    def _column(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        found = self._columns.get((device, dtype))
        if found is None:
            found = self._columns[device, dtype] = _signs(-1, BLOCK).to(device, dtype)
        return found

    def _row(self, device: torch.device, length: int) -> torch.Tensor:
        found = self._rows.get(device)
        if found is None or found.shape[1] < length:
            parts = [_signs(part, _PART) for part in range(-(-length // _PART))]
            found = self._rows[device] = torch.cat(parts, 1).to(device)
        return found[:, :length]

    def _weighing(self, device: torch.device, lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """The signs of the blocks of tensors of these lengths in a row, and to which tensor each belongs."""
        found = self._lengths.get((device, lengths))
        if found is None:
            if len(self._lengths) >= _MOST_LENGTHS:
                self._lengths.clear()
            rows = torch.cat([self._row(device, length) for length in lengths], 1)
            counts = torch.tensor(lengths, device=device)
            owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
            found = self._lengths[device, lengths] = rows, owner
        return found


def _signs(number: int, length: int) -> torch.Tensor:
    """(2, length), int8: always the same for a number, without a draw from the script's generators."""
    generator = torch.Generator().manual_seed(1_000_003 + number)
    drawn: torch.Tensor = torch.randint(0, 2, (2, length), generator=generator, dtype=torch.int8, device="cpu")
    return drawn * 2 - 1
