"""Sites in the tests' own code, as events name them."""

from __future__ import annotations

import sys

from conformance.trace.state.site import shortened


def here(after=0):
    """[file, line, function] of the caller, or of the line `after` lines below."""
    frame = sys._getframe(1)
    return [shortened(frame.f_code.co_filename), frame.f_lineno + after, frame.f_code.co_qualname]
