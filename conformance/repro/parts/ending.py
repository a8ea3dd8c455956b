"""What a script prints, and how it ends. A script takes one of these for its `main`."""

from __future__ import annotations

import math
import sys
import traceback

import torch

from conformance.repro.parts.case import EXPECTED, MOMENT
from conformance.repro.parts.ranks import launch
from conformance.repro.parts.task import Task


def compare() -> None:
    """Exits with 1 if a value is not the expected one on a rank, or the ranks have different ones."""
    found = launch()
    wrong = 0
    for rank, values in enumerate(found):
        for (name, expected, allowed), observed in zip(EXPECTED, values, strict=True):
            if not abs(observed - expected) <= allowed:  # NaN is wrong, too
                size = torch.tensor([abs(expected), math.inf], dtype=Task.dtype)
                ulp = float(torch.nextafter(size[0], size[1]) - size[0])
                error = abs(observed - expected) / ulp if expected else math.nan
                apart = f", {error:.4g} ulp apart" if math.isfinite(error) else ""
                print(f"{MOMENT}, {name} on rank {rank}: observed {observed!r}, expected {expected!r}{apart}")
                wrong += 1
    if not wrong and any(values != found[0] for values in found):
        print(f"{MOMENT}: observed {found}, expected the same values on all ranks")
        wrong += 1
    print("the trainer is wrong here" if wrong else f"{MOMENT}, all values are as expected")
    sys.exit(bool(wrong))


def end() -> None:
    """Exits with 1 if training does not come to its end."""
    try:
        launch()
    except Exception as error:
        traceback.print_exc()
        print(f"observed: {type(error).__name__}, see above\nexpected: training ends without an error")
        sys.exit(1)
    print("training ends without an error, as expected")
