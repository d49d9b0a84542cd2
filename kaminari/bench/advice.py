"""What `kaminari doctor --measure` recommends, from rates that were measured and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WORTH = 1.1
"""A gain below this factor is not worth bits, memory or threads."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one format reached.

    format:   as the setting spells it
    threads:  of the engine
    rows:     sequences in a step
    tokens:   per second, of all rows together
    """

    format: str
    threads: int
    rows: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings, and a sentence with the numbers for each."""

    format: str
    threads: int
    slots: int
    reasons: tuple[str, ...]


def advise(rates: Sequence[Rate]) -> Advice:
    """Choose a format, then its threads, then slots.

    rates:  formats in the order of their precision, the most precise first; each with one row at least

    A format has to be 1.1 times as fast at one row as what it replaces; threads are the fewest, and slots the
    fewest, within that factor of the best. Raises ValueError where nothing was measured.
    """
    if not rates:
        raise ValueError("nothing was measured")
    formats = list(dict.fromkeys(rate.format for rate in rates))
    chosen = _single(rates, formats[0])
    said = f"{chosen.format}: {chosen.tokens:.1f} tokens/s at one row"
    for name in formats[1:]:
        other = _single(rates, name)
        factor = other.tokens / chosen.tokens
        if factor >= WORTH:
            said = f"{name}: {other.tokens:.1f} tokens/s at one row, {factor:.2f} times {chosen.format}'s"
            chosen = other
        else:
            said += f"; {name} is {factor:.2f} times as fast, which is not worth its bits"
    own = [rate for rate in rates if rate.format == chosen.format]
    most = max(rate.tokens for rate in own if rate.rows == 1)
    threads = min(rate.threads for rate in own if rate.rows == 1 and rate.tokens * WORTH >= most)
    reasons = [said, f"threads: {threads} for {_at(own, threads, 1):.1f} of {most:.1f} tokens/s at one row"]
    by_rows = {rate.rows: rate.tokens for rate in own if rate.threads == threads}
    best = max(by_rows.values())
    slots = min(rows for rows, tokens in by_rows.items() if tokens * WORTH >= best)
    steps = ", ".join(f"{by_rows[rows]:.1f} with {rows}" for rows in sorted(by_rows))
    reasons.append(f"slots: {slots}, of tokens/s {steps}")
    fastest = max((rate for rate in rates if rate.rows == slots), key=lambda rate: rate.tokens)
    if fastest.tokens >= by_rows[slots] * WORTH:
        reasons.append(
            f"where {slots} ask at once, --quantization {fastest.format} --threads {fastest.threads} "
            f"makes {fastest.tokens:.1f} tokens/s"
        )
    return Advice(chosen.format, threads, slots, tuple(reasons))


def _single(rates: Sequence[Rate], name: str) -> Rate:
    """The best rate of a format at one row."""
    return max((r for r in rates if r.format == name and r.rows == 1), key=lambda rate: rate.tokens)


def _at(rates: Sequence[Rate], threads: int, rows: int) -> float:
    return next(rate.tokens for rate in rates if (rate.threads, rate.rows) == (threads, rows))
