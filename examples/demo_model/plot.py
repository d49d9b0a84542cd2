"""Draw a training's log: one chart for each figure, one line for each kind of lesson.

    python -m examples.demo_model.plot RUN [RUN ...] --out curves.png

Run it from the project's root. Runs that branched from one another follow each other on one axis of steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from examples.demo_model.training_log import LOG, read_log

WIDTH, HEIGHT, MARGIN = 900, 220, 48
COLORS = ("#1f5fa8", "#c0392b", "#2e8b57", "#8e44ad", "#d98200", "#555555")
FIGURES = ("loss", "right", "guide", "guided", "characters", "named")

Curve = list[tuple[int, float]]


def curves(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, Curve]]:
    """(step, value) of each figure and kind of lesson."""
    found: dict[str, dict[str, Curve]] = {figure: {} for figure in FIGURES}
    for line in lines:
        for kind, figures in line.items():
            if isinstance(figures, dict):
                for figure, value in figures.items():
                    found[figure].setdefault(kind, []).append((line["step"], value))
    return {figure: kinds for figure, kinds in found.items() if kinds}


def draw(charts: dict[str, dict[str, Curve]]) -> Image.Image:
    """The charts below one another; each from 0 to its largest value."""
    image = Image.new("RGB", (WIDTH, HEIGHT * len(charts)), "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    kinds = sorted({kind for chart in charts.values() for kind in chart})
    colors = {kind: COLORS[number % len(COLORS)] for number, kind in enumerate(kinds)}
    steps = [step for chart in charts.values() for curve in chart.values() for step, _ in curve]
    first, span = min(steps), max(1, max(steps) - min(steps))
    for number, (figure, chart) in enumerate(charts.items()):
        top = HEIGHT * number + 24
        bottom = HEIGHT * (number + 1) - 20
        largest = max(value for curve in chart.values() for _, value in curve) or 1.0
        pen.text((MARGIN, top - 20), figure, font=font, fill="black")
        pen.rectangle((MARGIN, top, WIDTH - MARGIN, bottom), outline="#bbbbbb")
        pen.text((4, top), f"{largest:.3g}", font=font, fill="black")
        pen.text((4, bottom - 14), "0", font=font, fill="black")
        pen.text((MARGIN, bottom + 3), str(first), font=font, fill="black")
        pen.text((WIDTH - MARGIN, bottom + 3), str(first + span), font=font, fill="black", anchor="ra")
        for place, (kind, curve) in enumerate(chart.items()):
            points = [
                (
                    MARGIN + (step - first) / span * (WIDTH - 2 * MARGIN),
                    bottom - value / largest * (bottom - top),
                )
                for step, value in curve
            ]
            pen.line(points, fill=colors[kind], width=2)
            pen.text((MARGIN + 110 + 120 * place, top - 20), kind, font=font, fill=colors[kind])
    return image


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw a training's log.")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of trainings")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), metavar="FILE", help="(curves.png)")
    args = parser.parse_args(arguments)
    try:
        charts = curves([line for run in args.runs for line in read_log(run / LOG)])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if not charts:
        print("the log holds no steps yet", file=sys.stderr)
        return 1
    draw(charts).save(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
