"""What a camera does to a drawing: it is held askew, blurs, shades and adds noise. Runs follow their text."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
from PIL import Image, ImageFilter

from examples.demo_model.sample import Drawing, Run

MOST_DEGREES = 3.0


def photograph(rng: Random, drawing: Drawing) -> Drawing:
    """As held by hand: askew by at most three degrees, all of the text still inside."""
    drawing = tilt(drawing, rng.uniform(-MOST_DEGREES, MOST_DEGREES))
    image = drawing.image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.8)))
    image = _shaded(image, rng.uniform(0.0, 0.3), rng.uniform(0.0, 2 * math.pi))
    return replace(drawing, image=noisy(image, rng.uniform(2, 8), rng.getrandbits(64)))


def tilt(drawing: Drawing, degrees: float) -> Drawing:
    """Turn a drawing counter-clockwise around its middle; by less where text would leave the picture."""
    width, height = drawing.image.size
    while True:
        runs = tuple(_turned(run, degrees, width / 2, height / 2) for run in drawing.runs)
        if all(_inside(run.box, width, height) for run in runs):
            break
        degrees /= 2
    paper = drawing.image.getpixel((0, 0))
    image = drawing.image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=paper)
    return Drawing(image, runs)


def noisy(image: Image.Image, deviation: float, seed: int) -> Image.Image:
    """Add the same normal noise to red, green and blue, of a deviation in levels."""
    pixels = np.asarray(image, dtype=np.float32)
    noise = np.random.default_rng(seed).standard_normal((*pixels.shape[:2], 1), dtype=np.float32)
    return Image.fromarray(np.clip(pixels + noise * deviation, 0, 255).astype(np.uint8))


def _turned(run: Run, degrees: float, middle_x: float, middle_y: float) -> Run:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def turn(x: float, y: float) -> tuple[float, float]:
        x, y = x - middle_x, y - middle_y
        return middle_x + x * cos + y * sin, middle_y - x * sin + y * cos

    left, top, right, bottom = run.box
    xs, ys = zip(*(turn(x, y) for x in (left, right) for y in (top, bottom)), strict=True)
    edges = tuple(turn(edge, (top + bottom) / 2)[0] for edge in run.edges)
    return Run(run.text, (min(xs), min(ys), max(xs), max(ys)), edges, -math.tan(math.radians(degrees)))


def _inside(box: tuple[float, float, float, float], width: int, height: int) -> bool:
    left, top, right, bottom = box
    return left >= 0 and top >= 0 and right <= width and bottom <= height


def _shaded(image: Image.Image, darkest: float, direction: float) -> Image.Image:
    """Darken evenly towards one side, there by the share `darkest`; the direction is in radians."""
    pixels = np.asarray(image, dtype=np.float32)
    rows, columns = (np.linspace(-0.5, 0.5, count) for count in pixels.shape[:2])
    across = columns * math.cos(direction) + rows[:, None] * math.sin(direction)
    share = (across - across.min()) / (across.max() - across.min())
    return Image.fromarray((pixels * (1 - darkest * share)[..., None]).astype(np.uint8))
