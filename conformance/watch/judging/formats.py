"""What numbers of a format lose in an operation."""

from __future__ import annotations

from conformance.workloads.precision import BF16, FP16, FP32, FP64

#: Unit roundoffs.
ROUNDOFF = {one.dtype: float(one.unit_roundoff) for one in (FP64, FP32, FP16, BF16)}
ROUNDOFF |= {"complex64": ROUNDOFF["float32"], "complex128": ROUNDOFF["float64"]}
COARSEST = 2.0**-8
#: By the roundoff of a format, what an operation loses at most where its result is too small: the smallest normal
#: number, as processors may flush to zero; of float16, which none flushes, the smallest positive one.
LOST = {
    ROUNDOFF["float64"]: 2.0**-1022,
    ROUNDOFF["float32"]: 2.0**-126,
    ROUNDOFF["bfloat16"]: 2.0**-126,
    ROUNDOFF["float16"]: 2.0**-24,
    0.0: 0.0,
}
