"""The face of the engine that HTTP sees: a request goes in at one door, and events come out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from kaminari.engine.conversation import Conversation
from kaminari.engine.events import Event
from kaminari.engine.info import EngineInfo, EngineStatus
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.stream import EventStream


class AnswerStream(Protocol):
    """The events of one request."""

    def abort(self) -> None:
        """Stop the request. Safe at any time, and again."""
        ...

    def batches(self) -> AsyncGenerator[list[Event], None]:
        """All that has gathered since the last look, in order and never empty, as soon as there is any."""
        ...


class Engine(Protocol):
    """What a loaded engine can do for a server. `kaminari.engine.engine.Engine` is the real one."""

    @property
    def info(self) -> EngineInfo: ...

    def expecting(self) -> AbstractContextManager[None]:
        """Hold while a prompt is prepared whose answer will be watched. Thread-safe."""
        ...

    def prepare(self, conversation: Conversation) -> PreparedPrompt:
        """Decode, template and tokenize. Slow, thread-safe. Raises `RequestError`."""
        ...

    def prepare_text(self, prompt: str | Sequence[int], field: str = "prompt") -> PreparedPrompt:
        """Make a prompt of plain text or of ids. Slow, thread-safe. Raises `RequestError` about `field`."""
        ...

    def decode(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        """The text of ids, control tokens spelled out. Thread-safe. Raises `RequestError` about `field`."""
        ...

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary has it. Thread-safe."""
        ...

    def submit(self, prompt: PreparedPrompt, params: SamplingParams, *, watched: bool = True) -> EventStream:
        """Queue a prompt; `watched` where its events are read as they come. Quick.

        Raises `RequestError`, `QueueFull`, `EngineUnavailable`.
        """
        ...

    def status(self) -> EngineStatus: ...
