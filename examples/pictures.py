"""Pictures that the examples ask about: drawn on the spot with Pillow, sent as data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont


def receipt(store: str, date: str, items: Sequence[tuple[str, str]], total: str) -> Image.Image:
    """Draw a small receipt, 256 pixels wide, in Pillow's own font."""
    rows = [(store, ""), (date, ""), *items, ("TOTAL", total)]
    font = ImageFont.load_default(18)
    image = Image.new("RGB", (256, 160), "white")
    draw = ImageDraw.Draw(image)
    for number, (left, right) in enumerate(rows):
        top = 6 + 23 * number
        draw.text((6, top), left, font=font, fill="black")
        draw.text((244 - font.getlength(right), top), right, font=font, fill="black")
    return image


def text_line(text: str) -> Image.Image:
    """Draw one line of text, 256 by 64 pixels."""
    image = Image.new("RGB", (256, 64), "white")
    ImageDraw.Draw(image).text((10, 16), text, font=ImageFont.load_default(24), fill="black")
    return image


def shape(name: str, color: tuple[int, int, int]) -> Image.Image:
    """Draw a filled circle, square or triangle, 96 by 96 pixels. Raises `ValueError` for another shape."""
    image = Image.new("RGB", (96, 96), "white")
    draw = ImageDraw.Draw(image)
    if name == "circle":
        draw.ellipse((18, 18, 78, 78), fill=color)
    elif name == "square":
        draw.rectangle((22, 22, 74, 74), fill=color)
    elif name == "triangle":
        draw.polygon(((48, 16), (21, 69), (75, 69)), fill=color)
    else:
        raise ValueError(f"no such shape: {name}")
    return image


def data_url(image: Image.Image) -> str:
    """Return the picture as a data URL with a PNG inside."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def image_part(image: Image.Image) -> dict[str, object]:
    """Return the picture as a part of an OpenAI message."""
    return {"type": "image_url", "image_url": {"url": data_url(image)}}
