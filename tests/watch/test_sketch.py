"""Sketches are linear, the same in each process, and know sparse and half-precision tensors."""

import pytest
import torch

from conformance.watch.sketch import BLOCK, Sketching


def sketch(*tensors):
    sketching = Sketching()
    return sketching.finish([sketching.take(tensor) for tensor in tensors])


@pytest.mark.parametrize("shape", [(1,), (7,), (BLOCK,), (3, BLOCK), (5, 17, 13), (BLOCK * 9 + 1,), (0,)])
def test_a_sketch_is_linear(shape):
    """Sums of small whole numbers do not round."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-9, 10, shape, generator=generator).double() for _ in range(2))
    of_a, of_b, of_sum = sketch(a, b, 2 * a - 3 * b)
    assert torch.equal(of_sum[:2], 2 * of_a[:2] - 3 * of_b[:2])
    assert torch.equal(of_a[2], torch.linalg.vector_norm(a))


def test_it_is_the_projection_on_signs():
    """Of a unit vector it is the sign itself."""
    units = [torch.nn.functional.one_hot(torch.tensor(n), BLOCK * 3).double() for n in range(0, BLOCK * 3, 97)]
    assert torch.equal(sketch(*units).abs(), torch.ones(len(units), 3, dtype=torch.float64))


def test_sparse_and_half_precision_tensors():
    dense = torch.zeros(40, 33)
    dense[[3, 17, 39]] = torch.arange(99.0).reshape(3, 33)
    of_sparse, of_dense = sketch(dense.to_sparse(1)), sketch(dense)
    assert torch.equal(of_sparse[:, :2], of_dense[:, :2])
    # Of the 99 squares that the norm in single precision adds up.
    assert torch.allclose(of_sparse[:, 2], of_dense[:, 2], rtol=100 * 2.0**-24, atol=0)
    assert torch.equal(sketch(dense.bfloat16()), sketch(dense))


def test_no_number_is_drawn_from_the_scripts_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    sketch(torch.ones(5000))
    assert torch.equal(before, torch.get_rng_state())
