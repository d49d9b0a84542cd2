"""Fonts by name: Pillow's own, and those that this machine has; how wide they write, and what they can write.

Text is always laid out in Pillow's basic way, so that a picture does not depend on the shaping library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from PIL import ImageFont

PILLOW = "Pillow"
TRAINING = (
    PILLOW,
    "DejaVuSans.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSans-Bold.ttf",
    "LiberationSans-Regular.ttf",
    "LiberationMono-Regular.ttf",
    "LiberationMono-Bold.ttf",
)
HELD_OUT = (
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSansCondensed.ttf",
    "LiberationSerif-Bold.ttf",
    "NotoMono-Regular.ttf",
    "FreeSansBold.ttf",
)

# a code point that no font assigns: it is drawn as the font's sign for "missing"
_UNASSIGNED = "\U000f0000"
_PROBE_SIZE = 20


@dataclass(frozen=True)
class Font:
    """A font at a size, in pixels."""

    name: str
    size: int

    @property
    def face(self) -> ImageFont.FreeTypeFont:
        return _face(self.name, self.size)

    @property
    def ascent(self) -> int:
        """Pixels from the top of a line to its base line."""
        return self.face.getmetrics()[0]

    @property
    def height(self) -> int:
        """Pixels from the top of a line to its bottom."""
        return sum(self.face.getmetrics())

    def width(self, text: str) -> float:
        return self.face.getlength(text)

    def can_write(self, text: str) -> bool:
        """Whether the font has every character: Pillow's own has no accents and no euro sign."""
        return all(_has(self.name, character) for character in set(text))


@cache
def _face(name: str, size: int) -> ImageFont.FreeTypeFont:
    if name == PILLOW:
        face = ImageFont.load_default(size)
        if not isinstance(face, ImageFont.FreeTypeFont):
            raise OSError("this Pillow is built without FreeType")
        return face
    return ImageFont.truetype(name, size, layout_engine=ImageFont.Layout.BASIC)


@cache
def _has(name: str, character: str) -> bool:
    if character.isspace():
        return True
    face = _face(name, _PROBE_SIZE)
    mask, missing = face.getmask(character), face.getmask(_UNASSIGNED)
    return (mask.size, bytes(mask)) != (missing.size, bytes(missing))


@cache
def is_present(name: str) -> bool:
    try:
        _face(name, _PROBE_SIZE)
    except OSError:
        return False
    return True


def present(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the fonts that this machine has, in the same order."""
    return tuple(name for name in names if is_present(name))
