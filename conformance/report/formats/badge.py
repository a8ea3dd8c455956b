"""A badge: the verdict of a run in two words, as an image or for shields.io."""

from __future__ import annotations

import json

from markupsafe import escape

from conformance.results import Results

from ..summary import summary

_COLOURS = {"good": "#17744a", "bad": "#b9302c", "doubt": "#8f5f00"}
_LABEL = "conformance"
#: Of a letter of Verdana at 11 pixels, and of the space around a word.
_WIDTH, _SPACE = 6.8, 10


def message(results: Results) -> str:
    """The verdict, with how much of what was judged holds."""
    judged = results.passed + results.failed
    if results.cut_off or not judged:
        return summary(results).title.lower()
    return f"{results.passed} of {judged} cases hold" if results.failed else f"{judged} cases hold"


def endpoint(results: Results) -> str:
    """JSON for https://shields.io/badges/endpoint-badge."""
    colour = _COLOURS[summary(results).tone]
    return json.dumps({"schemaVersion": 1, "label": _LABEL, "message": message(results), "color": colour}) + "\n"


def svg(results: Results) -> str:
    """An image that needs no other file."""
    text, colour = escape(message(results)), _COLOURS[summary(results).tone]
    left, right = (len(word) * _WIDTH + _SPACE for word in (_LABEL, message(results)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img" '
        f'aria-label="{_LABEL}: {text}"><title>{_LABEL}: {text}</title>'
        f'<clipPath id="r"><rect width="{left + right:.0f}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left:.0f}" height="20" fill="#3c434b"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2:.1f}" y="14">{_LABEL}</text><text x="{left + right / 2:.1f}" y="14">{text}</text></g>'
        "</svg>\n"
    )
