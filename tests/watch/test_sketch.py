"""Sketches are linear, equal in each process, and support sparse and half-precision tensors."""

import pytest
import torch

from conformance.watch.judging import sketch_bounds
from conformance.watch.judging.sketch_bounds import ROUNDOFF
from conformance.watch.sizes import BLOCK, SAMPLED, samples, spread
from conformance.watch.sketch import Sketching


def sketch(*tensors, of=-1):
    sketching = Sketching()
    return sketching.finish([sketching.take(tensor, of) for tensor in tensors])


@pytest.mark.parametrize("shape", [(1,), (7,), (3, BLOCK), (5, 17, 13), (BLOCK * 9,), (BLOCK * 519 + 1,), (0,)])
def test_a_sketch_is_linear(shape):
    """Sums of small whole numbers do not round."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-9, 10, shape, generator=generator).double() for _ in range(2))
    of_a, of_b, of_sum = sketch(a, b, 2 * a - 3 * b)
    assert torch.equal(of_sum[:2], 2 * of_a[:2] - 3 * of_b[:2])
    # A handful of roundings in double precision.
    assert torch.isclose(of_a[2], torch.linalg.vector_norm(a), rtol=2.0**-50, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sketch_does_not_depend_on_other_tensors_in_the_batch(dtype):
    """Equal tensors have bit-identical sketches."""
    generator = torch.Generator().manual_seed(5)
    sizes = (8, 128, BLOCK, 3 * BLOCK + 5, 8 * BLOCK, 77)
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    together = sketch(*tensors)
    for number in range(len(sizes)):
        assert torch.equal(sketch(*tensors[number:]), together[number:])
        assert torch.equal(sketch(tensors[number]), together[number : number + 1])


def test_a_sketch_is_a_projection_on_signs():
    """The projection of a unit vector is the sign itself."""
    units = [torch.nn.functional.one_hot(torch.tensor(n), BLOCK * 3).double() for n in range(0, BLOCK * 3, 97)]
    assert torch.equal(sketch(*units).abs(), torch.ones(len(units), 3, dtype=torch.float64))


def test_sparse_and_half_precision_tensors():
    dense = torch.zeros(40, 33)
    dense[[3, 17, 39]] = torch.arange(99.0).reshape(3, 33)
    of_sparse, of_dense = sketch(dense.to_sparse(1)), sketch(dense)
    assert torch.equal(of_sparse[:, :2], of_dense[:, :2])
    # The norm adds up 99 squares in double precision.
    assert torch.allclose(of_sparse[:, 2], of_dense[:, 2], rtol=100 * 2.0**-53, atol=0)
    assert torch.equal(sketch(dense.bfloat16()), sketch(dense))


@pytest.mark.parametrize("size", [5, SAMPLED * BLOCK + 1])
@pytest.mark.parametrize("exponent", [-140, -70, 70, 120])
def test_norms_of_very_small_and_large_numbers(size, exponent):
    """Their squares are outside the range of single precision."""
    [(_, _, norm)] = sketch(torch.full((size,), 2.0**exponent))
    assert norm.item() == pytest.approx(size**0.5 * 2.0**exponent, rel=size * 2.0**-53)


def test_errors_of_half_precision_are_within_the_bound():
    """But not without the part of the bound for underflow."""
    generator = torch.Generator().manual_seed(3)
    small = (torch.rand(4000, generator=generator) * 2.0**-23).half()
    (of_all,), (of_third,) = sketch(small), sketch(small / 3)
    roundoff, norm = ROUNDOFF["float16"], of_all[2].item()
    off = (of_third[:2] - of_all[:2] / 3).abs()
    rounded = sketch_bounds.of_sum(1, roundoff, norm / 3)
    summed = sketch_bounds.of_sketch(roundoff, norm / 3) + sketch_bounds.of_sketch(roundoff, of_third[2].item())
    assert (off <= rounded + summed + sketch_bounds.of_underflow(1, roundoff, small.numel())).all()
    assert (small / 3 - small.double() / 3).norm() * sketch_bounds.SIGNS > rounded + summed


def test_sketches_do_not_use_the_random_generator_of_the_script():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    sketch(torch.ones(5000))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("size", [SAMPLED * BLOCK + 1, 40 * BLOCK, 1000 * BLOCK + 7])
def test_samples_cover_a_large_tensor_and_each_is_linear(size):
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-9, 10, (size,), generator=generator).float() for _ in range(2))
    sparse, seen = a.to_sparse(), torch.zeros(size, dtype=torch.bool)
    for number in range(samples(size)):
        begin, apart = spread(size, number)
        places = (begin + apart * torch.arange(SAMPLED)[:, None] + torch.arange(BLOCK)).reshape(-1)
        assert len(places.unique()) == len(places)
        seen[places] = True
        of_a, of_b, of_sum = sketch(a, b, a - 3 * b, of=number)
        assert torch.equal(of_sum[:2], of_a[:2] - 3 * of_b[:2])
        # The squares are whole numbers, and add up exactly.
        assert torch.isclose(of_a[2], a[places].double().norm(), rtol=2.0**-50, atol=0)
        # All of a few samples, but eight of many: sparse samples are slow.
        if number % (1 + samples(size) // 8) == 0:
            assert torch.equal(sketch(sparse, of=number)[0, :2], of_a[:2])
    assert seen.all()


def test_little_memory_is_kept_for_a_tensor():
    """At most 32 KiB, for a whole tensor or a sample."""
    for rows, columns in ((7, 3), (128, 128), (320, 320), (8000, 320), (4096, 4096)):
        tensor = torch.zeros(rows, columns)
        for number in (-1, 0):
            taken = Sketching().take(tensor, number)
            kept = taken.sums if taken.sample is None else taken.sample
            assert kept.untyped_storage().nbytes() <= min(tensor.nbytes, 2**15)


@pytest.mark.parametrize("size", [5 * BLOCK, 50 * BLOCK])
@pytest.mark.parametrize("of", [-1, 3])
def test_autocast_and_lower_precision_of_products_change_nothing(size, of):
    """Both would round each element to eight bits. Sums of whole numbers are exact, and need 22 bits here."""
    tensor = torch.randint(-4095, 4096, (size,), generator=torch.Generator().manual_seed(1)).float()
    plain = sketch(tensor, of=of)[:, :2]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sketch(tensor, of=of)[:, :2], plain)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("high", "medium"):
            torch.set_float32_matmul_precision(precision)
            assert torch.equal(sketch(tensor, of=of)[:, :2], plain)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("gradient", [(1.0, -1.0), (1.0, 1.0), (1.0, -1.0, 0.0), (0.0, 1.0, -1.0), (1.0, 0.0, -1.0)])
def test_gradients_that_add_up_to_zero_are_seen(gradient):
    """The gradients of a softmax's biases do."""
    assert sketch(torch.tensor(gradient))[0, :2].any()


def test_directions_do_not_depend_on_the_default_device():
    """A script may set it, even to the meta device."""
    pair = torch.tensor([1.0, -1.0])
    with torch.device("meta"):
        columns = Sketching()._column(pair.device, pair.dtype)
    assert [abs(column[:2] @ pair).item() for column in columns] == [2, 0]
