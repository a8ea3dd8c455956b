"""The values of tensors of all kinds, read without running code of the trainer's classes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.testing._internal.two_tensor import TwoTensor

from conformance.trace.tensor_values import elements, own_part, picked, storage, values


class Silent(torch.Tensor):
    """A class that raises on every operation."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(function)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(function)


class Parameter(torch.nn.Parameter):
    pass


class Wrapper(Silent):
    """A wrapper of another tensor, perhaps with a factor."""

    @staticmethod
    def __new__(cls, inner, factor=None):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        with torch._C.DisableTorchFunction():
            wrapper.inner, wrapper.factor = inner, factor
        return wrapper

    def __tensor_flatten__(self):
        return ["inner"], self.factor


class Opaque(Silent):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)


ONE_TWO = torch.tensor([1.0, 2.0])


def fake():
    with FakeTensorMode():
        return torch.ones(2)


def freed():
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(0)
    return tensor


READABLE = {
    "ordinary": lambda: ONE_TWO,
    "subclass": lambda: Parameter(ONE_TWO),
    "with a dispatch": lambda: torch.Tensor._make_subclass(Silent, ONE_TWO),
    "asynchronous": lambda: AsyncCollectiveTensor(ONE_TWO),
    "wrapper": lambda: Wrapper(ONE_TWO),
    "same twice": lambda: TwoTensor(ONE_TWO, ONE_TWO.clone()),
    "sparse": lambda: ONE_TWO.to_sparse(),
    "compressed": lambda: ONE_TWO[None].to_sparse_csr(),
}
UNREADABLE = {
    "a wrapper with a factor": lambda: Wrapper(ONE_TWO, 0.5),
    "different": lambda: TwoTensor(ONE_TWO, 2 * ONE_TWO),
    "opaque": lambda: Opaque(ONE_TWO),
    "fake": fake,
    "meta": lambda: ONE_TWO.to("meta"),
    "freed": freed,
    "quantized": lambda: torch.quantize_per_tensor(ONE_TWO, 1.0, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([ONE_TWO]),
    "jagged": lambda: torch.nested.nested_tensor([ONE_TWO], layout=torch.jagged),
    "mkldnn": lambda: ONE_TWO.to_mkldnn(),
}


# Several of these layouts are in beta.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", READABLE | UNREADABLE)
def test_every_kind_of_tensor(kind):
    tensor = (READABLE | UNREADABLE)[kind]()
    found = [1.0, 2.0] if kind in READABLE else []
    with torch._C.DisableTorchFunction():
        assert elements(tensor) == own_part(tensor).flatten().tolist() == found
        assert (storage(tensor).data_ptr() != 0) is (kind in READABLE)
        assert values([tensor, None], [2, 1]) == [*(found or [None, None]), None]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [1.0, 2.0, 5.0, 5.0]),
        ({1: 4.0}, [1.0, 2.0, 4.0, 5.0]),
        ({6: 6.0}, [1.0, 2.0, 5.0, 6.0]),
        ({4: 3.0, 5: 7.0}, [1.0, 2.0, 3.0, 7.0]),
        ({2: float("nan")}, [1.0, 2.0, "nan", "nan"]),
        ({2: float("inf")}, [1.0, 2.0, 5.0, "inf"]),
    ],
)
@pytest.mark.parametrize("used", [(0, 3), (0, 7), (3, 7)])
def test_every_element_of_a_large_tensor_counts(used, changed, expected):
    flat = torch.full((8,), 5.0)
    flat[list(used)] = torch.tensor([1.0, 2.0])
    for place, value in changed.items():
        flat[place] = value
    assert picked(flat.view(2, 4), used, 8) == expected


@pytest.mark.parametrize("tensor", [None, torch.ones(4), torch.empty(8, device="meta")])
def test_a_part_of_a_large_tensor_is_not_read(tensor):
    assert picked(tensor, (0, 7), 8) == [None] * 4


def test_entries_of_a_sparse_tensor_add_up_without_changing_it():
    sparse = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (2,), check_invariants=True)
    assert elements(sparse) == [0.0, 3.0]
    assert (sparse.is_coalesced(), sparse._nnz()) == (False, 2)
