"""Sizes of sketches and samples, for the judge, which must not import torch because that takes seconds."""

BLOCK = 1024
"""Elements in a block, see `sketch.py`."""

WIDTH = 3
"""Numbers in a sketch: two projections and the norm."""

SAMPLED = 8
"""Blocks in a sample."""

SMALL = SAMPLED * BLOCK
"""Tensors of up to this number of elements are always read as a whole, whatever the number of the sample."""

WHOLE = -1
"""Instead of the number of a sample: the sketch is of the whole tensor."""

UNREAD = -2
"""Instead of the number of a sample: this time the parameter has no sketch."""


def samples(size: int) -> int:
    """The number of samples that together cover a tensor of this size. Odd, so a parameter that advances by two samples
    each time also goes through all of them."""
    blocks = size // BLOCK
    apart = blocks // SAMPLED
    return (blocks - (SAMPLED - 1) * apart + (size % BLOCK > 0)) | 1


def spread(size: int, number: int) -> tuple[int, int]:
    """The start of the first block of a sample, and the distance between its blocks, in elements."""
    apart = size // BLOCK // SAMPLED * BLOCK
    last = size - (SAMPLED - 1) * apart - BLOCK
    return min(number % samples(size) * BLOCK, last), apart
