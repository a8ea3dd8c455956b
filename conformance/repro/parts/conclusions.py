"""The output and end of a script. A script uses one of these functions as its `main`."""

from __future__ import annotations

import sys
import traceback

from conformance.repro.parts.ranks import launch
from conformance.repro.parts.values import (
    EXPECTED,
    MOMENT,
    OTHERS,
)


def compare() -> None:
    """Exits with 1 if a value differs from the expected one on a rank, or ranks have different values."""
    conclude_values(differing(launch()))


def compare_with_others() -> None:
    """Compares as `compare`, with several correct answers, by the trainer's choice."""
    found = launch()
    wrong = differing(found)
    for name, others in OTHERS.items():
        pairs = [pair for values in found for pair in zip(others, values, strict=True)]
        if all(abs(observed - expected) <= allowed for (expected, allowed), observed in pairs):
            print(f"they are the values of a trainer that {name}, which is also correct")
            wrong = []
    conclude_values([*wrong, f"nor are they the values of a trainer that {' or '.join(OTHERS)}"] if wrong else [])


def differing(found: list[list[float]]) -> list[str]:
    """Describes the values that are not as expected."""
    wrong = list[str]()
    for rank, values in enumerate(found):
        for (name, expected, allowed), observed in zip(EXPECTED, values, strict=True):
            error = abs(observed - expected)
            if not error <= allowed:  # NaN is wrong, too
                off = f", off by {error:.3g}, but rounding gives at most {allowed:.3g}" if allowed else ""
                wrong.append(f"{MOMENT}, {name} on rank {rank}: observed {observed!r}, expected {expected!r}{off}")
    if not wrong and any(values != found[0] for values in found):
        wrong.append(f"{MOMENT}: observed {found}, expected the same values on all ranks")
    return wrong


def conclude_values(wrong: list[str]) -> None:
    print(*wrong, "the trainer is wrong here" if wrong else f"{MOMENT}, all values are as expected", sep="\n")
    sys.exit(bool(wrong))


def end() -> None:
    """Exits with 1 if training does not finish."""
    try:
        launch()
    except Exception as error:
        traceback.print_exc()
        print(f"observed: {type(error).__name__}, see above\nexpected: training ends without an error")
        sys.exit(1)
    print("training ends without an error, as expected")
