"""Keeps every sample from the moment it is measured, so that an interrupted run still tells what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kaminari.bench.result import Figure, Limits, Share, Spread

Case = Mapping[str, int | float | str]
Floor = Callable[[Limits], float | None]


@dataclass(slots=True)
class Row:
    """Samples of one case of one entrant.

    floor:    the least seconds by the limits, which are known best when the run is over
    amounts:  what one sample's seconds brought, by its name; the figure holds it per second
    values:   other findings
    """

    entrant: str
    case: Case
    floor: Floor | None
    amounts: Mapping[str, float]
    samples: list[float] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)

    def figure(self, limits: Limits) -> Figure:
        seconds = Spread.of(self.samples)
        rates = {f"{name}_per_second": amount / seconds.median for name, amount in self.amounts.items()}
        return Figure(
            entrant=self.entrant,
            case=self.case,
            seconds=seconds,
            floor=None if self.floor is None else self.floor(limits),
            values={**rates, **self.values},
        )


class Recorder:
    """on_progress is called with (what is being measured, rounds done, rounds in all)."""

    def __init__(self, on_progress: Callable[[str, int, int], None]) -> None:
        self._on_progress = on_progress
        self._rows: list[Row] = []
        self._done = 0
        self._total = 0
        self.shares: list[Share] = []
        self.notes: list[str] = []

    def expect(self, rounds: int) -> None:
        """Announce more rounds."""
        self._total += rounds

    def starting(self, text: str) -> None:
        """Say what is being measured now."""
        self._on_progress(text, self._done, self._total)

    def done(self, text: str) -> None:
        """A round is over."""
        self._done += 1
        self._on_progress(text, self._done, self._total)

    def row(
        self,
        entrant: str,
        case: Case,
        *,
        floor: Floor | None = None,
        amounts: Mapping[str, float] | None = None,
    ) -> Row:
        """The row of a case, made where there is none yet."""
        for row in self._rows:
            if row.entrant == entrant and row.case == case:
                return row
        row = Row(entrant, dict(case), floor, dict(amounts or {}))
        self._rows.append(row)
        return row

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @property
    def empty(self) -> bool:
        return not any(row.samples for row in self._rows)

    def figures(self, limits: Limits) -> tuple[Figure, ...]:
        return tuple(row.figure(limits) for row in self._rows if row.samples)


def join_case(case: Case) -> str:
    """A case in words, such as `batch 8, context 512`."""
    return ", ".join(f"{name} {value}" for name, value in case.items())
