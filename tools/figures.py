"""Draws the figures of the pages that explain: docs/figures/*.svg.

python -m tools.figures
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import log10
from pathlib import Path

from conformance.results import read_results

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "figures"
#: A case with a bound, in the published report of DDP.
BOUNDED = "ddp-w2-acc2-fp32-adamw-clip"
BLUE, GREEN, RED, GREY = "#dbe7fb", "#dcf1e3", "#fbdedc", "#eceff1"
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1c2733}.s{font-size:12px}path{stroke:#47525e;fill:none;stroke-width:1.5}"
)
ARROW = (
    '<marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M1 1 7 4 1 7"/></marker>'
)


def drawing(width: int, height: int, parts: Iterable[str]) -> str:
    frame = f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    body = "\n".join(["<defs>" + ARROW + f"<style>{STYLE}</style></defs>", frame, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def box(x: int, y: int, width: int, fill: str, title: str, *lines: str) -> str:
    """A box with a title and smaller lines."""
    height = 28 + 17 * len(lines)
    middle = x + width / 2
    text = [f'<text x="{middle}" y="{y + 19}" text-anchor="middle">{escape(title)}</text>']
    text += [
        f'<text class="s" x="{middle}" y="{y + 37 + 17 * number}" text-anchor="middle">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}"/>' + "".join(text)


def arrow(*points: tuple[float, float]) -> str:
    return f'<path marker-end="url(#a)" d="M{" L".join(f"{x} {y}" for x, y in points)}"/>'


def label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="s" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def run() -> str:
    """A case of `conformance run`."""
    return drawing(
        720,
        250,
        [
            box(10, 85, 150, BLUE, "Workload", "dyadic rationals", "certificate: exact?"),
            box(210, 20, 190, GREEN, "Oracle", "rational arithmetic"),
            box(210, 120, 190, BLUE, "Your trainer", "fresh processes", "a recorder on each rank"),
            box(460, 20, 240, GREEN, "Numbers", "each step, each rank", "exact: tolerance 0; else a bound"),
            box(460, 145, 240, RED, "Laws", "the trace, with lines of code", "which rule was broken, where"),
            arrow((160, 105), (185, 105), (185, 43), (208, 43)),
            arrow((160, 130), (185, 130), (185, 150), (208, 150)),
            arrow((400, 43), (458, 43)),
            arrow((400, 140), (430, 140), (430, 65), (458, 65)),
            arrow((400, 170), (458, 170)),
            label(10, 230, "Numbers say whether a trainer is wrong. Laws say why."),
        ],
    )


def watch() -> str:
    """A window under `conformance watch`."""
    rows = []
    for rank, y in enumerate((40, 130)):
        rows.append(label(10, y + 19, f"rank {rank}"))
        for number in range(3):
            rows.append(box(70 + 110 * number, y, 95, BLUE, f"backward {number + 1}", "sketch: local"))
        rows.append(box(420, y, 110, GREY, "reduction", "averages"))
        rows.append(box(560, y, 130, GREEN, "step", "sketch: used"))
        rows += [arrow((388, y + 22), (418, y + 22)), arrow((530, y + 22), (558, y + 22))]
    rows.append(arrow((475, 87), (475, 128)))
    rows.append(
        label(10, 215, "Is there one c with  used = c · (sum of all local)?  If not, which backward has which factor?")
    )
    return drawing(720, 230, rows)


def trust() -> str:
    """Who is trusted, and what is checked."""
    return drawing(
        720,
        240,
        [
            box(
                10,
                20,
                210,
                GREEN,
                "Trusted",
                "your account and its files",
                "torch, IEEE 754 rounding",
                "where a results file is from",
            ),
            box(
                255,
                20,
                210,
                BLUE,
                "May be wrong, not hostile",
                "the trainer: fresh processes",
                "its evidence: complete, valid",
                "its time: limited",
            ),
            box(
                500,
                20,
                210,
                RED,
                "May be anything",
                "names, output, tracebacks",
                "a results file's content",
                "paths, links, messages",
            ),
            arrow((360, 100), (360, 138)),
            arrow((605, 100), (605, 118), (420, 118), (420, 138)),
            box(255, 142, 210, GREY, "Verdict and report", "text only, no network", "secrets hidden"),
            label(10, 228, "Not covered: a trainer that looks for our hooks and forges its own events."),
        ],
    )


def bound() -> str:
    """Error and bound in each step of a published case, on a logarithmic scale."""
    results = read_results(ROOT / "reports" / "ddp.jsonl")
    [case] = [case for case in results.cases if case.id == BOUNDED]
    assert case.power is not None
    errors = [max(error or 0.0 for error in step.error or ()) for step in case.steps]
    bounds = [max(limit or 0.0 for limit in step.bound or ()) for step in case.steps]
    low, high = -9, -3
    left, right, top, bottom = 80, 560, 40, 250

    def at(value: float) -> float:
        return bottom - (log10(value) - low) / (high - low) * (bottom - top)

    def line(values: Sequence[float], colour: str, name: str) -> list[str]:
        xs = [left + 30 + number * (right - left - 60) / (len(values) - 1) for number in range(len(values))]
        points = [(x, at(value)) for x, value in zip(xs, values, strict=True)]
        dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        return [
            f'<path style="stroke:{colour}" d="M{path}"/>',
            *dots,
            f'<text class="s" x="{right - 18}" y="{points[-1][1] + 4:.1f}" style="fill:{colour}">{name}</text>',
        ]

    axis = [f'<path d="M{left} {top} V{bottom} H{right}"/>']
    for power in range(low, high + 1):
        axis.append(label(left - 8, at(10.0**power) + 4, f"1e{power}", "end"))
    for number in range(len(errors)):
        x = left + 30 + number * (right - left - 60) / (len(errors) - 1)
        axis.append(label(x, bottom + 18, f"step {number}", "middle"))
    nearest = f"The nearest known bug {case.power.text} (power {case.power.value:.0f})."
    parts = [
        *axis,
        *line(bounds, "#b3261e", "bound"),
        *line(errors, "#1d5fbf", "error of the trainer"),
        label(10, 22, f"{case.id}: largest error of a weight, absolute"),
        label(10, 292, nearest),
    ]
    return drawing(720, 305, parts)


FIGURES: dict[str, Callable[[], str]] = {"run": run, "watch": watch, "trust": trust, "bound": bound}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
