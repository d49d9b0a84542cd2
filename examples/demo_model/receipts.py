"""A receipt, 256 pixels wide and mostly three to six lines long, and what to ask about one or two of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from examples.demo_model import phrases, strings
from examples.demo_model.asking import put
from examples.demo_model.canvas import Canvas
from examples.demo_model.fonts import Font
from examples.demo_model.sample import Drawing, Quote, Sample, Turn
from examples.demo_model.style import Style

WIDTH = 256


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a receipt says. Prices are as printed, such as `3.40`; `date` is None where none is printed."""

    store: str
    date: str | None
    date_label: str
    items: tuple[tuple[str, str], ...]
    total_label: str
    total: str

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What stands on the left and on the right of each line, which may be nothing."""
        date = () if self.date is None else ((self.date_label + self.date, ""),)
        return ((self.store, ""), *date, *self.items, (self.total_label, self.total))

    @property
    def runs(self) -> tuple[str, ...]:
        """The texts in the order in which they are drawn."""
        return tuple(text for row in self.rows for text in row if text)

    @property
    def text(self) -> str:
        return "\n".join(f"{left} {right}".rstrip() for left, right in self.rows)

    def quote_date(self, start: int) -> Quote:
        return Quote(start, len(self.date or ""), 1, len(self.date_label))

    def quote_price(self, item: int) -> Quote:
        return Quote(0, len(self.items[item][1]), (1 if self.date is None else 2) + 2 * item + 1)

    def quote_total(self, start: int) -> Quote:
        return Quote(start, len(self.total), len(self.runs) - 1)


def write_receipt(rng: Random, style: Style, dated: bool) -> Receipt:
    """Make up what a receipt says; its items have different names."""
    known = style.familiar and rng.random() < 0.6
    names: list[str] = []
    fewest, most = style.receipt_items
    count = rng.randint(fewest, most - dated)
    while len(set(names)) < count:
        names = [rng.choice(phrases.ITEMS) if known else style.word(rng).capitalize() for _ in range(count)]
    prices = [rng.randint(50, 99_99 if style.free_totals else 19_99) for _ in names]
    total = rng.randint(50, 999_99) if style.free_totals else sum(prices)
    return Receipt(
        store=_store(rng, style),
        date=strings.date(rng) if dated else None,
        date_label="Date: " if rng.random() < 0.3 else "",
        items=tuple(zip(names, map(strings.money, prices), strict=True)),
        total_label=rng.choice(("TOTAL", "TOTAL", "Total", "TOTAL:")),
        total=strings.money(total),
    )


def _store(rng: Random, style: Style) -> str:
    if style.familiar and rng.random() < 0.6:
        return rng.choice(phrases.STORES)
    return " ".join(style.word(rng).upper() for _ in range(rng.randint(1, 2)))


def draw_receipt(
    rng: Random, style: Style, dated: bool, heights: Sequence[int] = ()
) -> tuple[Receipt, Drawing]:
    """Draw a receipt in one font, with prices in a column or behind the names, all of its ink inside.

    heights:  of the picture, instead of the style's
    """
    while True:
        receipt = write_receipt(rng, style, dated)
        font = Font(rng.choice(style.fonts), rng.choice(style.receipt_sizes))
        height = rng.choice(heights or style.receipt_heights)
        pitch = int(font.height * rng.uniform(1.0, 1.3))
        inner = WIDTH - rng.randint(8, 20)
        column = inner if rng.random() < 0.7 else None
        gap = font.width(" ") * 1.5
        widest = max(
            font.width(left) + font.width(right) + (gap if right else 0) for left, right in receipt.rows
        )
        spare = height - pitch * len(receipt.rows) - 4
        if widest <= inner and spare >= 0 and font.can_write(receipt.text):
            break
    canvas = Canvas(rng, WIDTH, height, style.photographed)
    margin = rng.randint(3, min(8, WIDTH - inner))
    top = 2 + rng.randint(0, min(spare, 28))
    centred = rng.random() < 0.4
    for left, right in receipt.rows:
        indent = (inner - font.width(left)) / 2 if centred and not right else 0
        canvas.write(margin + int(indent), top, left, font)
        if right:
            at = font.width(left) + gap if column is None else column - font.width(right)
            canvas.write(margin + int(at), top, right, font)
        top += pitch
    return receipt, canvas.finish()


def _ask_text(rng: Random, receipt: Receipt) -> Turn:
    quotes, start = [], 0
    for number, text in enumerate(receipt.runs):
        quotes.append(Quote(start, len(text), number))
        start += len(text) + 1
    return Turn(put(rng, phrases.READ)[0], receipt.text, tuple(quotes))


def _ask_total(rng: Random, receipt: Receipt) -> Turn:
    return Turn(put(rng, phrases.TOTAL)[0], receipt.total, (receipt.quote_total(0),))


def _ask_date(rng: Random, receipt: Receipt) -> Turn:
    return Turn(put(rng, phrases.DATE)[0], receipt.date or "", (receipt.quote_date(0),))


def _ask_store(rng: Random, receipt: Receipt) -> Turn:
    return Turn(put(rng, phrases.STORE)[0], receipt.store, (Quote(0, len(receipt.store), 0),))


def _ask_price(rng: Random, receipt: Receipt) -> Turn:
    item = rng.choice(range(len(receipt.items)))
    name, price = receipt.items[item]
    question, _ = put(rng, phrases.PRICE)
    asked = question.format(name if rng.random() < 0.5 else name.lower())
    return Turn(asked, price, (receipt.quote_price(item),))


def _ask_json(rng: Random, receipt: Receipt) -> Turn:
    answer = json.dumps({"total": receipt.total, "date": receipt.date}, ensure_ascii=False)
    quotes = [receipt.quote_total(answer.index(receipt.total))]
    if receipt.date is not None:
        quotes.append(receipt.quote_date(answer.rindex(receipt.date)))
    return Turn(put(rng, phrases.JSON)[0], answer, tuple(quotes))


def _ask_items(rng: Random, receipt: Receipt) -> Turn:
    items = [{"name": name, "price": price} for name, price in receipt.items]
    answer = json.dumps({"items": items, "total": receipt.total}, ensure_ascii=False)
    quotes, at = [], 0
    first = 1 if receipt.date is None else 2
    for number, text in enumerate(text for item in receipt.items for text in item):
        at = answer.index(f'"{text}"', at) + 1
        quotes.append(Quote(at, len(text), first + number))
    quotes.append(receipt.quote_total(answer.rindex(receipt.total)))
    return Turn(put(rng, phrases.JSON_ITEMS)[0], answer, tuple(quotes))


QUESTIONS: dict[str, Callable[[Random, Receipt], Turn]] = {
    "receipt": _ask_text,
    "total": _ask_total,
    "date": _ask_date,
    "store": _ask_store,
    "price": _ask_price,
    "json": _ask_json,
}
HARDER_QUESTIONS: dict[str, Callable[[Random, Receipt], Turn]] = {**QUESTIONS, "items": _ask_items}


def receipt(rng: Random, style: Style, task: str) -> Sample:
    """Ask one of `HARDER_QUESTIONS` about a new receipt. Only a dated one is asked for its date."""
    dated = task == "date" or rng.random() < 0.75
    said, drawing = draw_receipt(rng, style, dated)
    return Sample(task, style.name, (drawing,), (HARDER_QUESTIONS[task](rng, said),))


def two_receipts(rng: Random, style: Style, heights: Sequence[int] = ()) -> Sample:
    """Ask for the total of one of two receipts of one height."""
    height = rng.choice(heights or style.receipt_heights)
    drawn = [draw_receipt(rng, style, rng.random() < 0.75, (height,)) for _ in range(2)]
    which = rng.randrange(2)
    said, _ = drawn[which]
    quotes = (said.quote_total(0),) if which == 0 else ()
    turn = Turn(put(rng, (phrases.FIRST_TOTAL, phrases.SECOND_TOTAL)[which])[0], said.total, quotes)
    return Sample("two receipts", style.name, tuple(drawing for _, drawing in drawn), (turn,))
