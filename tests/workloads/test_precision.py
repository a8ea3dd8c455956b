"""Floating-point formats, against torch's own casts and torch.finfo."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.oracle.rounding import nearest
from conformance.workloads.precision import BF16, FP16, FP32, FP64, PRECISIONS

DTYPES = {FP64: torch.float64, FP32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}
FORMATS = st.sampled_from(list(DTYPES))


def cast(value: float, dtype: torch.dtype) -> float:
    return torch.tensor(value, dtype=torch.float64).to(dtype).item()


@st.composite
def doubles(draw: st.DrawFn) -> float:
    """Interesting doubles for all formats: of any magnitude, short and long, near the ends of the ranges."""
    significand = draw(st.integers(-(2**53), 2**53) | st.integers(-(2**12), 2**12))
    return math.ldexp(significand, draw(st.integers(-1074, 900) | st.integers(-160, 120) | st.integers(-30, 8)))


@pytest.mark.parametrize("fmt", DTYPES)
def test_constants_are_those_of_torch(fmt):
    info = torch.finfo(DTYPES[fmt])
    assert fmt.largest == Fraction(info.max)
    assert (fmt.dtype, 8 * fmt.width) == (info.dtype, info.bits)
    assert 2 * fmt.unit_roundoff == Fraction(info.eps)
    assert fmt.quantum == Fraction(info.smallest_normal) * Fraction(info.eps)


@given(doubles(), FORMATS)
def test_a_format_holds_what_a_cast_leaves_alone(value, fmt):
    assert fmt.holds(Fraction(value)) == (cast(value, DTYPES[fmt]) == value)


@given(st.fractions(), FORMATS)
def test_a_format_holds_no_fraction_that_is_not_dyadic(value, fmt):
    dyadic = value.denominator & (value.denominator - 1) == 0
    assert not fmt.holds(value) or dyadic


@given(doubles(), FORMATS)
def test_nearest_is_a_cast(value, fmt):
    casted = cast(value, DTYPES[fmt])
    rounded = nearest(Fraction(value), fmt)
    if math.isinf(casted):
        assert abs(rounded) > fmt.largest
    else:
        assert rounded == Fraction(casted)


@given(st.fractions().filter(bool), FORMATS)
def test_nearest_of_a_fraction_errs_by_half_an_ulp_at_most(value, fmt):
    rounded = nearest(value, fmt)
    assert fmt.holds(rounded) or abs(rounded) > fmt.largest
    assert abs(rounded - value) <= fmt.ulp(value) / 2
    assert abs(rounded - value) <= fmt.unit_roundoff * abs(value) or abs(value) < 2 * fmt.quantum * 2**fmt.p


@given(doubles(), FORMATS)
def test_an_ulp_is_the_distance_to_the_next_number_away_from_zero(value, fmt):
    start = torch.tensor(abs(value), dtype=torch.float64).to(DTYPES[fmt])
    following = torch.nextafter(start, torch.tensor(math.inf, dtype=start.dtype))
    if not math.isinf(following.item()):
        assert fmt.ulp(Fraction(start.item())) == Fraction(following.item()) - Fraction(start.item())


def test_precisions_say_where_each_stage_works():
    assert {name: (p.compute, p.master, p.wire, p.scaled) for name, p in PRECISIONS.items()} == {
        "fp64": (FP64, FP64, FP64, False),
        "fp32": (FP32, FP32, FP32, False),
        "bf16": (BF16, FP32, FP32, False),
        "fp16": (FP16, FP32, FP32, True),
        "fp16-compression": (FP32, FP32, FP16, False),
        "apex-O1": (FP16, FP32, FP32, True),
    }
    assert {name for name, precision in PRECISIONS.items() if precision.mixed} == {"bf16", "fp16", "apex-O1"}
    assert all(precision.mixed == (precision.amp is not None) for precision in PRECISIONS.values())
    assert [name for name, precision in PRECISIONS.items() if precision.compressed] == ["fp16-compression"]
    assert [name for name, precision in PRECISIONS.items() if precision.on_gpu_only] == ["apex-O1"]
