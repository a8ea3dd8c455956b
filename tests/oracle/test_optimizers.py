"""The update rules and clipping alone, fed with exact gradients: their own rounding against torch's."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.oracle.affine import Symbols
from conformance.oracle.optimizers import AdamWRule, AdamWRuleOfTensors, clipped, update_rule
from conformance.oracle.rounding import Ledger
from conformance.workloads.precision import FP32, FP64
from conformance.workloads.workload import SGD, Adagrad, AdamW, Clip

from .training import DTYPES, IMPLEMENTATIONS, exactly, optimizer_of

SIZE = 3
formats = st.sampled_from([FP64, FP32])
seeds = st.integers(0, 2**32).map(random.Random)
implementations = st.sampled_from(list(IMPLEMENTATIONS.values()))


def numbers(source: random.Random, dtype: torch.dtype) -> torch.Tensor:
    """Of very different magnitudes, now and then zero."""
    spread = source.uniform(-8, 8)
    values = [source.gauss(0, 1) * 10 ** (spread + source.uniform(-2, 2)) for _ in range(SIZE)]
    return torch.tensor([value * (source.random() > 0.1) for value in values], dtype=dtype)


@st.composite
def sgd(draw):
    momentum = draw(st.sampled_from([0.0, 0.1, 0.9]))
    nesterov = bool(momentum) and draw(st.booleans())
    dampening = 0.0 if nesterov else draw(st.sampled_from([0.0, 0.1, 0.9]))
    decay, lr = draw(st.sampled_from([0.0, 0.1])), draw(st.sampled_from([0.1, 0.001]))
    return SGD(*map(Fraction, (lr, momentum, dampening)), nesterov, Fraction(decay))


@st.composite
def adamw(draw):
    betas = draw(st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.99, 0.9999), (0.9, 0.99999), (0.0, 0.5)]))
    lr, eps = draw(st.sampled_from([1.0, 0.01])), draw(st.sampled_from([1e-8, 1e-12, 1e-3]))
    decay = draw(st.sampled_from([0.0, 0.1]))
    return AdamW(Fraction(lr), *map(Fraction, (*betas, eps, decay)))


@st.composite
def adagrad(draw):
    lr, lr_decay = draw(st.sampled_from([1.0, 0.01])), draw(st.sampled_from([0.0, 0.1, 2.0]))
    eps, decay = draw(st.sampled_from([1e-10, 1e-3])), draw(st.sampled_from([0.0, 0.1]))
    return Adagrad(*map(Fraction, (lr, lr_decay, eps, decay)))


@settings(max_examples=200)
@given(sgd() | adamw() | adagrad(), formats, seeds, implementations, st.integers(1, 7))
def test_torchs_optimizers_stay_in_the_bound(spec, fmt, source, flags, steps):
    """In double precision the bias corrections of AdamW round as much as anything else: their difference cancels."""
    symbols = Symbols()
    rule = update_rule(spec, fmt, Ledger())
    parameter = torch.nn.Parameter(numbers(source, DTYPES[fmt.name]))
    optimizer = optimizer_of(spec, [parameter], **flags)
    weights = symbols.exactly(exactly([parameter]))
    for _ in range(steps):
        parameter.grad = numbers(source, DTYPES[fmt.name])
        gradient = exactly([parameter.grad])  # A step may overwrite it: foreach with Nesterov momentum does.
        optimizer.step()
        weights = rule.step(weights, symbols.exactly(gradient), spec.lr)
        assert weights.enclosure().holds(exactly([parameter]))


@settings(max_examples=100)
@given(adamw(), formats, seeds, st.integers(1, 7))
def test_scalars_in_tensors_stay_in_their_bound(spec, fmt, source, steps):
    """Compiled steps have them, and so do differentiable ones."""
    symbols = Symbols()
    rule = AdamWRuleOfTensors(spec, fmt, Ledger())
    parameter = numbers(source, DTYPES[fmt.name])
    optimizer = optimizer_of(spec, [parameter], differentiable=True)
    weights = symbols.exactly(exactly([parameter]))
    for _ in range(steps):
        parameter.grad = numbers(source, DTYPES[fmt.name])
        optimizer.step()
        weights = rule.step(weights, symbols.exactly(exactly([parameter.grad])), spec.lr)
        assert weights.enclosure().holds(exactly([parameter]))


@pytest.mark.parametrize("rule", [AdamWRule, AdamWRuleOfTensors])
def test_the_bound_of_doubles_is_not_loosened(rule):
    """1 - 0.999 in fp32 is off by more than it allows."""
    parameter = torch.tensor([1.0])
    spec = AdamW(Fraction(0.125), weight_decay=Fraction(0))
    optimizer = optimizer_of(spec, [parameter], differentiable=True)
    parameter.grad = torch.tensor([1.0])
    optimizer.step()
    symbols = Symbols()
    right = rule(spec, FP32, Ledger()).step(symbols.exactly([Fraction(1)]), symbols.exactly([Fraction(1)]), spec.lr)
    assert right.enclosure().holds(exactly([parameter])) is (rule is AdamWRuleOfTensors)


@settings(max_examples=200)
@given(seeds, formats, st.sampled_from(["norm", "value"]), st.sampled_from([0.3, 1.0, 1e-7, 1e7]), st.booleans())
def test_torchs_clipping_stays_in_the_bound(source, fmt, kind, threshold, foreach):
    parameters = [torch.nn.Parameter(torch.zeros(SIZE, dtype=DTYPES[fmt.name])) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = numbers(source, DTYPES[fmt.name])
    gradient = Symbols().exactly(exactly([parameter.grad for parameter in parameters]))
    right = clipped(gradient, Clip(kind, Fraction(threshold)), fmt, Ledger())
    if kind == "norm":
        torch.nn.utils.clip_grad_norm_(parameters, threshold, foreach=foreach)
    else:
        torch.nn.utils.clip_grad_value_(parameters, threshold, foreach=foreach)
    assert right.enclosure().holds(exactly([parameter.grad for parameter in parameters]))


def clip(gradient, threshold, kind="norm", fmt=FP32):
    ledger = Ledger()
    result = clipped(Symbols().exactly(list(map(Fraction, gradient))), Clip(kind, Fraction(threshold)), fmt, ledger)
    return result, ledger.exact


def test_a_norm_below_the_limit_leaves_the_gradient_alone_and_a_value_is_clipped_exactly_if_the_threshold_is():
    result, exact_ = clip([3, 4], 6)
    assert (result.center, result.exact, exact_) == ((3, 4), True, True)
    result, exact_ = clip([3, -4, 1], 2, "value")
    assert (result.center, exact_) == ((2, -2, 1), True)
    assert not clip([3, -4, 1], Fraction(1, 3), "value")[1]


@pytest.mark.parametrize("threshold", [5, 4, Fraction(5) + Fraction(1, 10**7)])
def test_a_norm_at_or_above_the_limit_rounds(threshold):
    result, exact_ = clip([3, 4], threshold)
    assert not exact_
    assert not result.exact
    ratio = min(Fraction(1), threshold / (5 + Fraction(1e-6)))
    assert result.enclosure().holds((3 * ratio, 4 * ratio))
    assert max(result.radius) < Fraction(1, 2**18)


def sgd_steps(**changes):
    """Weights after gradients 1, 1, 1, from a weight of 0 with a learning rate of 1."""
    symbols = Symbols()
    rule = update_rule(SGD(Fraction(1), **changes), FP64, Ledger())
    weights, visited = symbols.exactly([Fraction(0)]), []
    for _ in range(3):
        weights = rule.step(weights, symbols.exactly([Fraction(1)]), Fraction(1))
        visited.append(weights.center[0])
    return visited


HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [-1, -2, -3]),
        ({"momentum": HALF}, [-1, Fraction(-5, 2), Fraction(-17, 4)]),
        ({"momentum": HALF, "dampening": HALF}, [-1, -2, -3]),
        ({"momentum": HALF, "nesterov": True}, [Fraction(-3, 2), Fraction(-13, 4), Fraction(-41, 8)]),
        ({"dampening": HALF}, [-1, -2, -3]),
        ({"weight_decay": HALF}, [-1, Fraction(-3, 2), Fraction(-7, 4)]),
    ],
)
def test_sgd_by_hand(changes, expected):
    assert sgd_steps(**changes) == expected
