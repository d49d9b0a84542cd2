"""The engine thread's stopwatch: parts add up to no more than the time, and steps and rows are counted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kaminari.engine.conversation import Conversation
from kaminari.engine.params import SamplingParams
from kaminari.engine.step_clock import PARTS, StepClock
from tests.engine.harness import hand_loop


def test_what_passed_since_the_last_lap_belongs_to_the_part() -> None:
    clock = StepClock()
    time.sleep(0.02)
    clock.start()
    clock.lap("plan")
    assert clock.counts().seconds["plan"] < 0.02, "what came before the start was counted"
    time.sleep(0.02)
    clock.lap("write")
    before = clock.counts()
    assert before.seconds["write"] >= 0.02
    clock.lap("write")
    assert clock.counts().seconds["write"] > before.seconds["write"], "counts are a copy"
    with pytest.raises(KeyError):
        clock.lap("lunch")


@pytest.mark.usefixtures("depth")
def test_a_loop_counts_its_steps_rows_and_seconds(tiny_checkpoint: Path) -> None:
    loop = hand_loop(tiny_checkpoint, slots=2)
    began = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    for words in ("One.", "Two."):
        loop.submit(Conversation.ask(words), params)
    loop.run()
    counts = loop.loop.clock.counts()
    assert counts.rows == 2 * 8, "the first token of each comes with its prompt"
    assert 8 <= counts.steps <= 10
    assert set(counts.seconds) == set(PARTS)
    assert all(spent > 0 for spent in counts.seconds.values())
    assert sum(counts.seconds.values()) < time.perf_counter() - began
