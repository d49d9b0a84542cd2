"""No stream waits for more than one work item between two tokens, whatever arrives beside it; by counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from kaminari.engine.answer_format import RegexFormat
from kaminari.engine.conversation import Conversation
from kaminari.engine.drawn import Undrawn
from kaminari.engine.events import Delta
from kaminari.engine.params import SamplingParams
from kaminari.engine.runner import Runner
from kaminari.engine.scheduler import EncodePicture, PrefillChunk
from tests.engine.harness import Running, hand_loop, picture

CHUNK = 16
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


class Items:
    """Counts the work items of a runner, and refuses a chunk that is larger than it may be."""

    def __init__(self, runner: Runner) -> None:
        self.count = 0
        self._prefill, self._encode = runner.prefill, runner.encode_picture
        runner.prefill, runner.encode_picture = self.prefill, self.encode_picture  # type: ignore[method-assign]

    def prefill(self, item: PrefillChunk) -> Undrawn | None:
        assert item.stop - item.start <= CHUNK
        self.count += 1
        return self._prefill(item)

    def encode_picture(self, item: EncodePicture) -> None:
        self.count += 1
        self._encode(item)


def tokens(running: Running) -> int:
    return sum(len(event.token_ids) for event in running.drain() if isinstance(event, Delta))


def ask(text: str, *pictures: Image.Image, pattern: str | None = None) -> Conversation:
    form = None if pattern is None else RegexFormat(pattern)
    return Conversation(Conversation.ask(text, *pictures).messages, answer_format=form)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("variant", "seed"), [("tied-grouped", 0), ("tied-grouped", 1), ("qwen3_5", 2), ("minicpm_v", 3)]
)
def test_every_tick_brings_each_stream_a_token_and_runs_at_most_one_item(
    variant: str, seed: int, checkpoint: Callable[[str], Path]
) -> None:
    """Long prompts, large pictures, choices and grammars come and go beside three streams of which one has
    a grammar and one is drawn."""
    rng = random.Random(seed)
    loop = hand_loop(checkpoint(variant), slots=7, context=512, chunk=CHUNK)
    items = Items(loop.loop.runner)
    streams = [
        loop.submit(ask("Go on."), ENDLESS),
        loop.submit(ask("Go on."), replace(ENDLESS, temperature=1.0, seed=seed)),
        loop.submit(ask("Go on.", pattern="[a-f]{400}"), ENDLESS),
    ]
    while not all(running.events for running in streams):
        loop.step()
        for running in streams:
            running.drain()
    loop.step()
    for running in streams:
        running.drain()
    before = items.count
    company: list[Running] = []
    for tick in range(150):
        if tick % 10 == 0:
            shown = [
                picture(rng.randint(40, 256), rng.randint(40, 256), tick) for _ in range(rng.randint(0, 3))
            ]
            pattern = rng.choice([None, None, "[0-9]{9}"])
            asked = ask("word " * rng.randint(1, 60), *shown, pattern=pattern)
            params = SamplingParams(
                temperature=0.0, max_tokens=rng.randint(1, 20), n=rng.randint(1, 2), stop=("9",)
            )
            company.append(loop.submit(asked, params))
            if rng.random() < 0.3:
                rng.choice(company).stream.abort()
        so_far = items.count
        loop.step()
        assert items.count <= so_far + 1
        assert [tokens(running) for running in streams] == [1, 1, 1]
    assert items.count > before + 75, "the streams had hardly any company"
