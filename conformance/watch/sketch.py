"""Linear sketches: two projections of a tensor on fixed directions of signs, and its 2-norm.

The elements in their order are cut into blocks of `BLOCK`. Element j of block i has the sign a[i] b[j] in a direction.
So a direction has rank one and is the same for all tensors: a process keeps one b and the longest a. Projections are
linear, so the sketch of a sum of gradients is the sum of their sketches, up to rounding; docs/numerics.md bounds that.

The sketch of a large tensor may cover only a sample, a few blocks spread over it: reading all of it would delay the
step too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from conformance.watch.sizes import BLOCK, SAMPLED, SMALL, WHOLE, WIDTH, spread

_CHUNK = 512
"""Blocks to project at once."""

_DRAWN = 4096
_MOST_LAYOUTS = 64
_COMPUTED_IN = (torch.float32, torch.float64)


@dataclass(slots=True)
class Taken:
    """The part of a tensor that is read immediately, because the tensor may change: a sample, or the final sums."""

    sample: torch.Tensor | None
    sums: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        tensor = self.sums if self.sample is None else self.sample
        assert tensor is not None
        return tensor.device


@dataclass
class _Layout:
    """The layout of samples that are projected together. padding: zeros after each sample. signs: of the blocks in both
    directions. owner: the sample of each block."""

    padding: list[torch.Tensor]
    signs: torch.Tensor
    owner: torch.Tensor


@dataclass
class Sketching:
    """Computes sketches. Keeps the directions by device and precision."""

    _columns: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, ...]] = field(default_factory=dict)
    _rows: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    _memories: dict[tuple[str, torch.device, torch.dtype], torch.Tensor] = field(default_factory=dict)
    _layouts: dict[tuple[torch.device, tuple[int, ...]], _Layout] = field(default_factory=dict)

    def take(self, tensor: torch.Tensor, number: int = WHOLE) -> Taken:
        """Reads a tensor of any shape, dense or sparse, on any device; complex numbers as pairs of reals; of a DTensor,
        the part on this rank. number: the sample to read, unless the tensor is small."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        tensor = own(tensor)
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.layout != torch.strided:
            return self._of_sparse(tensor, number)
        flat = tensor.reshape(-1)
        size = flat.numel()
        if size > SMALL:
            if number == WHOLE:
                return self._of_whole(flat if flat.dtype in _COMPUTED_IN else flat.float())
            begin, apart = spread(size, number)
            flat = flat.as_strided((SAMPLED, BLOCK), (apart, 1), flat.storage_offset() + begin)
        return Taken(flat.clone() if flat.dtype in _COMPUTED_IN else flat.float())

    def of(self, tensors: Iterable[tuple[int, torch.Tensor]]) -> torch.Tensor:
        """Sketches, (n, 3), of tensors, each with the number of the sample to read."""
        return self.finish([self.take(tensor, number) for number, tensor in tensors])

    def finish(self, taken: Sequence[Taken]) -> torch.Tensor:
        """Sketches, (n, 3), in double: two projections and the norm of each. On the CPU if devices differ."""
        by_device: dict[torch.device, list[int]] = {}
        for number, one in enumerate(taken):
            by_device.setdefault(one.device, []).append(number)
        if len(by_device) == 1:
            return self._of_device(taken)
        result = torch.zeros(len(taken), WIDTH, dtype=torch.float64)
        for numbers in by_device.values():
            result[numbers] = self._of_device([taken[number] for number in numbers]).cpu()
        return result

    def _of_device(self, taken: Sequence[Taken]) -> torch.Tensor:
        sampled = [n for n, one in enumerate(taken) if one.sample is not None]
        summed = [n for n, one in enumerate(taken) if one.sample is None]
        parts = [self._of_samples([one.sample for one in taken if one.sample is not None])] if sampled else []
        parts += [torch.stack([one.sums for one in taken if one.sums is not None])] if summed else []
        if len(parts) == 1:
            return parts[0]
        both = torch.cat(parts)
        return torch.empty_like(both).index_copy_(0, torch.tensor(sampled + summed, device=both.device), both)

    def _of_samples(self, samples: list[torch.Tensor]) -> torch.Tensor:
        layout = self._layout(samples[0].device, tuple(sample.numel() for sample in samples))
        parts = zip(samples, layout.padding, strict=True)
        staged = [part for sample, zeros in parts for part in (sample.view(-1), zeros)]
        widest = max(samples, key=lambda sample: sample.dtype.itemsize)
        blocks = torch.cat(staged, out=self._memory("blocks", BLOCK * len(layout.owner), widest)).view(-1, BLOCK)
        sketches = torch.zeros(len(samples), WIDTH, dtype=torch.float64, device=blocks.device)
        # In double, because squares of small or large singles are zero or infinite.
        squares = torch.linalg.vector_norm(blocks, dim=1, dtype=torch.float64).square_()
        rows = torch.cat([self._projected(blocks).double() * layout.signs, squares[None]])
        sketches.index_add_(0, layout.owner, rows.t())
        sketches[:, 2].sqrt_()
        return sketches

    def _memory(self, use: str, size: int, like: torch.Tensor) -> torch.Tensor:
        """The same memory each time, because new pages cost more than writing to them."""
        key = use, like.device, like.dtype
        found = self._memories.get(key)
        if found is None or len(found) < size:
            found = self._memories[key] = torch.empty(size, device=like.device, dtype=like.dtype)
        return found[:size]

    def _of_whole(self, flat: torch.Tensor) -> Taken:
        """Reads a whole tensor chunk by chunk, in constant memory."""
        signs = self._row(flat.device, -(-flat.numel() // BLOCK))
        sums = torch.zeros(WIDTH, dtype=torch.float64, device=flat.device)
        for begin in range(0, flat.numel(), _CHUNK * BLOCK):
            chunk = flat[begin : begin + _CHUNK * BLOCK]
            whole, first = len(chunk) // BLOCK, begin // BLOCK
            found = self._projected(chunk[: whole * BLOCK].view(whole, BLOCK))
            sums[:2] += (found.double() * signs[:, first : first + whole]).sum(1)
            rest = chunk[whole * BLOCK :]
            if len(rest):
                sums[:2] += self._projected(rest[None])[:, 0].double() * signs[:, first + whole]
        sums[2] = torch.linalg.vector_norm(flat, dtype=torch.float64)
        return Taken(None, sums)

    def _projected(self, blocks: torch.Tensor) -> torch.Tensor:
        """The sum of each block, (n, up to `BLOCK`), with the signs of both directions: (2, n).

        Not as a matrix product, which rounds a row differently next to other rows, so one tensor would have several
        sketches, and which may use TF32 or bfloat16 if the script allows it.
        """
        sums = blocks.new_empty(WIDTH - 1, len(blocks))
        products = self._memory("products", blocks.numel(), blocks).view_as(blocks)
        for signs, out in zip(self._column(blocks.device, blocks.dtype), sums, strict=True):
            # With `out`, autocast does not apply.
            torch.sum(torch.mul(blocks, signs[: blocks.shape[1]], out=products), 1, out=out)
        return sums

    def _of_sparse(self, tensor: torch.Tensor, number: int) -> Taken:
        size = tensor.numel()
        tensor = (tensor if tensor.layout == torch.sparse_coo else tensor.to_sparse_coo()).coalesce()
        values = tensor.values().double()
        width = values[0].numel() if values.shape[0] else 1
        strides = torch.ones(tensor.sparse_dim(), dtype=torch.long, device=values.device)
        for dimension in range(tensor.sparse_dim() - 1, 0, -1):
            strides[dimension - 1] = strides[dimension] * tensor.shape[dimension]
        start = (tensor.indices() * strides[:, None]).sum(0) * width
        at = (start[:, None] + torch.arange(width, device=values.device)).reshape(-1)
        read = values.reshape(-1)
        block = at // BLOCK
        if number != WHOLE and size > SMALL:
            begin, apart = spread(size, number)
            block, at = (at - begin) // apart, (at - begin) % apart
            inside = (block >= 0) & (block < SAMPLED) & (at < BLOCK)
            block, at, read = block[inside], at[inside], read[inside]
        signed = torch.stack([b[at % BLOCK] for b in self._column(values.device, torch.float64)]) * read
        signed *= self._row(values.device, -(-size // BLOCK))[:, block]
        return Taken(None, torch.cat([signed.sum(1), torch.linalg.vector_norm(read)[None]]))

    def _column(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        found = self._columns.get((device, dtype))
        if found is None:
            signs = _signs(-1, BLOCK)
            # The gradients of a softmax's biases add up to 0. With two classes, one direction must see the difference,
            # and the other the sum.
            signs[0, 1], signs[1, 1] = -signs[0, 0], signs[1, 0]
            signs[:, 2] = -signs[:, 1]
            found = self._columns[device, dtype] = tuple(signs.to(device, dtype))
        return found

    def _row(self, device: torch.device, length: int) -> torch.Tensor:
        found = self._rows.get(device)
        if found is None or found.shape[1] < length:
            parts = [_signs(part, _DRAWN) for part in range(-(-length // _DRAWN))]
            found = self._rows[device] = torch.cat(parts, 1).to(device)
        return found[:, :length]

    def _layout(self, device: torch.device, sizes: tuple[int, ...]) -> _Layout:
        found = self._layouts.get((device, sizes))
        if found is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            lengths = [max(1, -(-size // BLOCK)) for size in sizes]
            zeros = torch.zeros(BLOCK, device=device)
            padding = [zeros[: length * BLOCK - size] for length, size in zip(lengths, sizes, strict=True)]
            signs = torch.cat([self._row(device, length) for length in lengths], 1)
            # torch's repeat would start OpenMP threads, and a process that is forked later would hang without them.
            owner = torch.from_numpy(np.repeat(np.arange(len(sizes)), lengths)).to(device)
            found = self._layouts[device, sizes] = _Layout(padding, signs, owner)
        return found


def own(tensor: Any) -> torch.Tensor:
    """The part of a DTensor that is on this rank; any other tensor itself."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def has_values(tensor: torch.Tensor) -> bool:
    """False for meta and fake tensors, which only have shapes, and for nested ones, which sketches do not support."""
    return not (tensor.is_meta or tensor.is_nested or isinstance(own(tensor.data), FakeTensor))


def _signs(number: int, length: int) -> torch.Tensor:
    """Signs, (2, length), int8: fixed for each number, without use of the script's random generators."""
    generator = torch.Generator().manual_seed(1_000_003 + number)
    drawn: torch.Tensor = torch.randint(0, 2, (2, length), generator=generator, dtype=torch.int8, device="cpu")
    return drawn * 2 - 1
