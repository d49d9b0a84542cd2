"""From any of Pillow's modes to RGB: alpha over white, 16 bits scaled, nothing clipped.

Works on pixels that are already decoded; knows nothing of files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WHITE = (255, 255, 255)
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_TOO_DEEP = ("I", "F")


class ColourError(ValueError):
    """Samples that have no sure meaning as a colour; the message says which."""


def to_rgb(image: Image.Image, *, sample_max: int = 65_535, white_is_zero: bool = False) -> Image.Image:
    """Return the picture as RGB, its transparent parts white. Raises `ColourError`.

    sample_max:     value of full brightness in a 16-bit grey picture (4095 where 12 bits are used)
    white_is_zero:  a 16-bit grey picture is stored as a negative
    """
    if image.mode in _SIXTEEN_BIT:
        return _from_sixteen_bit(image, sample_max, white_is_zero)
    if image.mode in _TOO_DEEP:
        kind = "floating-point" if image.mode == "F" else "signed or 32-bit integer"
        raise ColourError(f"it has {kind} samples, whose range is unknown; send 8 or 16 bits a sample")
    if image.mode == "La":
        image = image.convert("LA")  # Pillow has no straight way from premultiplied grey to RGBA
    if image.has_transparency_data:
        return _over_white(image if image.mode == "RGBA" else image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    page = Image.new("RGB", image.size, WHITE)
    page.paste(image, mask=image.getchannel("A"))
    return page


def _from_sixteen_bit(image: Image.Image, sample_max: int, white_is_zero: bool) -> Image.Image:
    samples: NDArray[Any] = np.asarray(image)
    scaled = samples.astype(np.uint32)
    scaled *= 255
    scaled += sample_max // 2
    scaled //= sample_max
    grey = np.minimum(scaled, 255).astype(np.uint8)
    if white_is_zero:
        grey = 255 - grey
    if isinstance(transparent := image.info.get("transparency"), int):
        grey[samples == transparent] = 255
    return Image.fromarray(grey).convert("RGB")
