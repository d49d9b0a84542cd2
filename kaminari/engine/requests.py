"""A request while it is in the engine: what was asked, who reads it, and the clock of what happened to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kaminari.engine.events import Finished, Timings, Usage
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.stream import EventStream
from kaminari.engine.writer import ChoiceWriter


@dataclass(slots=True)
class Request:
    """One request of `params.n` choices on one prompt.

    max_tokens:  tokens per choice, clamped to the context
    seed:        the client's, or one drawn for this request
    watched:     whether its events are read as they come, or once it is over
    submitted, started, first_token:  seconds on the monotonic clock; 0 before it happens
    vision, prefill:  seconds spent on its pictures and its chunks so far
    """

    id: int
    prompt: PreparedPrompt
    params: SamplingParams
    max_tokens: int
    seed: int
    stream: EventStream
    submitted: float
    watched: bool = True
    started: float = 0.0
    first_token: float = 0.0
    vision: float = 0.0
    prefill: float = 0.0
    writers: dict[int, ChoiceWriter] = field(default_factory=dict)

    @property
    def written(self) -> bool:
        """Every choice is over."""
        return all(writer.reason is not None for writer in self.writers.values())

    def picture_extents(self) -> tuple[tuple[int, int], ...]:
        """(first, last + 1) prompt index of each picture's placeholders."""
        spans = self.prompt.spans
        own = [
            [span for span in spans if span.picture == index] for index in range(len(self.prompt.pictures))
        ]
        return tuple((min(span.start for span in of), max(span.stop for span in of)) for of in own)

    def finished(self, now: float) -> Finished:
        """The last event: what the request cost."""
        usage = Usage(
            prompt_tokens=len(self.prompt.token_ids),
            completion_tokens=sum(writer.tokens for writer in self.writers.values()),
            image_tokens=self.prompt.image_tokens,
            reasoning_tokens=sum(writer.reasoning_tokens for writer in self.writers.values()),
        )
        timings = Timings(
            preprocess=self.prompt.preprocess_seconds,
            queue=self.started - self.submitted,
            vision=self.vision,
            prefill=self.prefill,
            first_token=self.first_token - self.submitted,
            decode=now - self.first_token,
        )
        return Finished(usage, timings)
