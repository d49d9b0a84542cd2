"""The battery's pictures, drawn on the spot: no file is read, and the same picture comes out every time."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO

from PIL import Image, ImageDraw, ImageFont

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (35, 70, 220),
}
SHAPES = ("circle", "square", "triangle")
SHAPE_SIDE = 128
LINE_SIZE = (256, 64)
LINE_HEIGHT = 24
PAGE_SIZE = (1600, 1200)
PAGE_LINE_HEIGHT = 34

Picture = Callable[[], Image.Image]


def shape(colour: str, name: str) -> Image.Image:
    """A filled shape on white, 128 x 128. Raises KeyError for an unknown colour, ValueError for a shape."""
    side = 2 * SHAPE_SIDE  # drawn twice as large and averaged, so that edges are smooth
    image = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(image)
    low, high = side // 5, side - side // 5
    fill = COLOURS[colour]
    if name == "circle":
        draw.ellipse((low, low, high, high), fill=fill)
    elif name == "square":
        draw.rectangle((low, low, high, high), fill=fill)
    elif name == "triangle":
        draw.polygon([(side // 2, low), (low, high), (high, high)], fill=fill)
    else:
        raise ValueError(f"no such shape: {name}")
    return image.resize((SHAPE_SIDE, SHAPE_SIDE), Image.Resampling.BOX)


def line(text: str) -> Image.Image:
    """One line of black text on white, 256 x 64."""
    return _page(LINE_SIZE, LINE_HEIGHT, [((12, (LINE_SIZE[1] - LINE_HEIGHT) // 2), text)])


def page(upper_left: str, lower_right: str) -> Image.Image:
    """A page of 1600 x 1200 with two small lines in opposite corners.

    Scaled down to one tile of a slicing model (about 448 pixels) its letters are some nine pixels high:
    whoever reads both has looked at the slices.
    """
    width, height = PAGE_SIZE
    places = [((60, 60), upper_left), ((width - 420, height - 110), lower_right)]
    return _page(PAGE_SIZE, PAGE_LINE_HEIGHT, places)


def data_url(image: Image.Image) -> str:
    """The picture as a PNG in a `data:` URL."""
    file = BytesIO()
    image.save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _page(size: tuple[int, int], height: int, lines: Sequence[tuple[tuple[int, int], str]]) -> Image.Image:
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(height)
    for place, text in lines:
        draw.text(place, text, fill="black", font=font)
    return image
