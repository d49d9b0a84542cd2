"""A picture that text is written on: paper and ink, and where each character went."""

from __future__ import annotations

from random import Random

from PIL import Image, ImageDraw

from examples.demo_model.camera import noisy, photograph
from examples.demo_model.fonts import Font
from examples.demo_model.sample import Drawing, Run

RGB = tuple[int, int, int]
COLORED_INKS: tuple[RGB, ...] = ((170, 20, 20), (20, 60, 160), (10, 100, 30), (90, 20, 120))
DARK_PAPERS: tuple[RGB, ...] = ((20, 20, 20), (30, 40, 90), (120, 20, 30), (10, 80, 50), (60, 60, 60))


def paper_and_ink(rng: Random) -> tuple[RGB, RGB]:
    """Mostly dark on light, with a tint; now and then coloured ink, or light on dark."""
    if rng.random() < 0.15:
        light = rng.randint(215, 255)
        return rng.choice(DARK_PAPERS), (light, light, light)
    paper, ink = _tinted(rng, rng.randint(225, 255), -12, 6), _tinted(rng, rng.randint(0, 70), 0, 25)
    return paper, rng.choice(COLORED_INKS) if rng.random() < 0.15 else ink


def _tinted(rng: Random, level: int, darker: int, lighter: int) -> RGB:
    red, green, blue = (min(255, level + rng.randint(darker, lighter)) for _ in range(3))
    return red, green, blue


class Canvas:
    """Paper of a size in pixels, and what has been written on it.

    photographed:  the picture is a photograph of the paper
    """

    def __init__(self, rng: Random, width: int, height: int, photographed: bool = False) -> None:
        self._rng = rng
        self._photographed = photographed
        paper, self._ink = paper_and_ink(rng)
        self._image = Image.new("RGB", (width, height), paper)
        self._draw = ImageDraw.Draw(self._image)
        self._runs: list[Run] = []

    def write(self, left: int, top: int, text: str, font: Font) -> None:
        """Write with the corner of the line at (left, top)."""
        self._draw.text((left, top), text, font=font.face, fill=self._ink)
        box = self._draw.textbbox((left, top), text, font=font.face)
        edges = tuple(left + font.width(text[:end]) for end in range(len(text) + 1))
        self._runs.append(Run(text, box, edges))

    def rule(self, left: int, top: int, right: int, bottom: int) -> None:
        """Draw a line of one pixel, or a filled bar, with these corners."""
        self._draw.rectangle((left, top, right, bottom), fill=self._ink)

    def finish(self) -> Drawing:
        """The picture; one in five of those that are no photographs has noise of 1 to 4 levels."""
        if self._photographed:
            return photograph(self._rng, Drawing(self._image, tuple(self._runs)))
        image = self._image
        if self._rng.random() < 0.2:
            image = noisy(image, self._rng.uniform(1, 4), self._rng.getrandbits(64))
        return Drawing(image, tuple(self._runs))
