"""What a training shows: conversations about pictures of the generator, and tiles full of text.

A batch holds one kind of lesson with pictures of one size. It depends on nothing but the training's seed, its
step and its kind, so an interrupted training goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from examples.demo_model import phrases, shapes, strings
from examples.demo_model.canvas import Canvas
from examples.demo_model.cells import ALPHABET
from examples.demo_model.charts import SIDE as CHART_SIDE
from examples.demo_model.charts import chart
from examples.demo_model.fonts import Font
from examples.demo_model.lines import HEIGHTS as LINE_HEIGHTS
from examples.demo_model.lines import ask_line, draw_line
from examples.demo_model.plain import plain
from examples.demo_model.receipts import HARDER_QUESTIONS, QUESTIONS, draw_receipt, two_receipts
from examples.demo_model.sample import Sample
from examples.demo_model.style import TRAINED, TRAINED_HARDER, TRAINING, TRAINING_FREE, TRAINING_LONG, Style
from examples.demo_model.tables import HEIGHTS as TABLE_HEIGHTS
from examples.demo_model.tables import table

Styles = Sequence[tuple[float, Style]]
TILE = 128
_TILE_SIZES = (16, 17, 18, 18, 19, 20, 20, 22, 24, 26, 28)
MOST_QUESTIONS = 4


@dataclass(frozen=True, slots=True)
class Ration:
    """How much of a kind of lesson a training gets.

    size:    lessons in a batch
    every:   steps from one such batch to the next
    weight:  of its losses
    """

    kind: str
    size: int
    every: int = 1
    weight: float = 1.0


def trained_style(rng: Random, among: Styles = TRAINED) -> Style:
    (style,) = rng.choices([style for _, style in among], [often for often, _ in among])
    return style


def _line(rng: Random, height: int, among: Styles = TRAINED) -> Sample:
    style = trained_style(rng, among)
    drawing = draw_line(rng, style, (height,))
    return Sample("line", style.name, (drawing,), (ask_line(rng, drawing),))


def _receipt(
    rng: Random, height: int, among: Styles = TRAINED, questions: Iterable[str] = QUESTIONS
) -> Sample:
    style, dated = trained_style(rng, among), rng.random() < 0.75
    receipt, drawing = draw_receipt(rng, style, dated, (height,))
    asked = rng.sample(
        [task for task in questions if dated or task != "date"], rng.randint(2, MOST_QUESTIONS)
    )
    turns = tuple(HARDER_QUESTIONS[task](rng, receipt) for task in asked)
    return Sample("receipt", style.name, (drawing,), turns)


def _two_receipts(rng: Random, height: int) -> Sample:
    return two_receipts(rng, trained_style(rng), (height,))


def _table(rng: Random, height: int) -> Sample:
    return table(rng, TRAINING_FREE, rng.choice(("table", "cell")), (height,))


def _chart(rng: Random, _: int) -> Sample:
    return chart(rng, TRAINING_FREE, rng.choice(("bar", "bar", "highest")))


def _shape(rng: Random, side: int) -> Sample:
    thing, drawing = shapes.draw_thing(rng, side)
    turns = shapes.ask(rng, thing)[: rng.randint(1, 3)]
    if rng.random() < 0.2:
        turns.append(plain(rng, TRAINING).turns[0])
    return Sample("shape", TRAINING.name, (drawing,), tuple(turns))


def _two(rng: Random, side: int) -> Sample:
    (first, drawing), (second, other) = shapes.draw_thing(rng, side), shapes.draw_thing(rng, side)
    turns = tuple(shapes.ask_both(rng, first, second) for _ in range(rng.randint(1, 2)))
    return Sample("two pictures", TRAINING.name, (drawing, other), turns)


def _plain(rng: Random, _: int) -> Sample:
    turns = tuple(plain(rng, TRAINING).turns[0] for _ in range(rng.randint(1, MOST_QUESTIONS)))
    return Sample("plain text", TRAINING.name, (), turns)


def _tile(rng: Random, side: int) -> Sample:
    """Full of words, figures and loose characters, some cut off by the border; nothing is asked."""
    canvas = Canvas(rng, side, side)
    top = rng.randint(-14, 8)
    while top < side - 8:
        font = Font(rng.choice(TRAINING.fonts), rng.choice(_TILE_SIZES))
        left, text = rng.randint(-40, 10), ""
        while left + font.width(text) < side:
            piece = _piece(rng)
            if font.can_write(piece):
                text += piece + " "
        canvas.write(left, top, text, font)
        top += int(font.height * rng.uniform(0.95, 1.3))
    return Sample("tile", TRAINING.name, (canvas.finish(),), ())


def _piece(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return strings.price(rng)
    if kind < 0.65:
        return strings.word(rng, TRAINING)
    if kind < 0.72:
        return strings.date(rng)
    if kind < 0.75:
        return rng.choice(phrases.ITEMS)
    if kind < 0.85:
        return strings.digits(rng, 1, 6)
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 5)))


# of each kind: a lesson of a height in pixels, and the heights; those of a batch are the same
KINDS: dict[str, tuple[Callable[[Random, int], Sample], Sequence[int]]] = {
    "line": (_line, LINE_HEIGHTS),
    "receipt": (_receipt, TRAINING.receipt_heights),
    "shape": (_shape, shapes.SIDES),
    "two pictures": (_two, shapes.SIDES),
    "plain text": (_plain, (0,)),
    "tile": (_tile, (TILE,)),
    "harder line": (partial(_line, among=TRAINED_HARDER), LINE_HEIGHTS),
    "harder receipt": (
        partial(_receipt, among=TRAINED_HARDER, questions=HARDER_QUESTIONS),
        TRAINING.receipt_heights,
    ),
    "long receipt": (
        partial(_receipt, among=((1, TRAINING_LONG),), questions=HARDER_QUESTIONS),
        TRAINING_LONG.receipt_heights,
    ),
    "two receipts": (_two_receipts, TRAINING.receipt_heights),
    "table": (_table, TABLE_HEIGHTS),
    "chart": (_chart, (CHART_SIDE,)),
}


def draw_lessons(kind: str, size: int, seed: str) -> list[Sample]:
    """A batch of lessons. Raises `KeyError` for an unknown kind."""
    draw, heights = KINDS[kind]
    rng = Random(seed)
    height = rng.choice(heights)
    return [draw(rng, height) for _ in range(size)]
