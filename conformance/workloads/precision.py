"""Floating-point formats, and the format of each stage of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class Format:
    """An IEEE-754 binary format: ``p`` significand bits (including the implicit one) and its exponent range.

    ``dtype``: torch's name for it. ``width``: bytes of a number.
    """

    name: str
    dtype: str
    width: int
    p: int
    max_exponent: int
    min_exponent: int

    @cached_property
    def unit_roundoff(self) -> Fraction:
        """u = 2^-p, the largest relative error of one rounding to nearest (Higham, ASNA, section 2.2)."""
        return Fraction(1, 2**self.p)

    @cached_property
    def largest(self) -> Fraction:
        """The largest finite number."""
        return (2 - Fraction(2, 2**self.p)) * Fraction(2) ** self.max_exponent

    @cached_property
    def quantum(self) -> Fraction:
        """The smallest subnormal number: every finite number is a multiple of it."""
        return Fraction(2) ** (self.min_exponent - self.p + 1)

    def holds(self, value: Fraction) -> bool:
        """Whether ``value`` is exactly representable."""
        numerator, denominator = abs(value.numerator), value.denominator
        if not numerator:
            return True
        # The denominator of a multiple of the quantum is a power of two, at most the quantum's own.
        if denominator & (denominator - 1) or denominator.bit_length() - 1 > self.p - 1 - self.min_exponent:
            return False
        length = numerator.bit_length()
        spare = (numerator & -numerator).bit_length() - 1
        return length - spare <= self.p and length - denominator.bit_length() <= self.max_exponent

    def ulp(self, value: Fraction) -> Fraction:
        """The spacing of the format's numbers at ``value`` (in the binade that contains it)."""
        if not value:
            return self.quantum
        magnitude = abs(value)
        exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if magnitude < Fraction(2) ** exponent:
            exponent -= 1
        return Fraction(2) ** (max(exponent, self.min_exponent) - self.p + 1)


FP64 = Format("fp64", "float64", 8, 53, 1023, -1022)
FP32 = Format("fp32", "float32", 4, 24, 127, -126)
BF16 = Format("bf16", "bfloat16", 2, 8, 127, -126)
FP16 = Format("fp16", "float16", 2, 11, 15, -14)


@dataclass(frozen=True)
class Precision:
    """The formats of a case.

    ``compute``: the format of forward and backward inside a micro-batch. ``master``: the format of weights, gradients,
    their accumulation and the optimizer. ``wire``: the format of gradients between ranks. ``amp``: the library that
    casts, if ``compute`` differs from ``master``. ``scaled``: that library also scales the loss.
    """

    name: str
    compute: Format
    master: Format
    wire: Format
    amp: Literal["torch", "apex"] | None = None
    scaled: bool = False

    @property
    def mixed(self) -> bool:
        """Whether forward and backward use weights cast to another format."""
        return self.compute is not self.master

    @property
    def compressed(self) -> bool:
        """Whether gradients travel between ranks in another format than their own."""
        return self.wire is not self.master

    @property
    def on_gpu_only(self) -> bool:
        """Whether it needs a GPU: apex casts and unscales only there (apex/amp/_initialize.py)."""
        return self.amp == "apex"


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("fp64", FP64, FP64, FP64),
        Precision("fp32", FP32, FP32, FP32),
        Precision("bf16", BF16, FP32, FP32, amp="torch"),
        Precision("fp16", FP16, FP32, FP32, amp="torch", scaled=True),
        Precision("fp16-compression", FP32, FP32, FP16),
        # O1 leaves the weights in fp32 and casts the inputs of linear operations (apex/amp/frontend.py, amp.py and
        # lists/functional_overrides.py): the same numbers as autocast. Gradients arrive in the type of the weights.
        Precision("apex-O1", FP16, FP32, FP32, amp="apex", scaled=True),
    )
}
