"""An engine that plays a script, so that every rule of the HTTP surface is tested without a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kaminari.engine.conversation import Conversation
from kaminari.engine.events import ChoiceFinished, Delta, Event, Finished, FinishReason, Timings, Usage
from kaminari.engine.info import EngineInfo, EngineStatus
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.stream import EventStream
from tests.patience import PATIENCE

INFO = EngineInfo(
    model="org/fake-vl",
    family="fake",
    device="cpu",
    dtype="float32",
    vision_dtype="float32",
    quantization="none",
    slots=4,
    context=128,
    vocab_size=1000,
    choices=4,
    weight_bytes=1,
    cache_bytes=1,
    demo=False,
)
TIMINGS = Timings(preprocess=0.1, queue=0.2, vision=0.3, prefill=0.4, first_token=1.0, decode=2.0)
PROMPT_IDS = (11, 12, 13, 14, 15)
TOKENS = (" Hello", ",", " wor", "", "ld", "\n", "")

Script = Callable[[SamplingParams], Iterable[Sequence[Event]]]


def make_prompt() -> PreparedPrompt:
    positions = np.tile(np.arange(len(PROMPT_IDS)), (3, 1))
    return PreparedPrompt(token_ids=PROMPT_IDS, positions=positions, position_offset=0)


def finished(completion_tokens: int) -> Finished:
    usage = Usage(len(PROMPT_IDS), completion_tokens, image_tokens=2, cached_tokens=1)
    return Finished(usage, TIMINGS)


def hello(params: SamplingParams) -> list[list[Event]]:
    """Every choice says ` Hello, world\\n` in seven tokens, two of which show nothing yet."""
    steps: list[list[Event]] = []
    for position, text in enumerate(TOKENS):
        steps.append([Delta(choice, text, (100 * choice + position,)) for choice in range(params.n)])
    ends: list[Event] = [ChoiceFinished(choice, FinishReason.STOP) for choice in range(params.n)]
    steps[-1] += [*ends, finished(len(TOKENS) * params.n)]
    return steps


def says(*steps: Sequence[Event]) -> Script:
    """A script of fixed steps."""
    return lambda params: steps


def endless(params: SamplingParams) -> Iterator[list[Event]]:
    """Far more than anybody waits for."""
    for position in range(100_000):
        yield [Delta(0, f" {position}", (position,))]


class FakeEngine:
    """Plays `script` for each request: at once, or with `pause` seconds after each step on a thread.

    conversations, texts, params, watched:  what was handed over
    expected:               when `expecting` began and ended
    live:                   streams that have neither ended nor been aborted
    aborted:                how many were
    """

    def __init__(self, script: Script = hello, *, pause: float = 0.0, info: EngineInfo = INFO) -> None:
        self.info = info
        self.script = script
        self.pause = pause
        self.conversations: list[Conversation] = []
        self.texts: list[str | Sequence[int]] = []
        self.params: list[SamplingParams] = []
        self.watched: list[bool] = []
        self.expected: list[bool] = []
        self.prepare_hook: Callable[[], None] = lambda: None
        self.submit_hook: Callable[[], None] = lambda: None
        self.alive = True
        self.stalled = False
        self.live = 0
        self.aborted = 0
        self._changed = threading.Condition()

    @contextmanager
    def expecting(self) -> Iterator[None]:
        self.expected.append(True)
        try:
            yield
        finally:
            self.expected.append(False)

    def prepare(self, conversation: Conversation) -> PreparedPrompt:
        self.conversations.append(conversation)
        self.prepare_hook()
        return make_prompt()

    def prepare_text(self, prompt: str | Sequence[int], field: str = "prompt") -> PreparedPrompt:
        self.texts.append(prompt)
        self.prepare_hook()
        return make_prompt()

    def decode(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        return "".join(f"<{token}>" for token in token_ids)

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        return [f"t{token}" for token in token_ids]

    def submit(self, prompt: PreparedPrompt, params: SamplingParams, *, watched: bool = True) -> EventStream:
        self.submit_hook()
        self.params.append(params)
        self.watched.append(watched)
        stopped = threading.Event()

        def on_abort() -> None:
            stopped.set()
            with self._changed:
                self.aborted += 1
                self.live -= 1
                self._changed.notify_all()

        stream = EventStream(on_abort)
        with self._changed:
            self.live += 1
        if self.pause:
            threading.Thread(target=self._play, args=(stream, params, stopped), daemon=True).start()
        else:
            self._play(stream, params, stopped)
        return stream

    def _play(self, stream: EventStream, params: SamplingParams, stopped: threading.Event) -> None:
        for step in self.script(params):
            if stopped.is_set():
                return
            stream.publish(step)
            if self.pause:
                time.sleep(self.pause)
        if stream._ended:
            with self._changed:
                self.live -= 1
                self._changed.notify_all()

    def wait_until_idle(self, seconds: float = PATIENCE) -> bool:
        """Whether all streams end or are aborted in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.live == 0, seconds)

    def status(self) -> EngineStatus:
        return EngineStatus(
            self.alive, self.stalled, waiting=0, running=self.live, free_slots=self.info.slots
        )

    def close(self) -> None:
        self.alive = False
