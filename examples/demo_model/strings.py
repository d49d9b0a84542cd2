"""What the pictures say: prices, dates, times, codes, words and short lines of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from examples.demo_model import phrases
from examples.demo_model.style import Style

DIGITS = "0123456789"
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def price(rng: Random) -> str:
    """Mostly below 100, always below 1000."""
    return money(rng.randint(0, 99_99) if rng.random() < 0.8 else rng.randint(100_00, 999_99))


def date(rng: Random) -> str:
    """Mostly year-month-day, else day/month/year; from 2018 to 2029."""
    year, month, day = rng.randint(2018, 2029), rng.randint(1, 12), rng.randint(1, 28)
    if rng.random() < 0.75:
        return f"{year}-{month:02d}-{day:02d}"
    return f"{day:02d}/{month:02d}/{year}"


def word(rng: Random, style: Style) -> str:
    """A word of the style, in capitals, with one capital, or in small letters."""
    chosen, case = style.word(rng), rng.random()
    return chosen.upper() if case < 0.4 else chosen.capitalize() if case < 0.65 else chosen


def digits(rng: Random, fewest: int, most: int) -> str:
    return "".join(rng.choice(DIGITS) for _ in range(rng.randint(fewest, most)))


def code(rng: Random) -> str:
    """Such as `K7Q-204`."""
    head = "".join(rng.choice(CAPITALS + DIGITS) for _ in range(rng.randint(2, 5)))
    return head + rng.choice(("-", "/", "")) + str(rng.randint(0, 9999))


def labelled(rng: Random) -> str:
    return f"{rng.choice(('TOTAL', 'Total', 'SUM', 'TAX', 'IVA', 'CASH', 'No.'))} {price(rng)}"


# how often, and what
FIGURES: tuple[tuple[float, Callable[[Random], str]], ...] = (
    (12, lambda rng: digits(rng, 1, 8)),
    (8, price),
    (6, lambda rng: rng.choice("$€") + price(rng)),
    (4, lambda rng: f"{price(rng)} €"),
    (6, date),
    (4, lambda rng: f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}"),
    (6, labelled),
    (4, code),
    (5, lambda rng: f"{rng.choice(phrases.ITEMS)} {price(rng)}"),
)
WORDS: tuple[tuple[float, Callable[[Random, Style], str]], ...] = (
    (14, word),
    (16, lambda rng, style: f"{word(rng, style)} {word(rng, style)}"),
    (4, lambda rng, style: f"{rng.randint(1, 9)} x {word(rng, style)}"),
    (3, lambda rng, style: word(rng, style) + rng.choice("!?.,:")),
    (3, lambda rng, style: f"{word(rng, style)} & {word(rng, style)}"),
    (2, lambda rng, style: f"{rng.randint(1, 99)}% {word(rng, style)}"),
    (3, lambda rng, style: f"{word(rng, style)} {word(rng, style)} {word(rng, style)}"),
)


def line(rng: Random, style: Style) -> str:
    """One short line: figures or words; only words where the style is not familiar."""
    if style.familiar and rng.random() < 0.55:
        (figure,) = rng.choices([make for _, make in FIGURES], [often for often, _ in FIGURES])
        return figure(rng)
    (phrase,) = rng.choices([make for _, make in WORDS], [often for often, _ in WORDS])
    return phrase(rng, style)
