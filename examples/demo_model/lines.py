"""One line of text on a strip of paper, to be read."""

from __future__ import annotations

from random import Random

from examples.demo_model import phrases, strings
from examples.demo_model.asking import put
from examples.demo_model.canvas import Canvas
from examples.demo_model.fonts import Font
from examples.demo_model.sample import Drawing, Sample, Turn
from examples.demo_model.style import Style

WIDTH = 256
HEIGHTS = (32, 64)
MARGIN = 3


def line(rng: Random, style: Style) -> Sample:
    drawing = draw_line(rng, style)
    question, _ = put(rng, phrases.READ)
    return Sample("line", style.name, (drawing,), (Turn(question, drawing.runs[0].text),))


def draw_line(rng: Random, style: Style) -> Drawing:
    """256 by 32 or 64 pixels, with all of the text's ink inside."""
    height = rng.choice(HEIGHTS)
    while True:
        font = Font(rng.choice(style.fonts), rng.choice(style.line_sizes))
        text = strings.line(rng, style)
        _, ink_top, _, ink_bottom = font.face.getbbox(text)
        room = WIDTH - 2 * MARGIN - font.width(text)
        fits = room >= 0 and ink_bottom - ink_top <= height - 2
        if fits and font.can_write(text):
            break
    canvas = Canvas(rng, WIDTH, height)
    spread = room if rng.random() < 0.6 else min(room, 9)
    left = MARGIN + int(rng.uniform(0, spread))
    top = int(rng.uniform(0, max(0, height - font.height)))
    canvas.write(left, int(min(max(top, 1 - ink_top), height - 1 - ink_bottom)), text, font)
    return canvas.finish()
