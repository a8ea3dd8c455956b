"""Of sketches. The judge knows these without torch, which takes seconds to import."""

BLOCK = 1024
"""Elements that have one sign in common, see `sketch.py`."""

WIDTH = 3
"""Numbers in a sketch."""

SAMPLED = 8
"""Blocks in a sample."""

SMALL = SAMPLED * BLOCK
"""Elements: a tensor of so many or fewer is always looked at whole, whatever the number of the sample."""

WHOLE = -1
"""In place of the number of a sample, of which a sketch is."""

UNREAD = -2
"""In its place where it is not the parameter's turn, and there is no sketch."""


def samples(size: int) -> int:
    """How many samples of a tensor of this size there are, which together cover it. An odd number: a parameter that is
    stepped twice in a window goes through all of them, too."""
    blocks = size // BLOCK
    apart = blocks // SAMPLED
    return (blocks - (SAMPLED - 1) * apart + (size % BLOCK > 0)) | 1


def spread(size: int, number: int) -> tuple[int, int]:
    """Where the first block of a sample begins, and from there how far the blocks are apart, in elements."""
    apart = size // BLOCK // SAMPLED * BLOCK
    last = size - (SAMPLED - 1) * apart - BLOCK
    return min(number % samples(size) * BLOCK, last), apart
