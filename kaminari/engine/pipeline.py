"""Lets the host work while the device does: a pure state machine without torch.

An item is a picture, a prefill chunk or a decode step. Its life: launch (pictures and forward passes), draw
(one token per row), settle (wait for it, then commit its tokens to text). At depth 1 an item settles before
the next is launched. At depth 2 the next one's forward pass is launched first, and the host commits
and publishes while the device is at it:

    host    launch 1, draw 1 | launch 2, settle 1, draw 2 | launch 3, settle 2, draw 3 | ...
    device  [forward 1][draw]  [forward 2           ][draw] [forward 3          ][draw]

The draw is no wait where a step draws for its rows itself, or the device keeps an order: the next one is
launched while it runs. Elsewhere the host waits for the forward pass before it draws. An item that keeps the
host until it is over (a CPU's prompt chunk) is alone, as at depth 1.

What holds:
  1. Items are launched, drawn and settled in the order of the plans, and at most `depth` are in flight.
  2. An item's tokens are drawn after those of all items before it were committed, unless nothing but logits,
     numbers and the device's own counts goes into them: a grammar has taken its row's last token when its
     mask is made. No forward pass waits for a grammar, its own row's or another's.
  3. A row that is over takes no further part: it is dropped at the launch, the draw or the commit that comes
     next.
  4. Nobody gets a slot on which an item is in flight.
  5. A fault strikes the rows of its own item, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kaminari.engine.scheduler import (
    DecodeRow,
    DecodeStep,
    EncodePicture,
    Item,
    PrefillChunk,
    Scheduler,
    WorkItem,
)
from kaminari.engine.step_clock import StepClock

if TYPE_CHECKING:
    from kaminari.engine.drawn import Drawn, DrawnToken, DrawRow, Undrawn

MAX_DEPTH = 2


class Device(Protocol):
    """What runs items, in the order of their launches: `kaminari.engine.runner.Runner`, or a fake."""

    def encode_picture(self, item: EncodePicture) -> None: ...

    def prefill(self, item: PrefillChunk) -> Undrawn | None: ...

    def decode(self, rows: Sequence[DecodeRow]) -> Undrawn: ...

    def draw(self, undrawn: Undrawn, rows: Sequence[DrawRow]) -> Drawn:
        """Draw for these of its rows."""
        ...

    def mark(self) -> Callable[[], None] | None:
        """What waits for all that was launched so far; None where launching waits already."""
        ...

    def overlaps(self, item: Item) -> bool:
        """Whether the host has something to gain from launching an item before the last one is settled."""
        ...


class Owner(Protocol):
    """Who gets the results."""

    def commit(self, token: DrawnToken) -> None: ...

    def fail(self, jobs: Collection[int]) -> None:
        """End these jobs. Called while the exception that is the reason is handled."""
        ...

    def worked(self, item: WorkItem, seconds: float) -> None:
        """The device has spent this time on an item."""
        ...

    def committed(self) -> None:
        """All tokens of an item were committed."""
        ...


@dataclass(slots=True)
class _Flight:
    item: Item
    slots: tuple[int, ...]
    launched: float
    undrawn: Undrawn | None
    drawn: Drawn | None = None
    wait: Callable[[], None] | None = None


class Pipeline:
    """The items in flight between one scheduler and one device."""

    def __init__(
        self, scheduler: Scheduler, device: Device, owner: Owner, depth: int, clock: StepClock | None = None
    ) -> None:
        if not 1 <= depth <= MAX_DEPTH:
            raise ValueError(f"a pipeline is 1 to {MAX_DEPTH} items deep, not {depth}")
        self.depth = depth
        self._scheduler = scheduler
        self._device = device
        self._owner = owner
        self._clock = clock or StepClock()
        self._flying: _Flight | None = None
        self._settled_at = 0.0

    @property
    def in_flight(self) -> bool:
        return self._flying is not None

    def advance(self, item: Item) -> None:
        """Launch the next item, settle what was in flight before it, and draw its tokens."""
        alone = self.depth == 1 or not self._device.overlaps(item)
        if alone:
            self.drain()
        flight = self._launch(item)
        if flight is None:
            return
        self.drain()
        self._draw(flight)
        self._flying = flight
        if alone:
            self.drain()

    def drain(self) -> None:
        """Settle what is in flight."""
        flight, self._flying = self._flying, None
        if flight is not None:
            self._settle(flight)

    def _launch(self, item: Item) -> _Flight | None:
        """None where nothing of the item runs any more, or a fault ended it."""
        if isinstance(item, DecodeStep):
            rows = tuple(row for row in item.rows if self._scheduler.runs(row.job, row.choice))
            item = DecodeStep(rows)
        began = time.monotonic()
        jobs = _jobs(item)
        if not any(map(self._scheduler.runs, jobs)):
            return None
        undrawn: Undrawn | None = None
        try:
            match item:
                case EncodePicture():
                    self._device.encode_picture(item)
                case PrefillChunk():
                    undrawn = self._device.prefill(item)
                case DecodeStep(rows):
                    undrawn = self._device.decode(rows)
        except Exception:
            self._owner.fail(jobs)
            return None
        slots = _slots(item)
        self._scheduler.slots.launched(slots)
        return _Flight(item, slots, began, undrawn)

    def _draw(self, flight: _Flight) -> None:
        undrawn, flight.undrawn = flight.undrawn, None
        rows: list[DrawRow] = []
        if undrawn is not None:
            rows = [row for row in undrawn.rows if self._scheduler.runs(row.job, row.choice)]
        try:
            if undrawn is not None and rows:
                flight.drawn = self._device.draw(undrawn, rows)
        except Exception:
            self._owner.fail({row.job for row in rows})
        if flight.drawn is None:
            flight.wait = self._device.mark()

    def _settle(self, flight: _Flight) -> None:
        tokens: list[DrawnToken] = []
        try:
            if flight.drawn is not None:
                tokens = flight.drawn.collect()
            elif flight.wait is not None:
                flight.wait()
        except Exception:
            self._owner.fail({job for job in _jobs(flight.item) if self._scheduler.runs(job)})
        self._scheduler.slots.settled(flight.slots)
        self._clock.lap("collect")
        now = time.monotonic()
        if not isinstance(flight.item, DecodeStep):
            # the device came to this item when it was launched, or when the one before it was over
            self._owner.worked(flight.item, now - max(flight.launched, self._settled_at))
        self._settled_at = now
        for token in tokens:
            if self._scheduler.runs(token.job, token.choice):
                self._owner.commit(token)
        self._clock.lap("write")
        self._owner.committed()


def _jobs(item: Item) -> set[int]:
    return {row.job for row in item.rows} if isinstance(item, DecodeStep) else {item.job}


def _slots(item: Item) -> tuple[int, ...]:
    match item:
        case DecodeStep(rows):
            return tuple(row.slot for row in rows)
        case PrefillChunk():
            return item.slots
        case _:
            return ()
