"""The battery's pictures hold what the battery asks about."""

from __future__ import annotations

import base64
from io import BytesIO

import pytest
from PIL import Image, ImageOps

from kaminari.smoke.pictures import COLOURS, PAGE_SIZE, SHAPES, data_url, line, page, shape


@pytest.mark.parametrize("colour", COLOURS)
def test_a_shape_has_its_colour_on_white(colour: str) -> None:
    image = shape(colour, "square")
    assert image.getpixel((64, 64)) == COLOURS[colour]
    assert image.getpixel((2, 2)) == (255, 255, 255)


def test_shapes_differ_in_the_area_that_they_fill() -> None:
    areas = []
    for name in SHAPES:
        ink = shape("blue", name).convert("L").point(lambda value: value < 200 and 255)
        areas.append(ink.histogram()[255])
    circle, square, triangle = areas
    assert square > 1.2 * circle > 1.2 * 1.3 * triangle > 0


@pytest.mark.parametrize(
    ("colour", "name", "error"), [("mauve", "square", KeyError), ("red", "x", ValueError)]
)
def test_unknown_shapes_are_refused(colour: str, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        shape(colour, name)


def test_the_page_is_large_and_its_lines_lie_within_opposite_corners() -> None:
    image = page("NORTH 4721", "SOUTH 8350")
    assert image.size == PAGE_SIZE
    box = ImageOps.invert(image).getbbox()
    assert box is not None
    left, upper, right, lower = box
    assert left < 100
    assert upper < 120
    assert PAGE_SIZE[0] - 400 < right < PAGE_SIZE[0] - 20
    assert PAGE_SIZE[1] - 120 < lower < PAGE_SIZE[1] - 20
    middle = image.crop((500, 200, 1100, 1000))
    assert middle.getcolors() == [(600 * 800, (255, 255, 255))]


def test_a_line_stays_within_its_picture_and_travels_as_a_png() -> None:
    image = line("TOTAL 12.34")
    box = ImageOps.invert(image).getbbox()
    assert box is not None
    assert box[2] < image.width - 4
    head, _, body = data_url(image).partition(",")
    assert head == "data:image/png;base64"
    sent = Image.open(BytesIO(base64.b64decode(body)))
    assert sent.tobytes() == image.tobytes()
