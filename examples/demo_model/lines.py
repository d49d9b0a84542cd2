"""One line of text on a strip of paper, to be read."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from examples.demo_model import phrases, strings
from examples.demo_model.asking import put
from examples.demo_model.canvas import Canvas
from examples.demo_model.fonts import Font
from examples.demo_model.sample import Drawing, Quote, Sample, Turn
from examples.demo_model.style import Style

WIDTH = 256
HEIGHTS = (32, 64)
MARGIN = 3


def line(rng: Random, style: Style) -> Sample:
    drawing = draw_line(rng, style)
    return Sample("line", style.name, (drawing,), (ask_line(rng, drawing),))


def ask_line(rng: Random, drawing: Drawing) -> Turn:
    question, _ = put(rng, phrases.READ)
    text = drawing.runs[0].text
    return Turn(question, text, (Quote(0, len(text), 0),))


def draw_line(rng: Random, style: Style, heights: Sequence[int] = HEIGHTS) -> Drawing:
    """256 pixels wide and as high as one of `heights`, with all of the text's ink inside."""
    height = rng.choice(heights)
    while True:
        font = Font(rng.choice(style.fonts), rng.choice(style.line_sizes))
        text = strings.line(rng, style)
        _, ink_top, _, ink_bottom = font.face.getbbox(text)
        room = WIDTH - 2 * MARGIN - font.width(text)
        fits = room >= 0 and ink_bottom - ink_top <= height - 2
        if fits and font.can_write(text):
            break
    canvas = Canvas(rng, WIDTH, height, style.photographed)
    spread = room if rng.random() < 0.6 else min(room, 9)
    left = MARGIN + int(rng.uniform(0, spread))
    top = int(rng.uniform(0, max(0, height - font.height)))
    canvas.write(left, int(min(max(top, 1 - ink_top), height - 1 - ink_bottom)), text, font)
    return canvas.finish()
