"""One coloured shape on plain paper, or two such pictures, and what to ask about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw

from examples.demo_model import phrases
from examples.demo_model.asking import put
from examples.demo_model.sample import Drawing, Sample, Turn
from examples.demo_model.style import Style

SIDES = (64, 96, 128)
PAPERS = (
    (255, 255, 255),
    (255, 255, 255),
    (255, 255, 255),
    (235, 235, 225),
    (240, 248, 255),
    (210, 220, 210),
)
# drawn twice as large and averaged down, so that slanted edges are smooth
_OVERSAMPLING = 2
_SPANISH = 0.3


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape and its colour, by their English names."""

    shape: str
    color: str

    @property
    def english(self) -> str:
        return f"{'an' if self.color[0] in 'aeiou' else 'a'} {self.color} {self.shape}"

    @property
    def spanish(self) -> str:
        shape, color = phrases.SHAPES[self.shape], phrases.COLORS[self.color]
        return f"{shape.spanish} {color.feminine if shape.feminine else color.masculine}"


def draw_thing(rng: Random, side: int) -> tuple[Thing, Drawing]:
    """A square picture of a thing of any size and place that leaves a border."""
    thing = Thing(rng.choice(list(phrases.SHAPES)), rng.choice(list(phrases.COLORS)))
    red, green, blue = (
        min(255, max(0, level + rng.randint(-12, 12))) for level in phrases.COLORS[thing.color].rgb
    )
    size = side * _OVERSAMPLING
    image = Image.new("RGB", (size, size), rng.choice(PAPERS))
    radius = rng.uniform(0.2, 0.45) * size
    x, y = (rng.uniform(radius + 4, size - radius - 4) for _ in range(2))
    draw = ImageDraw.Draw(image)
    if thing.shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(red, green, blue))
    else:
        draw.polygon(
            [(x + radius * right, y + radius * down) for right, down in CORNERS[thing.shape]],
            (red, green, blue),
        )
    return thing, Drawing(image.resize((side, side), Image.Resampling.BOX))


def _star() -> list[tuple[float, float]]:
    """Five points, the first upwards."""
    corners = []
    for number in range(10):
        reach, angle = 1.0 if number % 2 == 0 else 0.42, math.pi * (number / 5 - 0.5)
        corners.append((reach * math.cos(angle), reach * math.sin(angle)))
    return corners


_ARM = 0.33
# right and down of the centre, where the radius is 1
CORNERS: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0, -1), (-0.9, 0.7), (0.9, 0.7)],
    "diamond": [(0, -1), (0.75, 0), (0, 1), (-0.75, 0)],
    "star": _star(),
    "cross": [
        (-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
        (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM),
    ],
}  # fmt: skip


def ask(rng: Random, thing: Thing) -> list[Turn]:
    """Ask for shape and colour, for the colour, and for the shape, in any order."""
    color, shape = phrases.COLORS[thing.color], phrases.SHAPES[thing.shape]
    answers = (
        (phrases.SHAPE_AND_COLOR, thing.english, thing.spanish),
        (phrases.WHICH_COLOR, thing.color, color.masculine),
        (phrases.WHICH_SHAPE, f"a {thing.shape}", shape.spanish),
    )
    turns = []
    for wordings, english, spanish in rng.sample(answers, len(answers)):
        question, in_spanish = put(rng, wordings, _SPANISH)
        turns.append(Turn(question, spanish if in_spanish else english))
    return turns


def shape(rng: Random, style: Style) -> Sample:
    thing, drawing = draw_thing(rng, rng.choice(SIDES))
    return Sample("shape", style.name, (drawing,), tuple(ask(rng, thing)[:1]))


def follow_up(rng: Random, style: Style) -> Sample:
    """A second question about the same picture."""
    thing, drawing = draw_thing(rng, rng.choice(SIDES))
    return Sample("follow-up", style.name, (drawing,), tuple(ask(rng, thing)[:2]))


def two_pictures(rng: Random, style: Style) -> Sample:
    side = rng.choice(SIDES)
    (first, drawing), (second, other) = draw_thing(rng, side), draw_thing(rng, side)
    return Sample("two pictures", style.name, (drawing, other), (ask_both(rng, first, second),))


def ask_both(rng: Random, first: Thing, second: Thing) -> Turn:
    """Describe both, or compare them, or tell one of them."""
    question, in_spanish = put(rng, phrases.BOTH)
    described = (
        f"primero: {first.spanish}, segundo: {second.spanish}"
        if in_spanish
        else f"first: {first.english}, second: {second.english}"
    )
    if rng.random() >= 0.5:
        return Turn(question, described)
    return rng.choice(
        (
            Turn("Which color is the first one?", first.color),
            Turn("What color is the second one?", second.color),
            Turn("Are they the same color?", "Yes." if first.color == second.color else "No."),
            Turn("Are they the same shape?", "Yes." if first.shape == second.shape else "No."),
        )
    )
