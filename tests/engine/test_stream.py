"""The reader's end of a request: blocking and async readers, ends, and aborts from any side."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kaminari.engine.answer import AnswerBuilder, collect
from kaminari.engine.errors import EngineFault
from kaminari.engine.events import (
    ChoiceFinished,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Timings,
    Usage,
)
from kaminari.engine.stream import EventStream
from tests.patience import PATIENCE

END = Finished(Usage(3, 2, 0), Timings(0, 0, 0, 0, 0, 0))
EVENTS: list[Event] = [
    Delta(0, "a", (1,)),
    Delta(0, "b", (2,)),
    ChoiceFinished(0, FinishReason.STOP),
    END,
]


class Source:
    """A stream and a count of the aborts that reached the engine."""

    def __init__(self) -> None:
        self.aborts = 0
        self.stream = EventStream(on_abort=self._abort)

    def _abort(self) -> None:
        self.aborts += 1

    def publish_later(self, events: list[Event], pause: float = 0.005) -> threading.Thread:
        def run() -> None:
            for event in events:
                time.sleep(pause)
                self.stream.publish([event])

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def test_a_blocking_reader_gets_everything_in_order() -> None:
    source = Source()
    thread = source.publish_later(EVENTS)
    assert list(source.stream) == EVENTS
    thread.join()
    assert source.aborts == 0, "a stream that ended is not aborted"


async def test_an_async_reader_gets_everything_in_order() -> None:
    source = Source()
    thread = source.publish_later(EVENTS)
    assert [event async for event in source.stream] == EVENTS
    thread.join()
    assert source.aborts == 0


async def test_what_came_before_the_reader_is_not_lost() -> None:
    source = Source()
    source.stream.publish(EVENTS)
    assert [event async for event in source.stream] == EVENTS


async def test_a_failure_ends_the_stream() -> None:
    source = Source()
    source.stream.publish([EVENTS[0], Failed("boom")])
    assert [event async for event in source.stream] == [EVENTS[0], Failed("boom")]
    assert source.aborts == 0


async def test_what_gathers_while_nobody_looks_comes_at_once() -> None:
    source = Source()
    source.stream.publish(EVENTS[:1])
    batches = source.stream.batches()
    assert await anext(batches) == EVENTS[:1]
    for event in EVENTS[1:]:
        source.stream.publish([event])
    assert [batch async for batch in batches] == [EVENTS[1:]]
    assert source.aborts == 0


async def test_a_lone_event_waits_for_no_other() -> None:
    source = Source()
    batches = source.stream.batches()
    for event in EVENTS:
        reading = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        threading.Thread(target=source.stream.publish, args=([event],)).start()
        assert await asyncio.wait_for(reading, PATIENCE) == [event]
    assert [batch async for batch in batches] == []


async def test_a_reader_of_batches_that_leaves_aborts() -> None:
    source = Source()
    source.stream.publish(EVENTS[:1])
    batches = source.stream.batches()
    assert await anext(batches) == EVENTS[:1]
    with pytest.raises(RuntimeError, match="one reader"):
        await anext(source.stream.batches())
    await batches.aclose()
    assert source.aborts == 1


async def test_a_reader_that_leaves_aborts_once() -> None:
    source = Source()
    source.stream.publish(EVENTS[:1])
    events = aiter(source.stream)
    assert await anext(events) == EVENTS[0]
    await events.aclose()  # type: ignore[attr-defined]
    source.stream.abort()
    assert source.aborts == 1


async def test_a_cancelled_reader_aborts() -> None:
    source = Source()

    async def read() -> None:
        async for _ in source.stream:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.aborts == 1


@pytest.mark.parametrize("delay", [0.0, 0.02])
async def test_an_abort_wakes_an_async_reader(delay: float) -> None:
    source = Source()

    async def read() -> list[Event]:
        return [event async for event in source.stream]

    task = asyncio.create_task(read())
    await asyncio.sleep(delay)
    threading.Thread(target=source.stream.abort).start()
    assert await asyncio.wait_for(task, PATIENCE) == []
    assert source.aborts == 1


def test_an_abort_wakes_a_blocking_reader() -> None:
    source = Source()
    timer = threading.Timer(0.02, source.stream.abort)
    timer.start()
    assert list(source.stream) == []
    assert source.aborts == 1


def test_collect_joins_choices_in_order() -> None:
    source = Source()
    source.stream.publish([Delta(1, "x", (9,)), *EVENTS[:2], Delta(1, "", (8,))])
    source.stream.publish(
        [ChoiceFinished(1, FinishReason.LENGTH), ChoiceFinished(0, FinishReason.STOP, "!"), END]
    )
    answer = collect(source.stream)
    assert [(choice.text, choice.token_ids) for choice in answer.choices] == [("ab", [1, 2]), ("x", [9, 8])]
    assert [choice.reason for choice in answer.choices] == [FinishReason.STOP, FinishReason.LENGTH]
    assert answer.choices[0].stop == "!"
    assert answer.text == "ab"


def test_collect_raises_what_failed_and_what_was_cut() -> None:
    source = Source()
    source.stream.publish([EVENTS[0], Failed("boom")])
    with pytest.raises(EngineFault, match="boom"):
        collect(source.stream)
    with pytest.raises(EngineFault, match="aborted"):
        AnswerBuilder().answer()


async def test_a_second_reader_is_refused() -> None:
    source = Source()
    source.stream.publish(EVENTS[:1])
    first = aiter(source.stream)
    await anext(first)
    with pytest.raises(RuntimeError, match="one reader"):
        next(iter(source.stream))
    with pytest.raises(RuntimeError, match="one reader"):
        await anext(aiter(source.stream))
    source.stream.publish(EVENTS[1:])
    assert [event async for event in first] == EVENTS[1:]


def test_a_reader_whose_loop_is_closed_stops_nobody() -> None:
    source = Source()

    async def read_one() -> object:
        events = aiter(source.stream)
        await anext(events)
        return events

    source.stream.publish(EVENTS[:1])
    loop = asyncio.new_event_loop()
    events = loop.run_until_complete(read_one())
    loop.close()
    source.stream.publish(EVENTS[1:])
    assert events is not None
