"""Which samples went into a forward."""

from __future__ import annotations

from collections import Counter

import torch

from conformance.trace.values import own_part


class Rows:
    """Finds input rows among the samples. Compares them in the dtype of the inputs, which a trainer may cast.

    Samples that are equal in that dtype cannot be told apart: none of them is found.
    """

    def __init__(self, x: list[list[float]]) -> None:
        self._distinct = torch.tensor(list(dict.fromkeys(map(tuple, x))), dtype=torch.float64)
        self._features = self._distinct.shape[-1]
        self._index: dict[torch.dtype, dict[tuple[float, ...], int]] = {}

    def of(self, inputs: torch.Tensor) -> list[int | None]:
        """The index of each row of `inputs` (..., features) among the distinct rows; [] for another shape, and for
        inputs without values."""
        inputs = own_part(inputs)
        features = self._features
        shape = inputs.shape
        if not shape or shape[-1] != features:
            return []
        if inputs.dtype not in self._index:
            known = [tuple(row) for row in self._distinct.to(inputs.dtype).double().tolist()]
            times = Counter(known)
            self._index[inputs.dtype] = {row: index for index, row in enumerate(known) if times[row] == 1}
        index = self._index[inputs.dtype]
        rows = (inputs if len(shape) == 2 else inputs.reshape(-1, features)).tolist()
        return list(map(index.get, map(tuple, rows)))
