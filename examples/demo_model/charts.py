"""A chart of three to five bars, 256 pixels square, with a value on each and a name under it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from examples.demo_model import phrases
from examples.demo_model.asking import put
from examples.demo_model.canvas import Canvas
from examples.demo_model.fonts import Font
from examples.demo_model.sample import Drawing, Quote, Sample, Turn
from examples.demo_model.style import Style

SIDE = 256
FEWEST_BARS, MOST_BARS = 3, 5
HIGHEST_VALUE = 100
_MARGIN = 6


@dataclass(frozen=True, slots=True)
class Chart:
    """Names and values of the bars, left to right; no two are alike."""

    names: tuple[str, ...]
    values: tuple[int, ...]


def chart(rng: Random, style: Style, task: str) -> Sample:
    """Ask for the value of a bar (`bar`), or which is the highest or lowest (`highest`)."""
    said, drawing = draw_chart(rng, style)
    ask = {"bar": _ask_value, "highest": _ask_highest}[task]
    return Sample(task, style.name, (drawing,), (ask(rng, said),))


def draw_chart(rng: Random, style: Style) -> tuple[Chart, Drawing]:
    """Draw a chart in one font; bars are as high as their values say, from one base line."""
    while True:
        said = _write(rng, style)
        font = Font(rng.choice(style.fonts), rng.choice(style.receipt_sizes))
        pitch = (SIDE - 2 * _MARGIN) / len(said.names)
        widest = max(map(font.width, said.names))
        if widest <= pitch - 4 and all(map(font.can_write, said.names)):
            break
    canvas = Canvas(rng, SIDE, SIDE, style.photographed)
    base = SIDE - font.height - 6
    tallest = base - font.height - 8
    share = rng.uniform(0.5, 0.8)
    for number, (name, value) in enumerate(zip(said.names, said.values, strict=True)):
        middle = _MARGIN + pitch * (number + 0.5)
        top = base - int(tallest * value / HIGHEST_VALUE)
        canvas.rule(int(middle - pitch * share / 2), top, int(middle + pitch * share / 2), base)
        canvas.write(int(middle - font.width(str(value)) / 2), top - font.height - 2, str(value), font)
        canvas.write(int(middle - font.width(name) / 2), base + 3, name, font)
    return said, canvas.finish()


def _write(rng: Random, style: Style) -> Chart:
    count = rng.randint(FEWEST_BARS, MOST_BARS)
    names: set[str] = set()
    while len(names) < count:
        names.add(style.word(rng).capitalize())
    values = rng.sample(range(5, HIGHEST_VALUE + 1), count)
    return Chart(tuple(rng.sample(sorted(names), count)), tuple(values))


def _ask_value(rng: Random, said: Chart) -> Turn:
    number = rng.randrange(len(said.names))
    answer = str(said.values[number])
    question = put(rng, phrases.BAR)[0].format(said.names[number])
    return Turn(question, answer, (Quote(0, len(answer), 2 * number),))


def _ask_highest(rng: Random, said: Chart) -> Turn:
    choose, wordings = rng.choice(((max, phrases.HIGHEST), (min, phrases.LOWEST)))
    number = said.values.index(choose(said.values))
    answer = said.names[number]
    return Turn(put(rng, wordings)[0], answer, (Quote(0, len(answer), 2 * number + 1),))
