"""Sketches are linear, the same in each process, and know sparse and half-precision tensors."""

import pytest
import torch

from conformance.watch.sketch import BLOCK, Sketching


def sketch(*tensors):
    sketching = Sketching()
    return sketching.finish([sketching.take(tensor) for tensor in tensors])


@pytest.mark.parametrize("shape", [(1,), (7,), (BLOCK,), (3, BLOCK), (5, 17, 13), (BLOCK * 9 + 1,), (0,)])
def test_a_sketch_is_linear(shape):
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    of_a, of_b, of_sum = sketch(a, b, 2 * a - 3 * b)
    assert torch.allclose(of_sum[:2], 2 * of_a[:2] - 3 * of_b[:2], rtol=1e-9, atol=1e-9)
    assert torch.isclose(of_a[2], a.norm())


def test_it_is_the_projection_on_signs():
    """Of a unit vector it is the sign itself."""
    units = [torch.nn.functional.one_hot(torch.tensor(n), BLOCK * 3).double() for n in range(0, BLOCK * 3, 97)]
    assert torch.equal(sketch(*units).abs(), torch.ones(len(units), 3, dtype=torch.float64))


def test_sparse_and_half_precision_tensors():
    dense = torch.zeros(40, 33)
    dense[[3, 17, 39]] = torch.arange(99.0).reshape(3, 33)
    assert torch.allclose(sketch(dense.to_sparse(1)), sketch(dense))
    assert torch.equal(sketch(dense.bfloat16()), sketch(dense))


def test_no_number_is_drawn_from_the_scripts_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    sketch(torch.ones(5000))
    assert torch.equal(before, torch.get_rng_state())
