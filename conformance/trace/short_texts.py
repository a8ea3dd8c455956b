"""Short texts for numbers and lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SIZES = ("B", "kB", "MB", "GB")


def number(value: float | str) -> str:
    """The number with at most six digits; "inf" and "nan" are text already."""
    return value if isinstance(value, str) else f"{value:.6g}"


def size(count: float) -> str:
    """A number of bytes with its unit: ``1.5 kB``."""
    scaled, unit = float(count), 0
    # Rounded to three digits, 999.5 is 1000.
    while scaled >= 999.5 and unit < len(_SIZES) - 1:
        scaled, unit = scaled / 1000, unit + 1
    return f"{scaled:.3g} {_SIZES[unit]}"


def vector(values: Iterable[float | str | None]) -> str:
    """The first few numbers of a vector: ``(0.5, -1, 2, …)``."""
    shown = ["–" if value is None else number(value) for value in values]
    return f"({', '.join([*shown[:3], '…'] if len(shown) > 4 else shown)})"


def enumerated(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
