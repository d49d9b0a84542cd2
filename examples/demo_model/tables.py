"""A table of three columns, 256 pixels wide, ruled or not: read it, or name one of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from examples.demo_model import phrases, strings
from examples.demo_model.asking import put
from examples.demo_model.canvas import Canvas
from examples.demo_model.fonts import Font
from examples.demo_model.sample import Drawing, Quote, Sample, Turn
from examples.demo_model.style import Style

WIDTH = 256
HEIGHTS = (96, 128)
FEWEST_ROWS, MOST_ROWS = 2, 4
_MARGIN = 5
_GAP = 10
_HEADS = (("Item", "Qty", "Price"), ("Name", "No.", "Cost"), ("Producto", "Uds", "Precio"))


@dataclass(frozen=True, slots=True)
class Table:
    """What a table says: its head, then its rows, all of three cells."""

    rows: tuple[tuple[str, str, str], ...]

    @property
    def text(self) -> str:
        return "\n".join(" | ".join(row) for row in self.rows)


def table(rng: Random, style: Style, task: str, heights: Sequence[int] = HEIGHTS) -> Sample:
    """Ask to read a new table (`table`), or for one of its cells (`cell`)."""
    said, drawing = draw_table(rng, style, heights)
    ask = {"table": _ask_table, "cell": _ask_cell}[task]
    return Sample(task, style.name, (drawing,), (ask(rng, said),))


def draw_table(rng: Random, style: Style, heights: Sequence[int] = HEIGHTS) -> tuple[Table, Drawing]:
    """Draw a table in one font, numbers to the right of their columns, all of its ink inside."""
    while True:
        said = _write(rng, style)
        font = Font(rng.choice(style.fonts), rng.choice(style.receipt_sizes))
        height = rng.choice(heights)
        pitch = int(font.height * rng.uniform(1.0, 1.3))
        widths = [max(map(font.width, column)) for column in zip(*said.rows, strict=True)]
        spare = height - pitch * len(said.rows) - 4
        room = WIDTH - 2 * _MARGIN - 2 * _GAP - sum(widths)
        if room >= 0 and spare >= 0 and font.can_write(said.text):
            break
    canvas = Canvas(rng, WIDTH, height, style.photographed)
    extra = rng.uniform(0, room / 2)
    lefts = [
        _MARGIN,
        _MARGIN + widths[0] + _GAP + extra,
        _MARGIN + widths[0] + widths[1] + 2 * (_GAP + extra),
    ]
    top, ruled = 2 + rng.randint(0, spare), rng.random() < 0.5
    for number, row in enumerate(said.rows):
        for column, text in enumerate(row):
            # names stand to the left, numbers and their heads to the right
            indent = 0 if column == 0 else widths[column] - font.width(text)
            canvas.write(int(lefts[column] + indent), top, text, font)
        top += pitch
        if ruled and number == 0:
            canvas.rule(_MARGIN, top - 1, WIDTH - _MARGIN, top - 1)
            top += min(2, spare)
    return said, canvas.finish()


def _write(rng: Random, style: Style) -> Table:
    names: list[str] = []
    count = rng.randint(FEWEST_ROWS, MOST_ROWS)
    while len(set(names)) < count:
        known = style.familiar and rng.random() < 0.5
        names = [rng.choice(phrases.ITEMS) if known else style.word(rng).capitalize() for _ in range(count)]
    rows = [(name, str(rng.randint(1, 99)), strings.money(rng.randint(50, 99_99))) for name in names]
    return Table((rng.choice(_HEADS), *rows))


def _ask_table(rng: Random, said: Table) -> Turn:
    quotes, start = [], 0
    for number, text in enumerate(text for row in said.rows for text in row):
        quotes.append(Quote(start, len(text), number))
        start += len(text) + (1 if number % 3 == 2 else 3)
    return Turn(put(rng, phrases.READ)[0], said.text, tuple(quotes))


def _ask_cell(rng: Random, said: Table) -> Turn:
    row, column = rng.randrange(1, len(said.rows)), rng.randrange(1, 3)
    question = put(rng, phrases.CELL)[0].format(said.rows[0][column], said.rows[row][0])
    answer = said.rows[row][column]
    return Turn(question, answer, (Quote(0, len(answer), 3 * row + column),))
