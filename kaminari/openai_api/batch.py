"""Several prompts of one request as one stream of events: choices are numbered through, and it ends once.

A request of one prompt is that prompt's own stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import fields, replace

from kaminari.engine.events import Event, Failed, Finished, Timings, Usage
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.stream import EventStream
from kaminari.openai_api.engine_protocol import AnswerStream, Engine


def submit_all(
    engine: Engine, prompts: Sequence[PreparedPrompt], params: SamplingParams, *, watched: bool
) -> AnswerStream:
    """Queue every prompt, or none. Raises what `Engine.submit` raises."""
    streams: list[EventStream] = []
    try:
        for prompt in prompts:
            streams.append(engine.submit(prompt, params, watched=watched))
    except BaseException:
        for stream in streams:
            stream.abort()
        raise
    return streams[0] if len(streams) == 1 else Batch(streams, params.n)


class Batch:
    """Streams of `choices` choices each, read as one. The first failure is the end of all."""

    def __init__(self, streams: Sequence[EventStream], choices: int) -> None:
        self._streams = tuple(streams)
        self._choices = choices

    def abort(self) -> None:
        for stream in self._streams:
            stream.abort()

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        arrived: asyncio.Queue[list[Event] | None] = asyncio.Queue()
        readers = [
            asyncio.create_task(self._read(stream, place * self._choices, arrived))
            for place, stream in enumerate(self._streams)
        ]
        ends: list[Finished] = []
        try:
            running = len(readers)
            while running:
                events = await arrived.get()
                if events is None:
                    running -= 1
                    continue
                ends += [event for event in events if isinstance(event, Finished)]
                others: list[Event] = [event for event in events if not isinstance(event, Finished)]
                if others:
                    yield others
                    if isinstance(others[-1], Failed):
                        return
            if len(ends) == len(readers):
                yield [_together(ends)]
        finally:
            self.abort()
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _read(
        self, stream: EventStream, first: int, arrived: asyncio.Queue[list[Event] | None]
    ) -> None:
        """Pass a stream on, its choices numbered from `first`, and None at its end."""
        try:
            async with aclosing(stream.batches()) as batches:
                async for events in batches:
                    arrived.put_nowait([_numbered(event, first) for event in events])
        finally:
            arrived.put_nowait(None)


def _numbered(event: Event, first: int) -> Event:
    if isinstance(event, Finished | Failed):
        return event
    return replace(event, choice=first + event.choice)


def _together(ends: Sequence[Finished]) -> Finished:
    """Usage is a sum. They ran side by side: of each time the longest counts."""
    usage = Usage(**{f.name: sum(getattr(end.usage, f.name) for end in ends) for f in fields(Usage)})
    timings = Timings(**{f.name: max(getattr(end.timings, f.name) for end in ends) for f in fields(Timings)})
    return Finished(usage, timings)
