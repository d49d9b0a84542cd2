"""The pipeline with a fake device: what is launched, drawn and settled when, and what a slot may see."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import pytest

from kaminari.engine.pipeline import Pipeline
from kaminari.engine.scheduler import (
    DecodeRow,
    DecodeStep,
    EncodePicture,
    Item,
    Job,
    PrefillChunk,
    Scheduler,
    WorkItem,
)


class Broken(Exception):
    """A fault that a test makes."""


@dataclass(frozen=True)
class Row:
    job: int
    choice: int
    slot: int
    index: int


@dataclass(frozen=True)
class Logits:
    number: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Token:
    job: int
    choice: int
    index: int


@dataclass
class Tokens:
    bench: Bench
    number: int
    rows: tuple[Row, ...]

    def collect(self) -> list[Token]:
        self.bench.settle(self.number)
        return [Token(row.job, row.choice, row.index) for row in self.rows]


@dataclass
class Bench:
    """A device and an owner in one. It writes down what happens, and refuses what must not.

    log:       such as "launch 3", "draw 3", "settle 3", "commit 7.0[2]" (job, choice, token)
    breaks:    what fails the next time, of "launch", "draw" and "collect"
    ends:      asked at each commit whether the token ends its choice
    """

    slots: int
    depth: int
    chunk: int = 4
    log: list[str] = field(default_factory=list)
    breaks: set[str] = field(default_factory=set)
    ends: Callable[[Token], bool] = lambda token: False
    keeps_host: tuple[type, ...] = ()
    made: dict[tuple[int, int], int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    items: int = 0
    drawn: int = 0
    settled: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.slots, self.chunk)
        self.pipeline = Pipeline(self.scheduler, self, self, self.depth)  # type: ignore[arg-type]

    def add(self, job: int, tokens: int = 2, most: int = 9, choices: int = 1, pictures: int = 0) -> None:
        extents = tuple((place, place + 1) for place in range(pictures))
        self.last[job] = most
        self.scheduler.add(Job(job, tokens, most, choices, extents))

    def step(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            plan = self.scheduler.plan()
            if plan.work is not None:
                self.pipeline.advance(plan.work)
            if plan.decode:
                self.pipeline.advance(DecodeStep(plan.decode))
            if not plan:
                self.pipeline.drain()
            self.scheduler.check()

    def _launch(self) -> int:
        if "launch" in self.breaks:
            self.breaks.remove("launch")
            raise Broken
        self.items += 1
        self.log.append(f"launch {self.items}")
        assert self.items - self.settled <= self.depth, "more items are in flight than the depth allows"
        return self.items

    def encode_picture(self, item: EncodePicture) -> None:
        self._launch()

    def prefill(self, item: PrefillChunk) -> Logits | None:
        number = self._launch()
        for slot in item.slots:
            if item.start == 0:
                assert self.settled == number - 1 or self.owners.get(slot) != item.job
                self.owners[slot] = item.job
            self.lengths[slot] = item.stop
        rows = tuple(Row(item.job, choice, slot, 0) for choice, slot in enumerate(item.slots))
        return Logits(number, rows) if item.last else None

    def decode(self, rows: Sequence[DecodeRow]) -> Logits:
        number = self._launch()
        for row in rows:
            assert self.scheduler.runs(row.job, row.choice), "a row that is over was launched"
            assert self.owners[row.slot] == row.job, "a step reads a slot that is another's"
            assert row.cached == self.lengths[row.slot], "a step was left out"
            assert row.index < self.last[row.job], "a step past max_tokens"
            self.lengths[row.slot] += 1
        return Logits(number, tuple(Row(row.job, row.choice, row.slot, row.index) for row in rows))

    def draw(self, undrawn: Logits, rows: Sequence[Row]) -> Tokens:
        if "draw" in self.breaks:
            self.breaks.remove("draw")
            raise Broken
        self.log.append(f"draw {undrawn.number}")
        assert rows
        assert set(rows) <= set(undrawn.rows)
        for row in rows:
            assert self.scheduler.runs(row.job, row.choice), "a row that is over was drawn"
            made = self.made.get((row.job, row.choice), 0)
            assert made == row.index, "a token was drawn before the one before it was committed"
        self.drawn = undrawn.number
        return Tokens(self, undrawn.number, tuple(rows))

    def mark(self) -> Callable[[], None]:
        number = self.items
        return lambda: self.settle(number)

    def overlaps(self, item: Item) -> bool:
        return not isinstance(item, self.keeps_host)

    def settle(self, number: int) -> None:
        self.settled = number
        if "collect" in self.breaks:
            self.breaks.remove("collect")
            raise Broken
        self.log.append(f"settle {number}")

    def commit(self, token: Token) -> None:
        self.log.append(f"commit {token.job}.{token.choice}[{token.index}]")
        key = (token.job, token.choice)
        assert self.scheduler.runs(*key), "a token of a row that is over was committed"
        assert token.index == self.made.get(key, 0), "a token was lost or came twice"
        self.made[key] = token.index + 1
        if self.ends(token) or token.index + 1 == self.last[token.job]:
            self.scheduler.end(*key)

    def fail(self, jobs: Collection[int]) -> None:
        assert isinstance(sys.exc_info()[1], Broken)
        for job in jobs:
            self.scheduler.drop(job)
            self.failed.add(job)

    def worked(self, item: WorkItem, seconds: float) -> None:
        assert seconds >= 0
        self.log.append("worked")

    def committed(self) -> None:
        assert self.made or self.settled


def free(bench: Bench) -> bool:
    return bench.scheduler.slots.free == bench.slots


def test_one_deep_an_item_settles_before_the_next_is_launched() -> None:
    bench = Bench(1, depth=1)
    bench.add(1, tokens=2, most=2)
    bench.step(2)
    assert bench.log == [
        *("launch 1", "draw 1", "settle 1", "worked", "commit 1.0[0]"),
        *("launch 2", "draw 2", "settle 2", "commit 1.0[1]"),
    ]
    assert free(bench)


def test_two_deep_the_next_item_is_launched_first_and_drawn_after_the_commit() -> None:
    bench = Bench(1, depth=2)
    bench.add(1, tokens=2, most=3)
    bench.step(4)
    assert bench.log == [
        *("launch 1", "draw 1"),
        *("launch 2", "settle 1", "worked", "commit 1.0[0]", "draw 2"),
        *("launch 3", "settle 2", "commit 1.0[1]", "draw 3"),
        *("settle 3", "commit 1.0[2]"),
    ]
    assert free(bench)


def test_two_deep_an_item_that_keeps_the_host_is_alone() -> None:
    """Else tokens that are there would wait for a whole chunk."""
    bench = Bench(2, depth=2, keeps_host=(PrefillChunk, EncodePicture))
    bench.add(1, tokens=2, most=9)
    bench.step(2)
    assert bench.log == [*("launch 1", "draw 1", "settle 1", "worked", "commit 1.0[0]"), "launch 2", "draw 2"]
    bench.add(2, tokens=6, most=9)
    bench.step(2)
    assert bench.log[7:] == [
        *("settle 2", "commit 1.0[1]", "launch 3", "settle 3", "worked", "launch 4", "draw 4"),
        *("settle 4", "commit 1.0[2]", "launch 5", "draw 5", "settle 5", "worked", "commit 2.0[0]"),
        *("launch 6", "draw 6"),
    ]


def test_items_without_tokens_are_waited_for_too() -> None:
    """Else a long prompt would be launched whole, and who comes after it would wait for all of it."""
    bench = Bench(1, depth=2)
    bench.add(1, tokens=11, most=1, pictures=1)
    bench.step(2)
    assert bench.log == ["launch 1", "launch 2", "settle 1", "worked"]
    bench.step(3)
    assert bench.log[4:] == [
        *("launch 3", "settle 2", "worked", "launch 4", "settle 3", "worked", "draw 4"),
        *("settle 4", "worked", "commit 1.0[0]"),
    ]


def test_a_row_that_ends_in_flight_is_dropped_and_its_slot_waits_for_the_step() -> None:
    bench = Bench(2, depth=2, ends=lambda token: (token.job, token.index) == (1, 1))
    bench.add(1)
    bench.add(2)
    bench.step(3)
    assert bench.log[-4:] == ["launch 4", "settle 3", "commit 1.0[1]", "draw 4"]
    assert bench.scheduler.slots.free == 0, "the step behind its last is in flight on its slot"
    bench.add(3)
    bench.step()
    assert bench.owners[0] == 1, "the slot went to the next job while a step was in flight on it"
    bench.step()
    assert bench.owners[0] == 3
    bench.step(20)
    assert "commit 1.0[2]" not in bench.log


def test_an_abort_has_its_slot_back_after_the_step_in_flight() -> None:
    bench = Bench(1, depth=2)
    bench.add(1)
    bench.step(3)
    bench.scheduler.drop(1)
    bench.scheduler.check()
    assert not free(bench)
    before = len(bench.log)
    bench.step()
    assert free(bench)
    assert not [line for line in bench.log[before:] if not line.startswith("settle")]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("place", ["launch", "draw", "collect"])
def test_a_fault_strikes_the_rows_of_its_item_alone(place: str, depth: int) -> None:
    bench = Bench(3, depth=depth)
    bench.add(1)
    bench.add(2)
    bench.step(3)
    bench.add(3, tokens=8)
    bench.breaks = {place}
    bench.step()  # a chunk of job 3, from which nothing is drawn yet, and then a decode step of the others
    decoding_breaks = place == "draw" or (place == "collect" and depth == 2)
    assert bench.failed == ({1, 2} if decoding_breaks else {3})
    bench.step(30)
    assert free(bench)
    whole = {job for job in (1, 2, 3) if bench.made.get((job, 0)) == 9}
    assert whole == {1, 2, 3} - bench.failed


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_random_work_keeps_every_promise(seed: int, depth: int) -> None:
    """Jobs come, end, leave and break at random; the fakes check each launch, draw and commit."""
    rng = random.Random(seed)
    bench = Bench(rng.randint(1, 5), depth, chunk=rng.randint(1, 6), ends=lambda token: rng.random() < 0.1)
    left: set[int] = set()
    jobs = 60
    for job in range(1, jobs + 1):
        choices = rng.randint(1, min(3, bench.slots))
        tokens = rng.randint(1, 9)
        bench.add(job, tokens, rng.randint(1, 12), choices, rng.randint(0, min(2, tokens)))
        if rng.random() < 0.2:
            bench.breaks.add(rng.choice(["launch", "draw", "collect"]))
        for _ in range(rng.randint(0, 6)):
            bench.step()
            if rng.random() < 0.05:
                gone = rng.randint(1, job)
                bench.scheduler.drop(gone)
                left.add(gone)
                bench.scheduler.check()
    bench.breaks.clear()
    for _ in range(5000):
        if not (bench.scheduler.waiting or bench.scheduler.running or bench.pipeline.in_flight):
            break
        bench.step()
    assert free(bench)
    told = {job for job, _ in bench.made}
    assert told | left | bench.failed == set(range(1, jobs + 1)), "a job got lost"
    assert bench.failed
    assert len(told - left - bench.failed) > jobs / 3


def test_nothing_of_it_needs_torch() -> None:
    code = "import sys, kaminari.engine.pipeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("depth", [0, 3])
def test_a_depth_that_does_not_exist_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="1 to 2"):
        Bench(1, depth)
