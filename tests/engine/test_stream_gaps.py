"""No stream waits for more than one work item between two tokens, whatever arrives beside it; by counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from torch import Tensor

from kaminari.engine.conversation import Conversation
from kaminari.engine.events import Delta
from kaminari.engine.params import SamplingParams
from kaminari.model.batch import StepBatch
from kaminari.model.cache import SlotCache
from kaminari.model.family import VisionRows
from kaminari.model.picture import Picture
from tests.engine.harness import Running, Sabotaged, hand_loop, picture

CHUNK = 16
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


class Counting(Sabotaged):
    """Counts work items, and refuses a chunk that is larger than it may be."""

    items = 0

    def encode_picture(self, picture: Picture) -> VisionRows:
        self.items += 1
        return super().encode_picture(picture)

    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        if batch.host.q_lens != (1,) * len(batch.host.slots):
            assert len(batch.host.slots) == 1
            assert batch.host.q_lens[0] <= CHUNK
            self.items += 1
        return super().forward(batch, cache)


def tokens(running: Running) -> int:
    return sum(len(event.token_ids) for event in running.drain() if isinstance(event, Delta))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("seed", range(3))
def test_every_tick_brings_each_stream_a_token_and_runs_at_most_one_item(
    seed: int, tiny_checkpoint: Path
) -> None:
    rng = random.Random(seed)
    loop = hand_loop(tiny_checkpoint, slots=6, context=512, chunk=CHUNK, wrap=Counting)
    model = loop.loaded.model
    assert isinstance(model, Counting)
    streams = [loop.submit(Conversation.ask("Go on."), ENDLESS) for _ in range(2)]
    while not all(running.events for running in streams):
        loop.step()
        for running in streams:
            running.drain()
    loop.step()
    for running in streams:
        running.drain()
    model.items = 0
    most = 0
    for tick in range(150):
        if tick % 10 == 0:
            shown = [
                picture(rng.randint(40, 256), rng.randint(40, 256), tick) for _ in range(rng.randint(0, 3))
            ]
            asked = Conversation.ask("word " * rng.randint(1, 60), *shown)
            loop.submit(asked, SamplingParams(temperature=0.0, max_tokens=rng.randint(1, 20)))
        before = model.items
        loop.step()
        items = model.items - before
        assert items <= 1
        assert [tokens(running) for running in streams] == [1, 1]
        most += items
    assert most > 75, "the streams had hardly any company"
