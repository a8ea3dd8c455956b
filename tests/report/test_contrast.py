"""Contrast of the page's colours, computed from its style: 4.5 to 1 everywhere, as WCAG 2.2 asks of text (1.4.3)."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STYLE = (files("conformance.report") / "assets" / "report.css").read_text(encoding="utf-8")
LEAST = 4.5
TONES = ("good", "near", "bad", "doubt", "setup", "idle")
SERIES = tuple(f"s{number}" for number in range(6))

Colour = tuple[float, float, float]


def themes() -> dict[str, dict[str, Colour]]:
    """The colours of each theme by name."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE.partition("* {")[0], re.DOTALL)
    found = {"light": _colours(light), "dark": _colours(dark)}
    assert found["light"].keys() == found["dark"].keys()
    return found


def _colours(block: str) -> dict[str, Colour]:
    return {
        name: tuple(int(value[i : i + 2], 16) / 255 for i in (0, 2, 4))
        for name, value in re.findall(r"--([\w]+): #([0-9a-f]{6});", block)
    }


def mixed(one: Colour, percent: float, other: Colour) -> Colour:
    """`color-mix(in srgb, one percent, other)`."""
    return tuple(a * percent / 100 + b * (1 - percent / 100) for a, b in zip(one, other, strict=True))


def contrast(one: Colour, other: Colour) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Colour) -> float:
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def grounds(colours: dict[str, Colour]) -> dict[str, tuple[Colour, tuple[str, ...]]]:
    """The backgrounds, each with the colours of text on it."""
    plain = ("ink", "soft", "link", *TONES, *SERIES)
    found = {name: (colours[name], plain) for name in ("paper", "raised", "faint")}
    tint = r"([^{}]+)\{[^{}]*background: color-mix\(in srgb, var\(--(\w+)\) (\d+)%, (?:var\(--paper\)|transparent)\)"
    tints = [(one.strip(), *how) for one, *how in re.findall(tint, STYLE) if not one.strip().startswith(".key")]
    assert len(tints) >= 8
    for selector, name, percent in tints:
        # A cell of the matrix can count any verdict.
        texts = ("ink", "soft", *(TONES if selector.startswith(".c-") else (name,)))
        for below in ("paper", "raised"):
            found[f"{selector} on {below}"] = (mixed(colours[name], float(percent), colours[below]), texts)
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme: str) -> None:
    colours = themes()[theme]
    low = {
        f"{text} on {ground}": round(ratio, 2)
        for ground, (colour, texts) in grounds(colours).items()
        for text in texts
        if (ratio := contrast(colours[text], colour)) < LEAST
    }
    assert low == {}


def test_a_colour_that_cannot_be_read_is_found() -> None:
    colours = themes()["light"]
    assert contrast(colours["line"], colours["paper"]) < LEAST
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)
