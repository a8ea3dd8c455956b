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
