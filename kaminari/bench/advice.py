"""What `kaminari doctor --measure` recommends, from rates that were measured and from nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WORTH = 1.1
"""A gain below this factor is not worth bits, memory or another thread count."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one format reached.

    format:   as the setting spells it
    threads:  of the engine
    rows:     sequences in a step
    visits:   tokens per second of all rows together, once for each time that it was measured; the visits of
              one format took turns, so that those of one number fell into the same moment
    usual:    the threads are those that the engine takes where nobody says otherwise
    """

    format: str
    threads: int
    rows: int
    visits: tuple[float, ...]
    usual: bool

    @property
    def tokens(self) -> float:
        """The median of the visits."""
        return statistics.median(self.visits)

    @property
    def spread(self) -> tuple[float, float]:
        """Between these two lies the middle half of the visits."""
        return _middle_half(self.visits)


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast one rate is as another, and between what the middle half of it lies."""

    factor: float
    low: float
    high: float

    @property
    def pays(self) -> bool:
        """It is worth a change, and is none by chance."""
        return self.factor >= WORTH and self.low > 1


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings, and a sentence with the numbers for each."""

    format: str
    threads: int
    slots: int
    reasons: tuple[str, ...]


def advise(rates: Sequence[Rate]) -> Advice:
    """Choose a format, then its threads, then slots.

    rates:  formats in the order of their precision, the most precise first; each with one row at least, and
            with its usual threads

    A format has to be 1.1 times as fast at one row as what it replaces, and other threads as the usual ones;
    in both a difference within the spread of the visits is none. Slots are the fewest within that factor of
    the best. Raises ValueError where nothing was measured.
    """
    if not rates:
        raise ValueError("nothing was measured")
    singles = [
        _best_threads([rate for rate in rates if (rate.format, rate.rows) == (name, 1)])
        for name in dict.fromkeys(rate.format for rate in rates)
    ]
    chosen = singles[0]
    said = f"{chosen.format}: {_spelled(chosen)} tokens/s at one row"
    for other in singles[1:]:
        found = gain(other, chosen)
        if found.pays:
            said = f"{other.format}: {_spelled(other)} tokens/s at one row, {found.factor:.2f} times "
            said += f"{chosen.format}'s"
            chosen = other
        else:
            said += f"; {other.format} is {found.factor:.2f} times as fast"
            said += (
                ", which is within the spread" if found.factor >= WORTH else ", which is not worth its bits"
            )
    own = [rate for rate in rates if rate.format == chosen.format]
    reasons = [said, _threads_reason([rate for rate in own if rate.rows == 1], chosen)]
    by_rows = {rate.rows: rate for rate in own if rate.threads == chosen.threads}
    best = max(rate.tokens for rate in by_rows.values())
    slots = min(rows for rows, rate in by_rows.items() if rate.tokens * WORTH >= best)
    steps = ", ".join(f"{_spelled(by_rows[rows])} with {rows}" for rows in sorted(by_rows))
    reasons.append(f"slots: {slots}, of tokens/s {steps}")
    fastest = max((rate for rate in rates if rate.rows == slots), key=lambda rate: rate.tokens)
    if gain(fastest, by_rows[slots]).pays:
        reasons.append(
            f"where {slots} ask at once, --quantization {fastest.format} --threads {fastest.threads} "
            f"makes {_spelled(fastest)} tokens/s"
        )
    return Advice(chosen.format, chosen.threads, slots, tuple(reasons))


def gain(other: Rate, chosen: Rate) -> Gain:
    """How much faster `other` is.

    Rates of one format are compared visit by visit, so that what the machine gave in one moment and not in
    the next is in neither; those of two formats by their spreads.
    """
    if other.format == chosen.format:
        factors = [a / b for a, b in zip(other.visits, chosen.visits, strict=True)]
        return Gain(statistics.median(factors), *_middle_half(factors))
    (low, high), (least, most) = other.spread, chosen.spread
    return Gain(other.tokens / chosen.tokens, low / most, high / least)


def _best_threads(rates: Sequence[Rate]) -> Rate:
    """The rate with the usual threads, or with those that are faster beyond doubt."""
    chosen = next(rate for rate in rates if rate.usual)
    return max(
        (rate for rate in rates if gain(rate, chosen).pays), key=lambda rate: rate.tokens, default=chosen
    )


def _threads_reason(rates: Sequence[Rate], chosen: Rate) -> str:
    """rates: of the chosen format at one row."""
    said = f"threads: {chosen.threads} for {_spelled(chosen)} tokens/s at one row"
    for other in rates:
        if other.threads == chosen.threads:
            continue
        found = gain(other, chosen)
        said += f"; {other.threads} would be {found.factor:.2f} times as fast"
        said += f" ({found.low:.2f} to {found.high:.2f})"
        if chosen.usual and found.high > 1:
            said += ", which is too little"
    return said


def _spelled(rate: Rate) -> str:
    low, high = rate.spread
    return f"{rate.tokens:.1f} ({low:.1f} to {high:.1f})"


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
